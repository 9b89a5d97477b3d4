"""The language model as a Triton model: its interface, the parsing of its requests, and its answers as tensors.

Text or token ids in; text, ids, logits and other tensors, and counts out. Follows vLLM's and TensorRT-LLM's back ends
in names and in the rules of echo and streaming. Knows no wire: see `kserve`, `triton_generate`.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_MEDIA
from nbgen.messages import GenerateRequest, Media, Tensor, TensorOptions
from nbgen.protocols import triton_options, triton_sampling
from nbgen.protocols.inference import Inference, OutputTensor
from nbgen.protocols.json_body import check_text_size
from nbgen.protocols.media import decode_base64
from nbgen.protocols.sample import Sample
from nbgen.protocols.tensors import Binary, from_values, values
from nbgen.tensor_spec import VARIABLE, ModelSpec, TensorSpec

#: The input of vLLM's back end for images, each in base64.
IMAGES = "image"


class Times(NamedTuple):
    """Times of a request's arrival and of its first and latest token, in nanoseconds since 1970; 0 for not yet."""

    arrival_time_ns: int = 0
    first_token_time_ns: int = 0
    last_token_time_ns: int = 0


TEXT_NAMES = ("text_input", "prompt", "text", "QUERY")
#: Outputs that need the prompt only: if no others are asked for, no token is generated.
OF_PROMPT = frozenset({"logits", "context_logits", "hidden_states", "num_input_tokens"})
#: Outputs whose first dimension counts samples; all others exist for a single sample only.
OF_SAMPLES = frozenset(
    {"text_output", "finish_reason", "num_input_tokens", "num_output_tokens", "cum_log_probs", "cumulative_logprob"}
)
#: Flags, and the outputs that each adds to the defaults.
FLAGS = {
    "return_context_logits": ("context_logits",),
    "return_generation_logits": ("generation_logits",),
    "return_log_probs": ("output_log_probs", "cum_log_probs"),
    "return_finish_reason": ("finish_reason",),
    "return_cumulative_logprob": ("cumulative_logprob",),
    "return_num_input_tokens": ("num_input_tokens",),
    "return_num_output_tokens": ("num_output_tokens",),
    "return_perf_metrics": Times._fields,
}
MAX_PROMPTS = 256
#: Most bytes of one input: more than any prompt has, and too few to block other requests.
MAX_INPUT_BYTES = 16 * 2**20
MAX_IMAGES_BYTES = 64 * 2**20


def serving_name(model: str) -> str:
    """The name of a folder or hub id in URLs: its last part, without characters that need escapes."""
    last = [part for part in re.split(r"[\\/]", model) if part][-1:]
    return re.sub(r"[^A-Za-z0-9_.-]", "-", last[0] if last else "model") or "model"


def interface(name: str, model: ModelInfo | None) -> ModelSpec:
    """The model's inputs and outputs; sizes that only the loaded model tells are variable until then."""
    vocab = model.vocab_size if model else VARIABLE
    hidden = (model.hidden_size if model else 0) or VARIABLE
    text = tuple(TensorSpec(name=n, datatype="BYTES", dims=(1,), optional=True, several=True) for n in TEXT_NAMES)
    ids = TensorSpec(name="input_ids", datatype="INT64", dims=(VARIABLE,), optional=True, also=("INT32",))
    images = TensorSpec(name=IMAGES, datatype="BYTES", dims=(VARIABLE,), optional=True)
    shown = (images,) if model and "image" in model.media else ()
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...] = (
        ("text_output", "BYTES", (VARIABLE,)),
        ("output_ids", "INT32", (VARIABLE, VARIABLE)),
        ("logits", "FP32", (VARIABLE, vocab)),
        ("context_logits", "FP32", (VARIABLE, vocab)),
        ("generation_logits", "FP32", (VARIABLE, VARIABLE, vocab)),
        ("output_log_probs", "FP32", (VARIABLE, VARIABLE)),
        ("cum_log_probs", "FP32", (VARIABLE,)),
        ("cumulative_logprob", "FP32", (VARIABLE,)),
        ("hidden_states", "FP32", (VARIABLE, hidden)),
        ("finish_reason", "BYTES", (VARIABLE,)),
        ("num_input_tokens", "UINT32", (1,)),
        ("num_output_tokens", "UINT32", (VARIABLE,)),
        *((name, "INT64", (1,)) for name in Times._fields),
    )
    return ModelSpec(
        name=name,
        inputs=(text[0], ids, *shown, *triton_options.specs(shown=True)),
        outputs=tuple(TensorSpec(name=n, datatype=t, dims=d) for n, t, d in outputs),
        decoupled=True,
        undeclared=(*text[1:], *(() if shown else (images,)), *triton_options.specs(shown=False)),
        required=1,
    )


