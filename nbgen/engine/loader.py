"""From a name and a configuration to a model ready to run, with progress. The only place that loads weights."""

import logging
import sys
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)
from transformers.generation.configuration_utils import GenerationConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from nbgen.engine import (
    checkpoint,
    container,
    dequantized,
    device,
    embedding_checkpoint,
    half_weights,
    model_size,
    packed_files,
    processor_folder,
    quantization,
    quantized_checkpoint,
    torchao_weights,
)
from nbgen.engine.expert_files import ExpertFiles
from nbgen.engine.load_errors import foreign_errors
from nbgen.engine.load_progress import weights_progress
from nbgen.engine.native_half_linear import HALVES
from nbgen.engine.packed_layers import Packing
from nbgen.engine.processor_folder import MediaReader
from nbgen.engine.tokenizer import Tokenizer
from nbgen.engine_config import EngineConfig
from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest, ModelError
from nbgen.model_files import read_json, two_parts, unknown
from nbgen.safetensors_file import Entry
from nbgen.sampling_params import MODEL_DEFAULTS, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DEFAULT_CONTEXT = 4096
#: What configurations call the greatest number of tokens that a text may have.
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
#: … and what older ones call it where positions are stretched: there `POSITIONS` tell the length before stretching.
STRETCHED = "max_sequence_length"
#: The most tensors that an error names.
MOST_NAMED = 4
#: Values of the option `dtype`, and what transformers takes for them.
DTYPES: dict[str, torch.dtype | str] = {
    "auto": "auto",
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}

log = logging.getLogger(__name__)


class Source(NamedTuple):
    """A checkpoint: its folder, the tensors in its files, and the packing of quantized layers, if we unpack them."""

    folder: Path
    held: dict[str, Entry]
    packing: Packing | None


@dataclass
class LoadedModel:
    """A model in evaluation mode on its device, with its tokenizer and what its files say about it."""

    model: "PreTrainedModel"
    tokenizer: Tokenizer
    context_length: int
    sampling_defaults: dict[str, float]
    parameters: int
    weight_bytes: int
    media_reader: MediaReader = field(default_factory=MediaReader)
    #: The format of a checkpoint that came quantized, and what of it is kept in memory.
    quantization: str | None = None

    def info(self, name: str, device: torch.device, **more: Any) -> ModelInfo:
        """What clients are told of it under this name; `more` are the fields that only its runner knows."""
        architecture = self.model.config
        return ModelInfo(
            name=name,
            model_type=architecture.model_type,
            architectures=architecture.architectures or [type(self.model).__name__],
            vocab_size=architecture.get_text_config().vocab_size,
            context_length=self.context_length,
            device=str(device),
            dtype=str(self.model.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            sampling_defaults=self.sampling_defaults,
            parameters=self.parameters,
            weight_bytes=self.weight_bytes,
            tokenizer=self.tokenizer.about,
            **more,
        )


def load(config: EngineConfig, report: checkpoint.Report) -> LoadedModel:
    """Load the model that `config` names. Raises ModelError with a message for the owner."""
    source = _found(config, report)
    folder = source.folder
    architecture = _architecture(folder, config.model)
    generation = read_json(folder / "generation_config.json", config.model)
    context = context_length(architecture, config)
    with foreign_errors(config.model, "generation_config.json"):
        GenerationConfig.from_dict(generation)
    told = embedding_checkpoint.verdicts(folder, config.model)
    tokenizer = Tokenizer(_tokenizer(folder, config.model), eos_ids(architecture, generation), context, told)
    # Before the weights: it may need another process.
    media_reader = processor_folder.reader(folder, architecture, tokenizer.ends)
    model, parameters = _model(source, config, architecture, _class_of(architecture.model_type), report)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        context_length=context,
        sampling_defaults=sampling_defaults(generation, config),
        parameters=parameters,
        weight_bytes=quantization.held_bytes(model),
        media_reader=media_reader,
        quantization=quantized_checkpoint.kept_as(folder, config.model, source.packing, quantization.kept_bits(model)),
    )


