"""Limits what a request may ask for beside an answer's text: log-probabilities and tensors.

A request for more is refused, with the numbers, before anything is computed. All requests of one call make one answer,
and have equal shares of its limits.
"""

import msgspec

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.messages import LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams

#: Log-probabilities beside those of the text's own tokens: about 120 MB of JSON, and eight times that in memory.
MAX_LOGPROBS = 2**22
#: Bytes of tensors in one answer.
MAX_TENSOR_BYTES = 2**30
FLOAT32_BYTES = 4
#: Numbers of hidden states in one answer, which are written as JSON: 160 MB of it.
MAX_STATE_NUMBERS = 2**23


def with_logprobs(
    options: LogprobOptions | None, params: SamplingParams, length: int, budget: int, batch: int
) -> SamplingParams:
    """The params, with `max_new_tokens` lowered to what the log-probabilities' limit allows if the request sets none.

    `length` is the prompt's, `budget` the most tokens of an answer, `batch` the number of the call's requests. Raises
    InvalidRequest if it sets a larger one, or if not even one token fits.
    """
    if options is None or (each := params.n * (options.top + len(options.token_ids))) == 0:
        return params
    rows = 0 if options.start is None else length - options.start
    fitting = MAX_LOGPROBS // batch // each - rows
    if budget <= fitting:
        return params
    if params.token_limit is None and fitting > 0:
        return msgspec.structs.replace(params, max_new_tokens=fitting)
    asked = {"top_logprobs_num": options.top, "token_ids_logprob": options.token_ids}
    names = [name for name, wanted in asked.items() if wanted]
    prompt, start = (f"{rows} tokens of the prompt and ", ", logprob_start_len") if rows else ("", "")
    raise InvalidRequest(
        f"{' and '.join(names)} for {prompt}up to {budget} new tokens, {params.n} times, are {(rows + budget) * each} "
        f"log-probabilities; {_share(MAX_LOGPROBS, batch)}: ask for fewer of them at each token, or for fewer tokens "
        f"(max_new_tokens, n{start})",
        field=names[0],
    )


def _share(most: int, batch: int) -> str:
    """One request's share of `most`, in words."""
    if batch == 1:
        return f"one request gets at most {most}"
    return f"each of {batch} requests in one call gets at most {most // batch}, more if they are fewer"


def check_tensors(
    options: TensorOptions | None, model: ModelInfo, length: int, budget: int, samples: int, batch: int
) -> None:
    """Raise InvalidRequest for tensors that the model does not provide, or for too many numbers.

    `length` is the prompt's, `budget` the most tokens of each answer, `batch` the number of the call's requests.
    """
    if options is None:
        return
    if options.routed_experts is not None:
        _check_routes(options.routed_experts, model, length)
    if options.of_states and not model.hidden_size:
        raise InvalidRequest("this model does not show its hidden states", field="hidden_states")
    states = samples * model.hidden_size * (length + budget)
    if options.generation_hidden_states and states > MAX_STATE_NUMBERS // batch:
        raise InvalidRequest(
            f"the hidden states of {length} prompt tokens and up to {budget} new ones, {samples} times, are {states} "
            f"numbers; {_share(MAX_STATE_NUMBERS, batch)}: ask for fewer tokens, or for fewer samples (n)",
            field="return_hidden_states",
        )
    rows = length * options.logits + budget * options.generation_logits
    width = rows * model.vocab_size + length * options.hidden_states * model.hidden_size
    if (size := samples * width * FLOAT32_BYTES) > MAX_TENSOR_BYTES // batch:
        raise InvalidRequest(
            f"the tensors of {length} prompt tokens and {budget} new ones, {samples} times, may take {size} bytes; "
            f"{_share(MAX_TENSOR_BYTES, batch)}: ask for fewer tokens, or for fewer samples (n)"
        )


def _check_routes(start: int, model: ModelInfo, length: int) -> None:
    if not model.routed_experts:
        raise InvalidRequest("this model has no experts to route to", field="return_routed_experts")
    if start > length:
        raise InvalidRequest(
            f"routed_experts_start_len is {start}; the prompt has {length} tokens", field="routed_experts_start_len"
        )
