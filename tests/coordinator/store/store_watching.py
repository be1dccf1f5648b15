"""What several tests of the store do alike: take a few events from a watch, with a deadline."""

import asyncio
from contextlib import aclosing

from outlast.coordinator.store.seam import Event, Store
from patience import PATIENCE_S

DEADLINE_S = PATIENCE_S


async def take(store: Store, prefix: str, after: int, count: int) -> list[Event]:
    """The first `count` events of a new watch."""
    taken: list[Event] = []
    async with asyncio.timeout(DEADLINE_S), aclosing(store.watch(prefix, after)) as events:
        async for event in events:
            taken.append(event)
            if len(taken) == count:
                break
    return taken
