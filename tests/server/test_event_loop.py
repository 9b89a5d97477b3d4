"""What is large or hostile holds up nobody: health is asked all the while by another process, over both protocols."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from nbgen.server.generation_handler import STREAM_RATE
from tests.server.conftest import TOKEN, Server
from tests.server.test_limits import raw
from tests.server.triton import TOKEN_METADATA, client, grpc_address, tensor
from tests.soak import seldom, soaking

MODEL = "long-llama"
MB = 2**20
#: For any one answer about health: seconds, of which the server worked as many. Those of a busy machine do not count.
SECONDS = 0.5
#: And those at all.
MOST_SECONDS = 20.0
#: Where other processes take the cores, its threads wait for one another; what holds it up does so each time.
pytestmark = pytest.mark.flaky(reruns=2)

WATCH = """
import http.client, select, sys, time
import psutil
port, path, token, pid = sys.argv[1:]
server = psutil.Process(int(pid))
worked = lambda: sum(server.cpu_times()[:2])
connection = http.client.HTTPConnection("127.0.0.1", int(port))
while sys.stdin.readline():
    held = slowest = 0.0
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:
        started, before = time.monotonic(), worked()
        connection.request("GET", path, headers={"Authorization": "token " + token})
        assert connection.getresponse().read() == b'{"live":true}'
        connection.close()  # or the server may, between two tests
        waited = time.monotonic() - started
        slowest, held = max(slowest, waited), max(held, min(waited, worked() - before))
    sys.stdin.readline()
    print(held, slowest, flush=True)
