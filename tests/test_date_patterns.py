"""Dates, times, durations and others that match are those that there are."""

import base64
import datetime
import re
import uuid

import pytest

from nbgen.date_patterns import OF_FORMATS, email


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


def test_an_identifier_is_of_its_version() -> None:
    for version, made in (("uuid", uuid.uuid1()), ("uuid1", uuid.uuid1()), ("uuid4", uuid.uuid4())):
        assert re.search(OF_FORMATS[version], str(made))
    assert not re.search(OF_FORMATS["uuid4"], str(uuid.uuid1()))


@pytest.mark.parametrize("length", range(9))
def test_base64_is_whole(length: int) -> None:
    for format, encode in (("base64", base64.b64encode), ("base64url", base64.urlsafe_b64encode)):
        text = encode(b"\xff" * length).decode()
        assert re.search(OF_FORMATS[format], text)
        assert not length or not re.search(OF_FORMATS[format], text[:-1])


@pytest.mark.parametrize("most", [None, 57, 64, 100, 143, 254])
def test_an_address_has_its_length(most: int | None) -> None:
    pattern = email(0, most) or ""
    assert re._parser.parse(pattern).getwidth()[1] <= (most or 254)
    for text in ("a@b.co", "ada.lovelace@example.com", "a_l+x@my-firm.co.uk"):
        assert re.search(pattern, text)
    for text in ("a..b@c.de", ".a@b.co", "a@-b.co", "a@b", "a@b.c1", f"a@{'b' * 64}.co", "a@b@c.de"):
        assert not re.search(pattern, text)
    assert email(0, 56) is email(0, 0) is email(7, most) is None
