"""Videos over HTTP and from the notebook, all the way: each answer is what transformers makes of the same frames."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image
from transformers.video_utils import VideoMetadata

import nbgen
from nbgen.engine import video
from nbgen.engine.video import Sampling
from nbgen.errors import InvalidRequest
from nbgen.notebook import session
from nbgen.notebook.media import video_part
from tests.engine.image_requests import NEW_TOKENS, Reference, picture
from tests.engine.test_video_files import colours, movie, sound
from tests.server.conftest import TOKEN, Server
from tests.server.test_images import GREEDY, generate, png

TEXT = "What is <|video_pad|>? Say."


@pytest.fixture
def connected(seeing: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helpers of this process use the server."""
    monkeypatch.setattr(session, "_client", None)
    nbgen.connect(seeing.root, TOKEN)


def sent(part: dict[str, Any]) -> np.ndarray:
    """The frames that a part holds, `[time, height, width, 3]`."""
    files = part["video_url"]["url"].partition(",")[2].split(",")
    return np.stack([np.asarray(Image.open(io.BytesIO(base64.b64decode(file)))) for file in files])


def test_a_video_comes_as_its_frames(seeing: Server, reference: Reference) -> None:
    frames = [png(picture(seed)) for seed in (1, 2, 3, 4)]
    written = [base64.b64encode(frame).decode() for frame in frames]
    seen = np.stack([np.asarray(picture(seed)) for seed in (1, 2, 3, 4)])
    made = reference.processor(text=[TEXT], videos=[seen], return_tensors="pt")
    expected, place = reference.generate(made), reference.model.config.video_token_id
    url = f"data:video/jpeg;base64,{','.join(written)}"
    for item in (url, {"url": url}, {"frames": written}, {"frames": [f"data:image/png;base64,{w}" for w in written]}):
        answer = generate(seeing, text=TEXT, video_data=item)
        assert answer["output_ids"] == expected
        assert answer["meta_info"]["video_tokens"] == made["input_ids"][0].tolist().count(place)
        assert "image_tokens" not in answer["meta_info"]
    part = {"type": "video_url", "video_url": {"url": url}}
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Say."}]}], "temperature": 0}
    body |= {"max_tokens": NEW_TOKENS, "ignore_eos": True, "skip_special_tokens": False}
    answer = seeing.http.post("v1/chat/completions", json=body).json()
    chat_text = "<|user|><|video_pad|>Say.<|end|><|assistant|>"
    made = reference.generate(reference.processor(text=[chat_text], videos=[seen], return_tensors="pt"))
    said = reference.processor.decode(made, skip_special_tokens=False)
    assert answer["choices"][0]["message"]["content"] == said, answer
    for wrong in ({"frames": []}, {"frames": "abc"}, {"frames": ["a.png"]}, {"frames": [5]}):
        answer = seeing.http.post("generate", json={"text": TEXT, "video_data": wrong, "sampling_params": GREEDY})
        assert (answer.status_code, "frames" in answer.text) == (400, True), answer.text


def test_a_video_comes_as_a_file(seeing: Server, reference: Reference, connected: None) -> None:
    file = movie(colours(48))
    (seeing.folder / "clip.mp4").write_bytes(file)
    encoded = base64.b64encode(file).decode()

    def said(text: str, sampling: Sampling) -> list[int]:
        found = video.decode(file, sampling, "")
        times = VideoMetadata(total_num_frames=48, fps=24.0, frames_indices=found.indices)
        told = {"videos_kwargs": {"video_metadata": [times], "do_sample_frames": False}}
        return reference.generate(reference.processor(text=[text], videos=[found.pixels], return_tensors="pt", **told))

    expected = said(TEXT, Sampling(step=2))
    for item in (encoded, f"data:video/mp4;base64,{encoded}", {"url": encoded, "fps": 2}, "clip.mp4"):
        assert generate(seeing, text=TEXT, video_data=item)["output_ids"] == expected
    six = said(TEXT, Sampling(frames=6))
    assert generate(seeing, text=TEXT, video_data={"url": encoded, "num_frames": 6})["output_ids"] == six
    chatted = reference.processor.decode(
        said("<|user|><|video_pad|>Say.<|end|><|assistant|>", Sampling(step=2)), skip_special_tokens=False
    )
    part = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{encoded}"}}
    body = {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "Say."}]}], "temperature": 0}
    body |= {"max_tokens": NEW_TOKENS, "ignore_eos": True, "skip_special_tokens": False}
    answer = seeing.http.post("v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == chatted, answer
    asked = nbgen.generate("Say.", videos=seeing.folder / "clip.mp4", **GREEDY)
    assert asked.text == chatted
    assert "<video controls" in asked._repr_mimebundle_()[0]["text/markdown"]


def test_a_file_that_is_no_video_is_that_requests_fault(seeing: Server, connected: None) -> None:
    for wrong, words in (
        (b"an MP4 file", "must be a whole MP4"),
        (bytes(movie(colours(4), "mpeg4")), "encoded as mpeg4"),
        (bytes(sound()), "it is a sound"),
    ):
        item = base64.b64encode(wrong).decode()
        answer = seeing.http.post("generate", json={"text": TEXT, "video_data": item, "sampling_params": GREEDY})
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
        with pytest.raises(InvalidRequest, match=words):
            nbgen.generate("Say.", videos=wrong)
    assert seeing.http.get("health").status_code == 200


def test_the_helpers_send_arrays_and_images(connected: None, reference: Reference) -> None:
    frames = [picture(seed) for seed in (1, 2, 3, 4)]
    seen = np.stack([np.asarray(frame) for frame in frames])
    asked = sent(video_part(seen))

    def said(text: str, fps: float | None = None) -> str:
        times = VideoMetadata(total_num_frames=4, fps=fps, frames_indices=[0, 1, 2, 3])
        videos = {"videos": [asked], "videos_kwargs": {"video_metadata": [times]}}
        made = reference.generate(reference.processor(text=[text], **videos, return_tensors="pt"))
        return reference.processor.decode(made, skip_special_tokens=False)

    continued, chatted = said(TEXT), said("<|user|><|video_pad|>Say.<|end|><|assistant|>")
    for given in (seen, frames, [seen], (frames, 24), seen / 255):
        assert nbgen.generate(TEXT, videos=given, complete=True, **GREEDY).text == continued
    assert nbgen.generate("Say.", videos=seen, **GREEDY).text == chatted
    talk = nbgen.chat(**GREEDY)
    assert talk("Say.", videos=[frames]).text == chatted
    assert "![video](data:image/png" in talk._repr_mimebundle_()["text/markdown"]
    table = nbgen.map(pd.DataFrame({"seen": [frames]}), "Say.", videos="seen", progress=False, **GREEDY)
    assert table.text.tolist() == [chatted], table.error[0]
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "nbgen")
    shell.user_ns["clip"] = (frames, 24)
    shell.run_cell_magic("nbgen", f"--video clip -t 0 --max-new-tokens {NEW_TOKENS}", "Say.")
    assert shell.user_ns["_"].messages[0]["content"][0] == video_part((frames, 24))
    assert shell.user_ns["_"].text
    InteractiveShell.clear_instance()
