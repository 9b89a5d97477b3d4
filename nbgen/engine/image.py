"""From the bytes of an image file to pixels, within limits that are checked before anything is decoded.

Decoding may hang or crash the process that does it: `media_decoder` lets another process do it.
"""

import io

from PIL import ExifTags, Image

from nbgen.engine.media_file import decoding
from nbgen.errors import InvalidRequest

#: The formats that Pillow may try; of an animation the first frame is taken.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 50_000_000
#: The most pixels in all images of a prompt.
PROMPT_PIXELS = 100_000_000
MAX_SIDE = 16_384
#: The greatest ratio of the sides: models enlarge the shorter side to what they need, however long the other becomes.
MAX_RATIO = 200
#: How a picture is turned upright, by its orientation in Exif; by any other it is upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode(data: memoryview, place: str) -> Image.Image:
    """The image in RGB, upright. `place` names it to whoever sent it. Raises InvalidRequest."""
    with decoding(data, "image", place, "PNG, JPEG, WEBP, GIF or BMP"):
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
            check_size(image.size, place)
            return _rgb(_upright(image))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            words = f"{place} has far more than {MAX_PIXELS // 10**6} megapixels, the most that is decoded"
            raise InvalidRequest(words, field="image_data") from None


def _upright(image: Image.Image) -> Image.Image:
    """The image as its camera was held. Pillow's own also writes Exif anew, and fails where any other field is odd."""
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB; transparent images are put on white, as transformers' own processors do."""
    if image.mode.startswith("I"):  # 16 bits, of which Pillow would make all above 255 white
        return image.convert("I").point(lambda number: number / 256).convert("L").convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def check_size(size: tuple[int, int], place: str, field: str = "image_data") -> None:
    """Raise InvalidRequest for pictures that are too large, or too long for their width."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise InvalidRequest(f"{place} is {width} x {height}; at most {MAX_PIXELS // 10**6} megapixels", field=field)
    if not (1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE):
        raise InvalidRequest(f"{place} is {width} x {height}; each side is 1 to {MAX_SIDE} pixels", field=field)
    if max(size) > MAX_RATIO * min(size):
        raise InvalidRequest(
            f"{place} is {width} x {height}; one side is at most {MAX_RATIO} times the other", field=field
        )
