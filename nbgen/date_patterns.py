"""Dates and times as JSON has them, as patterns that only what a calendar and a clock show matches.

Seconds have at most six decimals, which Python reads, and years four digits. Knows no schema.
"""

_TO_28, _TO_30, _TO_31 = (f"(0[1-9]|1[0-9]|2[0-{last}]{more})" for last, more in ((8, ""), (9, "|30"), (9, "|3[01]")))
_LEAP_YEAR = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([13579][26]|[2468][048])00)"
_MONTH = f"((0[13578]|1[02])-{_TO_31}|(0[469]|11)-{_TO_30}|02-{_TO_28})"
DAY = f"([1-9][0-9]{{3}}-{_MONTH}|{_LEAP_YEAR}-02-29)"
#: Not `(\.[0-9]{1,6})?`, which xgrammar takes for digits that need no point.
FRACTION = r"(\.[0-9]{0,5}[0-9])?"
CLOCK = f"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]{FRACTION}"
ZONE = "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#: By the formats of JSON schemas.
OF_FORMATS = {"date": f"^{DAY}$", "time": f"^{CLOCK}{ZONE}$", "date-time": f"^{DAY}T{CLOCK}{ZONE}$"}
