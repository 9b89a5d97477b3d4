"""The options of an answer with their types, for type checkers, and a line about each, for help.

Names are those of SamplingParams, which checks the options and has their defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypedDict, get_type_hints


class SamplingOptions(TypedDict, total=False):
    """Options for how tokens are chosen and when the answer ends."""

    max_new_tokens: Annotated[int | None, "the longest answer, in tokens; None is as long as the context holds"]
    min_new_tokens: Annotated[int, "so many tokens come before the answer may end"]
    temperature: Annotated[float | None, "0 always takes the likeliest token; higher is more varied"]
    top_p: Annotated[float | None, "sample from the likeliest tokens that make up this probability"]
    top_k: Annotated[int | None, "sample from so many of the likeliest tokens; -1 is all"]
    min_p: Annotated[float | None, "leave out tokens below this share of the likeliest one's probability"]
    repetition_penalty: Annotated[float | None, "above 1, what stands there already is less likely"]
    frequency_penalty: Annotated[float, "above 0, a token is the less likely the more often it was written"]
    presence_penalty: Annotated[float, "above 0, a token is less likely once it was written at all"]
    stop: Annotated[str | Sequence[str], "end before this text, or before the first of several"]
    stop_token_ids: Annotated[Sequence[int], "end at one of these tokens"]
    stop_regex: Annotated[str | Sequence[str], "end after what matches this pattern, or one of several"]
    ignore_eos: Annotated[bool, "go on where the model would end its answer"]
    no_stop_trim: Annotated[bool, "leave the text or token that ended it at the answer's end"]
    skip_special_tokens: Annotated[bool, "leave special tokens out of the text"]
    spaces_between_special_tokens: Annotated[bool, "put spaces between special tokens that are in the text"]
    logit_bias: Annotated[Mapping[int, float], "make tokens likelier or less likely: {token id: -100 to 100}"]
    sampling_seed: Annotated[int | None, "the same seed gives the same answer"]
    json_schema: Annotated[str | None, "a JSON schema, as text, for the answer; schema= also reads the answer"]
    regex: Annotated[str | None, "a pattern that the whole answer matches"]
    ebnf: Annotated[str | None, "a grammar in EBNF that the whole answer matches"]
    structural_tag: Annotated[str | None, "JSON, as text, that says which parts of the answer follow which schema"]
    custom_params: Annotated[Any, "what a logit_processor is told"]
    n: Annotated[int, "so many answers to one question: .texts of the result; tables, panels and schemas have one"]


class Options(SamplingOptions, total=False):
    """The sampling options, and those that are sent beside a question."""

    adapter: Annotated[str, "the name of a LoRA adapter that is loaded"]
    images: Annotated[Any, "an image or several: paths, bytes, arrays, PIL images, figures, data URLs"]
    audio: Annotated[Any, "a sound or several: paths, bytes, (samples, rate), data URLs"]
    videos: Annotated[Any, "a video or several: paths, bytes, arrays, lists of images, (frames, fps)"]
    tools: Annotated[Any, "functions that the model may want called, or tools as OpenAI's JSON"]
    tool_choice: Annotated[Any, '"auto", "required", "none" or a function\'s name']
    template_options: Annotated[Mapping[str, Any] | None, "the chat template's own, as {'enable_thinking': False}"]
    logit_processor: Annotated[Any, "code that changes the scores before each token: see nbgen.logit_processor"]


#: The line about each option.
LINES: dict[str, str] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Options, include_extras=True).items()
}


def explained(names: Iterable[str]) -> str:
    """These options for a docstring, each on a line of its own."""
    return "\n".join(["Options:", *(f"    {name}: {LINES[name]}" for name in names)])
