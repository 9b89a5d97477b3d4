"""Events survive any cut of the stream; the standard's rules for odd lines hold."""

import json
import time

from hypothesis import given
from hypothesis import strategies as st

from nbgen.sse import KEEP_ALIVE, Decoder, Event, encode


def decode(stream: bytes, cuts: tuple[int, ...] = ()) -> list[Event]:
    decoder, events, start = Decoder(), [], 0
    for end in (*sorted(cuts), len(stream)):
        events += decoder.feed(stream[start:end])
        start = end
    return events


@given(st.lists(st.text(max_size=20)), st.lists(st.integers(0, 300), max_size=20))
def test_every_cut_gives_the_same_events(texts: list[str], cuts: list[int]) -> None:
    bodies = [json.dumps(text, ensure_ascii=False) for text in texts]
    stream = b"".join(encode(b.encode(), event="delta", id=f"r:{i}") for i, b in enumerate(bodies))
    events = decode(stream, tuple(min(cut, len(stream)) for cut in cuts))
    assert [each._replace(data=json.loads(each.data)) for each in events] == [
        Event(text, "delta", f"r:{i}") for i, text in enumerate(texts)
    ]


def test_an_event_is_one_line_also_for_who_splits_text() -> None:
    """As httpx's and requests' `iter_lines` do."""
    text = "".join(map(chr, range(0x2100)))
    lines = encode(json.dumps(text, ensure_ascii=False).encode()).decode().splitlines()
    assert (json.loads(lines[0].removeprefix("data: ")), lines[1:]) == (text, [""])


def test_one_byte_at_a_time() -> None:
    stream = encode('{"text":"é😀"}'.encode()) + KEEP_ALIVE + encode(b"[DONE]")
    assert [e.data for e in decode(stream, tuple(range(len(stream))))] == ['{"text":"é😀"}', "[DONE]"]


def test_line_ends_comments_and_many_data_lines() -> None:
    assert decode(b"data: a\r\ndata: b\r\n\r\n: comment\n\ndata:c\n\nid: 7\rdata: d\r\r", (9, 18)) == [
        Event("a\nb"),
        Event("c"),
        Event("d", id="7"),
    ]


def test_an_unfinished_event_is_not_given() -> None:
    assert decode(b"data: a\n") == []
    assert decode(b"event: x\n\n") == []


def test_a_long_event_costs_no_more_for_coming_in_many_pieces() -> None:
    data = "x" * 2**25
    stream, began = encode(data.encode()), time.process_time()
    assert decode(stream, tuple(range(0, len(stream), 2**14))) == [Event(data)]
    assert time.process_time() - began < 5
