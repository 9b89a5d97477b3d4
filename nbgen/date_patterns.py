"""Dates, times, durations and addresses as JSON has them, as patterns that only what there can be matches.

Seconds have at most six decimals, which Python reads, and years four digits; a duration counts up to six digits of each
unit, for a model that loves digits must get on. Knows no schema.
"""

_TO_28, _TO_30, _TO_31 = (f"(0[1-9]|1[0-9]|2[0-{last}]{more})" for last, more in ((8, ""), (9, "|30"), (9, "|3[01]")))
_LEAP_YEAR = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([13579][26]|[2468][048])00)"
_MONTH = f"((0[13578]|1[02])-{_TO_31}|(0[469]|11)-{_TO_30}|02-{_TO_28})"
DAY = f"([1-9][0-9]{{3}}-{_MONTH}|{_LEAP_YEAR}-02-29)"
#: Not `(\.[0-9]{1,6})?`, which xgrammar takes for digits that need no point.
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
#: An address with a host, of which a length may be told: `uri` alone is a back end's.
ADDRESS = (
    rf"^[A-Za-z][a-z0-9+]{{1,9}}://(({_LABEL}\.){{0,3}}[A-Za-z]{{1,20}}|({_BYTE}\.){{3}}{_BYTE})(:[1-9][0-9]{{0,3}})?"
    r"($|[/?#]([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-F]{2})*$)"
)
#: By the formats of JSON schemas, which RFC 3339 defines; and addresses, whose numbers begin with no zero.
OF_FORMATS = {
    "ipv4": rf"^({_BYTE}\.){{3}}{_BYTE}$",
    "date": f"^{DAY}$",
    "time": f"^{CLOCK}{ZONE}$",
    "date-time": f"^{DAY}T{CLOCK}{ZONE}$",
    "duration": f"^P({_DAYS}|{_HOURS}|{_COUNT}W)$",
}
