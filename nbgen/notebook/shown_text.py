"""Texts as Jupyter's Markdown: a model's, looking as in the panel, and a person's, as it was typed.

Jupyter would take tags for HTML, fetch images, and read maths between any two dollars. Code is fenced, and everything
else but line breaks is escaped so that every Markdown renderer finds code and maths where this module finds them: if
one did not see code where this module does, a tag in the code would become HTML. Knows nothing of displays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_FENCE = re.compile(
    r"(?P<lead>(?:[ \t>]|[-+*][ \t]|\d{1,9}[.)][ \t])*)(?P<fence>`{3,}(?=[^`]*$)|~{3,})[ \t]*(?P<language>[\w+#.-]*)"
)
_ITEM = re.compile(r"[ \t>]*(?:[-+*]|\d{1,9}[.)])(?:[ \t]|$)")
_INDENT = re.compile(r" {4}| {0,3}\t")
_BLANK = re.compile(r"\n[ \t]*(?=\n)")
_TILDE = re.compile(r"(?<!\\)~")
_BRACE = re.compile(r"\\[{}$]|[{}]")
#: What Jupyter would take for the beginning of maths even in code.
_MATHS_IN_CODE = re.compile(r"\$\$|\\(?:begin|end)\{|\\\\[()\[\]]")
_PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")
_MEANT = re.compile(r"[*_`\[\]<>&|~#!$\\]|^\s*[-+=]|^\s*\d+[.)]")
_SPACES = re.compile(r"^ +| (?= )")

#: What begins a tag or an image.
_SIGN = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")
_ADDRESS = r"(?i:https?://|ftp://|www\.)"
_EMPTY_LINE = r"\n[ \t]*\n"
_NO_ADDRESS = rf"(?!{_ADDRESS})"
_TEX = rf"(?:\\[^()\[\]\n]|{_NO_ADDRESS}(?!{_EMPTY_LINE})[^\\$`]){{1,5000}}?"
#: Maths as the panel finds it (`js/src/maths.js`), unless other Markdown renderers would find other maths there.
_MATHS = rf"""
    ^(?P<margin>[ ]{{0,3}})(?: \$\$(?P<dollars>(?:{_NO_ADDRESS}[^$`]){{1,5000}}?)\$\$
      | \\\[(?P<brackets>(?:\\[^()\[\]\n]|{_NO_ADDRESS}[^\\$`]){{1,5000}}?)\\\] )(?=[ \t]*$)
  | \$\$(?P<display>(?:{_NO_ADDRESS}(?!{_EMPTY_LINE})[^$`]){{1,5000}}?)\$\$
  | \\\[(?P<square>{_TEX})\\\]
  | \\\((?P<round>{_TEX})\\\)
  | \$(?!\s)(?P<inline>(?:\\[^\n]|{_NO_ADDRESS}[^\\$`\n]){{1,5000}}?)(?<!\s)\$(?=(?:st|nd|rd|th|s)?(?![0-9A-Za-z_]))
  | (?P<environment>\\begin\{{(?P<name>[A-Za-z]+\*?)\}}
      (?:{_NO_ADDRESS}(?!{_EMPTY_LINE}|\\begin\{{(?P=name)\}})[^$`]){{1,5000}}?\\end\{{(?P=name)\}})
"""
#: How models break lines in tables. Not at a line's beginning, where renderers would take what follows for HTML.
_BREAK = r"(?:(?<=\w)[ ]*|(?<=[^\W\d][.,;:!?)])[ ]*|(?<=[^\s>]))(?i:<br[ ]*/?>)+"
_PROSE = rf"""
    \\(?P<escaped>[!-/:-@\[-`{{-~])
  | (?P<code>(?P<ticks>`++)(?P<held>[^\n]+?)(?<!`)(?P=ticks)(?!`))
  | \](?P<target>\((?:[^\s()<>`\[\]\\]|\([^\s()<>`\[\]\\]*\))*(?:[ \t]+"[^"`<\[\]\\\n]*")?\))
  | \](?P<parenthesis>\()
  | (?P<address>{_ADDRESS}\S*)
  | ~~(?P<struck>(?![\s~])[^~`\n]{{1,1000}}?(?<!\s))~~(?!~)
  | (?P<link><(?:https?://|mailto:)[^\s<>`"'$\\]*>)
  | (?P<break>{_BREAK})
  | (?P<stray>`+|~+)
  | (?P<apart>\$|\\(?=(?:begin|end)\{{))
  | (?P<sign>{_SIGN.pattern})
"""
#: What must not begin within an address: renderers take everything up to a space for the address.
_IN_ADDRESS = re.compile(_SIGN.pattern + r"|[$`~]|\\(?=(?:begin|end)\{|[\\()\[\]])")
_WITH_MATHS = re.compile(f"{_MATHS} | {_PROSE}", re.VERBOSE | re.MULTILINE)
_WITHOUT_MATHS = re.compile(_PROSE, re.VERBOSE | re.MULTILINE)


def visible(text: str) -> str:
    """The text with escapes for control and direction characters, which a terminal would obey, and for surrogates,
    which cannot be sent to a page.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def counted(count: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def text_bundle(text: str) -> dict[str, str]:
    """A model's text for display. No HTML: front ends would prefer it to the Markdown that they sanitise."""
    return {"text/plain": visible(text), "text/markdown": as_markdown(text)}


def as_typed(text: str) -> str:
    """A text as Markdown that shows it as it was typed, with its spaces and line breaks."""
    lines = visible(_one_break(text)).strip("\n").expandtabs(4).split("\n")
    return "<br>\n".join(map(_typed_line, lines))


def as_markdown(text: str) -> str:
    """A model's text as Markdown. Nothing in it becomes HTML or is fetched; maths is what the panel takes for maths."""
    lines = visible(_one_break(text)).split("\n")
    shown: list[str] = []
    for code, block in _blocks(lines):
        if code and shown and shown[-1].strip():
            shown.append("")  # Jupyter's search for the end of maths stops at an empty line, not at code
        shown += block if code else _prose("\n".join(block)).split("\n")
        if code:
            shown.append("")
    return "\n".join(shown).rstrip("\n")


def as_source(text: str) -> str:
    """A text as it stands, in one code block, which a page draws fast however long it is."""
    return "\n".join(_with_fences("", "", "", visible(_one_break(text)).split("\n")))


def _typed_line(line: str) -> str:
    escaped = _MEANT.sub(
        lambda found: found[0][:-1] + (_apart if found[0][-1] in "$\\" else _entity)(found[0][-1]), line
    )
    return _SPACES.sub(lambda found: "&nbsp;" * len(found[0]), escaped)


def _blocks(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """The text in blocks: whether a block is code, and its lines, already fenced if it is."""
    prose: list[str] = []
    place, listed = 0, False
    while place < len(lines):
        line = lines[place]
        after_blank = not place or not lines[place - 1].strip()
        if not listed and after_blank and line.strip() and _INDENT.match(line):
            block, place = _indented(lines, place)
        elif fence := _FENCE.match(line):
            block, place = _fenced(fence, lines, place + 1)
            listed = bool(_ITEM.match(line)) or (listed and line[:1].isspace())
        else:
            listed = bool(_ITEM.match(line)) or (listed and (not line.strip() or line[:1].isspace()))
            prose.append(line)
            place += 1
            continue
        if prose:
            yield False, prose
        prose = []
        yield True, block
        while place < len(lines) and not lines[place].strip():
            place += 1
    if prose:
        yield False, prose


def _indented(lines: list[str], place: int) -> tuple[list[str], int]:
    """A block of indented code, fenced, and the number of the line after it."""
    end = place
    while end < len(lines) and (not lines[end].strip() or _INDENT.match(lines[end])):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    return _with_fences("", "", "", [_INDENT.sub("", line, count=1) for line in lines[place:end]]), end


def _fenced(fence: re.Match[str], lines: list[str], place: int) -> tuple[list[str], int]:
    """A block between fences, and the number of the line after it. In a quotation it ends with that at the latest."""
    lead = fence["lead"].expandtabs(4)
    quoted = re.compile(rf"(?:[ \t]*>){{{lead.count('>')}}}")
    width = len(lead) - lead.rfind(">") - 1
    end = re.compile(rf" {{0,3}}{fence['fence'][0]}{{{len(fence['fence'])},}}[ \t]*")
    code = []
    for line in lines[place:]:
        if not (marks := quoted.match(line)):
            break
        place += 1
        line = line[marks.end() :]
        line = line[min(width, len(line) - len(line.lstrip(" "))) :]
        if end.fullmatch(line):
            break
        code.append(line)
    return _with_fences(lead, re.sub(r"[^ >]", " ", lead), fence["language"], code), place


def _with_fences(first: str, lead: str, language: str, code: list[str]) -> list[str]:
    """Code whose lines begin with `lead`, the first with `first`, between fences longer than any in the code."""
    longest = max((len(run) for line in code for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{first}{fence}{language}", *((lead + line).rstrip(" ") for line in code), lead + fence]


def _prose(text: str) -> str:
    return _WITH_MATHS.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    """The replacement for a match that Jupyter would read differently."""
    given = {name: value for name, value in found.groupdict().items() if value is not None}
    if "code" in given:
        return _code_span(found)
    if "escaped" in given:
        return _escaped(found)
    if "stray" in given or "sign" in given:
        return "".join(map(_entity, found[0]))
    if "struck" in given:
        return f"~~{_prose(given['struck'])}~~"
    if "parenthesis" in given:
        return "]" + _entity("(")
    if "address" in given or "target" in given:
        return _IN_ADDRESS.sub(lambda sign: _entity(sign[0]), found[0])
    if "apart" in given:
        return _apart(found[0])
    return found[0] if "link" in given or "break" in given else _formula(found[0], given)


def _formula(source: str, given: dict[str, str]) -> str:
    """Maths between dollars, or escaped text where Jupyter would not find the end of the maths."""
    margin = given.pop("margin", "")
    kind = next(iter(given))
    tex = _TILDE.sub(r"\\ ", _SIGN.sub(r"\g<0> ", _BLANK.sub("", given[kind])))
    depth = sum({"{": 1, "}": -1}.get(brace, 0) for brace in _BRACE.findall(tex))
    if depth or tex.endswith("\\"):
        return _WITHOUT_MATHS.sub(_written, source)
    if kind == "environment":
        return tex
    return f"${tex.strip()}$" if kind in ("round", "inline") else f"{margin}$${tex}$$"


def _code_span(found: re.Match[str]) -> str:
    """A code span as it stands, unless a renderer could see a table's line, an emphasis or maths begin or end in it."""
    held = found["held"]
    risky = (found["ticks"] != "`" or set(held) & set("|`")) and re.search(r"[<$]|!\[", held)
    if not risky and not _MATHS_IN_CODE.search(held):
        return found[0]
    inner = held[1:-1] if held[0] == held[-1] == " " and held.strip() else held
    return f"<code>{_PUNCTUATION.sub(lambda sign: _entity(sign[0]), inner)}</code>"


def _escaped(found: re.Match[str]) -> str:
    """A sign after a backslash, which means the sign itself."""
    sign, following = found["escaped"], found.string[found.end() : found.end() + 1]
    if sign == "$" or (sign == "\\" and following and following in "()[]"):
        return _apart(sign)
    return _entity(sign) if sign in "<!`\\" else found[0]


def _entity(sign: str) -> str:
    return "&lt;" if sign == "<" else f"&#{ord(sign)};"


def _apart(sign: str) -> str:
    """A sign in an element of its own: Jupyter also looks for maths in the rendered page, but not across elements."""
    return f"<span>{_entity(sign)}</span>"


def _one_break(text: str) -> str:
    return re.sub("\r\n?", "\n", text)
