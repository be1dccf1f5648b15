"""Where to listen can be said as an address, an interface or a network."""

import pytest

from outlast.errors import ConfigError
from outlast.wire.interfaces import address_towards, own_address, own_addresses


def test_the_loopback_interface_is_found_by_name_and_by_network() -> None:
    assert ("lo", "127.0.0.1") in [(name, str(ip)) for name, ip in own_addresses()]
    assert own_address("lo") == "127.0.0.1"
    assert own_address("127.0.0.0/8") == "127.0.0.1"


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_an_address_is_taken_as_it_is(address: str) -> None:
    assert own_address(address) == address


@pytest.mark.parametrize("where", ["eth99", "240.0.0.0/8", "nonsense", ""])
def test_what_is_not_here_is_an_error_that_says_what_is(where: str) -> None:
    with pytest.raises(ConfigError, match=r"it has .*127\.0\.0\.1 \(lo\)"):
        own_address(where)


def test_packets_to_loopback_leave_from_there() -> None:
    assert address_towards("127.0.0.1:7700") == "127.0.0.1"
