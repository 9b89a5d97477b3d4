"""Images and sounds over HTTP, as far as the engine's door: what each dialect takes, leaves out and refuses."""

import base64
import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from tests.conftest import LOOKS, wait_for
from tests.server.conftest import TOKEN, Server
from tests.server.test_app import QUICK

GREEDY = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
IMAGE = base64.b64encode(b"\x89PNG, or so it says").decode()
LARGE = base64.b64encode(bytes(5 * 2**20)).decode()
#: A server whose media come from slow hosts. Started as a module of its folder.
SLOW = """
import asyncio

from nbgen.server.app import NbgenApp
from nbgen.server.media_urls import MediaUrls


async def fetch(self, url, limit, field):
    with open("fetched", "a") as fetched:
        fetched.write(url)
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            fetched.write("cancelled")
            raise
    return b"an image"


MediaUrls.fetch = fetch
NbgenApp.launch_instance()
"""


def generate(server: Server, status: int = 200, **fields: Any) -> Any:
    answer = server.http.post("generate", json={"text": "a", "sampling_params": GREEDY, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize("field", ["image_data", "audio_data", "video_data"])
@pytest.mark.parametrize("value", [IMAGE, LARGE, [IMAGE, {"url": IMAGE}], {"format": "processor_output", "x": [1.0]}])
def test_sglangs_route_leaves_out_what_a_model_of_text_does_not_take(server: Server, field: str, value: Any) -> None:
    assert generate(server, **{field: value})["output_ids"] == generate(server)["output_ids"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("http://127.0.0.1:1/a.png", "files by URL are off"),
        ("https://images.test/a.png", "--allow-media-host"),
        ("file:///etc/passwd", "files by path are off"),
        ("/etc/a.png", "--media-root"),
        ([IMAGE] * 17, "at most 16"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_may_not_be_is_refused_by_any_model(server: Server, value: Any, words: str, stream: bool) -> None:
    body = generate(server, 400, image_data=value, stream=stream)
    assert words in body["error"]["message"]
    assert "image_data" in body["error"]["message"]


def test_nothing_is_fetched_for_a_caller_who_has_left(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    server = Server(tmp_path, *QUICK, "--allow-media-host=*", app="slow")
    fetched = tmp_path / "fetched"
    urls = [f"https://images.test/{number}" for number in range(1000)]
    with server.asking("generate", {"text": ["a"] * 1000, "image_data": urls}):
        wait_for(fetched.exists, "the first is fetched")
    wait_for(lambda: "cancelled" in fetched.read_text(), "the fetch is ended")
    before = fetched.read_text()
    time.sleep(0.5)
    assert fetched.read_text() == before
    server.stop()


def chat(part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]


def image_part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (image_part({"url": f"data:image/png;base64,{IMAGE}", "detail": "low"}), "takes no image: only text"),
        (image_part(f"data:image/png;base64,{LARGE}"), "takes no image: only text"),
        ({"type": "input_audio", "input_audio": {"data": IMAGE, "format": "wav"}}, "takes no audio: only text"),
        ({"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{IMAGE}"}}, "takes no audio"),
        ({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{IMAGE}"}}, "takes no video"),
        (image_part({"url": "http://127.0.0.1/a.png"}), "files by URL are off"),
        (image_part({"detail": "low"}), "image_url needs `url`"),
        ({"type": "image_url"}, "needs a member of that name"),
        ({"type": "hologram"}, "'hologram'"),
        ({"type": "input_audio", "input_audio": {"data": "###"}}, "neither base64"),
    ],
)
def test_openais_chat_refuses_what_the_model_does_not_take(server: Server, part: Any, words: str) -> None:
    answer = server.http.post("v1/chat/completions", json={"messages": chat(part), "max_tokens": 2})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["message"]
    run = server.http.post("api/v1/runs", json={"messages": chat(part), "stream": False})
    assert run.status_code == 400
    assert words in run.json()["error"]["message"]


def test_a_medium_that_the_model_does_not_take_is_refused_by_the_field_that_holds_it(server: Server) -> None:
    url = f"data:image/png;base64,{IMAGE}"
    asked = {"messages": chat(image_part(url)), "max_tokens": 2}
    assert server.http.post("v1/chat/completions", json=asked).json()["param"] == "messages"
    asked = {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]}
    assert server.http.post("v1/responses", json=asked).json()["param"] == "input"
    asked = {"prompt": "a", "media": [image_part(url)], "stream": False}
    assert server.http.post("api/v1/runs", json=asked).json()["error"]["field"] == "media"


def test_images_are_a_users(server: Server) -> None:
    messages = [{"role": "system", "content": [image_part(f"data:image/png;base64,{IMAGE}")]}]
    answer = server.http.post("v1/chat/completions", json={"messages": messages})
    assert "role system has text only, not 'image_url'" in answer.json()["message"]


def test_a_prompt_of_the_native_api_has_its_media_beside_it(server: Server) -> None:
    part = image_part({"url": f"data:image/png;base64,{IMAGE}"})
    answer = server.http.post("api/v1/runs", json={"prompt": "a", "media": [part], "stream": False})
    assert "takes no image: only text" in answer.json()["error"]["message"]
    answer = server.http.post("api/v1/runs", json={"prompt": "a", "media": [part] * 17, "stream": False})
    assert "`media` has 17 parts; at most 16" in answer.json()["error"]["message"]
    answer = server.http.post("api/v1/runs", json={"messages": chat(part), "media": [part], "stream": False})
    assert "messages have theirs as parts" in answer.json()["error"]["message"]


def test_tritons_image_is_read_and_refused_by_a_model_of_text(server: Server) -> None:
    model = server.http.get("v2/models/stats").json()["model_stats"][0]["name"]
    for image, words in ((IMAGE, "takes no image"), ("###", "neither base64")):
        answer = server.http.post(f"v2/models/{model}/generate", json={"text_input": "a", "image": [image]})
        assert answer.status_code == 400
        assert words in answer.json()["error"]


class Host(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        Host.asked.append(self.path)
        self.send_error(500)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def canary() -> Iterator[str]:
    host = http.server.HTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=host.serve_forever, args=(LOOKS,))
    thread.start()
    yield f"127.0.0.1:{host.server_port}"
    host.shutdown()
    thread.join()
    host.server_close()


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Jupyter server whose owner lets any public host be asked, and whose folder is read by path."""
    folder = tmp_path_factory.mktemp("open")
    options = ("--ServerApp.jpserver_extensions=nbgen=True", "--NbgenApp.allow_media_hosts=*")
    server = Server(folder, *options, "--NbgenApp.model=/nonexistent/model", app="jupyter_server")
    yield server
    server.stop()


@pytest.mark.parametrize(
    "spelling", ["http://{}/a.png", "http://localhost:{1}/a.png", "http://[::ffff:{0}]/a", "{0}/a"]
)
def test_no_request_reaches_this_machine_even_where_every_host_is_allowed(
    open_server: Server, canary: str, spelling: str
) -> None:
    Host.asked.clear()
    url = spelling.replace("{1}", canary.partition(":")[2]).replace("{0}", "127.0.0.1").replace("{}", canary)
    answer = open_server.http.post("generate", json={"text": "a", "image_data": url})
    assert answer.status_code == 400, answer.text
    assert not Host.asked


def test_a_path_is_read_below_jupyters_folder_for_who_shows_the_token(open_server: Server) -> None:
    (open_server.folder / "a.png").write_bytes(b"image")
    for body in ({"image_data": "a.png"}, {"image_data": f"file://{open_server.folder}/a.png"}):
        answer = open_server.http.post("generate", json={"text": "a", **body})
        assert answer.status_code == 503, answer.text  # there is no such model: the file was read before
    answer = open_server.http.post("generate", json={"text": "a", "image_data": "/etc/missing.png"})
    assert answer.status_code == 400
    assert "there is no file" in answer.json()["error"]["message"]


def test_a_cookie_is_not_enough_to_have_a_path_read(open_server: Server) -> None:
    (open_server.folder / "a.png").write_bytes(b"image")
    with httpx.Client(base_url=open_server.root, follow_redirects=True) as browser:
        browser.get("login", params={"token": TOKEN})
        headers = {"X-XSRFToken": browser.cookies["_xsrf"]}
        answer = browser.post("nbgen/generate", json={"text": "a", "image_data": "a.png"}, headers=headers)
    assert answer.status_code == 403, answer.text


def test_a_refused_image_is_no_turn_of_its_chat(server: Server) -> None:
    body = {"messages": chat(image_part(f"data:image/png;base64,{IMAGE}")), "chat": "refused", "stream": False}
    assert server.http.post("api/v1/runs", json=body).status_code == 400
    assert server.http.get("api/v1/chats/refused").json()["turns"] == []
