"""Special-purpose IP addresses: those that are not on the public internet, and their purpose.

Sources: the IANA special-purpose address registries for IPv4 and IPv6 (RFC 6890), RFC 4291, RFC 6052
(NAT64), RFC 3056 (6to4), RFC 4380 (Teredo), RFC 5214 (ISATAP); the metadata addresses of clouds.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import TypeAlias

from dragoman.errors import ConfigError

IpAddress: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

# The first network that contains an address gives its purpose.
SPECIAL_IPV4: tuple[tuple[IPv4Network, str], ...] = tuple(
    (IPv4Network(network), purpose)
    for network, purpose in (
        ("169.254.169.254/32", "a cloud's metadata"),
        ("100.100.100.200/32", "a cloud's metadata"),
        ("168.63.129.16/32", "a cloud's metadata"),
        ("192.0.0.192/32", "a cloud's metadata"),
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "a carrier's shared address"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "reserved for protocols"),
        ("192.52.193.0/24", "reserved for protocols"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved for protocols"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
SPECIAL_IPV6: tuple[tuple[IPv6Network, str], ...] = tuple(
    (IPv6Network(network), purpose)
    for network, purpose in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("fd00:ec2::/32", "a cloud's metadata"),
        ("fd20:ce::/32", "a cloud's metadata"),
        ("::ffff:0:0/96", "an IPv4 address in disguise (mapped)"),
        ("::ffff:0:0:0/96", "an IPv4 address in disguise (translated)"),
        ("::/96", "an IPv4 address in disguise (compatible)"),
        ("64:ff9b::/96", "an IPv4 address in disguise (NAT64)"),
        ("64:ff9b:1::/48", "an IPv4 address in disguise (NAT64)"),
        ("2001::/32", "an IPv4 address in disguise (Teredo)"),
        ("2002::/16", "an IPv4 address in disguise (6to4)"),
        ("2001:db8::/32", "for documentation"),
        ("2001::/23", "reserved for protocols"),
        ("2620:4f:8000::/48", "reserved for protocols"),
        ("3ffe::/16", "reserved"),
        ("3fff::/20", "for documentation"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
)
GLOBAL_V6 = IPv6Network("2000::/3")
ISATAP = (0x0000_5EFE, 0x0200_5EFE)


def special_purpose(address: IpAddress) -> str | None:
    """Return the purpose of a non-public address, such as `loopback`; None for a public one."""
    if isinstance(address, IPv4Address):
        special = next((purpose for network, purpose in SPECIAL_IPV4 if address in network), None)
    else:
        special = next(
            (purpose for network, purpose in SPECIAL_IPV6 if address in network), None
        ) or ipv6_special_purpose(address)
    return special or (None if address.is_global else "reserved")


def ipv6_special_purpose(address: IPv6Address) -> str | None:
    """Return the purpose of an IPv6 address that its form shows, without the table."""
    if address.scope_id is not None:
        return "of one link"
    if address not in GLOBAL_V6:
        return "reserved"
    interface_prefix = int(address) >> 32 & 0xFFFF_FFFF
    return "an IPv4 address in disguise (ISATAP)" if interface_prefix in ISATAP else None


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the networks of a configuration. Raises ConfigError."""
    return tuple(parse_network(text) for text in texts)


def parse_network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a valid network: {error}",
            hint="write it like 192.168.1.0/24, 192.168.1.7 or fd00::/8",
        ) from None


def in_networks(address: IpAddress, networks: Iterable[Network]) -> bool:
    """Return whether one of the networks contains the address, in the form it was written in."""
    is_scoped = isinstance(address, IPv6Address) and address.scope_id is not None
    return not is_scoped and any(address in network for network in networks)
