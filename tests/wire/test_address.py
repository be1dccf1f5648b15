import socket

import pytest

from outlast.errors import AddressInUse, ConfigError
from outlast.wire.address import (
    channel_binding,
    check_interface,
    format_address,
    is_loopback,
    listen,
    parse_address,
    refuse_self_connection,
    tune,
)


@pytest.mark.parametrize("address", ["127.0.0.1:7000", "[::1]:7000", "localhost:0"])
def test_an_address_survives_the_trip(address: str) -> None:
    assert format_address(parse_address(address)) == address


@pytest.mark.parametrize(
    "address", ["", "7000", "127.0.0.1", ":7000", "::1:7000", "a:b", "a:65536", "a:-1", "a:²"]
)
def test_what_is_not_an_address_is_refused_by_name(address: str) -> None:
    with pytest.raises(ConfigError, match="address"):
        parse_address(address)


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_leaving_loopback_takes_an_explicit_word(address: str) -> None:
    with pytest.raises(ConfigError, match=r"listen on 127\.0\.0\.1"):
        listen(address)


def test_with_that_word_it_is_done() -> None:
    with listen("0.0.0.0:0", allow_remote=True) as sock:
        assert sock.getsockname()[0] == "0.0.0.0"  # noqa: S104


def test_a_port_in_use_is_named_together_with_the_way_out() -> None:
    with listen("127.0.0.1:0") as sock:
        address = format_address(sock.getsockname())
        with pytest.raises(AddressInUse, match=rf"{address}.*another port, or port 0"):
            listen(address)


def test_other_failures_to_listen_are_named_too() -> None:
    with pytest.raises(ConfigError, match="resolved"):
        listen(f"{'x' * 64}.invalid:0")
    with pytest.raises(ConfigError, match=r"can not listen on 192\.0\.2\.1:0"):
        listen("192.0.2.1:0", allow_remote=True)


def test_only_tcp_sockets_are_listened_on() -> None:
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConfigError, match="TCP"):
        check_interface(sock.getsockname(), allow_remote=True)


def test_loopback_has_several_faces() -> None:
    assert is_loopback(("127.0.0.53", 1))
    assert is_loopback(("::1", 1, 0, 0))
    assert is_loopback(("::ffff:127.0.0.1", 1, 0, 0))
    assert not is_loopback(("10.0.0.1", 1))
    assert not is_loopback(("fe80::1%eth0", 1, 0, 2))


def test_both_ends_see_the_same_binding_and_a_relay_another() -> None:
    client, mapped_client, listener = ("127.0.0.1", 5), ("::ffff:127.0.0.1", 5, 0, 0), ("127.0.0.1", 7)
    assert channel_binding(client, listener) == channel_binding(mapped_client, listener) != b""
    assert channel_binding(client, listener) != channel_binding(("127.0.0.1", 6), listener)
    assert channel_binding(client, listener) != channel_binding(listener, client)
    assert channel_binding(("10.0.0.1", 5), listener) == b""


def test_a_socket_that_reached_itself_is_refused() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        with pytest.raises(ConnectionRefusedError, match="nobody listens"):
            refuse_self_connection(sock)


def test_sockets_are_tuned() -> None:
    with socket.socket() as sock:
        tune(sock)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
