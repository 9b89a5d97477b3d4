"""How much is under way at once."""

import threading

from nbgen.notebook.room import LARGE, Room, characters_in


def test_there_is_room_for_so_many_things_and_for_so_much_of_them() -> None:
    room = Room(2, 1, 10)
    assert [room.take(1, 0) for _ in range(3)] == [True, True, False]
    room.give_back(1)
    assert not room.take(10, 0)
    assert room.take(9, 0)
    for size in (1, 9):
        room.give_back(size)
    assert room.take(100, 0), "one alone has room, however large"
    assert not room.take(0, 0)


def test_who_waits_hears_of_room_for_several_or_of_much() -> None:
    for given, room in (([1, 1], Room(4, 2, 10)), ([LARGE], Room(4, 2, 10 * LARGE))):
        for size in [*given, *[1] * (4 - len(given))]:
            assert room.take(size, 0)
        threading.Timer(0.05, lambda sizes, room: [room.give_back(size) for size in sizes], (given, room)).start()
        assert room.take(1, 60)


def test_characters_are_those_of_every_text() -> None:
    assert characters_in([{"role": "user", "content": [{"type": "text", "text": "abc"}]}, None, 7, "d"]) == 12
