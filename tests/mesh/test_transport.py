"""Whole meshes in one process, and a few in several: what is sent arrives, and what breaks is told."""

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mesh_peers import JOB, TOKEN, Recorder, bare_dial, ends, eventually, framed, head, party

from outlast.errors import ConfigError
from outlast.mesh.frames import HELLO
from outlast.mesh.transport import Mesh
from outlast.protocol.header import Header
from outlast.protocol.lines import Line
from outlast.protocol.views import Member
from patience import PATIENCE_S

MB = 1 << 20


def test_each_finds_each_and_there_is_one_connection_per_pair() -> None:
    with party(0, 1, 2, 5) as all_:
        all_.meet()
        for replica, mesh in all_.meshes.items():
            others = [all_.member(other) for other in sorted(all_.meshes) if other != replica]
            assert list(mesh.connected_lives()) == others
            assert sorted(all_.sinks[replica].news) == [("connected", other.replica, 1) for other in others]
            assert mesh.rejected == {}


def test_frames_arrive_in_the_order_of_sending() -> None:
    with party(0, 1) as all_:
        all_.meet()
        for step in range(2000):
            size = (0, 10, 5000, 200_000)[step % 4] if step % 100 == 3 else step % 3
            assert all_.meshes[0].send(1, head(step, size), bytes(size), more=step % 5 == 0)
        assert all_.meshes[0].send(1, head(2000))
        all_.sinks[1].until_frames(2001)
        assert all_.sinks[1].steps() == list(range(2001))


