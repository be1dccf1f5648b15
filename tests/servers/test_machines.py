"""The network that tests of many machines rely on does what they think it does."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leaks import nothing_new
from outlast.kinship import alive
from patience import PATIENCE_S
from servers import namespaces
from servers.fixtures import need
from servers.machines import Machine, Network

PORT = 7000
A_MOMENT_S = 0.2
"""Longer than anything takes that is not held up, on a link without loss."""

Networks = Callable[[int], Network]


@pytest.fixture(autouse=True)
def _needs_root() -> None:
    need(namespaces.cannot_enter())


@contextlib.contextmanager
def connected(client: Machine, server: Machine, *, v6: bool = False) -> Iterator[list[socket.socket]]:
    """The two ends of a connection."""
    family = socket.AF_INET6 if v6 else socket.AF_INET
    address = (server.address6 if v6 else server.address, PORT)
    with contextlib.ExitStack() as stack:
        with server.inside():
            listener = stack.enter_context(socket.create_server(address, family=family))
        with client.inside():
            near = stack.enter_context(socket.create_connection(address, PATIENCE_S))
        far, peer = listener.accept()
        stack.enter_context(far)
        assert peer[0] == (client.address6 if v6 else client.address)
        yield [near, far]


def passes(sender: socket.socket, receiver: socket.socket, within_s: float = PATIENCE_S) -> bool:
    sender.sendall(b"x")
    receiver.settimeout(within_s)
    try:
        return receiver.recv(1 << 16) != b""
    except TimeoutError:
        return False


@pytest.mark.parametrize("v6", [False, True], ids=["IPv4", "IPv6"])
def test_machines_reach_each_other_until_they_are_cut(network: Networks, v6: bool) -> None:
    net = network(3)
    a, b, c = net.machines
    with connected(a, b, v6=v6) as (near, far), connected(a, c, v6=v6) as (other_near, other_far):
        assert passes(near, far) and passes(far, near)
        net.cut(a, b)
        assert not passes(near, far, A_MOMENT_S) and not passes(far, near, A_MOMENT_S)
        assert passes(other_near, other_far) and passes(other_far, other_near)
        net.cut_off(c)
        assert not passes(other_near, other_far, A_MOMENT_S)
        net.heal()
        assert passes(near, far) and passes(far, near) and passes(other_near, other_far)


def test_a_cut_may_have_a_direction(network: Networks) -> None:
    net = network(2)
    a, b = net.machines
    with connected(a, b) as (near, far):
        net.cut_one_way(a, b)
        assert passes(far, near), "data arrives, and only its confirmation does not"
        assert not passes(near, far, A_MOMENT_S)
        net.heal()
        assert passes(near, far)


def test_those_that_are_cut_off_together_hear_one_another(network: Networks) -> None:
    net = network(3)
    a, b, c = net.machines
    net.cut_off(a, b)
    with connected(a, b) as (near, far):
        assert passes(near, far)
    with c.inside(), pytest.raises(TimeoutError):
        socket.create_connection((a.address, PORT), A_MOMENT_S)


def test_of_all_packets_some_get_lost(network: Networks) -> None:
    """UDP, which does not send anything again."""
    net = network(2)
    a, b = net.machines
    net.lose(0.3)
    sent = 1000
    with contextlib.ExitStack() as stack:
        with a.inside():
            sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        with b.inside():
            receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            receiver.bind((b.address, PORT))
        receiver.setblocking(False)
        arrived = 0
        for _ in range(sent):
            sender.sendto(b"x", (b.address, PORT))
            with contextlib.suppress(BlockingIOError):
                arrived += len(receiver.recv(1))
        net.heal()
        sender.sendto(b"end", (b.address, PORT))
        receiver.settimeout(PATIENCE_S)
        while receiver.recv(3) != b"end":
            arrived += 1
    # Seven standard deviations to either side.
    assert 0.6 * sent < arrived < 0.8 * sent


def test_a_slow_link_is_late_in_both_directions(network: Networks) -> None:
    net = network(2)
    a, b = net.machines
    net.slow(a, b, delay_s=0.05)
    for here, there in ((a, b), (b, a)):
        for v6 in (False, True):
            with connected(here, there, v6=v6) as (near, far):
                for sender, receiver in ((near, far), (far, near)):
                    began = time.monotonic()
                    assert passes(sender, receiver)
                    assert time.monotonic() - began >= 0.05
                near.shutdown(socket.SHUT_WR)
                assert far.recv(1) == b""


def test_a_slow_link_lets_no_more_pass_than_it_can_and_changes_nothing(network: Networks) -> None:
    net = network(2)
    a, b = net.machines
    net.slow(a, b, delay_s=0.0, bytes_per_s=1e6)
    data = os.urandom(300_000)
    with connected(a, b) as (near, far):
        began = time.monotonic()
        sending = threading.Thread(target=near.sendall, args=(data,))
        sending.start()
        received = b""
        while len(received) < len(data):
            received += far.recv(1 << 16)
        sending.join()
        assert received == data
        assert time.monotonic() - began >= 0.25


def test_a_connection_that_nobody_takes_is_reset_on_a_slow_link(network: Networks) -> None:
    net = network(2)
    a, b = net.machines
    net.slow(a, b, delay_s=0.01)
    with a.inside():
        near = socket.create_connection((b.address, PORT), PATIENCE_S)
    with near, pytest.raises(ConnectionResetError):
        near.recv(1)


def test_a_machine_that_is_killed_says_nothing(network: Networks, tmp_path: Path) -> None:
    net = network(2)
    a, b = net.machines
    echo = (
        "import socket, subprocess, sys\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"listener = socket.create_server((sys.argv[1], {PORT}))\n"
        "print('up', flush=True)\n"
        "taken, _ = listener.accept()\n"
        "while data := taken.recv(100): taken.sendall(data)\n"
    )
    server = b.start([sys.executable, "-c", echo, b.address], tmp_path / "log")
    server.wait_until(lambda: "up" in server.log.read_text())
    address = (b.address, PORT)
    with a.inside(), socket.create_connection(address, PATIENCE_S) as near:
        assert passes(near, near)
        ran = b.pids()
        assert server.pid in ran and len(ran) == 2
        b.kill()
        assert not any(map(alive, ran))
        assert server.end() == -9
        assert not passes(near, near, A_MOMENT_S)
        b.boot()
        # Its new life knows nothing of the connection, and says so when it is asked.
        near.settimeout(PATIENCE_S)
        with pytest.raises(ConnectionResetError):
            near.recv(1)
    assert b.pids() == []


def test_a_machine_has_its_name_and_its_ports(network: Networks, tmp_path: Path) -> None:
    a, b = network(2).machines
    assert [machine.run("hostname").strip() for machine in (a, b)] == ["machine1", "machine2"]
    assert socket.gethostname() not in ("machine1", "machine2")
    with connected(a, b), connected(b, a):
        pass


def test_a_machine_that_comes_back_is_cut_off_as_before(network: Networks) -> None:
    net = network(2)
    a, b = net.machines
    net.cut_off(b)
    b.kill()
    b.boot()
    with a.inside(), pytest.raises(TimeoutError):
        socket.create_connection((b.address, PORT), A_MOMENT_S)
    net.heal()
    with connected(a, b) as (near, far):
        assert passes(near, far)


def test_nothing_is_left_of_a_network(tmp_path: Path) -> None:
    with nothing_new():
        net = Network(2)
        a, b = net.machines
        left = [a.namespace.holder, b.namespace.holder]
        left.append(a.start(["sleep", "600"], tmp_path / "log").pid)
        net.slow(a, b, delay_s=0.1)
        left += a.pids() + b.pids()
        # Whoever closes it may be on one of its machines.
        with a.inside():
            net.close()
        net.close()
        assert not any(map(alive, left))


KILLED = """
import sys
from pathlib import Path
from servers.machines import Network
net = Network(2)
a, b = net.machines
a.run("sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &")
b.start(["sleep", "600"], Path(sys.argv[1]))
net.slow(a, b, delay_s=0.1)
print(*a.pids(), *b.pids(), *(machine.namespace.holder for machine in net.machines), flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_a_test_that_is_killed(tmp_path: Path) -> None:
    """Not even what has left its parents."""
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
    tester = subprocess.Popen(
        [sys.executable, "-c", path + KILLED, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert tester.stdin is not None and tester.stdout is not None
    with tester, tester.stdin, tester.stdout as output:
        left = [int(pid) for pid in output.readline().split()]
        assert len(left) >= 6 and all(map(alive, left))
        tester.kill()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(alive, left)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
