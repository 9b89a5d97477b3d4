"""Files are decoded in another process: what ends it or holds it up is one request's, and the next is served."""

import gc
import io
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from nbgen.engine import audio, image
from nbgen.engine.media_decoder import MediaDecoder
from nbgen.engine.worker_channel import Pipes
from nbgen.errors import InvalidRequest, Unavailable
from tests.conftest import PATIENCE
from tests.engine.conftest import suspend, wait_until_asked, workers
from tests.engine.image_requests import picture
from tests.engine.test_audio import RATE, media, sound

START_OF_SCAN = b"\xff\xda"
#: Room for decoders, not for a large picture.
LITTLE = 2**26


def encoded(picture: Image.Image, form: str = "PNG", **options: object) -> memoryview:
    picture.save(file := io.BytesIO(), form, **options)
    return memoryview(file.getvalue())


def endless(scans: int = 20_000) -> memoryview:
    """A JPEG of 49 megapixels and about a megabyte, whose last scan stands there so often that it takes minutes."""
    whole = bytes(encoded(Image.new("L", (7000, 7000), 90), "JPEG", progressive=True))
    last = whole.rindex(START_OF_SCAN)
    return memoryview(whole[:last] + whole[last:-2] * scans + whole[-2:])


def children() -> list[psutil.Process]:
    return workers("nbgen.engine.media_worker")


def process_of(decoder: MediaDecoder) -> psutil.Process:
    return psutil.Process(decoder._process._process.pid)


@pytest.fixture
def make() -> Iterator[Callable[..., MediaDecoder]]:
    """Decoders, ended afterwards."""
    gc.collect()
    before, made = children(), []

    def decoder(**options: object) -> MediaDecoder:
        made.append(MediaDecoder(**options))
        return made[-1]

    yield decoder
    for each in made:
        each.close()
    assert [p for p in children() if p not in before] == [], "closing leaves no process"


def test_it_decodes_as_one_would_here(make: Callable[..., MediaDecoder]) -> None:
    decoder = make()
    assert decoder._process._process is None, "it is started at the first file"
    for file in (encoded(picture(1)), encoded(picture(2, 300, 200), "JPEG"), encoded(picture(3), "WEBP")):
        found, expected = decoder.image(file, "image 1"), image.decode(file, "image 1")
        assert (found.mode, found.size) == (expected.mode, expected.size)
        assert found.tobytes() == expected.tobytes()
    process = process_of(decoder)
    wide = media(np.repeat(sound(440), 3), 3 * RATE)
    np.testing.assert_array_equal(decoder.sound(wide.data, RATE, "a"), audio.decode(wide.data, RATE, "a"))
    assert process_of(decoder) == process, "and kept"
    assert not any("torch" in Path(mapped.path).name for mapped in process.memory_maps())


def test_a_refusal_is_the_decoders_own(make: Callable[..., MediaDecoder]) -> None:
    decoder = make()
    with pytest.raises(InvalidRequest, match=r"image 2 .* cannot be decoded") as refused:
        decoder.image(memoryview(b"GIF89a nothing"), "image 2")
    assert refused.value.field == "image_data"
    with pytest.raises(InvalidRequest, match="no samples"):
        decoder.sound(media(np.zeros(0)).data, RATE, "audio 1")


@pytest.mark.usefixtures("shared_processors")
def test_what_takes_too_long_is_given_up_and_the_next_is_decoded(make: Callable[..., MediaDecoder]) -> None:
    decoder = make(seconds=1.5)
    decoder.image(encoded(picture(1)), "image 1")
    before = process_of(decoder)
    with pytest.raises(InvalidRequest, match=r"image 1 \(\d+ bytes\) takes longer than 1\.5 s"):
        decoder.image(endless(), "image 1")
    assert decoder.image(encoded(picture(1)), "image 1").size == picture(1).size
    assert process_of(decoder) != before


def test_what_takes_too_much_memory_is_refused_and_the_next_is_decoded(make: Callable[..., MediaDecoder]) -> None:
    decoder = make(memory_bytes=LITTLE)
    with pytest.raises(InvalidRequest, match="64 MiB"):
        decoder.image(encoded(Image.new("RGB", (7000, 7000))), "image 1")
    assert decoder.image(encoded(picture(1)), "image 1").size == picture(1).size


def test_memory_that_is_short_while_an_image_is_read_back_leaves_nothing_to_the_next(
    make: Callable[..., MediaDecoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, read = make(), Pipes._read
    decoder.image(encoded(picture(1)), "image 1")
    short = iter([False, True])

    def starved(pipes: Pipes, length: int) -> bytes:
        if next(short, False):
            raise MemoryError
        return read(pipes, length)

    monkeypatch.setattr(Pipes, "_read", starved)
    with pytest.raises(MemoryError):
        decoder.image(encoded(picture(2)), "image 1")
    assert decoder.image(encoded(picture(3)), "image 1").tobytes() == picture(3).tobytes()


def once_busy(decoder: MediaDecoder, call: Callable[[], None]) -> None:
    """Call from another thread when the decoder's process, which is stopped, has been given something."""
    worker = decoder._process._process
    suspend(worker)

    def run() -> None:
        wait_until_asked(worker)
        call()

    threading.Thread(target=run).start()


def test_a_decoder_that_dies_is_that_files_fault_and_the_next_is_decoded(make: Callable[..., MediaDecoder]) -> None:
    decoder = make(seconds=60.0)
    decoder.image(encoded(picture(1)), "image 1")
    process = process_of(decoder)

    def crash() -> None:
        process.send_signal(signal.SIGSEGV)
        process.resume()

    once_busy(decoder, crash)
    with pytest.raises(InvalidRequest, match="cannot be decoded within 2048 MiB"):
        decoder.image(encoded(picture(2)), "image 1")
    assert decoder.image(encoded(picture(1)), "image 1").size == picture(1).size


def test_a_decoder_that_something_else_ends_is_no_fault_of_the_file(make: Callable[..., MediaDecoder]) -> None:
    decoder = make(seconds=60.0)
    decoder.image(encoded(picture(1)), "image 1")
    once_busy(decoder, process_of(decoder).kill)
    with pytest.raises(Unavailable, match="ended from outside"):
        decoder.image(encoded(picture(2)), "image 1")
    assert decoder.image(encoded(picture(2)), "image 1").size == picture(2).size


def test_one_that_was_lost_meanwhile_is_started_again(make: Callable[..., MediaDecoder]) -> None:
    decoder = make()
    decoder.image(encoded(picture(1)), "image 1")
    process = process_of(decoder)
    process.kill()
    process.wait(PATIENCE)
    assert decoder.image(encoded(picture(1)), "image 1").size == picture(1).size


def test_closing_ends_what_is_being_decoded(make: Callable[..., MediaDecoder]) -> None:
    decoder = make(seconds=60.0)
    decoder.image(encoded(picture(1)), "image 1")
    once_busy(decoder, decoder.close)
    with pytest.raises(Unavailable):
        decoder.image(encoded(picture(2)), "image 1")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal on a parent's death is Linux's")
def test_it_ends_with_its_parent() -> None:
    code = """
        import time
        from nbgen.engine.media_decoder import MediaDecoder
        decoder = MediaDecoder(seconds=60.0)
        try: decoder.image(memoryview(b"no image"), "image 1")
        except Exception: print(decoder._process._process.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert child.wait(timeout=PATIENCE) is None or not child.is_running()
