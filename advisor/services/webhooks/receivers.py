"""Who may be sent notices: hosts that the operator listed, at public addresses or in networks listed beside them.

A name is resolved once, and what is connected to is the address that was judged: a name that says another address a
moment later gains nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

import httpx

from advisor.protocol.asked.webhook import hide_path
from advisor.protocol.training.workload import HIDDEN

_MOST_CHARS = 2000
_NAT64 = ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Receivers:
    """The operator's list."""

    names: frozenset[str] = frozenset()
    """Hosts by name, in lower case."""
    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks whose addresses may be posted to, private or not."""

    @classmethod
    def of(cls, hosts: Iterable[str]) -> "Receivers":
        """Read ADVISOR_WEBHOOK_HOSTS: names, addresses and networks."""
        names, networks = set(), []
        for host in hosts:
            try:
                networks.append(ip_network(host))
            except ValueError:
                names.add(host.lower())
        return cls(frozenset(names), tuple(networks))

    def explain_refusal(self, url: str) -> str:
        """Return why nothing may be posted to `url`, as a sentence; "" where it may. Resolves nothing."""
        shown = hide_path(url)
        if len(url) > _MOST_CHARS:
            return f"A webhook has more than {_MOST_CHARS} characters."
        try:
            parsed = httpx.URL(url)
            host = parsed.host
        except (httpx.InvalidURL, UnicodeError):  # the latter for a name that is none in any script
            return f"{shown} is no URL."
        if HIDDEN in url:
            return f"{shown} holds what stands for a hidden value; give it."
        if parsed.port is not None and not 0 < parsed.port < 65536:
            return f"{shown} names a port that there is not."
        if parsed.userinfo or parsed.fragment or not host:
            return f"{shown} must name a host, and neither a user nor a #fragment."
        address = _read_address(host)
        if parsed.scheme != "https" and not (parsed.scheme == "http" and address is not None):
            return (
                f"{shown} must begin with https://; http:// goes only to an address in ADVISOR_WEBHOOK_HOSTS."
            )
        if address is not None and not self._lists(address):
            return f"ADVISOR_WEBHOOK_HOSTS of the server does not list the address {address}."
        if address is None and host.lower().rstrip(".") not in self.names:
            return f"ADVISOR_WEBHOOK_HOSTS of the server does not list {host}."
        return ""

    def choose(self, addresses: Sequence[str]) -> str | None:
        """Return the first address of a listed host that may be connected to; None where none may."""
        for text in addresses:
            address = _read_address(text)
            if address is not None and (_is_public(address) or self._lists(address)):
                return text
        return None

    def _lists(self, address: IPv4Address | IPv6Address) -> bool:
        inner = _unwrap(address)
        return any(inner.version == network.version and inner in network for network in self.networks)


def _read_address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    inner = _unwrap(address)
    is_of_site = isinstance(inner, IPv6Address) and inner.is_site_local
    return inner.is_global and not inner.is_multicast and not inner.is_reserved and not is_of_site


def _unwrap(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that an IPv6 address stands for, where it stands for one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, address))[1]
