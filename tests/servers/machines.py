"""Machines on a network of their own, as network namespaces that a bridge joins.

    network = Network(3)
    a, b, c = network.machines
    server = b.start([...], log)            # listens at b.address, and only the three can reach it
    network.cut(a, b)                       # packets are dropped, nobody is told
    network.heal()
    b.kill()                                # the power goes: no FIN, no RST
    b.boot()

They share this machine's processors, files and process numbers; each has its addresses, ports and host name.
The process that tests stays outside. What has to reach a machine is started there (`start`, `run`), or does
so in a thread that is there meanwhile (`inside`).

The bridge has a namespace, too, so the real machine's network is not touched.
"""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from servers import slow_link
from servers.children import Child
from servers.namespaces import Namespace
from servers.slow_link import MARK


class Machine:
    def __init__(self, network: "Network", number: int) -> None:
        self.name = f"machine{number}"
        self.address = f"10.77.0.{number}"
        self.address6 = f"fd77::{number:x}"
        # It is the same in every life, since others remember it.
        self.hardware_address = f"02:77:00:00:00:{number:02x}"
        self._network = network
        self._namespace: Namespace | None = None
        self._children: list[Child] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def is_on(self) -> bool:
        return self._namespace is not None

    @property
    def namespace(self) -> Namespace:
        assert self._namespace is not None, f"{self} is off"
        return self._namespace

    def start(
        self, command: Sequence[str], log: Path, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> Child:
        """It ends with the machine, and also when the thread ends that started it."""
        child = Child(command, log, env=env, cwd=cwd, through=self.namespace.command(()))
        self._children.append(child)
        return child

    def run(self, *command: str) -> str:
        """What it says, once it has ended well."""
        return self.namespace.run(*command)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is on the machine meanwhile, with the sockets, processes and threads that it makes."""
        with self.namespace.entered():
            yield

    def pids(self) -> list[int]:
        """Of everything that runs on it."""
        return self.namespace.pids()

    def kill(self) -> None:
        """The machine vanishes: first its link, so that nobody hears of the rest, then all processes."""
        self._network.unplug(self)
        self.close()
        self._namespace = None

    def boot(self) -> None:
        """A new life, that knows nothing of connections in the last one. It starts nothing."""
        assert self._namespace is None, f"{self} is on"
        self._namespace = self._network.new_namespace(self)
        self._network.plug_in(self)

    def close(self) -> None:
        if self._namespace is not None:
            self._namespace.close()
        for child in self._children:
            child.kill()
        self._children.clear()


class Network:
    def __init__(self, machines: int) -> None:
        self._bridge = Namespace("bridge")
        self._cut: set[tuple[Machine, Machine]] = set()
        self._slow: dict[tuple[Machine, Machine], int] = {}
        self._was_slow = False
        self._lost_share = 0.0
        self._rules_set: dict[Machine, tuple[str, str]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="outlast-network-")
        self.machines = [Machine(self, number) for number in range(1, machines + 1)]
        self._no_rules = self._rules(self.machines[0])
        try:
            # Without snooping, which forgets machines that say nothing for a while.
            self._bridge.run("ip", "link", "add", "bridge", "up", "type", "bridge", "mcast_snooping", "0")
            for machine in self.machines:
                machine.boot()
        except BaseException:
            self.close()
            raise

    def cut(self, a: Machine, b: Machine) -> None:
        """Neither hears the other."""
        self._drop({(a, b), (b, a)})

    def cut_one_way(self, a: Machine, b: Machine) -> None:
        """`b` does not hear `a` any more, but `a` hears `b`."""
        self._drop({(a, b)})

    def cut_off(self, *machines: Machine) -> None:
        """These hear one another, and nobody else."""
        others = [machine for machine in self.machines if machine not in machines]
        self._drop({pair for a in machines for b in others for pair in ((a, b), (b, a))})

    def lose(self, share: float) -> None:
        """So many of all packets, by chance."""
        self._lost_share = share
        self._set_rules()

    def slow(self, a: Machine, b: Machine, *, delay_s: float, bytes_per_s: float = float("inf")) -> None:
        """What either sends the other over TCP arrives late, on connections that they make from now on.

        A proxy on the machine that connects does that, and nobody sees it. Other than on a slow link
        connections are accepted at once, and what is under way counts as confirmed.
        """
        for here, there in ((a, b), (b, a)):
            self._slow[here, there] = self._start_proxy(here, delay_s, bytes_per_s)
        self._was_slow = True
        self._set_rules()

    def heal(self) -> None:
        """All is as it was in the beginning, but for machines that are off. Connections that were made over a
        slow link stay slow."""
        self._cut.clear()
        self._slow.clear()
        self._lost_share = 0.0
        self._set_rules()

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        self._bridge.close()
        self._folder.cleanup()

    def new_namespace(self, machine: Machine) -> Namespace:
        return Namespace(machine.name, within=self._bridge)

    def plug_in(self, machine: Machine) -> None:
        holder = machine.namespace.holder
        self._ip(
            self._bridge,
            f"link add {machine} type veth peer name eth0 address {machine.hardware_address} netns {holder}",
            f"link set {machine} master bridge up",
        )
        self._ip(
            machine.namespace,
            "link set lo up",
            # An address of the link's own would be one that nobody cuts off.
            "link set eth0 addrgenmode none up",
            f"address add {machine.address}/24 dev eth0",
            f"address add {machine.address6}/64 dev eth0 nodad",
        )
        # It has none yet, and needs none in a network that is well.
        self._rules_set[machine] = self._no_rules
        self._set_rules()

    def unplug(self, machine: Machine) -> None:
        self._slow = {pair: port for pair, port in self._slow.items() if pair[0] is not machine}
        self._ip(self._bridge, f"link delete {machine}")

    def _start_proxy(self, machine: Machine, delay_s: float, bytes_per_s: float) -> int:
        """Returns the port that it listens at."""
        log = Path(self._folder.name) / f"{machine}-{delay_s}-{bytes_per_s}-{time.monotonic_ns()}"
        program = [sys.executable, slow_link.__file__, str(delay_s), str(bytes_per_s)]
        machine.start(program, log).wait_until(lambda: log.read_text().endswith("\n"))
        return int(log.read_text())

    def _drop(self, pairs: set[tuple[Machine, Machine]]) -> None:
        self._cut |= pairs
        self._set_rules()

    def _set_rules(self) -> None:
        """On all machines that need others than they have, and at the same time."""
        under_way = []
        for machine in self.machines:
            rules = self._rules(machine)
            if machine.is_on and rules != self._rules_set.get(machine):
                self._rules_set[machine] = rules
                restored = zip(("iptables-restore", "ip6tables-restore"), rules, strict=True)
                under_way += [machine.namespace.begin(program, given=text) for program, text in restored]
        for end in under_way:
            end()

    def _rules(self, machine: Machine) -> tuple[str, str]:
        """All that follows for this machine from what holds now, for IPv4 and for IPv6."""
        return (
            self._rules_for(machine, lambda other: other.address),
            self._rules_for(machine, lambda other: other.address6),
        )

    def _rules_for(self, machine: Machine, address: Callable[[Machine], str]) -> str:
        rules = ["*filter", ":INPUT ACCEPT"]
        rules += sorted(f"-A INPUT --source {address(a)} -j DROP" for a, b in self._cut if b is machine)
        if self._lost_share:
            chance = f"-m statistic --mode random --probability {self._lost_share}"
            rules.append(f"-A INPUT --in-interface eth0 {chance} -j DROP")
        rules.append("COMMIT")
        if self._was_slow:
            # Only first packets are redirected: connections that there are already would break.
            first = f"-A OUTPUT -p tcp --syn -m mark ! --mark {MARK}"
            ports = {address(b): port for (a, b), port in self._slow.items() if a is machine}
            redirected = [f"--destination {to} -j REDIRECT --to-ports {port}" for to, port in ports.items()]
            rules += ["*nat", ":OUTPUT ACCEPT", *(f"{first} {each}" for each in redirected), "COMMIT"]
        return "\n".join([*rules, ""])

    @staticmethod
    def _ip(where: Namespace, *commands: str) -> None:
        where.run("ip", "-batch", "-", given="\n".join(commands) + "\n")
