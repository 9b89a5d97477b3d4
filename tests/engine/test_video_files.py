"""Of a video file the frames are taken that its times say, by known decoders alone; others are refused in words."""

import io
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from types import SimpleNamespace

import av
import numpy as np
import pytest

from nbgen.engine import video, video_clip
from nbgen.engine.media_decoder import MediaDecoder
from nbgen.engine.video import Sampling
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_BYTES, MAX_FRAMES
from tests.engine.test_media_decoder import make  # noqa: F401  (a fixture)

WIDTH, HEIGHT, RATE = 96, 64, 24
#: In the header of a track: bytes from its name to its matrix, and the matrix of a quarter turn clockwise.
MATRIX_AT, QUARTER_TURN = 44, (0, 1 << 16, 0, -(1 << 16), 0, 0, 0, 0, 1 << 30)


def colours(count: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Frames `[time, height, width, 3]` whose left half is red, the brighter the later."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    frames[:, :, : width // 2, 0] = np.linspace(40, 220, count).astype(np.uint8)[:, None, None]
    return frames


def movie(
    frames: np.ndarray, codec: str = "libx264", form: str = "mp4", rate: int = RATE, seconds: list[int] | None = None
) -> memoryview:
    """A video file of the frames, which come `rate` in a second, or at these `seconds`."""
    with ThreadPoolExecutor(1) as own:  # SVT-AV1 makes its caller a real-time thread where root calls it, for good
        return own.submit(_encode, frames, codec, form, rate, seconds).result()


def _encode(frames: np.ndarray, codec: str, form: str, rate: int, seconds: list[int] | None) -> memoryview:
    with av.open(file := io.BytesIO(), "w", format=form) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for index, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            if seconds is not None:
                frame.pts, frame.time_base = seconds[index] * rate, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return memoryview(file.getvalue())


def sound() -> memoryview:
    with av.open(file := io.BytesIO(), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return memoryview(file.getvalue())


def decoded(file: memoryview, **sampling: float) -> video.Frames:
    return video.decode(file, Sampling(**sampling), "video 1")


@pytest.mark.parametrize(
    ("codec", "form"),
    [
        ("libx264", "mp4"),
        ("libx264", "mov"),
        ("libx264", "matroska"),
        ("libx265", "mp4"),
        ("libvpx", "webm"),
        ("libvpx-vp9", "webm"),
        ("libsvtav1", "mp4"),
    ],
)
def test_frames_are_taken_evenly_of_every_kind_of_file(codec: str, form: str) -> None:
    frames = colours(48)
    found = decoded(movie(frames, codec, form), fps=3)
    assert not hasattr(os, "sched_getscheduler") or os.sched_getscheduler(0) == os.SCHED_OTHER
    assert (found.indices, found.total, round(found.fps, 1)) == ([0, 8, 16, 24, 32, 40], 48, 24)
    assert found.pixels.shape == (6, HEIGHT, WIDTH, 3)
    assert np.abs(found.pixels.astype(int) - frames[found.indices])[:, 8:-8, 8:30].max() < 24


@pytest.mark.parametrize(
    ("sampling", "total", "fps", "expected"),
    [
        (Sampling(fps=2), 240, 24, 20),
        (Sampling(fps=2), 24, 24, 4),
        (Sampling(fps=2), 3, 24, 3),
        (Sampling(fps=2, step=2), 3, 24, 2),
        (Sampling(fps=2, step=2), 1, 24, 1),
        (Sampling(fps=2, step=2), 24 * 4 + 12, 24, 8),
        (Sampling(fps=2, most=8), 2400, 24, 8),
        (Sampling(fps=1e300), 2400, 24, 256),
        (Sampling(frames=5), 240, 24, 5),
        (Sampling(frames=50), 30, 24, 30),
    ],
)
def test_how_many_frames_are_taken(sampling: Sampling, total: int, fps: float, expected: int) -> None:
    indices = sampling.indices(total, fps)
    assert indices == np.arange(0, total, total / expected).astype(int).tolist()[:expected]
    assert len(indices) == expected


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"num_frames": 8}, Sampling(frames=8)),
        ({"fps": 1, "num_frames": 64}, Sampling(fps=1, most=64)),
        ({"fps": 2, "num_frames": 16, "max_duration": 300}, Sampling(fps=2)),
        ({"fps": 2, "min_frames": 4, "max_frames": 90, "temporal_patch_size": 2}, Sampling(2, None, 4, 90, 2)),
    ],
)
def test_a_processor_says_how_many_frames_are_taken(own: dict[str, int], expected: Sampling) -> None:
    assert video_clip.sampling(SimpleNamespace(**own), {}, 1) == expected
    asked = video_clip.sampling(SimpleNamespace(**own), {"num_frames": 100}, 1)
    assert (asked.frames, asked.most) == (100, MAX_FRAMES)