class Call(NamedTuple):
    """A request to the language model: the engine's request, and the outputs of the answer.

    `echo` is the text in front of a whole answer; None if the engine is to return the prompt's text for that.
    """

    request: GenerateRequest
    outputs: tuple[str, ...]
    stream: bool
    echo: str | None


def parse(inference: Inference) -> list[Call]:
    """The calls of an inference with checked tensors, one for each prompt. Raises InvalidRequest."""
    _check_sizes(inference)
    # Read once for all prompts: images may have many megabytes, and so may options.
    tensors = {name: _values(tensor) for name, tensor in inference.inputs.items()}
    texts, ids = _prompts(inference, tensors)
    options = triton_options.gather(inference.parameters, tensors)
    triton_sampling.refuse_unsupported(options)
    stream = _streams(options, inference)
    echoed = _echoes(options, stream)
    outputs = _outputs(inference, options, of_ids=ids is not None)
    params = triton_sampling.sampling_params(options, new_tokens=not OF_PROMPT.issuperset(outputs))
    if params.n > 1:
        _check_several(f"n is {params.n}", stream, outputs)
    if len(texts) > 1:
        _check_several(f"the request has {len(texts)} prompts", stream, outputs)
    request = GenerateRequest(
        rid="",
        input_ids=ids,
        media=_images(tensors.get(IMAGES, [])),
        params=params,
        words=triton_sampling.word_lists(options),
        logit_processor=triton_sampling.logit_processor(options),
        adapter=triton_sampling.adapter(options),
        priority=triton_sampling.priority(inference.parameters.get("priority")),
        tensors=_tensor_options(outputs),
        fit=True,
        echo=echoed and ids is not None,
        streamed=stream,
    )
    return [
        Call(msgspec.structs.replace(request, rid=uuid.uuid4().hex, text=text), outputs, stream, text if echoed else "")
        for text in texts
    ]


def _check_sizes(inference: Inference) -> None:
    """Raise InvalidRequest for inputs of too many bytes, and for too many prompts."""
    for name, given in inference.inputs.items():
        if len(given.data) > (most := MAX_IMAGES_BYTES if name == IMAGES else MAX_INPUT_BYTES):
            raise InvalidRequest(f"{name} has {len(given.data)} bytes; at most {most}")
        if name in TEXT_NAMES and (count := math.prod(given.shape)) > MAX_PROMPTS:
            raise InvalidRequest(f"{name} has {count} prompts; at most {MAX_PROMPTS} in a request")


def _values(tensor: Tensor) -> list[Any]:
    """The elements; text must be UTF-8, as in JSON."""
    try:
        return values(tensor.data, tensor.datatype, errors="strict")
    except UnicodeDecodeError as error:
        words = f"{tensor.name} is not UTF-8 (byte {error.start} of an element)"
        raise InvalidRequest(words, field=tensor.name) from None


def _prompts(inference: Inference, tensors: dict[str, list[Any]]) -> tuple[Sequence[str | None], list[int] | None]:
    """The text of each prompt, or None and the ids of the only one."""
    found = {name: tensors[name] for name in TEXT_NAMES if tensors.get(name)}
    for name in TEXT_NAMES:
        if name not in tensors and isinstance(value := inference.parameters.get(name), str):
            found[name] = [value]
    ids = tensors.get("input_ids")
    came = [*found, *(("input_ids",) if ids is not None else ())]
    if len(came) > 1:
        raise InvalidRequest(f"{' and '.join(came)} exclude each other: give one of them")
    if ids is not None:
        if not ids:
            raise InvalidRequest("input_ids cannot be empty")
        return [None], ids
    if not found:
        raise InvalidRequest("the request has neither text_input nor input_ids: expected inputs, but got none of them")
    (texts,) = found.values()
    for text in texts:
        check_text_size("text_input", len(text.encode("utf-8", "replace")))
    return texts, None


def _images(given: list[str]) -> list[Media]:
    if len(given) > MAX_MEDIA:
        raise InvalidRequest(f"{IMAGES} has {len(given)} elements; at most {MAX_MEDIA} images go with a prompt")
    return [decode_base64(text, "image", IMAGES) for text in given]


def _streams(options: triton_options.Options, inference: Inference) -> bool:
    """Whether the answer is streamed. Raises InvalidRequest where the wire can carry only one response."""
    stream = bool(options.get("stream", False))
    if stream and inference.whole:
        raise InvalidRequest(
            f"a request with {options.written['stream']}=true has several responses, which infer cannot give: use "
            "generate_stream, or gRPC's streaming infer",
            field=options.written["stream"],
        )
    return stream


