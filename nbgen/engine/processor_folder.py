"""Loads a model's processor from its folder, with transformers' Pillow image processors: torchvision is not needed.

transformers' video processors need torchvision. Without it, a processor is loaded without its video processor; if
`video_frames` knows the kind of model, it gets that one instead. An engine's process leaves torchvision out, so that
what a model sees does not depend on whether it is installed: `LeftOut` tells where it is needed.
"""

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoProcessor, PreTrainedConfig
from transformers.models.auto.video_processing_auto import AutoVideoProcessor
from transformers.processing_utils import ProcessorMixin
from transformers.utils.import_utils import is_torchvision_available
from transformers.video_processing_utils import BaseVideoProcessor

from nbgen.engine import audio, unread_media, video, video_frames
from nbgen.engine.lean_imports import TORCHVISION, LeftOut, is_left_out
from nbgen.engine.media_encoder import placeholders
from nbgen.engine.processor import Processor, media_types
from nbgen.model_files import read_json

#: A folder with a processor has at least one of these files.
FILES = ("processor_config.json", "preprocessor_config.json", "image_processor_config.json")

PIXTRAL = "transformers.models.pixtral"

log = logging.getLogger(__name__)
_patching = threading.Lock()


class Unloadable(Exception):
    """A processor that cannot be loaded; its text is the error text for media."""


class MediaReader(NamedTuple):
    """What reads a model's media; where nothing does, `refusal` is the error text for them."""

    processor: Processor | None = None
    refusal: str = unread_media.TEXT_ONLY


def load(folder: Path) -> ProcessorMixin | None:
    """The processor; None where the folder has none. Raises LeftOut and Unloadable."""
    if not any((folder / name).is_file() for name in FILES):
        return None
    try:
        with without_videos():
            found = _class_of(folder).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a processor may do anything
        _want_torchvision(error)
        why = unread_media.missing(error)
        if why == unread_media.NOT_LOADED and not isinstance(error, ImportError):
            log.exception("the processor cannot be loaded; the model takes text only")
        else:
            log.warning("%s; until then it takes text only (%s)", why, " ".join(str(error).split()))
        raise Unloadable(why) from error
    if not isinstance(found, ProcessorMixin):
        return None
    if type(getattr(found, "video_processor", None)) is BaseVideoProcessor:
        found.video_processor = video_frames.of_folder(folder, found.image_processor) or found.video_processor
    return found


def reader(folder: Path, config: PreTrainedConfig, ends: list[str]) -> MediaReader:
    """The reader of a model with towers; one without processor if it has none, or no kind of media to process.

    Raises LeftOut.
    """
    try:
        found = load(folder) if (places := placeholders(config)) else None
    except Unloadable as error:
        return MediaReader(refusal=str(error))
    return MediaReader() if found is None else MediaReader(_of_media(found, places, ends))


def _of_media(found: ProcessorMixin, places: Mapping[int, str], ends: list[str]) -> Processor:
    """The processor of what can be read here. Raises LeftOut."""
    types = ["image"] if "image" in places.values() and hasattr(found, "image_processor") else []
    if "audio" in places.values() and found._audio_processor is not None:
        if audio.available():
            types.append("audio")
        else:
            log.warning("sounds are not taken: pip install 'nbgen[audio]'")
    sees = "video" in media_types(found, places)
    if sees and not _sees_videos(found):
        _want_torchvision()
    elif sees:
        types.append("video")
        if not video.available():
            log.warning("videos are taken as frames, not as files: pip install 'nbgen[video]'")
    return Processor(found, types, places, ends)


def pixtral_class() -> type[ProcessorMixin]:
    """PixtralProcessor. It imports a file that needs torchvision, but uses only what the Pillow file has as well."""
    if not is_torchvision_available():
        for_pillow = import_module(f"{PIXTRAL}.image_processing_pil_pixtral")
        sys.modules.setdefault(f"{PIXTRAL}.image_processing_pixtral", for_pillow)
    return import_module(f"{PIXTRAL}.processing_pixtral").PixtralProcessor


def _class_of(folder: Path) -> Any:
    named = (read_json(folder / name, folder.name).get("processor_class") for name in (*FILES, "tokenizer_config.json"))
    return pixtral_class() if "PixtralProcessor" in named else AutoProcessor


def _want_torchvision(error: Exception | None = None) -> None:
    """Raise LeftOut where torchvision, which alone may do what failed or is missing, was left out."""
    if is_left_out(TORCHVISION):
        raise LeftOut(TORCHVISION) from error


def _sees_videos(processor: ProcessorMixin) -> bool:
    """Whether it has a video processor that works."""
    return type(getattr(processor, "video_processor", None)) not in (type(None), BaseVideoProcessor)


@contextmanager
def without_videos() -> Iterator[None]:
    """Let transformers use an empty video processor where it would refuse to load because torchvision is missing."""
    if is_torchvision_available():
        yield
        return
    with _patching:
        check = ProcessorMixin.check_argument_for_proper_class
        load_video = AutoVideoProcessor.__dict__["from_pretrained"]

        def lenient(self: ProcessorMixin, name: str, argument: Any) -> Any:
            return BaseVideoProcessor if type(argument) is BaseVideoProcessor else check(self, name, argument)

        ProcessorMixin.check_argument_for_proper_class = lenient  # type: ignore[method-assign]
        AutoVideoProcessor.from_pretrained = staticmethod(lambda *_, **__: BaseVideoProcessor())  # type: ignore[method-assign]
        try:
            yield
        finally:
            ProcessorMixin.check_argument_for_proper_class = check  # type: ignore[method-assign]
            AutoVideoProcessor.from_pretrained = load_video  # type: ignore[method-assign]
