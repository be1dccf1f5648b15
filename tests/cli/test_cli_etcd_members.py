"""Three etcd members from nothing, by `outlast etcd`: killed, lost, replaced, checked. All of it is real."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.store.gateway import Endpoint
from outlast.coordinator.store.seam import Absent, ModifiedAt, Put
from outlast.errors import OutcomeUnknown, StoreError
from outlast.etcd.metrics import read_metrics
from outlast.kinship import alive
from patience import PATIENCE_S
from servers import etcd as etcd_server
from servers.etcd import Etcd
from servers.fixtures import need
from servers.members import Members

Outlast = Any


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    need(etcd_server.missing())
    running = Members(tmp_path)
    try:
        yield running
    finally:
        running.stop()


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def in_touch(members: Members, name: str) -> int:
    """With how many others a member says it is."""
    host, _, port = members.endpoint(name).rpartition(":")
    metrics = asyncio.run(read_metrics(Endpoint(host, int(port))))
    return len(metrics.active_peers) if metrics is not None else 0


def checked(outlast: Outlast, members: Members, names: str = "abc") -> dict[str, Any]:
    """What `check` finds; the time that writes take is the machine's affair."""
    done = outlast("etcd", "check", f"etcd://{members.endpoints(names)}", "--json")
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["usable"] else 8)
    return told


def findings(told: dict[str, Any]) -> list[str]:
    kept = [one["text"] for one in told["findings"]]
    return [text for text in kept if "slow" not in text and "may answer a read with the past" not in text]