def load_embedding(config: EngineConfig, report: checkpoint.Report) -> LoadedModel:
    """The same for an embedding or classification model, which has no head that scores tokens. Raises ModelError."""
    if config.quantization is not None:
        raise ModelError(f"{config.model} makes vectors, and quantization is for language models: leave it out")
    source = _found(config, report)
    folder = source.folder
    tokenizer = _tokenizer(folder, config.model)
    auto = AutoModelForSequenceClassification if embedding_checkpoint.classifies(folder) else AutoModel
    model, parameters = _model(source, config, _configuration(folder, config.model), auto, report)
    said = embedding_checkpoint.reading(folder, config.model).longest
    most = min(context_length(model.config, config), _positions(model))
    context = min(most, tokenizer.model_max_length, said or sys.maxsize)
    return LoadedModel(
        model=model,
        tokenizer=Tokenizer(tokenizer, set(), context),
        context_length=context,
        sampling_defaults={},
        parameters=parameters,
        weight_bytes=quantization.held_bytes(model),
        quantization=quantized_checkpoint.kept_as(folder, config.model, source.packing, quantization.kept_bits(model)),
    )


def _found(config: EngineConfig, report: checkpoint.Report) -> Source:
    """Set the number of threads, and find the checkpoint. Raises ModelError for a format that is not read here."""
    report("finding the model", 0, 0)
    torch.set_num_threads(container.threads(config.threads, torch.get_num_threads()))
    folder = checkpoint.find(config.model, report)
    held, on_cpu = checkpoint.tensors(folder), device.named(config.device).type == "cpu"
    packing = quantized_checkpoint.check(folder, held, config.model, config.quantization, on_cpu=on_cpu)
    return Source(folder, held, packing)


def _positions(model: "PreTrainedModel") -> int:
    """Tokens that the table of position embeddings has room for: RoBERTa's positions start after the padding's."""
    named = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    tables = [module for module in named if isinstance(module, torch.nn.Embedding)]
    return min(
        (t.num_embeddings - (-1 if t.padding_idx is None else t.padding_idx) - 1 for t in tables), default=sys.maxsize
    )


def _architecture(folder: Path, name: str) -> Any:
    model_type: Any = read_json(folder / "config.json", name).get("model_type")
    if model_type not in {**MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, **MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES}:
        if model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
            raise two_parts(name, model_type)
        raise unknown(name, model_type)
    architecture = _configuration(folder, name)
    if getattr(architecture, "is_encoder_decoder", False):
        raise two_parts(name, model_type)
    return architecture


def _configuration(folder: Path, name: str) -> Any:
    with foreign_errors(name, "configuration", folder):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _class_of(model_type: str) -> Any:
    """The auto class whose models include media towers, where there is one."""
    return AutoModelForMultimodalLM if model_type in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES else AutoModelForCausalLM


def _tokenizer(folder: Path, name: str) -> Any:
    with foreign_errors(name, "tokenizer"):
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def eos_ids(architecture: Any, generation: dict[str, Any]) -> set[int]:
    """Every id that ends an answer by the model's configurations; either may hold one id, several or none."""
    text = architecture.get_text_config()
    found = (generation.get("eos_token_id"), text.eos_token_id)
    told = [i for ids in found for i in (ids if isinstance(ids, list) else [ids]) if i is not None]
    known = {i for i in told if type(i) is int and 0 <= i < text.vocab_size}
    if odd := [i for i in told if type(i) is not int or i not in known]:
        most = text.vocab_size - 1
        log.warning("eos_token_id holds %s, and must hold whole numbers from 0 to %d: that is left out", odd, most)
    return known


def _model(
    source: Source, config: EngineConfig, architecture: Any, auto: Any, report: checkpoint.Report
) -> tuple["PreTrainedModel", int]:
    """The model that `auto` makes, on its device, and the number of its parameters."""
    (folder, held, packing), on = source, device.named(config.device)
    dtype = _dtype(config, on, architecture.get_text_config().dtype)
    model_size.check_memory(config, architecture, held, dtype, on)
    with foreign_errors(config.model, "configuration", folder):
        model_size.check(architecture, auto, folder, held, config.model)
    bytes_loaded = weights_progress(held, checkpoint.weight_bytes(folder), report)
    with foreign_errors(config.model, "weights"), bytes_loaded:
        written_out = packing is None and dequantized.ask(architecture, on)
        experts = ExpertFiles(written_out=written_out)
        with experts.left_alone() if on.type == "cpu" else nullcontext():
            if packing is not None:
                again = config.quantization is not None
                model, loading = packed_files.load(
                    folder, packing, auto, experts, architecture, dtype, written_out=again
                )
            else:
                model, loading = auto.from_pretrained(
                    folder,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # which are refused by name below
                    config=architecture,
                    dtype=dtype,
                    local_files_only=True,
                    trust_remote_code=False,
                    use_safetensors=True,
                )
        _check_shapes(loading["mismatched_keys"], config.model)
        _check_complete(model, loading["missing_keys"], config.model)
        if written_out:
            dequantized.even(model)
        parameters = sum(p.numel() for p in model.parameters())
        if on.type == "cpu":
            _settle_on_cpu(model, experts, config, report)
        return model.to(on).eval(), parameters


