"""A run that holds its claim says so wherever another job might look."""

import threading
from pathlib import Path

import msgspec
import pytest

from outlast.state.storage.opening import open_storage
from outlast.state.vault.names import beat_name
from outlast.state.vault.occupancy import Beat, Process
from outlast.state.vault.vault import Vault
from outlast.train.occupying import Occupying
from outlast.train.saving_thread import SavingThread


def ended(place: Path, number: int) -> bool:
    return msgspec.json.decode((place / beat_name(number)).read_bytes(), type=Beat).ended


@pytest.mark.parametrize("holds", [True, False])
def test_all_places_hear_of_the_end_whether_it_was_held_or_not(tmp_path: Path, holds: bool) -> None:
    places = [tmp_path / "near", tmp_path / "far"]
    storages = [open_storage(str(place)) for place in places]
    process = Process.own()
    claim = Vault(storages[0]).make_claim(run="run", lineage=1, base=None, process=process)
    changed = threading.Condition()
    thread = SavingThread(changed)
    occupying = Occupying(storages, process, thread)
    with changed:
        occupying.hold(claim if holds else None)
        thread.close()
    occupying.end(clean=True, claimed=claim)
    thread.end()
    assert [ended(place, claim.number) for place in places] == [True, True]