@pytest.mark.parametrize("size", [0, 1, 1024, 65_488, 65_536, 65_537, MB, 64 * MB])
def test_payloads_of_any_size_arrive_as_they_were_sent(size: int) -> None:
    payload = os.urandom(min(size, MB)) * (size // MB or 1)
    with party(0, 1) as all_:
        all_.meet()
        for sender, receiver in ((0, 1), (1, 0)):
            middle = size // 3
            view = memoryview(payload)
            assert all_.meshes[sender].send(receiver, head(1, size), view[:middle], b"", view[middle:])
            assert all_.meshes[sender].send(receiver, head(2, 5), b"after")
            all_.sinks[receiver].until_frames(2)
            assert [data for _, _, data in all_.sinks[receiver].frames] == [payload, b"after"]


def test_what_is_sent_is_kept_alive_until_it_has_left_and_no_longer() -> None:
    class Memory:
        pass

    with party(0, 1) as all_:
        all_.meet()
        gate = threading.Event()
        all_.sinks[1].on_destination = lambda h: gate.wait(PATIENCE_S) and None
        keep = Memory()
        watched = weakref.ref(keep)
        all_.meshes[0].send(1, head(1, 64 * MB), bytes(64 * MB), keep=keep)
        del keep
        assert watched() is not None
        assert all_.meshes[0].queued_frames(1) == 1
        gate.set()
        all_.sinks[1].until_frames(1)
        eventually(lambda: all_.meshes[0].queued_bytes(1) == 0)
        assert all_.meshes[0].queued_frames(1) == 0
        eventually(lambda: watched() is None)


def test_frames_of_several_threads_stay_whole() -> None:
    with party(0, 1, 2) as all_, ThreadPoolExecutor(4) as pool:
        all_.meet()

        def burst(bucket: int) -> None:
            for step in range(300):
                size = 100_000 if step % 50 == bucket else 100 * bucket
                assert all_.meshes[0].send(1, head(step, size, bucket=bucket), bytes([bucket]) * size)

        for done in [pool.submit(burst, bucket) for bucket in range(1, 5)]:
            done.result(60)
        all_.sinks[1].until_frames(1200)
        for bucket in range(1, 5):
            mine = [(h, data) for _, h, data in all_.sinks[1].frames if h.bucket == bucket]
            assert [h.step for h, _ in mine] == list(range(300))
            assert all(data == bytes([bucket]) * h.size for h, data in mine)
        assert all_.sinks[2].frames == []


def test_a_frame_may_wait_for_the_next_one_and_they_leave_together() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh = all_.meshes[0]
        mesh.send(1, head(1, 3), b"abc", more=True)
        mesh.send(1, head(2), more=True)
        assert mesh.queued_frames(1) == 2
        mesh.send(1, head(3))
        assert mesh.queued_frames(1) == 0
        all_.sinks[1].until_frames(3)


def test_what_can_not_be_sent_is_said_to_the_sender() -> None:
    with party(0, 1) as all_:
        mesh = all_.meshes[0]
        assert not mesh.send(1, head())
        assert mesh.queued_bytes(1) == mesh.queued_frames(1) == 0
        all_.meet()
        assert not mesh.send(7, head())
        assert not mesh.send(1, head(incarnation=2)), "a frame of another life of ours"
        with pytest.raises(ValueError, match="payload of 3 bytes"):
            mesh.send(1, head(size=4), b"abc")
        with pytest.raises(ValueError, match="can not be sent"):
            mesh.send(1, head(kind=HELLO))
        with pytest.raises(ValueError, match="contiguous"):
            mesh.send(1, head(size=2), memoryview(b"abcd")[::2])
        with pytest.raises(ValueError, match="does not fit"):
            mesh.send(1, head(lo=-1))
        assert mesh.send(1, head(9))
        all_.sinks[1].until_frames(1)
        assert all_.sinks[1].steps() == [9]


def test_a_connection_that_is_torn_is_told_once_and_made_anew() -> None:
    with party(0) as all_:
        mesh, sink = all_.meshes[0], all_.sinks[0]
        mesh.peers([Member(9, 1)])
        for round_ in range(1, 4):
            with bare_dial(mesh) as sock:
                sock.sendall(head(round_, 100_000).pack() + bytes(99_999))
                sink.until_news("connected", 9, times=round_)
            sink.until_news("lost", 9, times=round_)
            assert not mesh.is_connected(9)
        assert sink.news == [("connected", 9, 1), ("lost", 9, 1)] * 3
        assert set(sink.reasons) == {"the peer closed the connection in the middle of a frame"}
        assert sink.frames == []


def test_a_dropped_connection_is_made_anew_while_it_is_wanted() -> None:
    with party(0, 1) as all_:
        all_.meet()
        for times, dropper in ((2, 0), (3, 1)):
            all_.meshes[dropper].drop(1 - dropper, "the test wants it")
            for replica in (0, 1):
                all_.sinks[replica].until_news("connected", 1 - replica, times=times)
        assert all_.sinks[0].reasons[0] == "the test wants it"
        all_.meshes[0].drop(77, "unknown")
        assert all_.meshes[0].send(1, head(5))
        all_.sinks[1].until_frames(1)


def test_a_peer_that_is_no_longer_wanted_is_left_at_once() -> None:
    with party(0, 1, 2) as all_:
        all_.meet()
        all_.meshes[0].peers([all_.member(2)])
        assert not all_.meshes[0].is_connected(1)
        assert not all_.meshes[0].send(1, head())
        all_.sinks[0].until_news("lost", 1)
        all_.sinks[1].until_news("lost", 0)
        assert all_.sinks[0].reasons == ["it is no longer wanted here"]
        assert all_.meshes[0].send(2, head(3))
        all_.sinks[2].until_frames(1)
        assert ("lost", 2, 1) not in all_.sinks[0].news


def test_a_new_life_of_a_peer_takes_the_place_of_the_old_one() -> None:
    for restarted, witness in ((0, 1), (1, 0)):
        with party(0, 1) as all_:
            all_.meet()
            all_.meshes[restarted].close()
            all_.sinks[witness].until_news("lost", restarted)
            all_.add(restarted, incarnation=2)
            members = [all_.member(restarted, 2), all_.member(witness)]
            for mesh in all_.meshes.values():
                mesh.peers(members)
            all_.sinks[witness].until_news("connected", restarted, 2)
            all_.sinks[restarted].until_news("connected", witness)
            assert all_.meshes[restarted].send(witness, head(4, incarnation=2))
            all_.sinks[witness].until_frames(1)
            assert all_.sinks[witness].frames[0][0] == all_.member(restarted, 2)


def test_a_new_life_of_this_process_ends_all_connections_of_the_former_one() -> None:
    with party(0, 1, 2) as all_:
        all_.meet()
        all_.meshes[1].live(2)
        assert all_.meshes[1].connected_lives() == ()
        for other in (0, 2):
            all_.sinks[1].until_news("lost", other)
            all_.sinks[other].until_news("lost", 1)
            all_.meshes[other].peers([all_.member(0), all_.member(1, 2), all_.member(2)])
            all_.sinks[other].until_news("connected", 1, 2)
            all_.sinks[1].until_news("connected", other, times=2)
        assert not all_.meshes[1].send(0, head(1, incarnation=1))
        assert all_.meshes[1].send(0, head(2, incarnation=2))
        all_.sinks[0].until_frames(1)
        assert all_.meshes[0].is_connected(2) and ("lost", 2, 1) not in all_.sinks[0].news


def test_of_two_connections_of_one_life_the_newer_one_counts() -> None:
    with party(0) as all_:
        mesh, sink = all_.meshes[0], all_.sinks[0]
        mesh.peers([Member(9, 1)])
        with bare_dial(mesh) as old:
            sink.until_news("connected", 9)
            with bare_dial(mesh) as new:
                assert ends(old)
                new.sendall(framed(1, head(3)))
                sink.until_frames(1)
        sink.until_news("lost", 9, times=2)
        assert sink.news == [("connected", 9, 1), ("lost", 9, 1)] * 2
        assert sink.reasons[0] == "a new connection took its place"


def test_a_life_that_is_said_to_have_moved_is_dialled_there_once() -> None:
    with party(0, 1) as all_:
        all_.meet()
        moved = Member(0, 1, all_.meshes[0].address.replace("127.0.0.1", "[::ffff:127.0.0.1]"))
        all_.meshes[1].peers([moved])
        all_.sinks[1].until_news("connected", 0, times=2)
        assert all_.sinks[1].news == [("connected", 0, 1), ("lost", 0, 1), ("connected", 0, 1)]
        assert all_.meshes[1]._door._dials[0, 1].deadline is None, "nothing more is due"


def test_what_is_sent_on_a_line_that_is_over_does_not_go_on_the_next_one() -> None:
    lines: list[Line] = []
    with party(0, 1) as all_:
        all_.sinks[0].on_line = lines.append
        all_.meet()
        all_.meshes[0].drop(1, "a test", Line(all_.member(1), 1, 99))
        assert all_.meshes[0].send(lines[0], head(1)), "another line was meant"
        all_.meshes[0].drop(1, "a test")
        all_.sinks[0].until_news("connected", 1, times=2)
        assert not all_.meshes[0].send(lines[0], head(2))
        assert all_.meshes[0].send(lines[1], head(3))
        all_.sinks[1].until(lambda: 3 in all_.sinks[1].steps())
        assert 2 not in all_.sinks[1].steps()


@pytest.mark.parametrize(
    "header", [head(size=2**40), head(kind=HELLO), head(incarnation=7)], ids=["huge", "hello", "life"]
)
def test_a_peer_that_breaks_the_rules_is_cut_off_and_others_are_not(
    header: Header, caplog: pytest.LogCaptureFixture
) -> None:
    with party(0, 1) as all_:
        mesh, sink = all_.meshes[0], all_.sinks[0]
        all_.meet()
        mesh.peers([all_.member(1), Member(9, 1)])
        with bare_dial(mesh) as sock:
            sock.sendall(header.pack())
            assert ends(sock)
        sink.until_news("lost", 9)
        assert "replica 9 (life 1) was cut off" in caplog.text
        assert all_.meshes[1].send(0, head(5))
        sink.until_frames(1)
        assert sink.steps() == [5]


def test_an_error_in_the_sink_costs_one_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)

    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    with party(0, 1, 2) as all_:
        sink = all_.sinks[0]
        all_.meet()
        for times, hook in ((1, "on_destination"), (2, "on_arrived"), (3, "on_lost")):
            honest = getattr(sink, hook)
            setattr(sink, hook, fail)
            if hook == "on_lost":
                all_.meshes[0].drop(1, "to have it called")
            else:
                assert all_.meshes[1].send(0, head(1, 1), b"x")
            sink.until_news("lost", 1, times=times)
            setattr(sink, hook, honest)
            sink.until_news("connected", 1, times=times + 1)
            all_.sinks[1].until_news("connected", 0, times=times + 1)
        sink.on_connected = fail
        all_.meshes[1].drop(0, "to have it made anew")
        sink.until_news("lost", 1, times=5)
        sink.on_connected = lambda _m: None
        # The peer may still send into a connection that has been given up here.
        eventually(lambda: all_.meshes[1].send(0, head(3)) and 3 in sink.steps())
        assert caplog.text.count("a mistake of ours") >= 4
        assert all_.meshes[2].send(0, head(2, 1), b"y")
        sink.until(lambda: 2 in sink.steps())
        assert ("lost", 2, 1) not in sink.news
        assert sink.news.count(("lost", 1, 1)) <= sink.news.count(("connected", 1, 1))


