"""What a model computes before and after its layers, for families whose code is known (`known_code`)."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from nbgen.engine.common_parts import NormParts, part
from nbgen.engine.known_code import like
from nbgen.engine.llama_like import LIKE
from nbgen.engine.native_half_linear import HalfEmbedding, scale_of
from nbgen.engine.per_layer_parts import PerLayerParts
from nbgen.engine.prompt_embeds import IDS_ALONE
from nbgen.engine.scheduler import ScheduledSequence

DECODERS = (
    *LIKE["decoder"],
    "gemma.GemmaModel",
    "gemma2.Gemma2Model",
    "gemma3.Gemma3TextModel",
    "granite.GraniteModel",
    "olmo3.Olmo3Model",
    "mixtral.MixtralModel",
    "qwen3_moe.Qwen3MoeModel",
    "olmoe.OlmoeModel",
    "gpt_oss.GptOssModel",
    "granitemoe.GraniteMoeModel",
    "qwen2_moe.Qwen2MoeModel",
    "granitemoehybrid.GraniteMoeHybridModel",
    "bamba.BambaModel",
    "lfm2.Lfm2Model",
    "lfm2_moe.Lfm2MoeModel",
    "qwen2_vl.Qwen2VLTextModel",
    "qwen2_5_vl.Qwen2_5_VLTextModel",
    "qwen3_vl.Qwen3VLTextModel",
    "qwen3_vl_moe.Qwen3VLMoeTextModel",
    "qwen3_5.Qwen3_5TextModel",
    "qwen3_5_moe.Qwen3_5MoeTextModel",
    "gpt2.GPT2Model",
    "gpt_neox.GPTNeoXModel",
    "phi.PhiModel",
    "stablelm.StableLmModel",
    "starcoder2.Starcoder2Model",
    "nemotron.NemotronModel",
    "exaone4.Exaone4Model",
    "opt.OPTDecoder",
    "gemma3n.Gemma3nTextModel",
    "gemma4.Gemma4TextModel",
    "vaultgemma.VaultGemmaModel",
    "hyperclovax.HyperCLOVAXModel",
    "granite_swa.GraniteSWAModel",
    "granitemoe_swa.GraniteMoeSWAModel",
    "nemotron_h.NemotronHModel",
    "falcon_h1.FalconH1Model",
    "phimoe.PhimoeModel",
    "hy_v3.HYV3Model",
    "biogpt.BioGptModel",
    "cohere.CohereModel",
    "gptj.GPTJModel",
    "gpt_bigcode.GPTBigCodeModel",
    "persimmon.PersimmonModel",
    "cwm.CwmModel",
    "mellum.MellumModel",
    "ministral.MinistralModel",
    "codegen.CodeGenModel",
    "cohere2.Cohere2Model",
    "glm4_moe.Glm4MoeModel",
    "ernie4_5_moe.Ernie4_5_MoeModel",
    "flex_olmo.FlexOlmoModel",
    "dots1.Dots1Model",
    "exaone_moe.ExaoneMoeModel",
    "minimax_m2.MiniMaxM2Model",
    "qwen3_next.Qwen3NextModel",
    "nanochat.NanoChatModel",
)
#: Decoders that apply their last norm to the embeddings, too.
NORMED = ("nanochat.NanoChatModel",)
#: Decoders with learned position embeddings: the attribute, and the row of position 0.
PLACES = {
    "gpt2.GPT2Model": ("wpe", 0),
    "gpt_bigcode.GPTBigCodeModel": ("wpe", 0),
    "opt.OPTDecoder": ("embed_positions", 2),
    "biogpt.BioGptModel": ("embed_positions", 2),
}
#: What a model does with its logits: nothing, it divides or multiplies them, or it soft-caps them.
PLAIN, DIVIDED, MULTIPLIED, BENT = range(4)
MODELS = {
    **dict.fromkeys(LIKE["model"], PLAIN),
    "mixtral.MixtralForCausalLM": PLAIN,
    "qwen3_moe.Qwen3MoeForCausalLM": PLAIN,
    "olmoe.OlmoeForCausalLM": PLAIN,
    "qwen2_moe.Qwen2MoeForCausalLM": PLAIN,
    "gpt_oss.GptOssForCausalLM": PLAIN,
    "granite.GraniteForCausalLM": DIVIDED,
    "granitemoe.GraniteMoeForCausalLM": DIVIDED,
    "granitemoehybrid.GraniteMoeHybridForCausalLM": DIVIDED,
    "bamba.BambaForCausalLM": PLAIN,
    "lfm2.Lfm2ForCausalLM": PLAIN,
    "lfm2_moe.Lfm2MoeForCausalLM": PLAIN,
    "qwen3_5.Qwen3_5ForCausalLM": PLAIN,
    "qwen3_5_moe.Qwen3_5MoeForCausalLM": PLAIN,
    "gemma2.Gemma2ForCausalLM": BENT,
    "gemma3.Gemma3ForCausalLM": BENT,
    "gemma3n.Gemma3nForCausalLM": BENT,
    "gemma3n.Gemma3nForConditionalGeneration": BENT,
    "gemma4.Gemma4ForCausalLM": BENT,
    "gemma4.Gemma4ForConditionalGeneration": BENT,
    "gpt2.GPT2LMHeadModel": PLAIN,
    "gpt_neox.GPTNeoXForCausalLM": PLAIN,
    "phi.PhiForCausalLM": PLAIN,
    "stablelm.StableLmForCausalLM": PLAIN,
    "starcoder2.Starcoder2ForCausalLM": PLAIN,
    "nemotron.NemotronForCausalLM": PLAIN,
    "exaone4.Exaone4ForCausalLM": PLAIN,
    "opt.OPTForCausalLM": PLAIN,
    "vaultgemma.VaultGemmaForCausalLM": BENT,
    "hyperclovax.HyperCLOVAXForCausalLM": MULTIPLIED,
    "granitemoe_swa.GraniteMoeSWAForCausalLM": DIVIDED,
    "nemotron_h.NemotronHForCausalLM": PLAIN,
    "falcon_h1.FalconH1ForCausalLM": MULTIPLIED,
    "phimoe.PhimoeForCausalLM": PLAIN,
    "hy_v3.HYV3ForCausalLM": PLAIN,
    "biogpt.BioGptForCausalLM": PLAIN,
    "cohere.CohereForCausalLM": MULTIPLIED,
    "gptj.GPTJForCausalLM": PLAIN,
    "gpt_bigcode.GPTBigCodeForCausalLM": PLAIN,
    "persimmon.PersimmonForCausalLM": PLAIN,
    "codegen.CodeGenForCausalLM": PLAIN,
    "apertus1p5.Apertus1p5TextForCausalLM": PLAIN,
    "glm4_moe.Glm4MoeForCausalLM": PLAIN,
}
#: Decoders whose models embed the placeholder tokens of media as padding.
PADDED = ("gemma4.Gemma4TextModel",)
NORMS = ("norm", "embedding_norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "layer_norm")


class MediaTokens(NamedTuple):
    """The placeholder tokens `ids` of media, which are embedded as `padding` where no medium takes their place.

    Tokens from `apart` on have their embeddings in the media's table (Gemma 3n).
    """

    ids: torch.Tensor
    padding: int
    apart: int

    @classmethod
    def of(cls, model: Any) -> "MediaTokens":
        """Without `ids` where the model embeds these tokens as themselves."""
        kinds = ("image", "video", "audio") if like(model.get_decoder(), PADDED) else ()
        found = [getattr(model.config, f"{kind}_token_id", None) for kind in kinds]
        ids = torch.tensor([token for token in found if token is not None], dtype=torch.long, device=model.device)
        apart = getattr(part(part(model, "model"), "embed_vision"), "vocab_offset", sys.maxsize)
        return cls(ids, model.config.get_text_config().pad_token_id or 0, apart)

    def embeds(self, items: Sequence[ScheduledSequence]) -> bool:
        """Whether any token that is computed next has its embedding in the media's table."""
        if self.apart == sys.maxsize:
            return False
        return any(token >= self.apart for item in items for token in _next(item))

    def padded(self, tokens: torch.Tensor) -> torch.Tensor:
        """`tokens` with padding in place of the media's."""
        return tokens.masked_fill(torch.isin(tokens, self.ids), self.padding) if len(self.ids) else tokens


