"""Media in JSON: every format of an item, every shape of a batch, and every refusal with its numbers."""

import base64
import json
import struct
import tracemalloc
from typing import Any

import pytest

from nbgen.bytes_elements import unpack_bytes
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES
from nbgen.messages import Media
from nbgen.protocols.media import Source, check_media, parse_item
from nbgen.protocols.sglang import SchemaError, parse_generate

PNG = b"\x89PNG and the rest"
TEXT = base64.b64encode(PNG).decode()


def item(value: Any, type: str = "image") -> Any:
    return parse_item(value, type, f"{type}_data")


@pytest.mark.parametrize(
    "value",
    [
        TEXT,
        f"{TEXT[:8]}\n{TEXT[8:]}\r\n",
        f"data:image/png;base64,{TEXT}",
        f"DATA:image/png;charset=x;BASE64,{TEXT}",
        f"data:;base64,{TEXT}",
        "data:image/png,%89PNG%20and the rest",
        {"url": TEXT},
        {"url": f"data:image/png;base64,{TEXT}"},
    ],
)
def test_a_file_that_is_sent_is_a_raw_medium(value: Any) -> None:
    assert item(value) == Media(type="image", data=memoryview(PNG))


def test_options_of_an_object_go_with_it() -> None:
    asked = {"url": TEXT, "min_pixels": 28, "max_pixels": 784, "detail": "low", "other": None}
    assert item(asked).options == {"min_pixels": 28, "max_pixels": 784, "detail": "low"}
    with pytest.raises(InvalidRequest, match="not a plain value"):
        item({"url": TEXT, "size": {"height": 3}})
    with pytest.raises(InvalidRequest, match="33 options; at most 32"):
        item({"url": TEXT, **{f"o{i}": i for i in range(33)}})