def _settle_on_cpu(
    model: "PreTrainedModel", experts: ExpertFiles, config: EngineConfig, report: checkpoint.Report
) -> None:
    """Put in our own layers: for weights that loading left out, and for a dtype that the processor only emulates."""
    emulated = config.dtype == "auto" and not _computes_in(model.dtype, torch.device("cpu"))
    computed = torch.float32 if emulated else model.dtype
    packed_files.replace(model, experts, computed, report)
    experts.settle(model, report, in_float32=emulated and model.dtype in HALVES)
    torchao_weights.replace(model, computed, config.model)
    if emulated:
        half_weights.widen(model)


def _check_shapes(mismatched: Collection[tuple[str, torch.Size, torch.Size]], name: str) -> None:
    """Raises ModelError for parameters whose shape in the files is not that of config.json."""
    if mismatched:
        key, found, meant = min(mismatched)
        more = f", and {len(mismatched) - 1} more do not fit" if len(mismatched) > 1 else ""
        raise ModelError(
            f"the weights of {name} do not fit its config.json: {key} is {list(found)} in the files, and by the "
            f"configuration {list(meant)}{more}"
        )


def _check_complete(model: "PreTrainedModel", missing: Collection[str], name: str) -> None:
    """Raises ModelError for parameters that no file has, which transformers makes up; a pooler's are never used."""
    parameters = {each for each, _ in model.named_parameters()}
    absent = sorted(each for each in missing if each in parameters and not each.startswith("pooler."))
    if absent:
        more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
        raise ModelError(f"the weights of {name} lack {', '.join(absent[:MOST_NAMED])}{more}: download them again")


def _dtype(config: EngineConfig, on: torch.device, own: torch.dtype | None) -> torch.dtype | str:
    """The type to load in; `own` is the checkpoint's, where its configuration tells one."""
    if config.dtype not in DTYPES:
        raise ModelError(f"dtype is {config.dtype!r}; it must be one of {', '.join(DTYPES)}")
    if config.dtype == "float16" and on.type == "cpu":
        raise ModelError("dtype float16 is for GPUs; use 'float32' or 'bfloat16' on the CPU")
    if config.dtype == "auto" and on.type == "cuda" and own is not None and not _computes_in(own, on):
        log.warning("%s is loaded in float16: this GPU has no bfloat16", config.model)
        return torch.float16
    return DTYPES[config.dtype]


def _computes_in(dtype: torch.dtype, on: torch.device) -> bool:
    """Whether the device has arithmetic for a checkpoint's type, rather than emulating it."""
    if dtype == torch.bfloat16:
        return device.computes_bfloat16(on)
    return dtype == torch.float32 or on.type == "cuda"


def context_length(architecture: Any, config: EngineConfig) -> int:
    """Longest prompt plus answer, in tokens."""
    text = architecture.get_text_config()
    told = getattr(text, "rope_parameters", None) or {}
    names = (STRETCHED, *POSITIONS) if told.get("rope_type") == "linear" else POSITIONS
    own = next((found for name in names if (found := getattr(text, name, None))), DEFAULT_CONTEXT)
    trained = told.get("original_max_position_embeddings") or 0
    if told.get("rope_type") == "yarn" and own >= trained:  # Qwen's instructions leave max_position_embeddings alone
        own = max(own, int(trained * (told.get("factor") or 1)))
    if own < 1:
        raise ModelError(f"config.json of {config.model} has room for {own} tokens: it must be 1 or more")
    if (wanted := config.context_length or own) > own:
        log.warning("context_length is %d, and the model's own is %d: longer texts are refused", wanted, own)
    return min(own, wanted)


def sampling_defaults(generation: dict[str, Any], config: EngineConfig) -> dict[str, float]:
    """Sampling defaults from five fields of the generation config, without values that a request could not have."""
    if config.sampling_defaults != "model":
        return {}
    defaults: dict[str, float] = {}
    for name in MODEL_DEFAULTS:
        value = generation.get(name)
        if name == "top_k" and isinstance(value, float) and value.is_integer():
            value = int(value)
        if name == "top_k" and value == 0:  # no limit
            value = -1
        try:
            found = getattr(SamplingParams.parse({name: value}), name)
        except InvalidRequest as error:
            log.warning("generation_config.json of %s: %s; it is left out", config.model, error.message)
            continue
        defaults |= {} if found is None else {name: found}
    return defaults
