"""Who is let in, who has to wait, and who is turned away: a mesh against bare sockets."""

import contextlib
import socket
from collections.abc import Iterator

import pytest
from mesh_peers import JOB, PATIENCE_S, TOKEN, bare_dial, ends, eventually, framed, head, party

from outlast.errors import PeerRejected
from outlast.mesh import door, greeting
from outlast.mesh.frames import Hello
from outlast.mesh.greeting import Credentials, Greeting
from outlast.mesh.transport import Mesh
from outlast.protocol.views import Member
from outlast.wire.address import format_address, parse_address


@contextlib.contextmanager
def stranger(mesh: Mesh) -> Iterator[socket.socket]:
    with socket.create_connection(parse_address(mesh.address), timeout=PATIENCE_S) as sock:
        yield sock


def test_a_wanted_life_is_let_in() -> None:
    with party(0) as all_:
        mesh, sink = all_.meshes[0], all_.sinks[0]
        mesh.peers([Member(9, 1, "127.0.0.1:1")])
        with bare_dial(mesh) as sock:
            sock.sendall(framed(1, head(7, 3), b"abc"))
            sink.until_frames(1)
            assert sink.frames == [(Member(9, 1, "127.0.0.1:1"), head(7, 3), b"abc")]
            assert mesh.connected_lives() == (Member(9, 1, "127.0.0.1:1"),)
        sink.until_news("lost", 9)
        assert sink.reasons == ["the peer closed the connection"]
        assert sink.threads == {"outlast-mesh"}


def test_a_wrong_token_is_refused() -> None:
    with party(0) as all_:
        all_.meshes[0].peers([Member(9, 1)])
        with pytest.raises(PeerRejected, match="another token"), bare_dial(all_.meshes[0], token=bytes(32)):
            pass
        eventually(lambda: all_.meshes[0].rejected == {"credentials": 1})
        assert all_.sinks[0].news == []


@pytest.mark.parametrize("to", [0, 2])
def test_who_means_another_life_of_ours_is_refused(to: int) -> None:
    with party(0) as all_:
        all_.meshes[0].peers([Member(9, 1)])
        with pytest.raises(PeerRejected, match=f"life {to} was expected.*life 1 answered"):
            bare_dial(all_.meshes[0], to=to).__enter__()
        assert all_.sinks[0].news == []


def test_a_hello_can_not_claim_another_life_than_the_handshake_has_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with party(0) as all_:
        mesh = all_.meshes[0]
        mesh.peers([Member(9, 2)])
        monkeypatch.setattr(Greeting, "_say", forge_hellos(Greeting._say))
        with bare_dial(mesh) as sock:
            assert ends(sock)
        assert mesh.rejected == {"life": 1}
        assert all_.sinks[0].news == []


def forge_hellos(say):  # type: ignore[no-untyped-def]
    def forged(greeting: Greeting, words: bytes) -> None:
        honest = Hello(9, 1, 1).pack()
        say(greeting, words.replace(honest, Hello(9, 2, 1).pack()))

    return forged


@pytest.mark.parametrize("replica", [1, 3])
def test_only_the_higher_number_dials(replica: int) -> None:
    with party(3) as all_:
        all_.meshes[3].peers([Member(1, 1, "127.0.0.1:1")])
        with pytest.raises(ConnectionError), bare_dial(all_.meshes[3], replica=replica):
            pass
        eventually(lambda: all_.meshes[3].rejected == {"direction": 1})


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\0\0\0\4abcd", b"\xff" * 2000])
def test_garbage_is_refused(words: bytes) -> None:
    with party(0) as all_, stranger(all_.meshes[0]) as sock:
        sock.sendall(words)
        while not ends(sock):
            pass
        eventually(lambda: all_.meshes[0].rejected["malformed"] == 1)


def test_a_silent_stranger_has_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "GREETING_S", 0.05)
    with party(0) as all_, stranger(all_.meshes[0]) as sock:
        while not ends(sock):
            pass
        assert all_.meshes[0].rejected == {"deadline": 1}


def test_when_the_places_are_taken_the_oldest_stranger_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "STRANGERS", 3)
    with party(0) as all_, contextlib.ExitStack() as stack:
        mesh = all_.meshes[0]
        mesh.peers([Member(9, 1)])
        silent = [stack.enter_context(stranger(mesh)) for _ in range(3)]
        eventually(lambda: mesh._door.strangers == 3)
        stack.enter_context(bare_dial(mesh))
        all_.sinks[0].until_news("connected", 9)
        while not ends(silent[0]):
            pass
        assert mesh.rejected == {"crowded": 1}
        assert mesh._door.strangers == 2


