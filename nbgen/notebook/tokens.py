"""Texts as tokens: their ids, and how likely each of them was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbgen.errors import InvalidRequest, renamed
from nbgen.notebook import session
from nbgen.notebook.logprobs import Logprobs
from nbgen.notebook.request import Prompt, builtin, chat_messages, of_adapter, one_answer, sampling_options
from nbgen.notebook.short_traceback import short_traceback
from nbgen.notebook.signatures import takes_sampling


@takes_sampling()
@short_traceback
def logprobs(
    prompt: Prompt, *, top: int = 5, max_new_tokens: int | None = 0, adapter: str = "", **options: Any
) -> Logprobs:
    """How likely each token of a text was, and which `top` tokens were the likeliest there.

    A text is taken as it stands; chat messages go through the chat template. With `max_new_tokens` the model continues
    by so many tokens, which are added with their own probabilities; `adapter` names a loaded LoRA adapter. Needs a
    server of nbgen or SGLang.
    """
    asked = {"text": prompt} if isinstance(prompt, str) and prompt else {"input_ids": tokenize(chat_messages(prompt))}
    params = one_answer(sampling_options({**options, "max_new_tokens": max_new_tokens}))
    wanted = {"return_logprob": True, "logprob_start_len": 0, "return_text_in_logprobs": True}
    body = {**asked, "sampling_params": params, **wanted, "top_logprobs_num": builtin(top), **of_adapter(adapter)}
    client = session.default_client()
    try:
        return Logprobs.read(client.generate(body), max_new_tokens != 0, client.detokenize)
    except InvalidRequest as error:
        raise renamed(error, {"top_logprobs_num": "top", "lora_path": "adapter"}) from None


@short_traceback
def tokenize(prompt: Prompt) -> list[int]:
    """The token ids of a text, or of chat messages as the model's template writes them."""
    asked = {"prompt": prompt} if isinstance(prompt, str) else {"messages": chat_messages(prompt)}
    return list(session.default_client().tokenize(asked)["tokens"])


@short_traceback
def detokenize(ids: Sequence[int]) -> str:
    """The text of token ids."""
    tokens = builtin(ids)
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise InvalidRequest(f"ids are a list of integers, got {ids!r:.80}", field="ids")
    return str(session.default_client().detokenize({"tokens": tokens})["text"])
