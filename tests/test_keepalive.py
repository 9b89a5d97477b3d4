"""What the system is told of connections whose other end may be gone."""

import math
import socket

import pytest

from nbgen import keepalive

ASKED = socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1


def test_what_the_system_refuses_is_left_out() -> None:
    refused = socket.IPPROTO_TCP, 9999, 1
    assert keepalive.accepted([refused, ASKED]) == [ASKED]
    assert ASKED in keepalive.OPTIONS


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such clock")
@pytest.mark.parametrize(("seconds", "wanted"), [(30, 120_000), (300, 300_000), (math.inf, 2**31 - 1)])
def test_who_reads_nothing_is_there_for_as_long_as_a_reader_may(seconds: float, wanted: int) -> None:
    with socket.socket() as connection:
        keepalive.keep_alive(connection, seconds)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == wanted
