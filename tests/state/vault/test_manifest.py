"""Manifests and claims: what is written can be read, by people as well, and nothing else is believed."""

import json

import msgspec
import pytest
from checkpoints import dead_process, manifest_of
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.errors import CheckpointError, ConfigError, ObjectDamaged
from outlast.state.contents import lay_out
from outlast.state.vault import manifest as module
from outlast.state.vault.manifest import (
    Chunk,
    Claim,
    Manifest,
    decode_claim,
    decode_manifest,
    encode_claim,
    encode_manifest,
    sealed,
)
from outlast.state.vault.sealing import Document, laid_out, seal_of

IMAGE = lay_out([("model['w']", "float32", (3, 4)), ("model['b']", "uint8", (5,))], b"plain", b"structure")
WHOLE = Chunk(0, 128, "ab" * 32, 128, "")
DEAD = dead_process()


def claim(**changes: object) -> Claim:
    made = Claim(
        number=2,
        run="run",
        lineage=1,
        base="manifests/00000001-000000000005.json",
        host=DEAD.host,
        process=DEAD.pid,
        process_started=DEAD.started,
        pid_space=DEAD.pid_space,
        boot_id=DEAD.boot_id,
        made_at="2026-01-02T03:04:05Z",
        nonce="0123456789abcdef",
    )
    return msgspec.structs.replace(made, **changes)


def some_manifest(**changes: object) -> Manifest:
    return msgspec.structs.replace(manifest_of(claim(), 7, IMAGE, [WHOLE]), **changes)


def tampered(**changes: object) -> bytes:
    """With a seal that fits: only the checks behind the seal can find it."""
    document = {**json.loads(encode_manifest(some_manifest())), **changes}
    return laid_out({**document, "seal": seal_of(document)})


def test_what_is_written_is_read() -> None:
    manifest = some_manifest()
    assert decode_manifest(encode_manifest(manifest), "m") == sealed(manifest)
    assert decode_claim(encode_claim(claim()), "c") == sealed(claim())


def test_people_can_read_it() -> None:
    text = encode_manifest(some_manifest()).decode()
    assert '\n  "step": 7,\n' in text
    assert """\n      ["model['w']","float32",[3,4],0,48],\n""" in text
    assert json.loads(text)["chunks"][0]["size"] == 128


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_flipped_bit_or_a_lost_end_is_found(data: st.DataObject) -> None:
    encoded = data.draw(st.sampled_from([encode_manifest(some_manifest()), encode_claim(claim())]))
    decode = decode_manifest if b"outlast-manifest" in encoded else decode_claim
    if data.draw(st.booleans()):
        # The last byte is a line end, which means nothing.
        damaged = encoded[: data.draw(st.integers(0, len(encoded) - 2))]
    else:
        flipped = bytearray(encoded)
        flipped[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        damaged = bytes(flipped)
    try:
        found = decode(damaged, "the object")
    except ObjectDamaged as error:
        assert "the object" in str(error)  # noqa: PT017 (some flips are harmless)
    else:
        assert found == decode(encoded, ""), "only white space may change unnoticed"


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 10**12},
        {"step": "7"},
        {"claim": 0},
        {"format": "outlast-claim"},
        {"surprise": 1},
        {"run": ""},
        {"base": "manifests/00000002-000000000001.json"},
        {"base": "elsewhere"},
        {"tensor_bytes": 54},
        {"chunks": []},
        {"chunks": [{"start": 0, "size": 64, "hash": "ab" * 32, "stored_bytes": 64, "codec": ""}]},
        {"chunks": [{"start": 0, "size": 128, "hash": "AB" * 32, "stored_bytes": 128, "codec": ""}]},
        {"chunks": [{"start": 0, "size": 128, "hash": "../" * 21 + "a", "stored_bytes": 128, "codec": ""}]},
        {"chunks": [{"start": 0, "size": 128, "hash": "ab" * 32, "stored_bytes": 127, "codec": ""}]},
        {"chunks": [{"start": 0, "size": 128, "hash": "ab" * 32, "stored_bytes": 127, "codec": "gzip"}]},
        {"chunks": [{"start": 0, "size": 1 << 40, "hash": "ab" * 32, "stored_bytes": 9, "codec": ""}]},
        {"image": {"type": "outlast-image", "version": 1}},
        {"version": "1"},
        {"version": None},
        {"version": 0},
    ],
)
def test_a_manifest_that_does_not_add_up_is_damaged(changes: dict[str, object]) -> None:
    assert decode_manifest(tampered(), "m")
    with pytest.raises(ObjectDamaged, match="m "):
        decode_manifest(tampered(**changes), "m")


@pytest.mark.parametrize(
    "encoded", [b"", b"{}", b"[]", b"[" * 100_000, b"\xff", b'{"format":"outlast-manifest"}']
)
def test_anything_else_is_damaged(encoded: bytes) -> None:
    for decode in (decode_manifest, decode_claim):
        with pytest.raises(ObjectDamaged):
            decode(encoded, "x")


def test_a_claim_cannot_go_on_from_a_later_one() -> None:
    forward = claim(base="manifests/00000002-000000000005.json")
    with pytest.raises(ValueError, match="later one"):
        encode_claim(forward)
    document = json.loads(msgspec.json.encode(forward))
    with pytest.raises(ObjectDamaged, match="later claim"):
        decode_claim(laid_out({**document, "seal": seal_of(document)}), "c")


def test_what_nobody_could_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="cover"):
        encode_manifest(some_manifest(chunks=()))
    with pytest.raises(msgspec.ValidationError):
        encode_manifest(some_manifest(step=-1))


def test_manifests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(ConfigError, match="fewer and larger"):
        encode_manifest(some_manifest())


def test_a_newer_version_asks_for_an_update() -> None:
    with pytest.raises(CheckpointError, match=r"newer Outlast.*Update outlast"):
        decode_manifest(tampered(version=2, surprise=True), "m")


def test_an_older_version_is_brought_up_to_date(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_version_0(document: Document) -> Document:
        return {
            **{k: v for k, v in document.items() if k != "number_of_step"},
            "step": document["number_of_step"],
        }

    document = json.loads(encode_manifest(some_manifest()))
    old = {**{k: v for k, v in document.items() if k != "step"}, "number_of_step": 7, "version": 0}
    encoded = laid_out({**old, "seal": seal_of(old)})
    with pytest.raises(ObjectDamaged):
        decode_manifest(encoded, "m")
    monkeypatch.setattr(module, "MANIFEST_MIGRATIONS", {0: from_version_0})
    found = decode_manifest(encoded, "m")
    assert found.step == 7 and found.version == 1
    with pytest.raises(ObjectDamaged, match="seal"):
        decode_manifest(encoded.replace(b'"number_of_step": 7', b'"number_of_step": 8'), "m")
