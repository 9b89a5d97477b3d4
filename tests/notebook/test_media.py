"""What people have in notebooks becomes parts of a message, and shows itself small where the message is shown."""

import base64
import io
import json
import os
import tracemalloc
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from IPython.display import Audio, Video
from IPython.display import Image as Shown
from PIL import Image

import nbgen
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES, MediaType
from nbgen.notebook.conversation import Conversation
from nbgen.notebook.media import as_text, audio_part, image_part, media_parts, video_part
from nbgen.notebook.request import run_body
from nbgen.notebook.result import Result
from nbgen.notebook.shown_media import SOUND_BYTES, media_html, media_markdown, small_sound, thumbnail, video_strip
from nbgen.notebook.transcript import bundle

matplotlib.use("agg")
RED = np.zeros((40, 60, 3), np.uint8) + np.array([255, 0, 0], np.uint8)


def png(pixels: np.ndarray = RED) -> bytes:
    Image.fromarray(pixels).save(file := io.BytesIO(), format="PNG")
    return file.getvalue()


def sent(part: dict[str, Any]) -> tuple[str, bytes]:
    """The type and the bytes of a part's data URL."""
    head, _, body = part[part["type"]]["url"].partition(",")
    return head, base64.b64decode(body)


def pixels(part: dict[str, Any]) -> np.ndarray:
    head, data = sent(part)
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(RED),
        Image.fromarray(RED).convert("CMYK"),
        RED,
        RED.astype(float) / 255,
        RED.astype(np.float32)[:, :, :] / 255,
        RED.astype(np.uint16) * 257,
        RED.astype(np.uint32) * 16_843_009,
        RED.astype(np.int64),
        torch.tensor(RED / 255, dtype=torch.bfloat16, requires_grad=True),
        np.dstack([RED, np.full((40, 60), 255, np.uint8)]),
        png(),
        bytearray(png()),
        Shown(data=png()),
        "data:image/png;base64," + base64.b64encode(png()).decode(),
    ],
    ids=lambda image: type(image).__name__,
)
def test_an_image_is_sent_as_it_looks(image: Any) -> None:
    assert np.abs(pixels(image_part(image)).astype(int) - RED).max() <= 1


def test_files_are_sent_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(RED).save(tmp_path / "a.jpg")
    for given in (tmp_path / "a.jpg", str(tmp_path / "a.jpg")):
        assert sent(image_part(given)) == ("data:image/jpeg;base64", (tmp_path / "a.jpg").read_bytes())
    with pytest.raises(InvalidRequest, match=r"there is no file 'b\.jpg'"):
        image_part("b.jpg")
    with pytest.raises(InvalidRequest, match="there is no file ''"):
        image_part("")


def test_a_file_in_base64_is_not_taken_for_a_name() -> None:
    for text in (base64.b64encode(png()).decode() * 9, "a/" * 999):
        with pytest.raises(InvalidRequest, match="base64 goes into a data URL, after data:image/") as refused:
            image_part(text)
        assert len(str(refused.value)) < 200


def test_grey_arrays_and_figures_are_images_too() -> None:
    import matplotlib.pyplot as plt

    assert pixels(image_part(np.eye(8)))[0, 0].tolist() == [255, 255, 255]
    assert pixels(image_part(np.eye(8)[:, :, None])).shape == (8, 8, 3)
    figure, axes = plt.subplots(figsize=(2, 1))
    assert pixels(image_part(figure)).shape == pixels(image_part(axes)).shape
    plt.close(figure)


@pytest.mark.parametrize("given", [5, None, object(), np.zeros((2, 2, 2)), np.zeros(3), np.array(["a"]), b"", "x" * 9])
def test_what_is_no_image_is_refused_in_words(given: Any) -> None:
    with pytest.raises(InvalidRequest):
        image_part(given)