def wait_for_check(
    outlast: Outlast, members: Members, good: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while not good(told := checked(outlast, members)):
        assert time.monotonic() < deadline, told
        time.sleep(0.2)
    return told


def test_three_members_from_nothing_and_one_is_killed(members: Members, outlast: Outlast) -> None:
    members.start("a")
    members.wait_for("a", "waiting for a majority, which is 2 of 3 members: 1 can be reached")
    members.start("b")
    members.start("c")
    for name in "abc":
        members.wait_for(name, "--store etcd://")
        members.wait_for(name, "leads")
    (store,) = set(re.findall(r"^--store (\S+)$", members.said("a"), re.MULTILINE)[-1:])
    assert sorted(store.removeprefix("etcd://").removesuffix("/outlast").split(",")) == sorted(
        members.endpoints("abc").split(",")
    )
    assert os.stat(members.data("a")).st_mode & 0o777 == 0o700

    told = wait_for_check(outlast, members, lambda told: not findings(told))
    assert told["usable"]
    assert sorted(one["name"] for one in told["members"]) == ["a", "b", "c"]
    assert sum(one["leads"] for one in told["members"]) == 1
    assert all(one["quota_bytes"] == 4 << 30 and one["fsync_p99_s"] > 0 for one in told["members"])
    assert 0 < told["write_median_s"] <= told["write_worst_s"]
    words = outlast("etcd", "check", store).stdout
    assert re.search(
        r"^a +127\.0\.0\.1:\d+ +3\.\S+ +(leads|follows) +\S+ kB of 4\.3 GB", words, re.MULTILINE
    ), words
    assert re.search(r"it can be used; 3 of 3 members answer, and 1 more may be lost$", words.strip()), words

    wait_until("a is in touch with both others", lambda: in_touch(members, "a") == 2)

    first_server = members.server("b")
    members.kill("b")
    wait_until("its server is gone as well", lambda: not alive(first_server))
    told = wait_for_check(outlast, members, lambda told: any("b does not" in one for one in findings(told)))
    assert told["usable"]
    members.wait_for("a", "b (")
    members.start("b")
    members.wait_for("b", "b goes on from its data")
    members.wait_for("b", "3 of 3 members answer")
    assert findings(wait_for_check(outlast, members, lambda told: not findings(told))) == []

    members.kill("b")
    members.kill("c")
    lost = "no majority: 1 of 3 members answer"
    told = wait_for_check(outlast, members, lambda told: any(lost in text for text in findings(told)))
    assert not told["usable"]
    members.wait_for("a", "no majority: 1 of 3 members answer")
    # With its name alone.
    members.start("b", "--insecure")
    members.wait_for("b", "2 of 3 members answer")
    assert checked(outlast, members)["usable"]

    server = members.server("a")
    assert members.end("a", signal.SIGTERM) == 143
    assert not alive(server), "it ends in order, and not behind our back"
    assert "a has ended" in members.said("a")
    assert members.end("b", signal.SIGINT) == 130


def test_a_member_whose_process_alone_is_killed_is_started_again(tmp_path: Path) -> None:
    need(etcd_server.missing())
    members = Members(tmp_path, "a")
    try:
        members.start("a", "--at", members.places["a"])
        members.wait_for("a", "--store etcd://")
        first = members.server("a")
        os.kill(first, signal.SIGKILL)
        members.wait_for("a", "was killed by SIGKILL, and is started again")
        wait_until("it is healthy again", lambda: members.said("a").count("the cluster is healthy") == 2)
        assert members.server("a") != first
    finally:
        members.stop()


class Counting:
    """Counts up in the store all the while. Nothing that was written may be lost, and nothing written twice.

    It has a thread of its own, since servers die with the thread that has started them.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._count()))
        self.sure = self.perhaps = self.final = 0

    def __enter__(self) -> Counting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def goes_on(self) -> None:
        """Until it has counted some more."""
        before = self.sure
        wait_until("writes go on", lambda: self.sure >= before + 10)

    async def _count(self) -> None:
        store = await EtcdStore.open(self._address)
        try:
            await store.commit([Absent("count")], [Put("count", b"0")])
            while not self._stop.is_set():
                try:
                    entry = (await store.read("count")).entries["count"]
                    counted = Put("count", b"%d" % (int(entry.value) + 1))
                    done = await store.commit([ModifiedAt("count", entry.modified)], [counted])
                    self.sure += done.succeeded
                except OutcomeUnknown:
                    self.perhaps += 1
                except StoreError:
                    await asyncio.sleep(0.05)
            self.final = int((await store.read("count")).entries["count"].value)
        finally:
            await store.close()


def test_a_member_that_is_lost_with_its_data_is_replaced(
    members: Members, outlast: Outlast, tmp_path: Path
) -> None:
    members.start_all()
    members.wait_for("a", "3 of 3 members answer")
    address = f"etcd://{members.endpoints('ac')}/tests"

    with Counting(address) as counting:
        counting.goes_on()
        members.kill("b")
        old = tmp_path / "old-b"
        shutil.copytree(members.data("b"), old)
        shutil.rmtree(members.data("b"))

        members.start("b")
        assert members.end("b") == 2
        assert re.search(r"know member b from before, .*--join \S+ --replace", members.said("b"))
        shutil.rmtree(members.data("b"))
        join = ("--join", members.endpoints("ac"))
        old_place, members.places["b"] = members.places["b"], members.free_place()
        members.start("b", "--at", members.places["b"], *join)
        assert members.end("b") == 2
        assert "the cluster has a member b already" in members.said("b")
        assert (
            outlast(
                "etcd",
                "start",
                "--name",
                "c",
                "--at",
                members.free_place(),
                *join,
                "--replace",
                "--data",
                str(tmp_path / "c2"),
            ).returncode
            == 2
        )

        members.start("b", "--at", members.places["b"], *join, "--replace")
        members.wait_for("b", "b is lost (")
        members.wait_for("b", "b has caught up, and votes from now on")
        members.wait_for("b", "3 of 3 members answer")
        members.wait_for("b", f"{members.endpoint('b')}")

        # What it had before is of no use to anybody, and is refused with what to do.
        members.start("old", "--name", "b", "--data", str(old), "--at", old_place)
        assert members.end("old") == 2
        assert "was removed from its cluster" in members.said("old")

        counting.goes_on()
    assert 0 < counting.sure <= counting.final <= counting.sure + counting.perhaps
    told = wait_for_check(outlast, members, lambda told: not findings(told))
    assert [one["votes"] for one in told["members"]] == [True] * 3
    members.kill("b")
    members.start("b", "--join", members.endpoints("ac"), "--replace")
    members.wait_for("b", "b goes on from its data")
    members.wait_for("b", "3 of 3 members answer")


def test_a_cluster_grows_from_one_to_three(members: Members, outlast: Outlast) -> None:
    members.start("a", "--at", members.places["a"])
    members.wait_for("a", "--store etcd://")
    told = checked(outlast, members, "a")
    assert findings(told) == ["there is one member, and its loss is the loss of everything"]

    with Counting(f"etcd://{members.endpoint('a')}/tests") as counting:
        for name, known in (("b", "a"), ("c", "ab")):
            members.start(name, "--at", members.places[name], "--join", f"etcd://{members.endpoints(known)}")
            members.wait_for(name, f"{name} has caught up, and votes from now on")
        members.wait_for("a", "3 of 3 members answer")

        counting.goes_on()
    assert 0 < counting.sure <= counting.final <= counting.sure + counting.perhaps
    told = wait_for_check(outlast, members, lambda told: not findings(told))
    assert len(told["members"]) == 3
    assert "does not name: " in findings(checked(outlast, members, "a"))[0]
    members.kill("a")
    assert wait_for_check(outlast, members, lambda told: len(findings(told)) == 1)["usable"]


def test_data_of_another_cluster_is_left_alone(members: Members, etcd: Etcd) -> None:
    members.start("a", "--at", members.places["a"])
    members.wait_for("a", "--store etcd://")
    assert members.end("a", signal.SIGTERM) == 143
    members.start("a", "--join", f"127.0.0.1:{etcd.ports[0]}")
    assert members.end("a") == 2
    assert "member a of another cluster than that of 127.0.0.1" in members.said("a")
    members.start("a", "--at", members.free_place())
    assert members.end("a") == 2
    assert "give the same --at as before" in members.said("a")

    shutil.rmtree(members.data("a") / "data")
    members.start("a", "--at", members.places["a"])
    assert members.end("a") == 2
    assert re.search(r"has run in \S+ before, and its data is gone.*--replace", members.said("a"))


def test_lists_that_differ_are_found_out(members: Members) -> None:
    members.start("a")
    members.start("b", "--members", members.listed.replace("c=", "d="))
    members.wait_for("a", "was started with another --members list")


def test_two_of_one_member_are_one_too_many(members: Members, outlast: Outlast) -> None:
    members.start("a", "--at", members.places["a"])
    members.wait_for("a", "--store etcd://")
    again = ("etcd", "start", "--name", "a", "--data", str(members.data("a")))
    done = outlast(*again, OUTLAST_ETCD=str(etcd_server.PROGRAM))
    assert done.returncode == 8
    assert "a member runs in" in done.stderr


def test_nobody_joins_a_cluster_without_a_majority(members: Members) -> None:
    members.start_all()
    members.kill("b")
    members.kill("c")
    members.wait_for("a", "no majority: 1 of 3 members answers")
    shutil.rmtree(members.data("b"))
    members.start("b", "--at", members.places["b"], "--join", members.endpoint("a"), "--replace")
    assert members.end("b") == 8
    assert "b cannot be replaced, since only 1 of 3 members answer" in members.said("b")
