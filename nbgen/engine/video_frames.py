"""Video processors for known kinds of models that use their Pillow image processor, and so need no torchvision.

Sizes and the arrangement of patches follow transformers' Qwen2VLVideoProcessor, Qwen3VLVideoProcessor and
Gemma4VideoProcessor. Frames are resized by Pillow, whose pixels may differ by a step or two from torchvision's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import BatchFeature
from transformers.models.auto.video_processing_auto import get_video_processor_config
from transformers.video_utils import make_batched_metadata, make_batched_videos

#: Qwen's video processors, with the least and most pixels: of a frame with Qwen2-VL, of a whole video with Qwen3-VL.
SIZES = {
    "Qwen2VLVideoProcessor": (128 * 28 * 28, 768 * 28 * 28),
    "Qwen3VLVideoProcessor": (128 * 32 * 32, 768 * 32 * 32),
}
#: The processor that treats frames as images with fewer tokens; default tokens of a frame, and frames; image options.
SEPARATE, TOKENS, FRAMES = "Gemma4VideoProcessor", 70, 32
OF_IMAGES = ("patch_size", "pooling_kernel_size", "image_mean", "image_std", "do_normalize", "rescale_factor")


class _OfVideos(ABC):
    """Replaces a processor's own video processor, and is called like it."""

    def __call__(
        self, videos: Any, video_metadata: Any = None, *, return_metadata: bool = False, **_: Any
    ) -> BatchFeature:
        batch: list[Any] = make_batched_videos(videos)
        metadata = make_batched_metadata(batch, video_metadata=video_metadata)
        found = BatchFeature(self._made(batch))
        if return_metadata:
            found["video_metadata"] = metadata
        return found

    @abstractmethod
    def _made(self, batch: list[Any]) -> dict[str, Any]:
        """The model's inputs for several videos, each with frames `[time, height, width, 3]`."""


class SeparateFrames(_OfVideos):
    """Each frame is processed as an image."""

    def __init__(self, images: Any, config: dict[str, Any]) -> None:
        """`images` is the processor's for images, `config` what its folder says of videos."""
        self._images = images
        self.fps, self.num_frames = config.get("fps"), config.get("num_frames") or FRAMES
        self._options = {name: config[name] for name in OF_IMAGES if config.get(name) is not None}
        self._options["max_soft_tokens"] = config.get("max_soft_tokens") or TOKENS

    def _made(self, batch: list[Any]) -> dict[str, Any]:
        """Patches of all frames `[frames, patches, values]`, their positions, and each video's number of frames."""
        made = [self._images([*map(Image.fromarray, v)], return_tensors="pt", **self._options) for v in batch]
        return {
            "pixel_values_videos": torch.cat([each["pixel_values"] for each in made]),
            "video_position_ids": torch.cat([each["image_position_ids"] for each in made]),
            "num_frames_per_video": torch.tensor([*map(len, batch)]),
            "num_soft_tokens_per_video": [int(each["num_soft_tokens_per_image"][0]) for each in made],
        }


class FramesProcessor(_OfVideos):
    """Frames become patches in time and space, as in Qwen's models."""

    def __init__(self, images: Any, kind: str, config: dict[str, Any]) -> None:
        """`images` is the processor's for images, `config` what its folder says of videos."""
        self._images = images
        self._of_video = kind == "Qwen3VLVideoProcessor"
        size, (least, most) = config.get("size") or {}, SIZES[kind]
        self.fps, self.num_frames = config.get("fps"), config.get("num_frames")
        self.min_frames, self.max_frames = config.get("min_frames"), config.get("max_frames")
        self._least = config.get("min_pixels") or size.get("shortest_edge") or least
        self._most = config.get("max_pixels") or size.get("longest_edge") or most
        self.patch_size: int = config.get("patch_size") or images.patch_size
        self.temporal_patch_size: int = config.get("temporal_patch_size") or images.temporal_patch_size
        self.merge_size: int = config.get("merge_size") or images.merge_size
        self._normalization = {name: config[name] for name in ("image_mean", "image_std") if config.get(name)}

    def _made(self, batch: list[Any]) -> dict[str, Any]:
        """Patches of all videos `[patches, values]`, and the grid of each video's patches `[time, height, width]`."""
        patches, grids = zip(*map(self._patches, batch), strict=True)
        return {"pixel_values_videos": torch.cat(patches), "video_grid_thw": torch.tensor(grids)}

    def _patches(self, frames: np.ndarray) -> tuple[torch.Tensor, list[int]]:
        """Patches and grid of frames `[time, height, width, 3]`; the last frame is repeated to fill a patch in time."""
        size = self._fitted(*frames.shape[:3])
        fitted = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in frames]
        fitted += fitted[-1:] * (-len(fitted) % self.temporal_patch_size)
        sizes = {"patch_size": self.patch_size, "merge_size": self.merge_size}
        sizes["temporal_patch_size"] = self.temporal_patch_size
        made = self._images(fitted, do_resize=False, return_tensors="pt", **sizes, **self._normalization)
        _, height, width = made["image_grid_thw"][0].tolist()
        pixels = made["pixel_values"].view(
            len(fitted), height * width, -1, self.temporal_patch_size, self.patch_size**2
        )
        in_time = pixels[:, :, :, 0].unflatten(0, (-1, self.temporal_patch_size))  # images are the same at all times
        return in_time.permute(0, 2, 3, 1, 4).flatten(0, 1).flatten(1), [len(in_time), height, width]

    def _fitted(self, count: int, height: int, width: int) -> tuple[int, int]:
        """Width and height in whole patches, their pixels within the limits."""
        factor, step = self.patch_size * self.merge_size, self.temporal_patch_size
        if self._of_video and count < step:
            raise ValueError(f"{count} frames; at least {step}")
        if self._of_video and min(height, width) < factor:
            scale = factor / min(height, width)
            height, width = int(height * scale), int(width * scale)
        frames, rounded = (count, round(count / step) * step) if self._of_video else (1, 1)
        sides = [round(side / factor) * factor for side in (width, height)]
        pixels, area = rounded * math.prod(sides), frames * height * width
        if pixels > self._most:
            shrink = math.sqrt(area / self._most)
            sides = [max(factor, math.floor(side / shrink / factor) * factor) for side in (width, height)]
        elif pixels < self._least:
            grow = math.sqrt(self._least / area)
            sides = [math.ceil(side * grow / factor) * factor for side in (width, height)]
        return sides[0], sides[1]


def of_folder(folder: Path, images: Any) -> FramesProcessor | SeparateFrames | None:
    """The video processor for the model in `folder`; None if the model takes videos in another way."""
    config = get_video_processor_config(folder, local_files_only=True)
    kind = config.get("video_processor_type")
    if kind == SEPARATE:
        return SeparateFrames(images, config)
    if kind not in SIZES or config.get("cap_pixels_per_frame"):
        return None
    return FramesProcessor(images, kind, config)
