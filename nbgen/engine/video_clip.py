"""A video as a processor takes it: frames and their times. The processor says which frames of a file it wants."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from transformers.video_utils import VideoMetadata

from nbgen.engine.video import MAX_PIXELS, Frames, Sampling
from nbgen.errors import InvalidRequest
from nbgen.media_types import MAX_FRAMES
from nbgen.messages import Media

#: Options of videos by format: frames in a second; for a file, also the number of frames.
OPTIONS = {"frames": ("fps",), "raw": ("fps", "num_frames")}
DEFAULTS = Sampling()


class VideoClip(NamedTuple):
    """Frames `[time, height, width, 3]`, and their times."""

    frames: np.ndarray
    times: VideoMetadata

    @classmethod
    def of_images(cls, frames: np.ndarray, options: Mapping[str, Any]) -> "VideoClip":
        """A clip of all frames of a video, with `fps` frames in a second if that is known."""
        count = len(frames)
        return cls(frames, VideoMetadata(count, fps=options.get("fps"), frames_indices=list(range(count))))

    @classmethod
    def of_file(cls, found: Frames) -> "VideoClip":
        """A clip of the frames that were taken from a file."""
        return cls(found.pixels, VideoMetadata(found.total, fps=found.fps, frames_indices=found.indices))


def plain(medium: Any) -> Any:
    """A decoded medium as it is passed to the processor."""
    return medium.frames if isinstance(medium, VideoClip) else medium


def check(video: Media) -> None:
    """Raise InvalidRequest for options that a video of this format does not have, or wrong values."""
    known, options = OPTIONS[video.format], video.options
    if unknown := sorted(set(options) - set(known)):
        words = f"{'the frames of videos' if video.format == 'frames' else 'videos'} have no option {unknown[0]!r} but "
        raise InvalidRequest(words + " and ".join(known), field="video_data")
    fps, count = options.get("fps", 1), options.get("num_frames", 1)
    if isinstance(fps, bool | str) or not fps > 0:
        raise InvalidRequest(f"fps is {fps!r:.40}; it is a number above 0", field="video_data")
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_FRAMES:
        raise InvalidRequest(
            f"num_frames is {count!r:.40}; it is a whole number, 1 to {MAX_FRAMES}", field="video_data"
        )
    if len(options) > 1:
        raise InvalidRequest("fps and num_frames both say how many frames are taken: send one", field="video_data")


def sampling(processor: Any, options: Mapping[str, Any], videos: int) -> Sampling:
    """How the video processor samples one of so many `videos`, unless the options say otherwise.

    One with a rate and a number of frames goes by the rate, and has at most that number; one with a longest duration
    has the number for nothing.
    """
    own = {name: getattr(processor, name, None) for name in ("fps", "num_frames", "min_frames", "max_frames")}
    if own["fps"] and own["num_frames"]:
        most = None if hasattr(processor, "max_duration") else own["num_frames"]
        own |= {"num_frames": None, "max_frames": own["max_frames"] or most}
    asked = {"num_frames": None} if "fps" in options else {}
    chosen = {**own, **asked, **options}
    return Sampling(
        fps=float(chosen["fps"] or DEFAULTS.fps),
        frames=chosen["num_frames"],
        least=own["min_frames"] or DEFAULTS.least,
        most=MAX_FRAMES if "num_frames" in options else min(own["max_frames"] or MAX_FRAMES, MAX_FRAMES),
        step=getattr(processor, "temporal_patch_size", None) or 1,
        pixels=MAX_PIXELS // videos,
    )


def arguments(clips: Sequence[VideoClip]) -> dict[str, Any]:
    """Keyword arguments of a processor for clips: it must not sample frames again, and gets their times."""
    return {"do_sample_frames": False, "video_metadata": [clip.times for clip in clips]}