"""


@pytest.fixture(scope="module")
def watch(server: Server) -> Iterator[subprocess.Popen[str]]:
    """Another process, which asks for health every 100 ms from one line that it is sent to the next."""
    command = [sys.executable, "-c", WATCH, str(server.port), "/nbgen/v2/health/live", TOKEN, str(server.process.pid)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@contextmanager
def nobody_waits(watch: subprocess.Popen[str]) -> Iterator[None]:
    """Each answer about health comes in time."""

    def next_line() -> str:
        assert watch.stdin is not None
        assert watch.stdout is not None
        print(file=watch.stdin, flush=True)
        return watch.stdout.readline()

    assert next_line() == "ready\n"
    try:
        yield
    finally:
        held, slowest = map(float, (next_line() or "inf inf").split())
    assert held < SECONDS, "the event loop was held up"
    assert slowest < MOST_SECONDS, "the event loop waited for something"


@pytest.mark.soak
def test_a_large_answer_holds_nobody_up(server: Server, watch: subprocess.Popen[str]) -> None:
    """50 MB of JSON, there and back."""
    array = np.random.default_rng(0).standard_normal(2_500_000).astype(np.float32)
    with nobody_waits(watch), client(server, network_timeout=120) as found:
        outputs = [triton.InferRequestedOutput("Y", binary_data=False)]
        result = found.infer("echo", [tensor("X", array, binary=False)], outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("Y"), array)


#: A prompt of 6.2 MB of logits in float32, which are 32 MB as JSON.
LONG = np.random.default_rng(0).integers(4, 260, 6000)


@pytest.mark.parametrize("protocol", ["binary", soaking("json"), soaking("grpc")])
def test_megabytes_of_logits_for_four_at_once(server: Server, watch: subprocess.Popen[str], protocol: str) -> None:
    def ask(_: int) -> np.ndarray:
        if protocol == "grpc":
            with triton_grpc.InferenceServerClient(grpc_address(server)) as found:
                outputs = [triton_grpc.InferRequestedOutput("logits")]
                inputs = [tensor("input_ids", LONG, kind=triton_grpc)]
                return found.infer(MODEL, inputs, outputs=outputs, headers=TOKEN_METADATA).as_numpy("logits")
        with client(server, network_timeout=300) as found:
            outputs = [triton.InferRequestedOutput("logits", binary_data=protocol == "binary")]
            return found.infer(MODEL, [tensor("input_ids", LONG)], outputs=outputs).as_numpy("logits")

    with nobody_waits(watch), ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    assert all(answer.shape == (len(LONG), 260) for answer in answers)
    assert np.isfinite(answers[0]).all()


@pytest.mark.parametrize("asked", [soaking("log-probabilities"), "hidden states"])
def test_megabytes_of_numbers_beside_texts(server: Server, watch: subprocess.Popen[str], asked: str) -> None:
    body: dict[str, Any] = {"input_ids": np.resize(LONG, (16, 900)).tolist(), "sampling_params": {"max_new_tokens": 1}}
    if asked == "log-probabilities":
        body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 260}
    else:
        body |= {"return_hidden_states": True}
    with nobody_waits(watch):
        answer = server.http.post("generate", json=body)
    assert answer.status_code == 200, answer.text[:300]
    assert len(answer.content) > 15 * MB


@pytest.mark.parametrize("asked", [soaking("log-probabilities"), "hidden states"])
def test_a_stream_that_repeats_megabytes_takes_turns(server: Server, watch: subprocess.Popen[str], asked: str) -> None:
    """Each event is all that there is so far; what has come while it was made and sent is in the next."""
    params = {"max_new_tokens": 400, "ignore_eos": True, "temperature": 0}
    body: dict[str, Any] = {"text": [str(place) for place in range(8)], "sampling_params": params, "stream": True}
    if asked == "log-probabilities":
        body |= {"return_logprob": True, "top_logprobs_num": 260}
    else:
        body |= {"return_hidden_states": True}
    started = time.monotonic()
    with nobody_waits(watch), server.http.stream("POST", "generate", json=body, timeout=300) as answer:
        assert answer.status_code == 200
        sent = b"".join(answer.iter_raw())
    events = sent.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    backwards, last = map(json.loads, (each[len(b"data: ") :] for each in events[-3::-1])), dict[int, Any]()
    while len(last) < 8:
        last.setdefault((event := next(backwards))["index"], event)
    lists = [last[place]["meta_info"].get("output_top_logprobs", [0] * 400) for place in range(8)]
    assert [len(last[place]["output_ids"]) for place in range(8)] == [400] * 8
    assert [len(entries) for entries in lists] == [400] * 8
    end = sum(map(len, events[-10:]))
    assert len(sent) - end < STREAM_RATE * (time.monotonic() - started)


def listed(item: bytes, count: int, datatype: bytes = b"FP32", shape: bytes = b"") -> bytes:
    """An infer body with `count` times the same JSON in its data."""
    return b'{"inputs":[{"name":"X","datatype":"%b","shape":[%b],"data":[%b%b]}]}' % (
        datatype,
        shape or b"%d" % count,
        (item + b",") * (count - 1),
        item,
    )


#: Bodies of 30 to 60 MB, each of which would cost its reader seconds.
HOSTILE: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "numbers": ("generate", lambda: b'{"input_ids":[%b1]}' % (b"1," * (20 * MB)), "times ','"),
    "lists": ("generate", lambda: b'{"input_ids":[%b1]}' % (b"[1]," * (10 * MB)), "times '['"),
    "strings": ("generate", lambda: b'{"stop_words":[%b""]}' % (b'"",' * (15 * MB)), "times '\"'"),
    "objects": ("generate", lambda: b'{"x":[%b1]}' % (b"{}," * (15 * MB)), "times '{'"),
    "members": ("generate", lambda: b"{%b}" % b",".join(b'"%x":1' % i for i in range(100_000)), "at most 20000"),
    "text": ("generate", lambda: b'{"text_input":"%b"}' % (b"a" * (40 * MB)), "at most"),
    "nested lists": ("infer", lambda: listed(b"[1]", 10 * MB), "times '['"),
    "deep lists": ("infer", lambda: listed(b"[" * 120 + b"1" + b"]" * 120, 1000), "nesting depth exceeds"),
    "many strings": ("infer", lambda: listed(b'""', 15 * MB, b"BYTES"), "times '\"'"),
    "a shape": ("infer", lambda: listed(b"1", 1, shape=b"1," * (15 * MB) + b"1"), "'shape' has"),
    "parameters": ("infer", lambda: b'{"parameters":{"a":"%b"},"inputs":[]}' % (b"a" * (2 * MB)), "'parameters' has"),
    "inputs": ("infer", lambda: b'{"inputs":[%b{}]}' % (b'{"name":"a"},' * (2 * MB)), "times"),
    "white space": ("infer", lambda: b'{"inputs":[%b]}' % (b" " * (60 * MB)), "expected 1 inputs"),
}


@pytest.mark.parametrize("name", seldom(HOSTILE, {"strings", "objects", "nested lists", "inputs"}))
def test_hostile_json_is_refused_while_others_are_served(
    server: Server, watch: subprocess.Popen[str], name: str
) -> None:
    route, body, words = HOSTILE[name]
    model = MODEL if route == "generate" else "echo"
    with nobody_waits(watch):
        answer = server.http.post(f"v2/models/{model}/{route}", content=body())
    assert answer.status_code == 400, answer.text[:300]
    assert words in answer.json()["error"]


#: Routes that read bodies of 4 MB, and such bodies, refused when they have been read.
LARGE: dict[str, bytes] = {
    "v1/completions": b'{"prompt":[%b"x"]}',
    "v1/embeddings": b'{"input":[%b"x"]}',
    "encode": b'{"input_ids":[%b"x"]}',
    "tokenize": b'{"prompt":7,"chat_template_kwargs":{"a":[%b1]}}',
    "detokenize": b'{"tokens":[%b-1]}',
    f"v2/models/{MODEL}/infer": b'{"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]},'
    b'{"name":"sampling_parameters","datatype":"BYTES","shape":[1],"data":["{\\"a\\":[%bx"]}]}',
}


@contextmanager
def beside_the_loop(server: Server) -> Iterator[None]:
    """Told by whose time it takes: the first of the process's threads has the loop."""

    def worked() -> tuple[float, float]:
        seconds = {each.id: each.user_time + each.system_time for each in process.threads()}
        return seconds[process.pid], sum(seconds.values())

    process = psutil.Process(server.process.pid)
    before = worked()
    yield
    loop, every = (after - earlier for after, earlier in zip(worked(), before, strict=True))
    assert loop < every / 2, "the event loop did it"


