"""Embeddings as arrays, whatever encoding a server answers in."""

import base64

import numpy as np

from nbgen.notebook.embeddings import MOST, array, bodies


def test_many_texts_go_in_several_calls_in_order() -> None:
    calls = list(bodies([str(i) for i in range(MOST + 1)]))
    assert [len(call["input"]) for call in calls] == [MOST, 1]
    assert calls[1]["input"] == [str(MOST)]


def test_either_encoding_is_an_array_in_the_texts_order() -> None:
    written = base64.b64encode(np.array([1, 2], "<f4").tobytes()).decode()
    first = {"data": [{"index": 1, "embedding": [3.0, 4.0]}, {"index": 0, "embedding": written}]}
    found = array([first, {"data": [{"index": 0, "embedding": [5.0, 6.0]}]}])
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 2], [3, 4], [5, 6]]
