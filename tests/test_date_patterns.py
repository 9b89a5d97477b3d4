"""Dates, times and durations that match are those that there are."""

import datetime
import re

import pytest

from nbgen.date_patterns import OF_FORMATS


@pytest.mark.parametrize("year", [1000, 1900, 2000, 2023, 2024, 9999])
def test_a_year_has_the_days_of_its_calendar(year: int) -> None:
    for month in range(14):
        for day in range(33):
            text = f"{year}-{month:02}-{day:02}"
            try:
                there = bool(datetime.date(year, month, day))
            except ValueError:
                there = False
            assert bool(re.search(OF_FORMATS["date"], text)) == there, text


@pytest.mark.parametrize("text", ["00:00:00Z", "23:59:59.5+01:00", "12:30:00.123456-23:59"])
def test_what_a_clock_shows_is_a_time(text: str) -> None:
    for format, whole in (("time", text), ("date-time", f"2024-02-29T{text}")):
        assert re.search(OF_FORMATS[format], whole)
        read = datetime.time if format == "time" else datetime.datetime
        assert read.fromisoformat(whole).utcoffset() is not None


@pytest.mark.parametrize(
    "text", ["24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00:00.Z", "12:00:00+24:00", "12:00Z"]
)
def test_nothing_else_is(text: str) -> None:
    for format, whole in (("time", text), ("date-time", f"2024-02-29T{text}")):
        assert not re.search(OF_FORMATS[format], whole)


@pytest.mark.parametrize("text", ["P1D", "PT20H", "P3W", "P1Y2M10DT2H30M1S", "P2M1D", "PT5M", "P123456DT1S"])
def test_a_duration_counts_its_units(text: str) -> None:
    assert re.search(OF_FORMATS["duration"], text)


@pytest.mark.parametrize("text", ["P", "PT", "P1DT", "1D", "P1D2M", "PT1H1S", "P1W1D", "P1", "P-1D", "P1234567D"])
def test_what_counts_none_or_in_another_order_is_no_duration(text: str) -> None:
    assert not re.search(OF_FORMATS["duration"], text)
