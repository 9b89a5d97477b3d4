"""Whose snapshot goes when another needs its place: what somebody came back for stays longest."""

from nbgen.engine.snapshots import Snapshots


def full(holders: str) -> Snapshots[str]:
    """Snapshots that have as many places as holders, taken one after another."""
    snapshots: Snapshots[str] = Snapshots(len(holders))
    assert {snapshots.take(holder) for holder in holders} == set(range(len(holders)))
    return snapshots


def left(snapshots: Snapshots[str]) -> str:
    return "".join(sorted(holder for holder in "abcdefgh" if holder in snapshots))


def test_the_new_one_of_longest_ago_goes_first() -> None:
    snapshots = full("abcd")
    snapshots.take("e")
    assert left(snapshots) == "bcde"
    assert len(snapshots) == 4


def test_what_was_used_stays_in_its_place() -> None:
    snapshots = full("abcd")
    place = snapshots.use("a")
    for holder in "efgh":
        assert snapshots.take(holder) != place
    assert left(snapshots) == "afgh"
    assert snapshots.use("a") == place


def test_no_more_than_half_counts_as_used() -> None:
    snapshots = full("abcd")
    for holder in "abc":
        snapshots.use(holder)
    snapshots.take("e")
    assert left(snapshots) == "abce"
    snapshots.take("f")
    assert left(snapshots) == "bcef", "the first that was used has become new again"
    snapshots.take("g")
    assert left(snapshots) == "bcfg", "the other two have not"


def test_what_is_used_again_outlives_what_was_used_before() -> None:
    snapshots = full("abcd")
    for holder in "abac":
        snapshots.use(holder)
    for holder in "ef":
        snapshots.take(holder)
    assert left(snapshots) == "acef"


def test_a_dropped_ones_place_is_free_and_dropping_nothing_is_nothing() -> None:
    snapshots = full("ab")
    place = snapshots.use("a")
    snapshots.drop("a")
    snapshots.drop("a")
    assert len(snapshots) == 1
    assert snapshots.take("c") == place
    assert left(snapshots) == "bc"
