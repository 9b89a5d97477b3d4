"""What is more than a model's context holds, refused by the words and the code after which clients shorten it.

OpenAI's clients look for "maximum context length is N tokens", LangChain for "prompt is too long", SGLang's clients for
"longer than" and "exceeds". Knows no requests.
"""

from nbgen.errors import InvalidRequest

#: OpenAI's name for it.
CODE = "context_length_exceeded"
LONGER = "which is longer than the model's context length"


class PromptTooLong(InvalidRequest):
    """No context of this model's holds so much, or so many media."""


def too_many_tokens(length: int, context: int, field: str, what: str = "prompt") -> PromptTooLong:
    """The refusal of a prompt that leaves no room for a token."""
    return PromptTooLong(
        f"{_holds(context)}; the {what} has {length} tokens, {LONGER}: the {what} is too long", field=field, code=CODE
    )


def too_many_for_cache(length: int, capacity: int, field: str) -> PromptTooLong:
    """The same where the KV cache is smaller than a context."""
    return PromptTooLong(
        f"{_holds(capacity)} here, where the KV cache holds no more; the prompt has {length} tokens, which exceeds the "
        "maximum allowed length: the prompt is too long",
        field=field,
        code=CODE,
    )


def too_many_bytes(size: int, limit: int, context: int, field: str | None) -> PromptTooLong:
    """The refusal of a text that is not worth tokenizing."""
    return PromptTooLong(
        f"{_holds(context)}, of at most {limit} bytes of text; there are {size}, {LONGER}: the prompt is too long",
        field=field,
        code=CODE,
    )


def too_many_asked(length: int, asked: int, context: int) -> InvalidRequest:
    """The refusal of a limit that can never be reached."""
    return InvalidRequest(
        f"{_holds(context)}; the prompt has {length} tokens: max_new_tokens is too large, for {asked} more are "
        f"{length + asked}, which exceeds the model's maximum context length",
        field="max_new_tokens",
        code=CODE,
    )


def _holds(context: int) -> str:
    return f"This model's maximum context length is {context} tokens"
