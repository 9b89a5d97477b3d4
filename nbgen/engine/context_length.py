"""Errors for more than a model's context holds, with the words and code by which clients know to shorten it.

OpenAI's clients look for "maximum context length is N tokens", LangChain for "prompt is too long", SGLang's clients for
"longer than" and "exceeds". Knows no requests.
"""

from nbgen.errors import InvalidRequest

#: OpenAI's code for such errors.
CODE = "context_length_exceeded"
LONGER = "which is longer than the model's context length"


class PromptTooLong(InvalidRequest):
    """The prompt has more tokens, or more media, than this model's context can hold."""


def too_many_tokens(length: int, context: int, field: str, what: str = "prompt") -> PromptTooLong:
    """The error for a prompt that leaves no room for a new token."""
    return PromptTooLong(
        f"{_holds(context)}; the {what} has {length} tokens, {LONGER}: the {what} is too long", field=field, code=CODE
    )


def too_many_for_cache(length: int, capacity: int, field: str) -> PromptTooLong:
    """The same if the KV cache is smaller than the context."""
    return PromptTooLong(
        f"{_holds(capacity)} here, where the KV cache holds no more; the prompt has {length} tokens, which exceeds the "
        "maximum allowed length: the prompt is too long",
        field=field,
        code=CODE,
    )


def too_many_bytes(size: int, limit: int, context: int, field: str | None) -> PromptTooLong:
    """The error for a text so long that it is not tokenized."""
    return PromptTooLong(
        f"{_holds(context)}, of at most {limit} bytes of text; there are {size}, {LONGER}: the prompt is too long",
        field=field,
        code=CODE,
    )


def too_many_asked(length: int, asked: int, context: int) -> InvalidRequest:
    """The error for a `max_new_tokens` that does not fit after the prompt."""
    return InvalidRequest(
        f"{_holds(context)}; the prompt has {length} tokens: max_new_tokens is too large, for {asked} more are "
        f"{length + asked}, which exceeds the model's maximum context length",
        field="max_new_tokens",
        code=CODE,
    )


def _holds(context: int) -> str:
    return f"This model's maximum context length is {context} tokens"
