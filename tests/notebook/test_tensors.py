"""Arrays travel as KServe's JSON tensors and come back as they were."""

from typing import Any

import numpy as np
import pytest

from nbgen.errors import InvalidRequest
from nbgen.notebook.tensors import from_tensors, to_tensors


@pytest.mark.parametrize("kind", ["bool", "int8", "uint16", "int64", "float32", "float64"])
def test_numbers_keep_type_and_shape(kind: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    back = from_tensors(to_tensors({"x": array}))["x"]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_texts_are_bytes_on_the_wire() -> None:
    (tensor,) = to_tensors({"text": [["a", "ä"]]})
    assert (tensor["datatype"], tensor["shape"], tensor["data"]) == ("BYTES", [1, 2], ["a", "ä"])
    assert from_tensors([tensor])["text"].tolist() == [["a", "ä"]]


@pytest.mark.parametrize("value", [np.zeros(1, "float16"), np.zeros(1, "complex64"), [object()]])
def test_what_json_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="x is an array of"):
        to_tensors({"x": value})
