"""Error texts: why media that a model takes cannot be read here, and what to do or to send. Knows no model."""

from nbgen.engine import audio

#: Packages that transformers' processors need, and what installs them.
PACKAGES = {"num2words": "'nbgen[smolvlm]'", "torchvision": "torchvision"}
TEXT_ONLY = "this model reads text only"
NOT_LOADED = "this model's processor could not be loaded, for which the server's log has the reason: it takes text only"

NO_VIDEO_FILES = (
    "video files are not read here: pip install 'nbgen[video]' where the server runs, or send the video's frames as "
    "images"
)


def why(kind: str) -> str:
    """The error text for files of this kind."""
    return f"{_cause(kind)} (format processor_output)"


def missing(error: Exception) -> str:
    """The error text for all media of a model whose processor failed to load with this error."""
    package = next((name for name in PACKAGES if name in str(error).lower()), None)
    return _needs("media", package) if package else NOT_LOADED


def _needs(what: str, package: str) -> str:
    return (
        f"this model's {what} need {package}, which cannot be imported here: pip install {PACKAGES[package]} where the "
        "server runs"
    )


def _cause(kind: str) -> str:
    if kind == "video":
        return f"{_needs('videos', 'torchvision')}, or send what its processor makes of one"
    if kind == "audio" and not audio.available():
        return (
            "sounds are not read here: pip install 'nbgen[audio]' where the server runs, or send what the model's "
            "processor makes of one"
        )
    return f"{kind} files are not read for this model: send what its processor makes of one"