def test_the_sink_may_call_the_mesh() -> None:
    with party(0, 1) as all_:
        mesh = all_.meshes[1]

        def answer_and_leave(sender: Member, header: Header) -> None:
            mesh.send(sender.replica, head(header.step + 1))
            if header.step == 8:
                mesh.drop(sender.replica, "enough")
                mesh.peers([])

        all_.sinks[1].on_arrived = answer_and_leave
        all_.meet()
        all_.meshes[0].send(1, head(4), more=True)
        all_.meshes[0].send(1, head(8), more=True)
        all_.meshes[0].send(1, head(12))
        all_.sinks[1].until_news("lost", 0)
        all_.sinks[0].until_news("lost", 1)
        assert all_.sinks[1].steps() == [4, 8]
        assert all_.sinks[0].steps() == [5, 9]


@pytest.fixture
def _traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("_traced")
def test_a_slow_reader_slows_nobody_else_and_takes_no_memory() -> None:
    with party(0, 1, 2) as all_:
        gate = threading.Event()
        all_.sinks[1].on_destination = all_.sinks[2].on_destination = lambda _h: None
        all_.sinks[1].on_arrived = lambda _m, _h: gate.wait(PATIENCE_S)
        all_.meet()
        mesh = all_.meshes[0]
        chunk = memoryview(bytearray(MB))
        for step in range(200):
            assert mesh.send(1, head(step, MB), chunk)
        for step in range(50):
            assert mesh.send(2, head(step, MB), chunk)
        all_.sinks[2].until_frames(50)
        eventually(lambda: mesh.queued_bytes(2) == 0)
        # The rest is in the kernel, whose buffers are bounded; here it is 200 times the same megabyte.
        assert mesh.queued_bytes(1) > 100 * MB
        assert tracemalloc.get_traced_memory()[1] < 16 * MB
        gate.set()
        all_.sinks[1].until_frames(200)
        assert all_.sinks[1].steps() == list(range(200))


