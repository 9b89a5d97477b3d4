"""SGLang's log-probabilities: the five fields that ask for them, and the lists in `meta_info` that hold them.

Follows SGLang 0.5.23 in names, defaults and layout. Knows nothing of the rest of a body or an answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nbgen.errors import InvalidRequest
from nbgen.messages import LogprobOptions, TokenLogprobs
from nbgen.protocols.json_body import check_range
from nbgen.protocols.sample import Sample

MAX_TOP = 1024
MAX_TOKEN_IDS = 1024
NO_PROMPT = -1
#: Fields that may be lists even with `n`: each value applies to all samples of its prompt.
REPEATED = {"lora_path", "return_hidden_states", "extra_key", "cache_salt"}
#: Keys of `meta_info` that have an entry for each output token.
OUTPUT_LISTS = {"output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs"}


def parse(fields: Mapping[str, Any], prompts: int, *, single: bool, n: int) -> list[LogprobOptions | None]:
    """The options of each prompt: a scalar applies to all, a list has an entry for each, null is the default."""

    def each(name: str, default: Any) -> list[Any]:
        return per_prompt(name, fields.get(name), prompts, default=default, listed=not single and n == 1)

    wanted = each("return_logprob", False)
    starts = each("logprob_start_len", NO_PROMPT)
    tops = each("top_logprobs_num", 0)
    chosen = _token_ids(fields.get("token_ids_logprob"), prompts, listed=not single and n == 1)
    text = fields.get("return_text_in_logprobs") or False
    return [
        _options(start, top, ids, text) if want else None
        for want, start, top, ids in zip(wanted, starts, tops, chosen, strict=True)
    ]


#: Makes the list under a key of `meta_info`: one part (`token`, `top` or `chosen`) of each entry.
Listed = Callable[[str, list[TokenLogprobs], str], Any]


def plain(key: str, entries: list[TokenLogprobs], part: str) -> list[Any]:
    """The list as Python objects."""
    return [getattr(entry, part) for entry in entries]


class Written:
    """The list as JSON. Each entry is encoded once, however many events of a stream repeat it."""

    def __init__(self) -> None:
        self._lists: dict[str, bytearray] = {}
        self._counts: dict[str, int] = defaultdict(int)

    def __call__(self, key: str, entries: list[TokenLogprobs], part: str) -> msgspec.Raw:
        """The whole list; entries are only ever added."""
        written = self._lists.setdefault(key, bytearray())
        for entry in entries[self._counts[key] :]:
            written += b"," if written else b""
            written += msgspec.json.encode(getattr(entry, part))
        self._counts[key] = len(entries)
        return msgspec.Raw(b"".join((b"[", written, b"]")))


def meta_info(options: LogprobOptions, sample: Sample, listed: Listed) -> dict[str, Any]:
    """The keys of `meta_info`: each list has an entry for each token of the prompt or of the output."""

    def both(kind: str, part: str) -> dict[str, Any]:
        sides = {f"input_{kind}": sample.prompt_logprobs, f"output_{kind}": sample.logprobs}
        return {key: listed(key, entries, part) for key, entries in sides.items()}

    fields = both("token_logprobs", "token") | {"output_token_logprobs_length": len(sample.logprobs)}
    if options.top:
        fields |= both("top_logprobs", "top")
    if options.token_ids:
        fields |= both("token_ids_logprobs", "chosen")
    return fields


def per_prompt(name: str, value: Any, prompts: int, *, default: Any, listed: bool) -> list[Any]:
    """An option's value for each prompt, given as one for all or, if `listed`, as a list. Raises InvalidRequest."""
    if not isinstance(value, list):
        return [default if value is None else value] * prompts
    if not listed or len(value) != prompts:
        batch = "a batch" if name in REPEATED else "a batch without `n`"
        raise InvalidRequest(
            f"`{name}` is a list of {len(value)} values; a list needs one for each prompt of {batch}", field=name
        )
    return [default if item is None else item for item in value]


def _token_ids(value: Any, prompts: int, *, listed: bool) -> list[list[int]]:
    """The ids of each prompt: a flat list applies to every prompt, a list of lists (or nulls) has one for each."""
    if not value or all(isinstance(item, int) for item in value):
        return [value or []] * prompts
    if not listed:
        raise InvalidRequest("`token_ids_logprob` must be a flat list of integers here", field="token_ids_logprob")
    return per_prompt("token_ids_logprob", value, prompts, default=[], listed=True)


def _options(start: int, top: int, token_ids: list[int], text: bool) -> LogprobOptions:
    check_range("logprob_start_len", start, NO_PROMPT, 2**31)
    check_range("top_logprobs_num", top, 0, MAX_TOP)
    check_range("the length of token_ids_logprob", len(token_ids), 0, MAX_TOKEN_IDS)
    return LogprobOptions(start=None if start == NO_PROMPT else start, top=top, token_ids=token_ids, text=text)
