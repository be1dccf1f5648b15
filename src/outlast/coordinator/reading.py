"""Asking the store itself how a job stands, where no coordinator is there to be asked.

Only for what can never be taken back: a read may answer with the past, and nothing is decided on one.
"""

from outlast.coordinator.store.etcd import EtcdStore
from outlast.coordinator.storekeeper import agreed
from outlast.protocol.views import Outcome


async def outcome_of(address: str) -> Outcome | None:
    """How the job at this address ended; None if it has not, as far as the store knows."""
    store = await EtcdStore.open(address)
    try:
        membership = agreed(await store.read(""))
    finally:
        await store.close()
    return membership.outcome if membership is not None else None
