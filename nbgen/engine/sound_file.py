"""Tells the kind of a sound file by its first bytes, so that the decoding library is given only known kinds.

libsndfile reads 25 formats and their many encodings, some of which write past their memory on hostile files
(CVE-2026-37555, of IMA ADPCM in WAV, in 1.2.2). Decodes nothing.
"""

FORMATS = "WAV, FLAC, OGG or MP3"
WAVES, OTHERS = (b"RIFF", b"RF64"), (b"fLaC", b"OggS")
#: Encodings that a WAV file may have: PCM, float, A-law, mu-law.
ENCODINGS = (0x0001, 0x0003, 0x0006, 0x0007)
#: In place of an encoding: it follows further on.
EXTENSIBLE = 0xFFFE
#: Chunks that recorders write before the format, and the least length of each. libsndfile skips these by the length
#: that they declare; others (`smpl`, `LIST`) by their contents, so that it may find a format elsewhere.
BEFORE_FORMAT = {b"JUNK": 0, b"junk": 0, b"PAD ": 0, b"FLLR": 0, b"bext": 0, b"iXML": 0, b"fact": 4}
#: Another such chunk: sizes of more than 32 bits, here without a table of further sizes.
SIZES, SIZES_LENGTH = b"ds64", 28
#: libsndfile's names of the encodings that are accepted.
SUBTYPES = {
    *("PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW", "VORBIS", "OPUS"),
    *("MPEG_LAYER_I", "MPEG_LAYER_II", "MPEG_LAYER_III"),
}


def check(data: memoryview) -> None:
    """Raises ValueError for a file that is none of `FORMATS`, or has an encoding that is refused."""
    data = _behind_tags(data)
    begins = bytes(data[:12])
    if begins[:4] in WAVES and begins[8:] == b"WAVE":
        encoding = _encoding(data)
        if encoding not in ENCODINGS:
            raise ValueError(f"a WAV file of the encoding {encoding:#06x}")
    elif begins[:4] not in OTHERS and not _is_mpeg(begins):
        raise ValueError("no sound file of a known kind")


def check_opened(subtype: str) -> None:
    """`check` for a file that libsndfile has opened but not read yet, in case it understands the file differently."""
    if subtype not in SUBTYPES:
        raise ValueError(f"a sound file of the encoding {subtype}")


def _behind_tags(data: memoryview) -> memoryview:
    """The data after ID3 tags (ID3v2.4, section 3.1), which libsndfile skips before it detects the kind of file."""
    while bytes(data[:3]) == b"ID3" and len(data) >= 10:
        size = sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
        data = data[10 + size :]
    return data


def _encoding(data: memoryview) -> int:
    """The encoding of a WAV file, from its first `fmt ` chunk."""
    at = 12
    while at + 36 <= len(data) and bytes(data[at : at + 4]) != b"fmt ":
        length = _number(data, at + 4, 4)
        if not _is_passed_over(data[at:], length):
            raise ValueError(f"a WAV file with a chunk {bytes(data[at : at + 4])!r} before its format")
        at += 8 + length
    found = _number(data, at + 8, 2)
    return _number(data, at + 32, 2) if found == EXTENSIBLE else found


def _is_passed_over(chunk: memoryview, length: int) -> bool:
    """Whether libsndfile skips exactly `length` bytes. False for odd lengths, which are read in more than one way."""
    name = bytes(chunk[:4])
    if name == SIZES:
        return length == SIZES_LENGTH and _number(chunk, 8 + SIZES_LENGTH - 4, 4) == 0
    return length % 2 == 0 and length >= BEFORE_FORMAT.get(name, length + 1)


def _number(data: memoryview, at: int, length: int) -> int:
    return int.from_bytes(data[at : at + length], "little")


def _is_mpeg(begins: bytes) -> bool:
    """Whether a frame of MPEG audio begins here: eleven one bits (ISO/IEC 11172-3, section 2.4.2.3)."""
    return len(begins) > 1 and begins[0] == 0xFF and begins[1] & 0xE0 == 0xE0
