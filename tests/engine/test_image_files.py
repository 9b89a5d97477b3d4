"""Image files of all kinds become the pixels that transformers sees."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.image_transforms import convert_to_rgb

from nbgen.engine import image
from nbgen.errors import InvalidRequest
from tests.conftest import at_least
from tests.engine.image_requests import picture

#: Of Exif.
ORIENTATION, QUARTER_TURN, RESOLUTION = 0x0112, 6, 0x011A


@pytest.mark.parametrize(
    ("form", "mode"),
    [("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("PNG", "1"), ("JPEG", "CMYK"), ("WEBP", "RGB"), ("BMP", "L")],
)
def test_files_of_all_kinds_become_rgb(form: str, mode: str) -> None:
    made = Image.fromarray(np.full((6, 9), 300, np.uint16)) if mode == "I;16" else picture(1, 9, 6).convert(mode)
    made.save(buffer := io.BytesIO(), form)
    decoded = image.decode(memoryview(buffer.getvalue()), "image 1")
    assert (decoded.mode, decoded.size) == ("RGB", (9, 6))


def test_what_is_transparent_lies_on_white_as_transformers_has_it() -> None:
    drawn = Image.new("RGBA", (9, 6))
    drawn.putpixel((2, 3), (0, 0, 0, 255))
    drawn.putpixel((3, 3), (200, 0, 0, 100))
    few = drawn.convert("P")
    few.info["transparency"] = few.getpixel((0, 0))
    for made in (drawn, drawn.convert("LA"), few):
        made.save(buffer := io.BytesIO(), "PNG")
        decoded = image.decode(memoryview(buffer.getvalue()), "image 1")
        if at_least("transformers", "5.24"):
            assert decoded.tobytes() == convert_to_rgb(Image.open(buffer)).tobytes()
        assert (decoded.getpixel((0, 0)), decoded.getpixel((2, 3))) == ((255, 255, 255), (0, 0, 0))


def test_greys_of_16_bits_are_seen_by_their_upper_ones() -> None:
    ramp = np.linspace(0, 65_535, 256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(ramp).save(buffer := io.BytesIO(), "PNG")
    decoded = np.asarray(image.decode(memoryview(buffer.getvalue()), "image 1"))
    np.testing.assert_array_equal(decoded, np.repeat((ramp >> 8)[..., None], 3, axis=2))


def test_of_an_animation_the_first_frame_is_seen_and_a_photo_is_upright() -> None:
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    frames[0].save(buffer := io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
    assert image.decode(memoryview(buffer.getvalue()), "image 1").getpixel((0, 0)) == (255, 0, 0)
    exif = Image.Exif()
    exif[ORIENTATION] = QUARTER_TURN
    picture(1, 90, 60).save(buffer := io.BytesIO(), "JPEG", exif=exif)
    assert image.decode(memoryview(buffer.getvalue()), "image 1").size == (60, 90)


@pytest.mark.parametrize("orientation", range(10))
def test_a_photo_is_as_upright_as_pillow_has_it(orientation: int) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    picture(1, 9, 6).save(buffer := io.BytesIO(), "PNG", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(buffer))
    assert image.decode(memoryview(buffer.getvalue()), "image 1").tobytes() == upright.tobytes()


@pytest.mark.parametrize(("kind", "value"), [(7, b"abcd"), (9, struct.pack("<i", -5))])
def test_a_photo_whose_camera_wrote_another_field_oddly_is_upright_all_the_same(kind: int, value: bytes) -> None:
    fields = struct.pack("<HHIHHHHI", ORIENTATION, 3, 1, QUARTER_TURN, 0, RESOLUTION, kind, {7: 4, 9: 1}[kind])
    told = b"II*\0" + struct.pack("<IH", 8, 2) + fields + value + bytes(4)
    picture(1, 90, 60).save(buffer := io.BytesIO(), "JPEG", exif=b"Exif\0\0" + told)
    assert image.decode(memoryview(buffer.getvalue()), "image 1").size == (60, 90)


@pytest.mark.parametrize("size", [(20_000, 20_000), (12_000, 9_000), (8_000, 7_000), (17_000, 10)])
def test_a_picture_too_large_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    header = struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    with pytest.raises(InvalidRequest, match=r"megapixels|16384"):
        image.decode(memoryview(b"\x89PNG\r\n\x1a\n" + b"".join(parts)), "image 1")