@pytest.mark.parametrize(("made", "kind"), [(image_part, "image"), (audio_part, "audio"), (video_part, "video")])
def test_a_file_that_no_server_takes_is_not_sent(made: Callable[[bytes], Any], kind: MediaType) -> None:
    most = MAX_BYTES[kind]
    with pytest.raises(InvalidRequest, match=f"the {kind} has {most + 1} bytes; 1 to {most} can be sent"):
        made(bytes(most + 1))


def test_a_file_that_no_server_takes_is_not_even_read(tmp_path: Path) -> None:
    (tmp_path / "film.mp4").touch()
    os.truncate(tmp_path / "film.mp4", 2**40)
    with pytest.raises(InvalidRequest, match=f"the video has {2**40} bytes"):
        video_part(tmp_path / "film.mp4")


def test_samples_with_their_rate_become_a_wav_file() -> None:
    samples = np.sin(np.linspace(0, 20, 800))
    for given in ((samples, 8000), (np.stack([samples, samples]), 8000), ((samples * 32767).astype(np.int16), 8000)):
        head, data = sent(audio_part(given))
        assert head == "data:audio/wav;base64"
        with wave.open(io.BytesIO(data)) as file:
            assert (file.getframerate(), file.getnframes()) == (8000, 800)
            read = np.frombuffer(file.readframes(800), "<i2")[:: file.getnchannels()]
        assert np.abs(read / 32767 - samples).max() < 1e-3
    assert sent(audio_part(Audio(samples, rate=8000)))[0] == "data:audio/wav;base64"
    with pytest.raises(InvalidRequest, match="is no audio"):
        audio_part(samples)
    assert len(media_parts(None, (samples, 8000))) == 1


CLIP = np.stack([RED, 255 - RED, RED])
#: How an MP4 file begins.
MP4 = b"\0\0\0\x18ftypisom" + bytes(20)


@pytest.mark.parametrize(
    ("video", "fps"),
    [
        (CLIP, None),
        (CLIP / 255, None),
        ([Image.fromarray(frame) for frame in CLIP], None),
        (list(CLIP), None),
        ((CLIP, 2), 2),
        ((list(CLIP), 0.5), 0.5),
    ],
)
def test_a_video_is_sent_as_its_frames(video: Any, fps: float | None) -> None:
    (part,) = media_parts(videos=video)
    assert part == video_part(video)
    assert part["video_url"].get("fps") == fps
    head, *files = part["video_url"]["url"].split(",")
    assert head == "data:video/jpeg;base64"
    frames = [np.asarray(Image.open(io.BytesIO(base64.b64decode(file)))) for file in files]
    assert np.abs(np.stack(frames).astype(int) - CLIP).max() <= 4
    assert media_parts(videos=[video, video]) == [part, part]


def test_a_videos_file_is_sent_as_it_is(tmp_path: Path) -> None:
    (path := tmp_path / "a.mp4").write_bytes(MP4)
    for given in (path, str(path), MP4, Video(str(path)), Video(MP4, embed=True, mimetype="video/mp4")):
        assert sent(video_part(given)) == ("data:video/mp4;base64", MP4)
    assert sent(video_part(b"\x1aE\xdf\xa3" + bytes(8)))[0] == "data:video/webm;base64"
    for wrong in (RED, 5, (CLIP, 0), (RED, 2), [], np.zeros((2, 3, 4, 7)), object()):
        with pytest.raises(InvalidRequest):
            video_part(wrong)


def test_a_video_shows_some_of_its_frames_or_a_player() -> None:
    part = video_part(np.stack([RED, RED, 255 - RED, RED, RED, RED, RED, 255 - RED]))
    strip = np.asarray(Image.open(io.BytesIO(base64.b64decode(video_strip(part).partition(",")[2]))))
    assert strip.shape == (40, 240, 3)
    assert (strip[20, 30::60, 0] > 128).tolist() == [True, False, True, False], "frames 0, 2, 5 and 7"
    file = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + base64.b64encode(MP4).decode()}}
    turns = [{"role": "user", "content": [part, file, {"type": "text", "text": "What?"}]}]
    (shown,) = media_markdown(turns)
    assert shown.startswith(f"![video]({video_strip(part)}) <video controls")
    assert media_html(turns).count("<video") == media_html(turns).count("<img") == 1
    large = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + "A" * 2**23}}
    broken = {"type": "video_url", "video_url": {"url": "data:video/jpeg;base64,AAAA"}}
    hostile = {"type": "video_url", "video_url": {"url": 'data:video/mp4;base64,AA"onerror="x'}}
    elsewhere = {"type": "video_url", "video_url": {"url": "https://videos.test/a.mp4"}}
    for part in (large, broken, hostile, elsewhere, {"type": "video_url"}):
        assert media_markdown([{"role": "user", "content": [part]}]) == ["[video]"]


