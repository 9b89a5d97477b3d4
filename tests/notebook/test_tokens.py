"""Texts and their tokens, by the model's own tokenizer."""

import numpy as np
import torch

import nbgen
from nbgen.notebook.private_server import PrivateServer


def test_a_text_becomes_tokens_and_tokens_a_text(connected: PrivateServer) -> None:
    ids = nbgen.tokenize("hello")
    assert len(ids) == 5
    assert nbgen.detokenize(ids) == nbgen.detokenize(np.array(ids)) == nbgen.detokenize(torch.tensor(ids)) == "hello"


def test_a_chat_is_tokenized_as_its_template_writes_it(connected: PrivateServer) -> None:
    chat = [{"role": "user", "content": "hi"}]
    assert len(nbgen.tokenize(chat)) == 5  # user, h, i, end, assistant
    thought = nbgen.logprobs(chat, max_new_tokens=2, ignore_eos=True)
    assert len(thought) == 5 + 2


def test_a_text_may_be_continued_to_its_end(connected: PrivateServer) -> None:
    found = nbgen.logprobs("hello", max_new_tokens=None, stop_token_ids=list(range(256)), temperature=0)
    assert len(found.generated) == 1
