"""Whatever OpenAI's client can send is served, refused by name, or a hint that changes no answer."""

from typing import Any

import pytest
from openai import types
from openai.types import completion_create_params as completion
from openai.types.chat import completion_create_params as chat
from openai.types.responses import FunctionToolParam, NamespaceToolParam
from openai.types.responses import response_create_params as responses
from openai.types.responses.input_token_count_params import InputTokenCountParams

from nbgen.protocols import openai
from nbgen.protocols import responses_body as ours
from nbgen.protocols import responses_tools as tools

#: Labels for the caller's own books, and advice to OpenAI's caches and queues. Prefixes are cached here whatever they
#: say, all requests are of the tier "default", and tokens are guessed without a text that they may repeat.
HINTS = {
    "prediction",
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "service_tier",
}
OPENAI = {*openai.SAMPLING, *openai.UNSUPPORTED, *HINTS}
RESPONSES = {*ours.Body.__struct_fields__, *ours.UNSUPPORTED, *OPENAI, "stream_options"}


@pytest.mark.parametrize(
    ("sent", "known"),
    [
        (chat.CompletionCreateParamsBase, {*openai.ChatBody.__struct_fields__, *OPENAI}),
        (completion.CompletionCreateParamsBase, {*openai.CompletionBody.__struct_fields__, *OPENAI}),
        (types.EmbeddingCreateParams, {"input", "model", "dimensions", "encoding_format", *HINTS}),
        (responses.ResponseCreateParamsBase, RESPONSES),
        (InputTokenCountParams, RESPONSES),
        (responses.Reasoning, {*ours.ReasoningOptions.__struct_fields__, *ours.UNSUPPORTED_REASONING}),
        (FunctionToolParam, {"type", *tools.FunctionTool.__struct_fields__, *tools.UNSUPPORTED_IN_TOOLS}),
        (NamespaceToolParam, {"type", *tools.Namespace.__struct_fields__}),
        (responses.StreamOptions, openai.UNSUPPORTED_STREAM_OPTIONS),
        (types.chat.ChatCompletionStreamOptionsParam,
         {*openai.StreamOptions.__struct_fields__, *openai.UNSUPPORTED_STREAM_OPTIONS}),
    ],
)  # fmt: skip
def test_no_field_of_the_client_is_ignored(sent: Any, known: Any) -> None:
    assert set(sent.__annotations__) <= set(known)
