"""The kinds of media that a prompt may have, and how large each may be. Knows no formats."""

from __future__ import annotations

from typing import Literal

MediaType = Literal["image", "audio", "video"]
#: Most media of one prompt.
MAX_MEDIA = 16
#: Most frames of a video sent as images, and most that are sampled from a video file.
MAX_FRAMES = 256
#: Largest file.
MAX_BYTES: dict[MediaType, int] = {"image": 20 * 2**20, "audio": 25 * 2**20, "video": 40 * 2**20}
