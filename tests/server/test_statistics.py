"""What is counted of a model adds up."""

import pytest

from nbgen.server.statistics import COMPUTE, MAX_RESPONSES, Statistics, Timing


@pytest.mark.parametrize(("spent", "waited"), [(100, 40), (50, 0)])
def test_the_parts_of_a_request_are_its_time(spent: int, waited: int) -> None:
    statistics = Statistics()
    statistics.succeeded(spent, Timing(compute_input=10, compute_infer=30, compute_output=20))
    assert [statistics.duration(name).ns for name in ("queue", *COMPUTE)] == [waited, 10, 30, 20]
    assert statistics.duration("success").ns == spent


def test_a_long_stream_has_only_so_many_entries() -> None:
    statistics = Statistics()
    for number in range(3 * MAX_RESPONSES):
        statistics.responded(number, 1)
    told = statistics.fields("m", "1", decoupled=True)["response_stats"]
    assert len(told) == MAX_RESPONSES
    assert (told["0"]["success"]["count"], told[str(MAX_RESPONSES - 1)]["success"]["count"]) == (
        1,
        2 * MAX_RESPONSES + 1,
    )