def test_a_droppable_peer_that_does_not_keep_up_is_dropped() -> None:
    with party(0, 1, 2, max_queued_bytes=10 * MB) as all_:
        gate = threading.Event()
        all_.sinks[1].on_arrived = lambda _m, _h: gate.wait(PATIENCE_S)
        all_.meet()
        mesh, sink = all_.meshes[0], all_.sinks[0]
        chunk = memoryview(bytearray(MB))
        accepted = sum(
            1
            for _ in itertools.takewhile(
                bool, (mesh.send(1, head(0, MB), chunk, droppable=True) for _ in range(500))
            )
        )
        assert accepted < 100
        sink.until_news("lost", 1)
        assert "does not keep up" in sink.reasons[0]
        # A member may lag behind as far as it likes: the protocol sees to it that it can not be far.
        for _ in range(50):
            assert mesh.send(2, head(0, MB), chunk)
        all_.sinks[2].until_frames(50)
        gate.set()


def test_closing_sends_what_is_queued() -> None:
    with party(0, 1) as all_:
        all_.meet()
        all_.meshes[1].send(0, head(1, MB), bytes(MB))
        for step in range(40):
            all_.meshes[0].send(1, head(step, MB), bytes(MB))
        all_.meshes[0].send(1, head(40), more=True)
        all_.meshes[0].close(flush_within_s=PATIENCE_S)
        all_.meshes[0].close()
        assert not all_.meshes[0].send(1, head())
        all_.sinks[1].until_news("lost", 0)
        assert all_.sinks[1].steps() == list(range(41))
        assert all_.sinks[0].news[-1] == ("lost", 1, 1)
        assert all_.sinks[0].reasons == ["this process has closed its mesh"]


