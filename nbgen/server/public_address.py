"""Decides which network addresses a server may connect to for a client: public ones, and none that leads inside."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

from tornado.netutil import Resolver

from nbgen.errors import InvalidRequest

#: Ranges of IPv6 that embed an IPv4 address for a translator, and the deprecated range of site-local addresses.
INNER = tuple(map(ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96", "fec0::/10")))
NOT_ALLOWED = "that address is not allowed"
#: Threads of their own: a name server that does not answer must keep no other work waiting.
_LOOK_UPS = ThreadPoolExecutor(8, "look-up")

Addresses = list[tuple[int, Any]]


def is_public(address: str) -> bool:
    """Whether an IP address, as a resolver writes it, is globally reachable."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or _leads_inside(ip))


def _leads_inside(ip: IPv4Address | IPv6Address) -> bool:
    if not isinstance(ip, IPv6Address):
        return False
    embedded = ip.ipv4_mapped or ip.sixtofour or ip.teredo or ip.scope_id
    return bool(embedded) or any(ip in network for network in INNER)


class PublicResolver(Resolver):
    """Resolves a name once, and refuses it if any address is not public. The same addresses are then connected to."""

    def initialize(self, permits: Callable[[str], bool] = is_public) -> None:
        self._permits = permits

    async def resolve(self, host: str, port: int, family: int = socket.AF_UNSPEC) -> Addresses:
        addresses = await self.look_up(host, port)
        if not addresses or not all(self._permits(address[0]) for _, address in addresses):
            raise InvalidRequest(NOT_ALLOWED)
        return addresses

    async def look_up(self, host: str, port: int) -> Addresses:
        """The addresses of a name from the system's resolver."""
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(_LOOK_UPS, ask)
        return [(family, address) for family, _, _, _, address in found]