class ModelParts(NamedTuple):
    """Embeddings that are looked up are multiplied by `embedding`, and all, given ones too, by `hidden`.

    They may have a norm (`embedded`). Position embeddings `places` `[positions, hidden]`, if there are any, are added
    to them. Logits are divided by `divisor` and soft-capped at `cap`, if that is not 0.
    """

    norm: NormParts | None
    embedded: NormParts | None
    embedding: float
    hidden: float
    divisor: float
    cap: float
    places: torch.Tensor | None
    per_layer: PerLayerParts | None
    media: MediaTokens

    @classmethod
    def of(cls, model: Any) -> "ModelParts":
        """Raises ValueError for a model that computes anything else before or after its layers."""
        decoder, config = model.get_decoder(), model.config.get_text_config()
        ends, around = _ends(model), like(decoder, DECODERS)
        if ends is None or around is None:
            raise ValueError(f"what {type(model).__name__} does around its layers is not known")
        if getattr(decoder, "project_in", None) is not None:
            raise ValueError("its embeddings are not as wide as its layers")
        embeddings = decoder.get_input_embeddings()
        scale, dtype = scale_of(embeddings, model.dtype), embeddings.weight.dtype
        if scale is None or (dtype != model.dtype and type(embeddings) is not HalfEmbedding):
            raise ValueError("its embeddings are not known, or of another type than the layers")
        if len(embeddings.weight) < max(config.vocab_size, model.get_output_embeddings().out_features):
            raise ValueError("some ids have no embedding")
        hidden = getattr(decoder, "embedding_multiplier", 1.0)
        if around in IDS_ALONE:
            scale, hidden = scale * hidden, 1.0
        divisor = config.logits_scaling if ends == DIVIDED else 1.0
        if ends == MULTIPLIED:
            factor = part(model, "logit_scale") or part(decoder, "lm_head_multiplier")
            divisor = 1 / (factor or config.logits_scaling)
        norm = NormParts.of(part(decoder, *NORMS))
        return cls(
            norm=norm,
            embedded=norm if around in NORMED else None,
            embedding=scale,
            hidden=hidden,
            divisor=divisor,
            cap=(config.final_logit_softcapping if ends == BENT else None) or 0.0,
            places=_places(decoder, around),
            per_layer=PerLayerParts.of(decoder),
            media=MediaTokens.of(model),
        )


def _next(item: ScheduledSequence) -> list[int]:
    sequence = item.sequence
    return sequence.token_ids[sequence.num_computed : sequence.num_computed + item.num_tokens]


def _places(decoder: Any, kind: str) -> torch.Tensor | None:
    if kind not in PLACES:
        return None
    name, first = PLACES[kind]
    weight = getattr(decoder, name).weight
    if weight.dtype != decoder.dtype:
        raise ValueError("what its positions add is of another type than the layers")
    return weight[first:]


def _ends(model: Any) -> int | None:
    """What the model does with its logits, None if unknown. Most multimodal models have other code, and do nothing."""
    kind = like(model, MODELS)
    if kind is None and model.config.get_text_config() is not model.config:
        return PLAIN
    return None if kind is None else MODELS[kind]
