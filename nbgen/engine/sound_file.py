"""What kind of sound file its first bytes say it is, so that the library which decodes opens no other.

libsndfile reads 25 formats and their many encodings, some of which write past their memory on hostile files
(CVE-2026-37555, of IMA ADPCM in WAV, in 1.2.2). Decodes nothing.
"""

FORMATS = "WAV, FLAC, OGG or MP3"
WAVES, OTHERS = (b"RIFF", b"RF64"), (b"fLaC", b"OggS")
#: How numbers of a WAV file may be written: PCM, float, A-law, mu-law.
ENCODINGS = (0x0001, 0x0003, 0x0006, 0x0007)
#: That the encoding stands further behind.
EXTENSIBLE = 0xFFFE


def check(data: memoryview) -> None:
    """Raises ValueError for what is none of `FORMATS`, or is written in a way that is refused."""
    data = _behind_tags(data)
    begins = bytes(data[:12])
    if begins[:4] in WAVES and begins[8:] == b"WAVE":
        encoding = _encoding(data)
        if encoding not in ENCODINGS:
            raise ValueError(f"a WAV file of the encoding {encoding:#06x}")
    elif begins[:4] not in OTHERS and not _is_mpeg(begins):
        raise ValueError("no sound file of a known kind")


def _behind_tags(data: memoryview) -> memoryview:
    """What follows ID3 tags (ID3v2.4, section 3.1), which libsndfile skips before it looks what a file is."""
    while bytes(data[:3]) == b"ID3" and len(data) >= 10:
        size = sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
        data = data[10 + size :]
    return data


def _encoding(data: memoryview) -> int:
    """Of a WAV file, as its first `fmt ` chunk says. Before it, chunks of odd lengths are read in more than one way."""
    at = 12
    while at + 36 <= len(data) and bytes(data[at : at + 4]) != b"fmt ":
        length = _number(data, at + 4, 4)
        if length % 2:
            raise ValueError("a WAV file with an odd chunk before its format")
        at += 8 + length
    found = _number(data, at + 8, 2)
    return _number(data, at + 32, 2) if found == EXTENSIBLE else found


def _number(data: memoryview, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")


def _is_mpeg(begins: bytes) -> bool:
    """Whether a frame of MPEG audio begins: eleven ones (ISO/IEC 11172-3, section 2.4.2.3)."""
    return len(begins) > 1 and begins[0] == 0xFF and begins[1] & 0xE0 == 0xE0