def test_one_alone_is_a_list_of_one() -> None:
    assert media_parts(RED, None) == media_parts([RED], None)
    assert media_parts(bytearray(png())) == media_parts(memoryview(png())) == media_parts(png())
    assert media_parts(Shown(url="http://a/b.png")) == media_parts("http://a/b.png")
    assert [part["type"] for part in media_parts([RED, png()], (np.zeros(9), 8000))] == [
        *("image_url", "image_url", "audio_url")
    ]


def test_images_go_before_the_text_of_the_last_question() -> None:
    part = image_part(RED)
    body = run_body("What is it?", system="Be short", media=[part], options={})
    assert body["messages"][1] == {"role": "user", "content": [part, {"type": "text", "text": "What is it?"}]}
    assert run_body("It is", complete=True, media=[part], options={})["media"] == [part]
    with pytest.raises(InvalidRequest, match="the last message has to be"):
        run_body([{"role": "assistant", "content": "a"}], media=[part], options={})


def test_a_model_of_text_refuses_them_in_words(connected) -> None:
    for asked in ({"complete": True}, {}):
        with pytest.raises(InvalidRequest, match=r"takes no image|no chat template .* by complete=True"):
            nbgen.generate("a", images=RED, **asked)
    with pytest.raises(InvalidRequest, match="takes no audio"):
        nbgen.generate("a", audio=(np.zeros(9), 8000), complete=True)


def test_rows_bring_their_own(connected) -> None:
    frame = pd.DataFrame(
        {"ask": ["a", "b", "c"], "heard": [(np.zeros(9), 8000), None, None], "seen": [None, RED, None]}
    )
    options = {"complete": True, "max_new_tokens": 2, "ignore_eos": True, "progress": False}
    answers = nbgen.map(frame, "{{ask}}", images="seen", audio=lambda row: row.heard, **options)
    for error, kind in zip(answers.error, ("audio", "image"), strict=False):
        assert f"takes no {kind}" in error
    assert answers.error.isna().tolist() == [False, False, True]
    assert answers.completion_tokens[2] == 2
    with pytest.raises(InvalidRequest, match="audio: there is no column 'sound'"):
        nbgen.map(frame, "{{ask}}", audio="sound", **options)


HOSTILE = "![x](https://evil.test/a.png)"


def test_questions_show_their_images_small_and_players_of_their_sounds_and_answers_none() -> None:
    big = np.zeros((1000, 2000, 3), np.uint8)
    content = [image_part(big), {"type": "text", "text": f"What? {HOSTILE}"}, audio_part((np.zeros(9), 8000))]
    heard = content[2]["audio_url"]["url"]
    result = Result(text=f"A box. {HOSTILE}", finish_reason="stop", messages=[{"role": "user", "content": content}])
    small = thumbnail(content[0])
    assert Image.open(io.BytesIO(base64.b64decode(small.partition(",")[2]))).size == (160, 80)
    talk = Conversation(lambda *_, **__: None)
    talk.messages = result.turns
    for shown in (
        result._repr_mimebundle_()[0]["text/markdown"],
        talk._repr_mimebundle_()["text/markdown"],
        bundle(result.turns)["text/markdown"],
    ):
        assert f"![image]({small})" in shown
        assert shown.count("<audio") == shown.count(f'<audio controls preload="metadata" src="{heard}"') == 1
        assert "![x]" not in shown
    assert media_html(result.turns).count("<img") == media_html(result.turns).count("<audio") == 1
    assert "[image]" in talk._repr_mimebundle_()["text/plain"]
    assert talk.to_df()["content"][0] == f"[image]\nWhat? {HOSTILE}\n[audio]"
    assert talk.to_openai()[0]["content"] == content


