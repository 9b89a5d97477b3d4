"""Only sound files of the kinds that are named reach the library that decodes them."""

import io

import numpy as np
import pytest
import soundfile

from nbgen.engine import audio, sound_file
from nbgen.errors import InvalidRequest

RATE = 16_000
TONE = np.sin(np.arange(RATE // 4) / 20).astype(np.float32) * 0.5
TAG = b"ID3\x04\0\0\0\0\0\x0a" + bytes(10)


def file(form: str, subtype: str | None = None) -> bytes:
    soundfile.write(buffer := io.BytesIO(), TONE, RATE, format=form, subtype=subtype)
    return buffer.getvalue()


def decode(data: bytes) -> np.ndarray:
    return audio.decode(memoryview(data), RATE, "audio 1")


READ = [
    *(("WAV", subtype) for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW")),
    *(("WAVEX", subtype) for subtype in ("PCM_16", "FLOAT", "ULAW")),
    *(("RF64", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III")),
]


@pytest.mark.parametrize(("form", "subtype"), READ)
def test_the_usual_ones_are_read(form: str, subtype: str) -> None:
    found = decode(file(form, subtype))
    assert abs(len(found) - len(TONE)) < 3000
    assert abs(np.abs(found[500:3000]).max() - 0.5) < 0.05


def test_tags_before_them_are_skipped() -> None:
    assert len(decode(TAG + TAG + file("MP3"))) > RATE // 5


REFUSED = [
    *(("WAV", subtype) for subtype in ("IMA_ADPCM", "MS_ADPCM", "GSM610", "G721_32", "NMS_ADPCM_16")),
    *(("WAVEX", "MS_ADPCM"), ("AIFF", "PCM_16"), ("AIFF", "IMA_ADPCM"), ("AU", "G721_32"), ("CAF", "ALAC_16")),
    *(("MAT5", "PCM_16"), ("SDS", "PCM_16"), ("VOC", "PCM_16"), ("W64", "IMA_ADPCM"), ("XI", "DPCM_16")),
]
WRITTEN = [(form, of) for form, of in REFUSED if soundfile.check_format(form, of)]


@pytest.mark.parametrize(("form", "subtype"), WRITTEN)
@pytest.mark.parametrize("before", [b"", TAG, TAG + TAG], ids=["alone", "tagged", "tagged twice"])
def test_all_others_are_refused_before_they_are_opened(
    before: bytes, form: str, subtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = before + file(form, subtype)
    monkeypatch.setattr(soundfile, "SoundFile", None)
    with pytest.raises(InvalidRequest, match=r"audio 1 \(\d+ bytes\) cannot be decoded: .* WAV, FLAC, OGG or MP3 file"):
        decode(data)
    with pytest.raises(ValueError, match=r"of the encoding|of a known kind"):
        sound_file.check(memoryview(data))


def test_there_are_such_files() -> None:
    assert ("WAV", "IMA_ADPCM") in WRITTEN
    assert len(WRITTEN) > 8


def chunk(name: bytes, content: bytes) -> bytes:
    return name + len(content).to_bytes(4, "little") + content


def wave(*chunks: bytes, kind: bytes = b"RIFF") -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return kind + len(body).to_bytes(4, "little") + body


PCM = (
    (1).to_bytes(2, "little")
    + (1).to_bytes(2, "little")
    + RATE.to_bytes(4, "little")
    + (2 * RATE).to_bytes(4, "little")
)
PCM += (2).to_bytes(2, "little") + (16).to_bytes(2, "little")
ADPCM = (0x11).to_bytes(2, "little") + PCM[2:] + bytes(4)
DATA = chunk(b"data", (TONE * 32767).astype("<i2").tobytes())


SIZES = chunk(b"ds64", len(DATA).to_bytes(8, "little") * 2 + len(TONE).to_bytes(8, "little") + bytes(4))
BEFORE = [
    [chunk(b"JUNK", bytes(28))],
    [chunk(b"bext", bytes(602)), chunk(b"fact", len(TONE).to_bytes(4, "little"))],
    [chunk(b"FLLR", bytes(4000)), chunk(b"iXML", b"<BWFXML/>."), chunk(b"PAD ", b"")],
]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("kind", [b"RIFF", b"RF64"])
def test_chunks_that_recorders_write_before_the_format_are_passed_over(kind: bytes, before: list[bytes]) -> None:
    sizes = [SIZES] if kind == b"RF64" else []
    assert len(decode(wave(*sizes, *before, chunk(b"fmt ", PCM), DATA, kind=kind))) == len(TONE)


def hidden(at: int) -> bytes:
    """A chunk to pass over, and in it, so many bytes from its beginning, a format that is refused."""
    return chunk(b"JUNK", bytes(at - 8) + file("WAV", "IMA_ADPCM")[12:])


LONGER = b"exif" + b"ecor" + (40).to_bytes(4, "little")  # a part of a list that says it is longer than the list
CONFUSING = {
    "smpl": chunk(b"smpl", b"") + hidden(36),
    "smpl of 20": chunk(b"smpl", bytes(20)) + hidden(16),
    "LIST": chunk(b"LIST", LONGER) + hidden(40),
    "LIST of a title": chunk(b"LIST", b"INFO" + chunk(b"INAM", b"Tone")),
    "fact": chunk(b"fact", b""),
    "fact of 2": chunk(b"fact", bytes(2)),
    "ds64 and a table": SIZES[:-4] + (64).to_bytes(4, "little") + hidden(64),
    "ds64 of 40": chunk(b"ds64", bytes(40)),
}


@pytest.mark.parametrize("confusing", CONFUSING.values(), ids=CONFUSING.keys())
@pytest.mark.parametrize("kind", [b"RIFF", b"RF64"])
def test_chunks_that_may_be_longer_than_they_say_are_refused_before_the_format(kind: bytes, confusing: bytes) -> None:
    data = wave(confusing, chunk(b"fmt ", PCM), DATA, kind=kind)
    with pytest.raises(ValueError, match="before its format"):
        sound_file.check(memoryview(data))


def test_there_are_such_chunks() -> None:
    for name in ("smpl", "smpl of 20", "LIST"):
        data = wave(CONFUSING[name], chunk(b"fmt ", PCM), DATA)
        with soundfile.SoundFile(io.BytesIO(data)) as opened:
            assert opened.subtype == "IMA_ADPCM"


def test_what_is_opened_as_something_else_all_the_same_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sound_file, "check", lambda _: None)
    monkeypatch.setattr(soundfile.SoundFile, "read", lambda *_, **__: pytest.fail("it is read"))
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        decode(file("WAV", "IMA_ADPCM"))


HOSTILE = [
    wave(chunk(b"fmt ", ADPCM), chunk(b"fmt ", PCM), DATA),
    wave(chunk(b"JUNK", chunk(b"fmt ", PCM)[:24]), chunk(b"fmt ", ADPCM), DATA),
    wave(chunk(b"JUNK", bytes(27)), chunk(b"fmt ", PCM), DATA),
    wave(chunk(b"JUNK", bytes(27)) + b"\0", chunk(b"fmt ", PCM), DATA),
    wave(b"JUNK" + b"\xf0\xff\xff\xff", chunk(b"fmt ", PCM), DATA),
    wave(DATA),
    wave(),
    b"RIFF",
    b"ID3",
    TAG,
    b"ID3\x04\0\0\x7f\x7f\x7f\x7f" + bytes(30),
    b"\xff",
    b"",
]


@pytest.mark.parametrize("data", HOSTILE)
def test_what_hides_its_encoding_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"WAV file|known kind"):
        sound_file.check(memoryview(data))
    with pytest.raises(InvalidRequest, match="cannot be decoded"):
        decode(data)