@pytest.mark.parametrize("route", seldom(LARGE, {"v1/embeddings", "encode", "detokenize"}))
def test_large_bodies_are_read_beside_the_event_loop(server: Server, route: str) -> None:
    body = LARGE[route] % (b"1," * (2 * MB))
    with beside_the_loop(server):
        answer = server.http.post(route, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text[:300]


def test_long_conversations_are_read_beside_the_event_loop(server: Server) -> None:
    item = {"role": "user", "content": [{"type": "input_text", "text": "x"}] * 20}
    id = server.http.post("v1/conversations", json={}).json()["id"]
    for _ in range(210):
        assert server.http.post(f"v1/conversations/{id}/items", json={"items": [item] * 20}).is_success
    with beside_the_loop(server):
        for _ in range(2):
            answer = server.http.post("v1/responses/input_tokens", json={"input": "hi", "conversation": id})
            assert (answer.status_code, "4096 turns" in answer.text) == (400, True), answer.text[:300]
    assert server.http.delete(f"v1/conversations/{id}").is_success


def framed(datatype: bytes, elements: int, blob: bytes, name: bytes = b"X") -> tuple[bytes, dict[str, str]]:
    """A body with one binary tensor, and its header."""
    head = b'{"inputs":[{"name":"%b","datatype":"%b","shape":[%d],"parameters":{"binary_data_size":%d}}]}' % (
        name,
        datatype,
        elements,
        len(blob),
    )
    return head + blob, {"Inference-Header-Content-Length": str(len(head))}


@pytest.mark.parametrize(
    ("model", "datatype", "elements", "size", "words"),
    [
        ("one_string", b"BYTES", 16 * MB, 64 * MB, "16777216 string elements; at most"),
        ("one_string", b"BYTES", 2 * MB, 8 * MB, "unexpected shape"),
        ("echo", b"FP32", 2**62, 64, "byte size overflow"),
        ("echo", b"FP32", 2**40, 64, "byte size mismatch"),
        ("echo", b"FP64", 8 * MB, 64 * MB, "data-type is 'FP64'"),
        (MODEL, b"INT64", 8 * MB, 64 * MB, "input_ids has 67108864 bytes; at most"),
    ],
)
def test_hostile_frames_are_refused_while_others_are_served(
    server: Server, watch: subprocess.Popen[str], model: str, datatype: bytes, elements: int, size: int, words: str
) -> None:
    body, headers = framed(datatype, elements, bytes(size), b"input_ids" if model == MODEL else b"X")
    with nobody_waits(watch):
        answer = server.http.post(f"v2/models/{model}/infer", content=body, headers=headers)
    assert answer.status_code == 400, answer.text[:300]
    assert words in answer.json()["error"]


def test_what_unpacks_to_too_much_holds_nobody_up(server: Server, watch: subprocess.Popen[str]) -> None:
    bomb = gzip.compress(b'{"inputs":[' + b" " * (65 * MB), 1)
    with nobody_waits(watch):
        answer = server.http.post("v2/models/echo/infer", content=bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, "exceeds the maximum allowed" in answer.text) == (400, True)


def test_a_body_in_single_bytes_is_read_beside_others(server: Server, watch: subprocess.Popen[str]) -> None:
    """Tornado before 6.6 reads all that has come before it turns to anybody else (CVE-2026-115927)."""
    body = b'{"inputs":[]}' + b" " * 100_000
    head = f"POST /v2/models/echo/infer HTTP/1.1\nHost: localhost\nAuthorization: token {TOKEN}\n"
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    with nobody_waits(watch):
        said = raw(server, head + "Content-Type: application/json\nTransfer-Encoding: chunked", chunks)
    assert (said[:13], b"expected 1 inputs" in said) == (b"HTTP/1.1 400 ", True)


def test_large_lists_are_read_whole(server: Server) -> None:
    """Flat and nested, with empty lists and white space between: the same numbers."""
    rows = np.arange(60_000, dtype=np.float32).reshape(-1, 3) / 4 + 1000
    nested = json.dumps(rows.tolist())[:-1] + ", [], [ [ ] ], []]"
    for data in (json.dumps(rows.flatten().tolist()), nested):
        assert len(data) > 2**17
        body = '{"inputs":[{"name":"X","datatype":"FP32","shape":[60000],"data":' + data + "}]}"
        answer = server.http.post("v2/models/echo/infer", content=body)
        assert answer.json()["outputs"][0]["data"] == rows.flatten().tolist()