def test_small_pictures_are_made_once_and_keep_no_large_ones() -> None:
    parts = [image_part(np.random.default_rng(seed).integers(0, 255, (800, 800, 3), np.uint8)) for seed in range(8)]
    urls = sum(len(part["image_url"]["url"]) for part in parts)
    tracemalloc.start()
    shown, again = ([thumbnail(json.loads(json.dumps(part))) for part in parts] for _ in range(2))
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert all(one is other for one, other in zip(shown, again, strict=True))
    assert kept < urls / 4


def test_what_cannot_be_made_small_is_named() -> None:
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    elsewhere = {"type": "image_url", "image_url": {"url": "https://images.test/a.png"}}
    whole = png(np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8))
    garbled = image_part(whole[: whole.rindex(b"IDAT")] + b"\0" * 9)
    for part in (broken, garbled, elsewhere, {"type": "image_url"}):
        assert thumbnail(part) is None
        assert as_text([part]) == "[image]"
        assert "https" not in bundle([{"role": "user", "content": [part]}])["text/markdown"]


def waveform(part: dict[str, Any], most: int) -> wave.Wave_read:
    data = base64.b64decode((small_sound(part, most) or "").partition(",")[2])
    assert 0 < len(data) <= most
    return wave.open(io.BytesIO(data))


def test_a_long_sound_is_made_small_for_the_display_and_a_longer_one_is_named() -> None:
    tone = np.sin(np.arange(40 * 16_000) * 2 * np.pi * 200 / 16_000)
    part = audio_part((np.stack([tone, tone]), 16_000))
    with waveform(part, 2**20) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8000, 1, 40 * 8000)
        read = np.frombuffer(file.readframes(8000), "<i2") / 32_767
    assert np.abs(read - tone[:16_000].reshape(-1, 2).mean(axis=1)).max() < 1e-3
    with waveform(part, 2**22) as file:
        assert file.getframerate() == 16_000, "one that fits stays as it is"
    assert small_sound(part, 2**19) is None
    flac = "data:audio/flac;base64," + base64.b64encode(bytes(2000)).decode()
    assert small_sound({"type": "audio_url", "audio_url": {"url": flac}}, 1000) is None
    assert small_sound(audio_part((np.zeros(0), 8000)), 10) is None


def test_the_sounds_of_a_display_share_what_a_notebook_bears_the_newest_first() -> None:
    parts = [audio_part((np.zeros(80 * 16_000), 16_000)) for _ in range(4)]
    turns = [{"role": "user", "content": [part]} for part in parts]
    shown = media_markdown(turns)
    assert ["<audio" in each for each in shown] == [False, False, True, True]
    assert shown[0] == shown[1] == "[audio]"
    assert sum(map(len, shown)) < SOUND_BYTES * 1.4


@pytest.mark.parametrize(
    "part",
    [
        {"type": "audio_url", "audio_url": {"url": "https://sounds.test/a.wav"}},
        {"type": "audio_url", "audio_url": {"url": 'data:audio/wav;base64,AA"onerror="x'}},
        {"type": "audio_url", "audio_url": {"url": "data:text/html;base64,AAAA"}},
        {"type": "audio_url"},
        {"type": "input_audio", "input_audio": {"data": 'AA"', "format": "wav"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav;x"}},
        {"type": "input_audio", "input_audio": "AAAA"},
    ],
)
def test_a_sound_that_is_not_here_is_named(part: dict[str, Any]) -> None:
    assert media_markdown([{"role": "user", "content": [part]}]) == ["[audio]"]


def test_openais_own_parts_have_a_player_too() -> None:
    part = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}}
    assert 'src="data:audio/mpeg;base64,AAAA"' in media_markdown([{"role": "user", "content": [part]}])[0]