def test_closing_does_not_wait_long_for_a_peer_that_takes_nothing() -> None:
    with party(0, 1) as all_:
        gate = threading.Event()
        all_.sinks[1].on_arrived = lambda _m, _h: gate.wait(PATIENCE_S)
        all_.meet()
        for step in range(100):
            all_.meshes[0].send(1, head(step, MB), bytes(MB))
        all_.meshes[0].close(flush_within_s=0.05)
        assert all_.sinks[0].news[-1] == ("lost", 1, 1)
        gate.set()


def test_closing_in_the_sink_and_closing_unopened_both_work() -> None:
    with party(0, 1) as all_:
        all_.sinks[1].on_arrived = lambda _m, _h: all_.meshes[1].close()
        all_.meet()
        all_.meshes[0].send(1, head(1))
        all_.sinks[0].until_news("lost", 1)
        unopened = Mesh(job=JOB, token=TOKEN, replica=4, sink=Recorder())
        unopened.live(1)
        unopened.close()
        unopened.close()
        unopened.live(2)
        unopened.peers([Member(1, 1)])
        with pytest.raises(ConfigError, match="opened once"):
            unopened.open()


@pytest.mark.parametrize("setting", ["scratch_bytes", "max_queued_bytes", "token"])
def test_settings_that_can_not_work_are_refused(setting: str) -> None:
    options = {
        "job": JOB,
        "token": TOKEN,
        "replica": 1,
        "sink": Recorder(),
        setting: b"" if setting == "token" else 0,
    }
    with pytest.raises(ConfigError, match=setting):
        Mesh(**options)  # type: ignore[arg-type]


def test_a_forked_child_keeps_no_socket_and_the_parent_goes_on() -> None:
    # Whatever else this process has open, some of which may close itself when it forks, is not of interest.
    foreign = set(os.listdir("/proc/self/fd"))
    with party(0, 1) as all_, bare_dial(all_.meshes[0]), socket.socket() as stranger:
        stranger.connect(("127.0.0.1", int(all_.meshes[0].address.rpartition(":")[2])))
        all_.meet()
        eventually(lambda: all_.meshes[0]._door.parked == all_.meshes[0]._door.strangers == 1)
        before = set(os.listdir("/proc/self/fd")) - foreign
        child = os.fork()
        if child == 0:
            # Two listening, two of the pair, one parked, one stranger, and two pollers with their bells.
            closed = len(before - set(os.listdir("/proc/self/fd")))
            sends = all_.meshes[0].send(1, head(1)) or all_.meshes[0].is_connected(1)
            all_.meshes[0].peers([])
            all_.meshes[0].close()
            os._exit(0 if (closed, sends) == (10, False) else closed)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert all_.meshes[0].send(1, head(2, MB), bytes(MB))
        all_.sinks[1].until_frames(1)
        assert all_.meshes[1].send(0, head(3))
        all_.sinks[0].until_frames(1)
        assert len(all_.sinks[0].news) == len(all_.sinks[1].news) == 1


CHILD = """
import sys, threading
sys.path[:0] = {folders!r}
from mesh_peers import JOB, TOKEN, Recorder, head
from outlast.mesh.transport import Mesh
from outlast.protocol.views import Member

class Echo(Recorder):
    def arrived(self, line, header, payload):
        mesh.send(line, header, payload)

mesh = Mesh(job=JOB, token=TOKEN, replica=int(sys.argv[1]), sink=Echo())
mesh.open()
mesh.live(1)
mesh.peers([Member(5, 1, sys.argv[2])])
print(mesh.address, flush=True)
sys.stdin.read()
mesh.close()
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize("replica", [1, 9])
def test_another_process_is_reached_and_its_death_is_noticed_at_once(replica: int) -> None:
    here = Path(__file__).parent
    code = CHILD.format(folders=[str(here), str(here.parent)])
    with party(5) as all_:
        mesh, sink = all_.meshes[5], all_.sinks[5]
        command = [sys.executable, "-c", code, str(replica), mesh.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            assert address, "it has ended; its last words are above"
            mesh.peers([Member(replica, 1, address)])
            sink.until_news("connected", replica)
            payload = os.urandom(4 * MB)
            for step in range(8):
                assert mesh.send(replica, head(step, len(payload)), payload)
            sink.until_frames(8)
            assert all(data == payload for _, _, data in sink.frames)
            child.send_signal(signal.SIGKILL)
            sink.until_news("lost", replica)
            assert not mesh.is_connected(replica)
            mesh.peers([])