def _echoes(options: dict[str, Any], stream: bool) -> bool:
    """Whether the answer begins with the prompt: by default if it is whole, never in a stream."""
    excluded = options.get("exclude_input_in_output")
    if stream and excluded is False:
        raise InvalidRequest("exclude_input_in_output must not be false where the answer is streamed")
    return not (stream or excluded)


def _outputs(inference: Inference, options: dict[str, Any], *, of_ids: bool) -> tuple[str, ...]:
    """The named outputs; if none are named, the text, the ids if ids came in, and those that flags ask for."""
    if inference.outputs:
        return tuple(output.name for output in inference.outputs)
    flagged = [name for flag, names in FLAGS.items() if options.get(flag) for name in names]
    if options.get("logprobs", 0) > 0:
        flagged += FLAGS["return_log_probs"]
    return ("text_output", *(("output_ids",) if of_ids else ()), *dict.fromkeys(flagged))


def _check_several(why: str, stream: bool, outputs: Sequence[str]) -> None:
    single = [name for name in outputs if name not in OF_SAMPLES]
    if single or stream:
        raise InvalidRequest(
            f"{why}, and {'a stream' if stream else single[0]} holds one sample: ask for one at a time"
        )


def _tensor_options(outputs: Sequence[str]) -> TensorOptions | None:
    options = TensorOptions(
        logits="logits" in outputs or "context_logits" in outputs,
        hidden_states="hidden_states" in outputs,
        generation_logits="generation_logits" in outputs,
        logprobs=any(name in outputs for name in ("output_log_probs", "cum_log_probs", "cumulative_logprob")),
    )
    return options if options != TensorOptions() else None


# --- answers


class Renderer:
    """Renders one call's samples as tensors: whole samples, or the new part of a stream's."""

    def __init__(self, call: Call, model: ModelInfo) -> None:
        self._call = call
        self._vocab, self._hidden = model.vocab_size, model.hidden_size

    def outputs(self, samples: Sequence[Sample], times: Times) -> list[OutputTensor]:
        """The call's outputs, made from `samples`."""
        return [
            _tensor(name, "INT64", [1], [getattr(times, name)])
            if name in Times._fields
            else self._output(name, samples)
            for name in self._call.outputs
        ]

    def _output(self, name: str, samples: Sequence[Sample]) -> OutputTensor:
        first, count = samples[0], len(samples)
        tokens = len(first.output_ids)
        match name:
            case "text_output":
                return _tensor(name, "BYTES", [count], [self._text(sample) for sample in samples])
            case "output_ids":
                return _tensor(name, "INT32", [1, tokens], first.output_ids)
            case "finish_reason":
                return _tensor(name, "BYTES", [count], [_reason(sample) for sample in samples])
            case "num_input_tokens":
                return _tensor(name, "UINT32", [1], [first.prompt_tokens])
            case "num_output_tokens":
                return _tensor(name, "UINT32", [count], [len(sample.output_ids) for sample in samples])
            case "cum_log_probs" | "cumulative_logprob":
                return _tensor(name, "FP32", [count], [_sum(sample.tensors.get("logprobs", ())) for sample in samples])
            case "output_log_probs":
                return _rows(name, [1, tokens], first, "logprobs")
            case "generation_logits":
                return _rows(name, [1, tokens, self._vocab], first, name)
            case "hidden_states":
                return _rows(name, [-1, self._hidden], first, name)
            case _:
                return _rows(name, [-1, self._vocab], first, "logits")

    def _text(self, sample: Sample) -> str:
        prompt = self._call.echo if self._call.echo is not None else sample.prompt_text
        return (prompt or "") + sample.text


def joined(answers: Sequence[list[OutputTensor]]) -> list[OutputTensor]:
    """The outputs of several prompts, concatenated along the first dimension."""
    if len(answers) == 1:
        return answers[0]
    return [
        same[0]._replace(
            shape=[sum(output.shape[0] for output in same), *same[0].shape[1:]],
            data=Binary(piece for output in same for piece in output.data.pieces),
        )
        for same in zip(*answers, strict=True)
    ]


def _tensor(name: str, datatype: str, shape: list[int], items: list[Any]) -> OutputTensor:
    return OutputTensor(name, datatype, shape, Binary([from_values(items, datatype)]))


def _rows(name: str, shape: list[int], sample: Sample, source: str) -> OutputTensor:
    """Rows as the engine sent them; a first dimension of -1 becomes their number."""
    data = Binary(sample.tensors.get(source, ()))
    if shape[0] == VARIABLE:
        shape = [len(data) // (4 * shape[1]) if shape[1] else 0, shape[1]]
    return OutputTensor(name, "FP32", shape, data)


def _reason(sample: Sample) -> str:
    return sample.finish_reason.type if sample.finish_reason else "None"


def _sum(pieces: Sequence[memoryview]) -> float:
    return float(sum(float(np.frombuffer(piece, np.float32).sum()) for piece in pieces))