def test_a_video_may_be_sent_as_images() -> None:
    frames = item({"frames": [TEXT, f"data:image/png;base64,{TEXT}"], "fps": 2}, "video")
    assert (frames.type, frames.format, frames.options) == ("video", "frames", {"fps": 2})
    assert unpack_bytes(frames.data) == [PNG, PNG]
    assert unpack_bytes(item(f"data:video/jpeg;base64,{TEXT},{TEXT}", "video").data) == [PNG, PNG]
    assert len(unpack_bytes(item({"frames": [TEXT] * 256}, "video").data)) == 256


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([], "must be a list of images"),
        (TEXT, "must be a list of images"),
        ([TEXT, 5], "must be a list of images"),
        ([TEXT] * 257, "a video of 257 frames; at most 256"),
        (["https://images.test/a.png"], "frames are sent themselves"),
        (["a" * 2**20] * 60, "bytes; at most 41943040"),
    ],
)
def test_frames_that_cannot_be(frames: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        item({"frames": frames}, "video")


def test_too_many_frames_are_counted_before_they_are_told_apart() -> None:
    url = "data:video/jpeg;base64," + "aa," * 2**20
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="a video of 1048577 frames; at most 256"):
            item(url, "video")
        assert tracemalloc.get_traced_memory()[1] < len(url)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("value", "type", "place"),
    [
        ("https://images.test/a.png", "image", "url"),
        ("HTTP://images.test/a", "audio", "url"),
        ("file:///data/a.png", "image", "path"),
        ("/data/a.JPG", "image", "path"),
        ("a.wav", "audio", "path"),
        ({"url": "a.mp4"}, "video", "path"),
    ],
)
def test_an_address_or_a_path_is_a_source(value: Any, type: str, place: str) -> None:
    source = item(value, type)
    assert isinstance(source, Source)
    assert (source.type, source.place, source.field) == (type, place, f"{type}_data")
    assert source.address == (value["url"] if isinstance(value, dict) else value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("not base64!", "neither base64"),
        ("aGVsbG8", "neither base64"),
        ("aGVsbG8_", "neither base64"),
        ("\thttp://127.0.0.1/", "neither base64"),
        ("ftp://images.test/a.png", "ftp is no scheme"),
        ("javascript:alert(1)", "javascript is no scheme"),
        ("", "is empty"),
        ("data:image/png;base64,", "is empty"),
        ("data:text/html;base64,aGVsbG8=", "text/html is no image"),
        ("data:video/jpeg;base64,aGVsbG8=", "video/jpeg is no image"),
        ("data:image/png", "a data URL is"),
        ("data:image/png," + "%41" * (2**16 + 1), "with 65537 escapes .*; at most 65536: send base64"),
        ("data:image/png;base64,###", "neither base64"),
        ("http://images.test/" + "a" * 3000, "3019 characters; at most 2048"),
        ({}, "needs `url`"),
        ({"url": 5}, "needs `url`"),
        ({"format": "other"}, "got 'other'"),
        ({"format": "processor_output"}, "needs tensors"),
        ({"format": "precomputed_embedding", "image_grid_thw": [[1, 2, 3]]}, "needs `feature`"),
        ({"format": "precomputed_embedding", "feature": [1.0, 2.0]}, "needs `feature`"),
        ({"format": "processor_output", "pixel_values": [[1.0], [1.0, 2.0]]}, "rows of different lengths"),
        ({"format": "processor_output", "pixel_values": "text"}, "must be numbers"),
        ({"format": "processor_output", "pixel_values": [1e39]}, "not finite"),
        ({"format": "processor_output", "a b": [1.0]}, "no name of a tensor"),
        (5, "must be text or an object"),
    ],
)
def test_anything_else_is_refused_in_words(value: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        item(value)
    assert caught.value.field == "image_data"


@pytest.mark.parametrize("type", MAX_BYTES)
def test_too_many_bytes_are_refused_with_both_numbers(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MAX_BYTES, type, limit := 2000)
    with pytest.raises(InvalidRequest, match=f"{type} has {limit + 1} bytes; at most {limit}"):
        item(base64.b64encode(bytes(limit + 1)).decode(), type)
    assert len(item(base64.b64encode(bytes(limit)).decode(), type).data) == limit


def packed(dtype: str, shape: list[int], data: bytes) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), "dtype": dtype, "shape": shape}


