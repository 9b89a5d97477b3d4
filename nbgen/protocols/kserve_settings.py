"""Triton's logging and trace settings, for a server that neither writes trace files nor moves its log.

Settings are stored and reported, without effect; numbers in trace settings are text on this wire. Knows no route.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nbgen.errors import InvalidRequest, Unsupported
from nbgen.protocols.json_body import is_integer

LOG_FORMATS = ("default", "ISO8601")
#: The largest value of gRPC's `uint32_param`.
MAX_VERBOSE_LEVEL = 2**32 - 1
TRACE_LEVELS = ("OFF", "TIMESTAMPS", "TENSORS")
TRACE_NUMBERS = {"trace_rate": 1, "trace_count": -1, "log_frequency": 0}


class LogSettings:
    """The six settings of logging."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {
            "log_file": "",
            "log_info": True,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 0,
            "log_format": "default",
        }

    def update(self, changes: Mapping[str, Any]) -> None:
        """Change the given settings; `null` leaves one as it is. Raises InvalidRequest without changing any."""
        given = {name: value for name, value in changes.items() if value is not None}
        for name, value in given.items():
            self._check(name, value)
        self.fields |= given

    def _check(self, name: str, value: Any) -> None:
        if name == "log_file":
            raise Unsupported("log file location can not be updated through network protocol")
        if name not in self.fields:
            raise InvalidRequest(f"unknown log setting '{name[:80]}'; there are {', '.join(self.fields)}")
        if name == "log_format" and value not in LOG_FORMATS:
            raise InvalidRequest(f"Invalid log format '{str(value)[:80]}'; there are {', '.join(LOG_FORMATS)}")
        if name == "log_verbose_level" and not is_integer(value, 0, MAX_VERBOSE_LEVEL):
            raise InvalidRequest(
                f"Unable to parse 'log_verbose_level': expected an unsigned integer of at most {MAX_VERBOSE_LEVEL}"
            )
        if isinstance(self.fields[name], bool) and not isinstance(value, bool):
            raise InvalidRequest(f"Unable to parse '{name}': expected a boolean")


class TraceSettings:
    """Settings for all models, and for single models, which inherit those that they do not set."""

    def __init__(self) -> None:
        self._settings: dict[str, dict[str, Any]] = {"": {}}
        self._defaults: dict[str, Any] = {
            "trace_level": ["OFF"],
            "trace_rate": "1000",
            "trace_count": "-1",
            "log_frequency": "0",
            "trace_file": "",
            "trace_mode": "triton",
        }

    def of(self, model: str = "") -> dict[str, Any]:
        """The settings in force for a model; without a name, those for all models."""
        return self._defaults | self._settings[""] | self._settings.get(model, {})

    def update(self, changes: Mapping[str, Any], model: str = "") -> None:
        """Change the given settings; `null` has one inherited again. Raises InvalidRequest without changing any."""
        for name, value in changes.items():
            self._check(name, value)
        own = self._settings.setdefault(model, {})
        for name, value in changes.items():
            own.pop(name, None)
            if value is not None:
                own[name] = ([value] if isinstance(value, str) else list(value)) if name == "trace_level" else value

    def _check(self, name: str, value: Any) -> None:
        if name == "trace_file":
            raise Unsupported("trace file location can not be updated through network protocol")
        if name not in self._defaults or name == "trace_mode":
            raise InvalidRequest(f"unknown or fixed trace setting '{name[:80]}'")
        if value is None:
            return
        if name == "trace_level":
            _check_level(value)
        else:
            _check_number(name, value)


def _check_level(value: Any) -> None:
    levels = [value] if isinstance(value, str) else value
    if not isinstance(levels, list) or not levels or any(level not in TRACE_LEVELS for level in levels):
        raise InvalidRequest(f"Unable to parse 'trace_level': expected a list of {', '.join(TRACE_LEVELS)}")
    if "OFF" in levels and len(levels) > 1:
        raise InvalidRequest("Unable to parse 'trace_level': OFF excludes other levels")


def _check_number(name: str, value: Any) -> None:
    lowest = TRACE_NUMBERS[name] if name == "trace_count" else 0
    digits = value.removeprefix("-") if isinstance(value, str) else ""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or int(value) < lowest:
        raise InvalidRequest(f"Unable to parse '{name}', got: {str(value)[:80]}")
