"""How much a request may ask for beside an answer's text: log-probabilities and tensors.

What would be more than one answer holds is refused, with the numbers, before anything is computed.
"""

import msgspec

from nbgen.engine_state import ModelInfo
from nbgen.errors import InvalidRequest
from nbgen.messages import LogprobOptions, TensorOptions
from nbgen.sampling_params import SamplingParams

#: Log-probabilities besides those of the tokens that stand there: 120 MB of JSON or so, and eight times that in memory.
MAX_LOGPROBS = 2**22
#: Bytes of tensors that one request may ask for.
MAX_TENSOR_BYTES = 2**30
FLOAT32_BYTES = 4
#: Numbers of hidden states that one answer writes out as JSON: 160 MB of it.
MAX_STATE_NUMBERS = 2**23


def with_logprobs(options: LogprobOptions | None, params: SamplingParams, length: int, budget: int) -> SamplingParams:
    """The options of answers for whose log-probabilities there is room: shorter ones, if nobody said how long.

    `length` is the prompt's, `budget` the most tokens of an answer. Raises InvalidRequest for more.
    """
    if options is None or (each := params.n * (options.top + len(options.token_ids))) == 0:
        return params
    rows = 0 if options.start is None else length - options.start
    fitting = MAX_LOGPROBS // each - rows
    if budget <= fitting:
        return params
    if params.token_limit is None and fitting > 0:
        return msgspec.structs.replace(params, max_new_tokens=fitting)
    raise _too_many(params.n, rows, budget, each)


def _too_many(samples: int, rows: int, new: int, each: int) -> InvalidRequest:
    return InvalidRequest(
        f"top_logprobs_num and token_ids_logprob for {rows} tokens of the prompt and up to {new} new ones, {samples} "
        f"times, are {(rows + new) * each} log-probabilities; one request gets at most {MAX_LOGPROBS}: ask for fewer "
        "of them at each token, or for fewer tokens (max_new_tokens, n, logprob_start_len)",
        field="top_logprobs_num",
    )


def check_tensors(options: TensorOptions | None, model: ModelInfo, length: int, budget: int, samples: int) -> None:
    """Raise InvalidRequest for what the model does not show, or for too much of it.

    `length` is the prompt's, `budget` the most tokens of each of the answers.
    """
    if options is None:
        return
    if options.routed_experts is not None:
        _check_routes(options.routed_experts, model, length)
    if options.of_states and not model.hidden_size:
        raise InvalidRequest("this model does not show its hidden states", field="hidden_states")
    states = samples * model.hidden_size * (length + budget)
    if options.generation_hidden_states and states > MAX_STATE_NUMBERS:
        raise InvalidRequest(
            f"the hidden states of {length} prompt tokens and up to {budget} new ones, {samples} times, are {states} "
            f"numbers; one answer holds at most {MAX_STATE_NUMBERS}: ask for fewer tokens, or for fewer samples (n)",
            field="return_hidden_states",
        )
    rows = length * options.logits + budget * options.generation_logits
    width = rows * model.vocab_size + length * options.hidden_states * model.hidden_size
    if (size := samples * width * FLOAT32_BYTES) > MAX_TENSOR_BYTES:
        raise InvalidRequest(
            f"the tensors of {length} prompt tokens and {budget} new ones, {samples} times, may take {size} bytes; "
            f"one request gets at most {MAX_TENSOR_BYTES}"
        )


def _check_routes(start: int, model: ModelInfo, length: int) -> None:
    if not model.routed_experts:
        raise InvalidRequest("this model has no experts to route to", field="return_routed_experts")
    if start > length:
        raise InvalidRequest(
            f"routed_experts_start_len is {start}; the prompt has {length} tokens", field="routed_experts_start_len"
        )
