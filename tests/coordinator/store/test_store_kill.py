"""`kill -9` at any moment: whatever the store acknowledged is there when it is opened again."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.seam import Snapshot

COMMIT_FOR_EVER = """
import asyncio, itertools, sys
from pathlib import Path
from outlast.coordinator.store.embedded import EmbeddedStore
from outlast.coordinator.store.seam import Put

async def main():
    # A low threshold makes the kill hit compactions too.
    store = await EmbeddedStore.open(Path(sys.argv[1]), compact_above_bytes=20_000)
    revision = (await store.read("")).revision
    while True:
        revision += 1
        text = b"%d" % revision
        done = await store.commit([], [Put("newest", text), Put(f"key{revision % 10}", text * 50)])
        assert done.revision == revision
        print(revision, flush=True)

asyncio.run(main())
"""


def test_every_acknowledged_commit_survives_kill_9(tmp_path: Path, soak: bool) -> None:
    seed = random.randrange(1 << 32)
    moments = random.Random(seed)
    newest = 0
    for round_number in range(40 if soak else 6):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOR_EVER, os.fspath(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process, process.stdout as output:
            acknowledged = int(output.readline())
            time.sleep(moments.uniform(0, 0.25))
            process.send_signal(signal.SIGKILL)
            # A last line without its end was not heard in full, and so it was not acknowledged.
            acknowledged = max([acknowledged, *(int(line) for line in output if line.endswith("\n"))])
        snapshot = asyncio.run(read_all(tmp_path))
        message = f"seed {seed}, round {round_number}"
        assert snapshot.revision in (acknowledged, acknowledged + 1), message
        newest = snapshot.revision
        assert int(snapshot.entries["newest"].value) == newest, message
        for revision in range(max(1, newest - 9), newest + 1):
            entry = snapshot.entries[f"key{revision % 10}"]
            assert entry.value == b"%d" % revision * 50, message
            assert entry.modified == revision, message
    assert newest > 0


async def read_all(directory: Path) -> Snapshot:
    store = await EmbeddedStore.open(directory)
    snapshot = await store.read("")
    await store.close()
    return snapshot