def test_frames_are_found_by_their_times() -> None:
    found = decoded(movie(colours(6), seconds=[0, 1, 2, 50, 51, 100]), frames=3)
    assert (found.indices, found.total, found.fps) == ([0, 2, 4], 6, pytest.approx(0.05))
    red = found.pixels[:, HEIGHT // 2, WIDTH // 4, 0].astype(int)
    assert np.abs(red - colours(6)[[0, 2, 4], 0, 0, 0]).max() < 12


def test_what_a_camera_was_turned_by_is_turned_back() -> None:
    file = bytearray(movie(colours(4)))
    struct.pack_into(">9i", file, file.index(b"tkhd") + MATRIX_AT, *QUARTER_TURN)
    pixels = decoded(memoryview(bytes(file))).pixels
    assert pixels.shape == (4, WIDTH, HEIGHT, 3)
    assert pixels[-1, WIDTH // 4, HEIGHT // 2, 0] > 180, "what was on the left is at the top"
    assert pixels[-1, -WIDTH // 4, HEIGHT // 2, 0] < 20


def test_frames_that_are_large_together_are_made_smaller() -> None:
    found = decoded(movie(colours(4)), pixels=4 * 24 * 16)
    assert found.pixels.shape == (4, 16, 24, 3)
    assert found.pixels[-1, 8, 6, 0] > 180 > 20 > found.pixels[-1, 8, 18, 0]


PLAYLISTS = (b"#EXTM3U\n#EXTINF:1\nfile:///etc/hostname\n", b"ffconcat version 1.0\nfile '/etc/hostname'\n")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (lambda: memoryview(bytes(MAX_BYTES["video"] + 1)), "has 41943041 bytes; at most 41943040"),
        (lambda: movie(colours(2), seconds=[0, 601]), "lasts 601 s; at most 600 s"),
        (lambda: movie(colours(4), "mpeg4"), "encoded as mpeg4; these are decoded: h264, hevc, vp8, vp9, av1"),
        (lambda: movie(colours(2, 402, 2)), "402 x 2; one side is at most 200 times"),
        (sound, "has no pictures: it is a sound"),
        (lambda: movie(colours(4))[:-300], "cannot be decoded: it must be a whole MP4, QuickTime, Matroska or WebM"),
        (lambda: movie(colours(4), form="avi"), "must be a whole MP4"),
        *((lambda text=text: memoryview(text), "must be a whole MP4") for text in PLAYLISTS),
    ],
)
def test_what_is_not_taken_is_refused_in_words(file: Callable[[], memoryview], words: str) -> None:
    with pytest.raises(InvalidRequest, match=f"video 1 .*({words})") as refused:
        decoded(file())
    assert refused.value.field == "video_data"


def test_noise_in_a_file_is_a_refusal_or_a_picture(make: Callable[..., MediaDecoder]) -> None:  # noqa: F811
    decoder, whole, generator = make(), bytes(movie(colours(12))), np.random.default_rng(0)
    refused = 0
    for _ in range(40):
        file = np.frombuffer(whole, np.uint8).copy()
        file[generator.integers(8, len(file), 20)] = generator.integers(0, 256, 20)
        try:
            decoder.video(memoryview(file.tobytes()), Sampling(), "video 1")
        except InvalidRequest:
            refused += 1
    assert refused, "nothing was damaged: nothing was tested"


def test_another_process_decodes_the_same(make: Callable[..., MediaDecoder]) -> None:  # noqa: F811
    decoder, file = make(), movie(colours(48))
    found, expected = decoder.video(file, Sampling(fps=3), "video 1"), decoded(file, fps=3)
    assert found[1:] == expected[1:]
    np.testing.assert_array_equal(found.pixels, expected.pixels)
    with pytest.raises(InvalidRequest, match=r"video 2 .* cannot be decoded") as refused:
        decoder.video(file[:500], Sampling(), "video 2")
    assert refused.value.field == "video_data"
