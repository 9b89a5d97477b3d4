"""Error texts: why media that a model takes cannot be read from files here, and what to send. Knows no model."""

from nbgen.engine import audio

NO_VIDEO_FILES = (
    "video files are not read here: pip install 'nbgen[video]' where the server runs, or send the video's frames as "
    "images"
)


def why(kind: str) -> str:
    """The error text for files of this kind."""
    return f"{_cause(kind)} (format processor_output)"


def _cause(kind: str) -> str:
    if kind == "video":
        return "this model's videos need torchvision, which is not installed: send what its processor makes of one"
    if kind == "audio" and not audio.available():
        return (
            "sounds are not read here: pip install 'nbgen[audio]' where the server runs, or send what the model's "
            "processor makes of one"
        )
    return f"{kind} files are not read for this model: send what its processor makes of one"
