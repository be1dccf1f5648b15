"""A thread that waits for what comes over the mesh serves the mesh itself, and gives it back when it goes."""

import threading
import time

from mesh_peers import PATIENCE_S, head, party


def test_what_comes_while_a_guest_attends_is_handled_in_its_thread() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh, sink = all_.meshes[1], all_.sinks[1]
        sink.threads.clear()
        deadline = time.monotonic() + PATIENCE_S
        # The mesh's own thread is inside a turn; it leaves the helm when the first guest comes.
        mesh.announce()
        mesh.attend(0.0)
        mesh.announce()
        assert all_.meshes[0].send(1, head(1, 3), b"abc")
        while not sink.frames and time.monotonic() < deadline:
            mesh.attend(1.0)
            mesh.announce()
        mesh.attend(0.0)
        assert sink.steps() == [1]
        assert sink.threads == {threading.current_thread().name}


def test_when_the_guest_is_gone_the_mesh_serves_itself() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh = all_.meshes[1]
        mesh.announce()
        mesh.attend(0.0)
        for step in range(5):
            assert all_.meshes[0].send(1, head(step))
        all_.sinks[1].until_frames(5)
        assert all_.sinks[1].steps() == list(range(5))


def test_a_guest_is_called_away_even_before_it_has_sat_down() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh = all_.meshes[1]
        mesh.announce()
        caller = threading.Thread(target=mesh.call_guest)
        caller.start()
        caller.join()
        began = time.monotonic()
        mesh.attend(PATIENCE_S)
        assert time.monotonic() - began < PATIENCE_S / 2


def test_a_guest_does_not_call_itself_away() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh = all_.meshes[1]
        mesh.announce()
        mesh.call_guest()
        began = time.monotonic()
        mesh.attend(0.05)
        assert time.monotonic() - began >= 0.04


def test_frames_keep_their_order_when_guests_come_and_go() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh, sink = all_.meshes[1], all_.sinks[1]

        def talk() -> None:
            for step in range(3000):
                assert all_.meshes[0].send(1, head(step, step % 7), bytes(step % 7))

        talker = threading.Thread(target=talk)
        talker.start()
        deadline = time.monotonic() + PATIENCE_S
        while len(sink.frames) < 3000 and time.monotonic() < deadline:
            mesh.announce()
            mesh.attend(0.001)
        talker.join()
        assert sink.steps() == list(range(3000))


def test_closing_while_nobody_attends_ends_at_once() -> None:
    with party(0, 1) as all_:
        all_.meet()
        mesh = all_.meshes[1]
        mesh.announce()
        mesh.attend(0.0)
        mesh.close()
        mesh.announce()
        mesh.attend(0.01)
        assert not mesh.is_connected(0)
