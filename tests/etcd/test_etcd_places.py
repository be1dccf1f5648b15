"""Where members are, as people type it."""

import socket

import pytest

from outlast.errors import AddressInUse, ConfigError, UsageError
from outlast.etcd.places import (
    Place,
    check_ports,
    listening_ip,
    own_name,
    parse_members,
    parse_place,
    spelled,
)
from servers.children import free_ports


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("10.0.0.1", Place("10.0.0.1", 2379, 2380)),
        ("node-1.lan:4000", Place("node-1.lan", 4000, 4001)),
        ("127.0.0.1:4000:5000", Place("127.0.0.1", 4000, 5000)),
        ("[::1]:4000", Place("::1", 4000, 4001)),
    ],
)
def test_places(text: str, place: Place) -> None:
    assert parse_place(text) == place
    assert parse_place(str(place)) == place


@pytest.mark.parametrize(
    "text", ["", ":2379", "host:", "host:0", "host:65535", "host:1:1", "::1", "a b", "h:1:2:3"]
)
def test_what_is_no_place_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="where a member is"):
        parse_place(text)


def test_urls_are_for_others_to_use() -> None:
    place = parse_place("[fd00::1]")
    assert (place.peer_url, str(place.client)) == ("http://[fd00::1]:2380", "[fd00::1]:2379")


def test_a_list_of_members_is_the_same_in_any_order() -> None:
    assert (
        spelled(parse_members("b=y,a=x:1"))
        == spelled(parse_members("a=x:1:2,b=y:2379"))
        == "a=x:1:2,b=y:2379:2380"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a", "NAME=HOST"),
        ("a=x,", "'' in --members"),
        ("a=x,a=y", "'a' twice"),
        ("a=x,b=x", "host and port twice"),
        ("a=x:1:5,b=x:2:5", "host and port twice"),
        ("a/b=x", "cannot be called 'a/b'"),
        ("a=x y", "where a member is"),
    ],
)
def test_a_list_that_is_none_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_members(text)


def test_which_member_this_machine_is() -> None:
    assert own_name(parse_members("a=203.0.113.1,b=127.0.0.1,c=203.0.113.3")) == "b"
    with pytest.raises(UsageError, match=r"a and b all are .*--name"):
        own_name(parse_members("a=127.0.0.1:1:2,b=127.0.0.1:3:4"))
    with pytest.raises(UsageError, match=r"none of them is .*--name"):
        own_name(parse_members("a=203.0.113.1,b=203.0.113.2"))


def test_other_machines_are_let_in_only_on_purpose() -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        listening_ip(parse_place("203.0.113.9"), bind=None, insecure=False, alone=True)
    with pytest.raises(ConfigError, match="--insecure"):
        listening_ip(parse_place("127.0.0.1"), bind="203.0.113.1", insecure=False, alone=True)
    assert (
        listening_ip(parse_place("203.0.113.1"), bind="203.0.113.9", insecure=True, alone=False)
        == "203.0.113.9"
    )
    assert listening_ip(parse_place("127.0.0.1"), bind=None, insecure=False, alone=True) == "127.0.0.1"


def test_a_name_that_means_loopback_here_does_not_hide_a_member_from_others() -> None:
    with pytest.raises(ConfigError, match=r"stands for 127\.0\.0\.1 .*--bind"):
        listening_ip(parse_place("localhost"), bind=None, insecure=True, alone=False)


def test_a_name_that_nobody_has_is_said() -> None:
    with pytest.raises(ConfigError, match="no machine of the name"):
        listening_ip(parse_place("no-such-host.invalid"), bind=None, insecure=True, alone=True)


def test_a_port_that_is_taken_is_named() -> None:
    free, _ = free_ports(2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port} already.*PEERPORT"):
            check_ports("127.0.0.1", Place("127.0.0.1", free, port))
    with pytest.raises(ConfigError, match="address of this machine"):
        check_ports("203.0.113.1", Place("203.0.113.1", *free_ports(2)))