def test_an_early_life_is_parked_and_what_it_sent_meanwhile_arrives() -> None:
    with party(0) as all_:
        mesh, sink = all_.meshes[0], all_.sinks[0]
        with bare_dial(mesh) as sock:
            sock.sendall(framed(1, head(7, 3), b"abc") + framed(2, head(8)))
            eventually(lambda: mesh._door.parked == 1)
            assert not mesh.is_connected(9) and sink.news == []
            mesh.peers([Member(9, 1)])
            sink.until_frames(2)
            assert sink.news == [("connected", 9, 1)] and sink.steps() == [7, 8]
            assert mesh._door.parked == 0


def test_a_parked_life_is_not_taken_for_another_one() -> None:
    with party(0) as all_, bare_dial(all_.meshes[0]) as old, bare_dial(all_.meshes[0], incarnation=2):
        mesh, sink = all_.meshes[0], all_.sinks[0]
        eventually(lambda: mesh._door.parked == 2)
        mesh.peers([Member(9, 2)])
        sink.until_news("connected", 9, 2)
        assert mesh._door.parked == 1
        old.close()
        eventually(lambda: mesh._door.parked == 0)
        assert sink.news == [("connected", 9, 2)]


def test_parking_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PARKED_S", 0.05)
    with party(0) as all_, bare_dial(all_.meshes[0]) as sock:
        assert ends(sock)
        assert all_.meshes[0].rejected == {"unwanted": 1}


def test_parking_places_are_few_and_one_for_each_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "PARKED", 2)
    with party(0) as all_, contextlib.ExitStack() as stack:
        mesh = all_.meshes[0]
        first, again, _, _ = (stack.enter_context(bare_dial(mesh, incarnation=life)) for life in (1, 1, 2, 3))
        assert ends(first) and ends(again)
        eventually(lambda: mesh._door.parked == 2)
        assert mesh.rejected == {"crowded": 1}


def test_nobody_is_answered_before_this_life_is_known() -> None:
    with party() as all_:
        mesh, sink = all_.add(0, incarnation=None)
        mesh.peers([Member(9, 1)])
        with stranger(mesh) as early:
            credentials = Credentials(JOB, TOKEN, 9, 1)
            early.setblocking(False)
            assert Greeting(early, credentials, dialled=Member(0, 4)).advance() is None
            mesh.live(4)
            with bare_dial(mesh, to=4):
                sink.until_news("connected", 9)


@pytest.mark.parametrize("fault", ["token", "life", "garbage", "silent"])
def test_a_listener_that_is_not_the_wanted_life_is_never_connected(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "GREETING_S", 0.2)
    with party(5) as all_, socket.create_server(("127.0.0.1", 0)) as server:
        mesh = all_.meshes[5]
        if fault in ("token", "life"):
            other, _ = all_.add(1, **({"token": bytes(32)} if fault == "token" else {"incarnation": 2}))
            mesh.peers([Member(1, 1, other.address)])
            eventually(lambda: mesh.rejected["credentials" if fault == "token" else "life"] >= 2)
        else:
            mesh.peers([Member(1, 1, format_address(server.getsockname()))])
            for _ in range(2):
                sock, _ = server.accept()
                with sock:
                    if fault == "garbage":
                        sock.sendall(b"\xff" * 100)
                    assert ends(sock)
        assert all_.sinks[5].news == []


def test_dialling_goes_on_until_somebody_listens() -> None:
    with party(5) as all_, socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        address, port = format_address(place.getsockname()), place.getsockname()[1]
        mesh, sink = all_.meshes[5], all_.sinks[5]
        mesh.peers([Member(1, 1, address)])
        eventually(lambda: mesh._door._dials and mesh._door._dials[1, 1]._pause_s > 0.1)
        place.close()
        other, _ = all_.add(1, ports=(port, port))
        other.peers([Member(5, 1)])
        sink.until_news("connected", 1)


@pytest.mark.parametrize("address", ["", "nonsense", "no-such-host.invalid:80"])
def test_an_address_that_can_not_work_harms_nobody(address: str) -> None:
    with party(5) as all_:
        other, _ = all_.add(1)
        other.peers([Member(5, 1)])
        all_.meshes[5].peers([Member(0, 1, address), Member(1, 1, other.address)])
        all_.sinks[5].until_news("connected", 1)