def test_tensors_come_as_lists_or_as_bytes() -> None:
    feature = [[1.5, 2.0], [3.0, -4.0]]
    listed = item({"format": "precomputed_embedding", "feature": feature, "image_grid_thw": [[1, 2, 4]]})
    data = struct.pack("<4f", *feature[0], *feature[1])
    compact = item(
        {
            "format": "precomputed_embedding",
            "feature": packed("torch.float32", [2, 2], data),
            "image_grid_thw": packed("int64", [1, 3], struct.pack("<3q", 1, 2, 4)),
        }
    )
    assert listed == compact
    assert [(t.name, t.datatype, t.shape) for t in listed.tensors] == [
        ("feature", "FP32", (2, 2)),
        ("image_grid_thw", "INT64", (1, 3)),
    ]
    assert item({"format": "processor_output", "pixel_attention_mask": [[True]]}).tensors[0].datatype == "BOOL"


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (packed("float32", [2, 2], b"1234"), r"has 4 bytes; float32 of the shape \[2, 2\] has 16"),
        (packed("float8", [1], b"1"), "dtype 'float8'; known are float64"),
        (packed("float32", [], b""), "1 to 8 lengths"),
        (packed("float32", [0], b""), "none below 1"),
        (packed("float32", [2**31, 2**31], b""), "1 to 8 lengths"),
        (packed("float32", [True], b"1234"), "1 to 8 lengths"),
        (packed("float32", [1], struct.pack("<f", float("nan"))), "not finite"),
        ({"data": "###", "dtype": "float32", "shape": [1]}, "not base64"),
        ({"data": "", "shape": [1]}, "data \\(base64\\), dtype and shape"),
    ],
)
def test_a_tensor_that_does_not_add_up_is_refused(tensor: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        item({"format": "processor_output", "pixel_values": tensor})


def test_a_prompt_has_sixteen_media_and_one_of_a_type_as_tensors() -> None:
    raw, whole = item(TEXT), item({"format": "processor_output", "pixel_values": [[1.0]]})
    check_media([raw] * 16, "image_data")
    check_media([whole, item(TEXT, "audio")], "image_data")
    with pytest.raises(InvalidRequest, match="17 images and sounds for one prompt; at most 16"):
        check_media([raw] * 17, "image_data")
    with pytest.raises(InvalidRequest, match="exactly one item, not 2"):
        check_media([whole, raw], "image_data")


# --- in a call of /generate

A, B, C = (base64.b64encode(text).decode() for text in (b"a", b"b", b"c"))


def media(**fields: Any) -> list[list[str]]:
    """Of each prompt, what its files hold."""
    generation = parse_generate(json.dumps({"text": "x", **fields}).encode())
    assert all(request.media_optional and not request.media for request in generation.requests)
    return [[bytes(each.data).decode() for each in items] for items in generation.media]


def test_one_prompt_has_an_item_or_a_list_of_them() -> None:
    assert media(image_data=A) == [["a"]]
    assert media(image_data=[A, {"url": B}, None]) == [["a", "b"]]
    assert media(image_data=[]) == media(image_data=[None]) == media(image_data=None) == media() == [[]]
    assert media(audio_data=C, image_data=[A, B]) == [["a", "b", "c"]]
    assert media(image_data=A, sampling_params={"n": 3}) == [["a"]]


def test_a_batch_has_one_for_all_or_one_for_each_or_lists() -> None:
    two = {"text": ["x", "y"]}
    assert media(**two, image_data=A) == [["a"], ["a"]]
    assert media(**two, image_data=[A, B]) == [["a"], ["b"]]
    assert media(**two, image_data=[[A, B], [C]]) == [["a", "b"], ["c"]]
    assert media(**two, image_data=[None, [C]]) == [[], ["c"]]
    assert media(**two, image_data=[[None], []]) == [[], []]
    assert media(**two, image_data=[[], A]) == [[], ["a"]]
    assert media(**two, image_data=[]) == media(**two, image_data=[None]) == [[], []]
    assert media(**two, audio_data=C, image_data=[A, None]) == [["a", "c"], ["c"]]
    assert media(**two, image_data=[A, B], sampling_params={"n": 2}) == [["a"], ["b"]]
    assert media(text=["x"], image_data=[A]) == [["a"]]


@pytest.mark.parametrize("value", [[A], [A, B, C], [[A]], [[A], [B], [C]]])
def test_a_list_of_another_length_is_refused_with_the_numbers(value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"list of {len(value)} for 2 prompts"):
        media(text=["x", "y"], image_data=value)


@pytest.mark.parametrize("value", [5, True, [5], [[5]], [[[A]]]])
@pytest.mark.parametrize("field", ["image_data", "audio_data", "video_data"])
def test_what_has_no_such_type_is_refused_by_the_schema(field: str, value: Any) -> None:
    with pytest.raises(SchemaError, match=f"`{field}` must be"):
        media(**{field: value})


def test_one_prompt_may_have_its_items_in_one_list_of_a_list() -> None:
    assert media(image_data=[[A, None, B]], sampling_params={"n": 2}) == media(image_data=[[A, B]]) == [["a", "b"]]
    assert media(image_data=[[]], audio_data=[[C]]) == [["c"]]
    for value in ([[A], [B]], [A, [B]]):
        with pytest.raises(InvalidRequest, match="must be text or an object"):
            media(image_data=value)


def test_one_prompt_has_no_more_than_some() -> None:
    with pytest.raises(InvalidRequest, match="17 items for one prompt; at most 16"):
        media(image_data=[A] * 17)
