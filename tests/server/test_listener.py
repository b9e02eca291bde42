"""Listening sockets: addresses at which nothing can listen are errors of the configuration."""

from __future__ import annotations

import socket

import pytest

from dragoman.errors import ConfigError
from dragoman.server.http.listener import bind_listener


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_without_an_address_is_a_configuration_error(host: str) -> None:
    with pytest.raises(ConfigError, match="is not an address of this machine"):
        bind_listener(host, 0)


def test_an_address_of_a_protocol_that_the_system_lacks_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def without_ipv6(*_: object) -> socket.socket:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", without_ipv6)
    with pytest.raises(ConfigError, match="is not an address of this machine"):
        bind_listener("::1", 0)
