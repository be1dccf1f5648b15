"""Connections that come and go at random, under load: what a connection delivers is a run without gaps."""

import random
import threading
from collections.abc import Callable

import pytest
from mesh_peers import Recorder, head, party

from outlast.mesh.transport import Mesh
from outlast.protocol.header import Header
from outlast.protocol.lines import Line


class Logbook(Recorder):
    """News and frames in one list, so that their order shows."""

    def __init__(self) -> None:
        super().__init__()
        self.book: list[tuple[str, int, int, int]] = []

    def connected(self, line: Line) -> None:
        self.book.append(("connected", line.peer.replica, line.peer.incarnation, 0))
        super().connected(line)

    def lost(self, line: Line, why: str) -> None:
        self.book.append(("lost", line.peer.replica, line.peer.incarnation, 0))
        super().lost(line, why)

    def arrived(self, line: Line, header: Header, payload: memoryview | None) -> None:
        assert payload is None or payload == bytes([header.step % 251]) * header.size
        self.book.append(("frame", line.peer.replica, header.bucket, header.step))
        super().arrived(line, header, None)


def chatter(
    mesh: Mesh, incarnation: Callable[[], int], others: list[int], bucket: int, stop: threading.Event
) -> None:
    """Send numbered frames of many sizes to everybody who is connected."""
    rng = random.Random(bucket)
    next_step = dict.fromkeys(others, 1)
    # The pause leaves the other threads of this process a share of the interpreter.
    while not stop.wait(0.001):
        peer = rng.choice(others)
        step = next_step[peer]
        size = rng.choice((0, 10, 1000, 70_000, 300_000))
        if mesh.queued_bytes(peer) > 1_000_000:
            continue
        payload = bytes([step % 251]) * size
        if mesh.send(peer, head(step, size, bucket=bucket, incarnation=incarnation()), payload):
            next_step[peer] += 1


def check(book: list[tuple[str, int, int, int]], replica: int) -> None:
    open_life: int | None = None
    newest: dict[int, int] = {}
    heard: set[int] = set()
    for what, who, detail, step in book:
        if who != replica:
            continue
        if what == "connected":
            assert open_life is None
            open_life = detail
            heard.clear()
        elif what == "lost":
            assert open_life == detail
            open_life = None
        else:
            assert open_life is not None
            if detail in heard:
                assert step == newest[detail] + 1, "a gap within one connection"
            assert step > newest.get(detail, 0), "a frame came twice, or late"
            newest[detail] = step
            heard.add(detail)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_and_goes_each_connection_delivers_a_run_without_gaps(seed: int, soak: bool) -> None:
    rng = random.Random(seed)
    lives = {0: 1, 1: 1, 2: 1}
    stop = threading.Event()
    with party() as all_:
        books = {replica: Logbook() for replica in lives}
        for replica, book in books.items():
            all_.add(replica, sink=book)
            all_.sinks[replica] = book
        all_.meet()
        threads = [
            threading.Thread(
                target=chatter,
                args=(all_.meshes[r], lambda r=r: lives[r], [o for o in lives if o != r], bucket, stop),
            )
            for r in lives
            for bucket in (2 * r + 1, 2 * r + 2)
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(1000 if soak else 30):
                victim = rng.choice(list(lives))
                mesh = all_.meshes[victim]
                match rng.randrange(4):
                    case 0:
                        mesh.drop(rng.choice([o for o in lives if o != victim]), "churn")
                    case 1:
                        mesh.peers([])
                    case 2:
                        lives[victim] += 1
                        mesh.live(lives[victim])
                    case 3:
                        pass
                seen = {r: len(book.frames) for r, book in books.items()}
                members = [all_.member(r, life) for r, life in lives.items()]
                for other in all_.meshes.values():
                    other.peers(members)
                # Everybody hears everybody again before the next blow.
                for r, book in books.items():
                    for o in lives:
                        if o != r:
                            book.until(
                                lambda book=book, o=o, seen=seen, r=r: any(
                                    sender.replica == o and sender.incarnation == lives[o]
                                    for sender, _, _ in book.frames[seen[r] :]
                                )
                            )
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    for r, book in books.items():
        assert set(book.threads) <= {"outlast-mesh"}
        for o in lives:
            if o != r:
                check(book.book, o)
        assert len([n for n in book.news if n[0] == "lost"]) == len(
            [n for n in book.news if n[0] == "connected"]
        )
