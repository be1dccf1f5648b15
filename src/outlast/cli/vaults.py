"""What commands about checkpoints share: opening a URL, and saying sizes."""

from __future__ import annotations

from outlast.errors import NoCheckpoint
from outlast.state.storage.opening import open_storage
from outlast.state.vault.vault import Vault


def open_vault(url: str) -> Vault:
    """A vault that has something in it; NoCheckpoint otherwise, since a URL is easily mistyped."""
    vault = Vault(open_storage(url))
    if not vault.manifests():
        begun = " A job has begun to write there, but saved nothing yet." if vault.claims() else ""
        raise NoCheckpoint(
            f"There are no checkpoints in {vault.storage.url}.{begun} Give the URL that the run saves to."
        )
    return vault


def size_text(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
