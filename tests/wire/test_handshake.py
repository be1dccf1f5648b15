from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_peers import CREDENTIALS, JOB, TOKEN

from outlast.errors import ConfigError, PeerRejected
from outlast.wire.handshake import HANDSHAKE_FRAME_BYTES, ClientHandshake, Handshake, ListenerHandshake, Peer


def a_listener(**changes: Any) -> ListenerHandshake:
    return ListenerHandshake(**{"job": JOB, "token": TOKEN, **changes})


def a_client(**changes: Any) -> ClientHandshake:
    return ClientHandshake(**{**CREDENTIALS, **changes})


def talk(listener: ListenerHandshake, client: ClientHandshake) -> list[bytes]:
    """Run both to the end, or until one refuses; returns all that was said."""
    (challenge,) = listener.start()
    (answer,) = client.receive(challenge)
    (welcome,) = listener.receive(answer)
    assert client.receive(welcome) == []
    return [challenge, answer, welcome]


def refused(machine: Handshake, payload: bytes, match: str | None = None) -> str:
    with pytest.raises(PeerRejected, match=match):
        machine.receive(payload)
    assert not machine.done
    return machine.reason


def test_both_sides_learn_who_the_other_is() -> None:
    listener, client = a_listener(), a_client(role="agent", name="host-1:a")
    said = talk(listener, client)
    assert listener.done
    assert client.done
    assert listener.peer == Peer("agent", "host-1:a")
    assert client.peer == Peer("listener", JOB)
    assert all(len(payload) <= HANDSHAKE_FRAME_BYTES for payload in said)
    assert not any(TOKEN in payload or TOKEN.hex().encode() in payload for payload in said)


def test_the_longest_names_fit_into_the_small_frames() -> None:
    said = talk(a_listener(), a_client(role="r" * 32, name="n" * 128))
    assert all(len(payload) <= HANDSHAKE_FRAME_BYTES for payload in said)


def test_nobody_is_a_peer_before_the_proof() -> None:
    with pytest.raises(PeerRejected):
        _ = a_listener().peer


@pytest.mark.parametrize("change", [{"token": b"x" * 32}, {"job": "job-2"}, {"binding": b"relayed"}])
def test_another_token_job_or_connection_is_refused_in_the_same_words(change: dict[str, Any]) -> None:
    listener, client = a_listener(), a_client(**change)
    (answer,) = client.receive(listener.start()[0])
    assert refused(listener, answer, "another job or has another token") == "credentials"
    (farewell,) = listener.farewell
    assert refused(client, farewell, "refused this process: it belongs to another job") == "credentials"
    assert client.farewell == []


def test_a_listener_without_the_token_is_found_out_by_the_client() -> None:
    """An impostor accepts any answer, and still can not make up the welcome."""
    client = a_client()
    honest, impostor = a_client(token=b"y" * 32), a_listener(token=b"y" * 32)
    client.receive(impostor.start()[0])
    welcome = talk(impostor, honest)[2]
    assert refused(client, welcome, "can not prove itself") == "credentials"


def test_a_recorded_handshake_can_not_be_replayed() -> None:
    challenge, answer, welcome = talk(a_listener(), a_client())
    assert refused(a_listener(), answer) == "credentials"
    client = a_client()
    client.receive(challenge)
    assert refused(client, welcome) == "credentials"


def test_a_proof_reflected_to_its_author_is_refused() -> None:
    """The client's own proof, sent back to it as if it were the listener's."""
    listener, client = a_listener(), a_client()
    (challenge,) = listener.start()
    (answer,) = client.receive(challenge)
    proof = answer[-32:]
    (welcome,) = listener.receive(answer)
    reflected = welcome[:-32] + proof
    assert len(reflected) == len(welcome)
    assert refused(client, reflected, "can not prove itself") == "credentials"
    fresh = a_client()
    fresh.receive(challenge)
    assert refused(fresh, answer) == "malformed"
    assert refused(a_listener(), challenge) == "malformed"


def test_role_and_name_are_under_the_proof() -> None:
    listener, client = a_listener(), a_client(name="replica-1")
    (answer,) = client.receive(listener.start()[0])
    assert refused(listener, answer.replace(b"replica-1", b"replica-2")) == "credentials"


def test_parts_under_the_proof_can_not_borrow_from_each_other() -> None:
    machine = a_client()
    nonces = b"s" * 32, b"c" * 32
    assert machine._proof(b"l", *nonces, Peer("ab", "c")) != machine._proof(b"l", *nonces, Peer("a", "bc"))


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_two_releases_tell_each_other_their_versions(ours: int, theirs: int) -> None:
    listener, client = a_listener(version=ours), a_client(version=theirs)
    match = rf"version {ours} of the protocol, this process version {theirs}"
    assert refused(client, listener.start()[0], match) == "version"
    (farewell,) = client.farewell
    match = rf"version {theirs} of the protocol, this process version {ours}"
    assert refused(listener, farewell, match) == "version"
    assert refused(a_client(version=theirs), listener.farewell[0], "version") == "version"


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_worse(garbage: bytes) -> None:
    (challenge,) = a_listener().start()
    for payload in (garbage, challenge[:10] + garbage, challenge + garbage[:1] * len(garbage)):
        if payload != challenge:
            assert refused(a_listener(), payload) in ("malformed", "version")
            refused(a_client(), payload)


def test_frames_out_of_order_are_refused() -> None:
    challenge, _, welcome = talk(a_listener(), a_client())
    assert refused(a_client(), welcome) == "malformed"
    assert refused(a_listener(), welcome) == "malformed"
    client = a_client()
    client.receive(challenge)
    assert refused(client, challenge) == "malformed"


def test_a_frame_after_the_end_takes_the_proof_back() -> None:
    listener, client = a_listener(), a_client()
    answer = talk(listener, client)[1]
    assert refused(listener, answer, "over") == "malformed"
    assert refused(listener, answer) == "malformed"


def test_every_connection_has_nonces_of_its_own() -> None:
    assert len({a_listener().start()[0] for _ in range(50)}) == 50


@pytest.mark.parametrize(
    "change",
    [{"role": ""}, {"role": "a b"}, {"name": "x\n"}, {"name": "../x"}, {"name": "n" * 129}, {"token": b"k"}],
)
def test_credentials_that_can_not_work_are_refused_at_home(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        a_client(**change)
