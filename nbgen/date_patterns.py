"""Regexes for the string formats of JSON schemas: dates, times, durations, addresses. They match only possible values.

Seconds have at most six decimals, as many as Python reads, and years four digits; each unit of a duration has at most
six digits, so that a model cannot repeat digits for ever. Knows no schema.
"""

_TO_28, _TO_30, _TO_31 = (f"(0[1-9]|1[0-9]|2[0-{last}]{more})" for last, more in ((8, ""), (9, "|30"), (9, "|3[01]")))
_LEAP_YEAR = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([13579][26]|[2468][048])00)"
_MONTH = f"((0[13578]|1[02])-{_TO_31}|(0[469]|11)-{_TO_30}|02-{_TO_28})"
DAY = f"([1-9][0-9]{{3}}-{_MONTH}|{_LEAP_YEAR}-02-29)"
#: Not `(\.[0-9]{1,6})?`, which xgrammar misreads as digits without a required point.
FRACTION = r"(\.[0-9]{0,5}[0-9])?"
CLOCK = f"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{FRACTION}"
ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_COUNT = "[0-9]{1,6}"
_MINUTES = f"{_COUNT}M({_COUNT}S)?"
_HOURS = f"T({_COUNT}H({_MINUTES})?|{_MINUTES}|{_COUNT}S)"
_MONTHS = f"{_COUNT}M({_COUNT}D)?"
_DAYS = f"({_COUNT}Y({_MONTHS})?|{_MONTHS}|{_COUNT}D)({_HOURS})?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9](-?[A-Za-z0-9]){0,30}"
#: A URI with a host, used when its length is limited; without a limit the back end has its own `uri`.
ADDRESS = (
    rf"^[A-Za-z][a-z0-9+]{{1,9}}://(({_LABEL}\.){{0,3}}[A-Za-z]{{1,20}}|({_BYTE}\.){{3}}{_BYTE})(:[1-9][0-9]{{0,3}})?"
    r"($|[/?#]([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*$)"
)
_HEX = "[0-9a-fA-F]"
_UUID = f"^{_HEX}{{8}}-{_HEX}{{4}}-%s{_HEX}{{3}}-%s{_HEX}{{3}}-{_HEX}{{12}}$"
_ALPHABETS = {"base64": "[A-Za-z0-9+/]", "base64url": "[A-Za-z0-9_-]"}
_ATOM, _LETTER = "[A-Za-z0-9_+-]", "[A-Za-z0-9]"


def email(least: int, most: int | None) -> str | None:
    """E-mail addresses of such lengths, each side up to half of `most`; None for limits that exclude most addresses."""
    half = (min(143 if most is None else most, 143) - 17) // 2  # at most 63, the limit of a host's label
    if half < 20 or least > len("a@b.cd"):
        return None
    part = (half - 1) // 2
    name, host = (
        f"({one}{{1,{half}}}|{one}{{1,{part}}}{joint}{one}{{1,{part}}})"
        for one, joint in ((_ATOM, r"\."), (_LETTER, "[.-]"))
    )
    return rf"^{name}@{host}\.([A-Za-z]{{2,4}}\.)?[A-Za-z]{{2,10}}$"


#: By format of JSON schemas: RFC 3339's; addresses, whose numbers have no leading zeros; and pydantic's formats.
OF_FORMATS = {
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "uuid": _UUID % (_HEX, _HEX),
    **{f"uuid{version}": _UUID % (version, "[89abAB]") for version in range(1, 9)},
    **{name: f"^({one}{{4}})*({one}{{2}}==|{one}{{3}}=)?$" for name, one in _ALPHABETS.items()},
    "date": f"^{DAY}$",
    "time": f"^{CLOCK}{ZONE}$",
    "date-time": f"^{DAY}T{CLOCK}{ZONE}$",
    "duration": f"^P({_DAYS}|{_HOURS}|{_COUNT}W)$",
}
#: Narrower patterns of a format, for a schema whose own `pattern` does not match all that the one above does.
NARROWER = {
    "uuid": _UUID % ("[1-8]", "[89abAB]"),
    "date-time": f"^{DAY}T{CLOCK}Z$",
}
