"""A model that makes one vector of a text: transformers' own forward over a padded batch, pooled as its files say.

A classifier's vector has a score for each class; a reranker's has one score, for a query with a document.
Knows neither messages nor wires.
"""

import inspect
from typing import Any

import torch

from nbgen.engine import checkpoint, dense_modules, embedding_checkpoint, loader
from nbgen.engine_config import EngineConfig
from nbgen.errors import ModelError

#: Token ids of a probe, which is then repeated with another last token.
PROBE = (5, 6)
#: Relative change of a state that may come from another order of summing.
NOISE = 0.02
#: transformers' name for classifiers whose texts may belong to several classes.
MANY = "multi_label_classification"


class EmbeddingModel:
    """A loaded embedding model with its tokenizer."""

    def __init__(self, config: EngineConfig, report: checkpoint.Report) -> None:
        """Load what `config` names. Raises ModelError."""
        # First, so that a ModelError comes before the weights are read.
        folder = checkpoint.find(config.model, report)
        self.pooling = said = embedding_checkpoint.pooling(folder, config.model)
        self._dense = dense_modules.read(folder, said.dense, config.model)
        #: Whether texts are lowercased first.
        self.lowers = embedding_checkpoint.reading(folder, config.model).lowers
        loaded = loader.load_embedding(config, report)
        self._model, self.tokenizer = loaded.model, loaded.tokenizer
        self.device = next(self._model.parameters()).device
        names = inspect.signature(self._model.forward).parameters
        self._takes = {"attention_mask", "token_type_ids"} & names.keys()
        self._keeps_cache = {"use_cache": False} if "use_cache" in names else {}
        self._text = self._model.config.get_text_config()
        self._pad = getattr(self._text, "pad_token_id", None)
        labels = _labels(self._model.config) if self.classifies else []
        problem = MANY if said.mode == "chances" else getattr(self._model.config, "problem_type", None) or ""
        if labels:
            self.pooling = said = said._replace(mode="scores")  # clients get probabilities from these
        looks_ahead = self._looks_ahead(config.model)
        self.pooling = said._replace(mode=said.mode or ("mean" if looks_ahead else "last"))
        self._one_by_one = self._minds_padding()
        width = dense_modules.width(self._dense, self._text.hidden_size, config.model)
        self._dense.to(self.device)
        self.model = loaded.info(
            config.model,
            self.device,
            quantization=loaded.quantization,
            tier="embedding",
            has_chat_template=False,
            caches_prefixes=False,
            hidden_size=width,
            is_embedding=True,
            labels=labels,
            problem_type=problem if labels else "",
        )

    @property
    def classifies(self) -> bool:
        """Whether its vectors consist of scores."""
        return self.pooling.mode in ("scores", "chances")

    @torch.inference_mode()
    def encode(self, prompts: list[list[int]], types: list[list[int]] | None = None) -> torch.Tensor:
        """Float32 vectors `[prompts, width]`, on the CPU; `types` says to which of two texts each token belongs."""
        types = types or [[] for _ in prompts]
        if self._one_by_one and len(prompts) > 1:
            return torch.cat([self.encode([ids], [of]) for ids, of in zip(prompts, types, strict=True)])
        vectors = self._dense(self._pool(*self._states(prompts, types)))
        return (torch.nn.functional.normalize(vectors, dim=-1) if self.pooling.normalizes else vectors).cpu()

    def _states(
        self, prompts: list[list[int]], types: list[list[int]]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The last layer's states `[prompts, tokens, width]`, their mask `[prompts, tokens]` and lengths `[prompts]`.

        A classifier returns its scores `[prompts, classes]` in place of states.
        """
        lengths = torch.tensor([len(ids) for ids in prompts])
        width = int(lengths.max())
        mask = (torch.arange(width) < lengths[:, None]).long().to(self.device)
        more = {"attention_mask": mask, **({"token_type_ids": self._padded(types, width, 0)} if any(types) else {})}
        taken = {name: value for name, value in more.items() if name in self._takes}
        pad = self._text.pad_token_id = self._pad_of(prompts)
        made = self._model(input_ids=self._padded(prompts, width, pad), **taken, **self._keeps_cache)
        states = made.logits if self.classifies else made.last_hidden_state
        return states.float(), mask, lengths.to(self.device)

    def _pad_of(self, prompts: list[list[int]]) -> int:
        """The model's own padding token, or one that no prompt ends with: some classifiers find a text's end by it."""
        if self._pad is not None and 0 <= self._pad < self._text.vocab_size:
            return self._pad
        ends = {ids[-1] for ids in prompts}
        return next(token for token in range(len(prompts) + 1) if token not in ends)

    def _padded(self, rows: list[list[int]], width: int, pad: int) -> torch.Tensor:
        return torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self.device)

    @torch.inference_mode()
    def _looks_ahead(self, name: str) -> bool:
        """Whether a token's state depends on the next token. Raises ModelError if the model cannot run on token ids."""
        try:
            states, *_ = self._states([list(PROBE), [*PROBE[:-1], PROBE[-1] + 1]], [])
        except Exception as error:  # a model may raise anything
            raise ModelError(f"{name} makes no vectors of texts: its model does not run on token ids alone") from error
        return _differ(*states[:, 0])

    @torch.inference_mode()
    def _minds_padding(self) -> bool:
        """Whether padding changes a text's vector: a model may mix all positions of a row."""
        short, long = list(PROBE), list(PROBE) * 4
        (alone,), (beside, _) = (self._pool(*self._states(texts, [])) for texts in ([short], [short, long]))
        return _differ(alone, beside)

    def close(self) -> None:
        """Free the weights."""
        del self._model, self._dense

    def _pool(self, states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Pools states `[prompts, tokens, width]` to `[prompts, width]`, without the padding."""
        inside = mask.bool()[..., None]
        match self.pooling.mode:
            case "scores":
                return states
            case "chances":
                return states.sigmoid()
            case "cls":
                return states[:, 0]
            case "last":
                return states[torch.arange(len(states), device=self.device), lengths - 1]
            case "max":
                return states.masked_fill(~inside, float("-inf")).amax(dim=1)
            case _:
                return states.masked_fill(~inside, 0.0).sum(dim=1) / lengths[:, None]


def _differ(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether vectors differ by more than `NOISE` on average: many encoders give one number that is always huge."""
    return bool((one - other).abs().mean() > NOISE * one.abs().mean())


def is_embedding(config: EngineConfig, report: checkpoint.Report) -> bool:
    """Whether the configured model makes vectors. Raises ModelError if there is no such model."""
    return embedding_checkpoint.is_embedding(checkpoint.find(config.model, report))


def _labels(architecture: Any) -> list[str]:
    """The names of the classes; empty unless there are several."""
    labels = [str(label) for _, label in sorted(architecture.id2label.items())]
    return labels if len(labels) > 1 else []
