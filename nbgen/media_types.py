"""The kinds of media that a prompt may have, and how large each may be. Knows no formats."""

from __future__ import annotations

from typing import Literal

MediaType = Literal["image", "audio", "video"]
#: Of one prompt.
MAX_MEDIA = 16
#: Of a video that is sent as images, and those that are taken of a file.
MAX_FRAMES = 256
#: Of a file.
MAX_BYTES: dict[MediaType, int] = {"image": 20 * 2**20, "audio": 25 * 2**20, "video": 40 * 2**20}
