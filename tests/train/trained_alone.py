"""A run of one process that saves its state, for tests of what is saved and gone on from."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import outlast
from outlast.state.digest import state_digest
from outlast.state.storage.files import Files
from outlast.state.vault.chunks import verify_chunks
from outlast.state.vault.manifest import Manifest
from outlast.state.vault.vault import Vault


def net(width: int = 8) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def dataset(samples: int = 40) -> TensorDataset:
    x = torch.randn(samples, 6, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x.argmax(1) % 3)


class Trained:
    """A run of some steps with checkpoints in a folder."""

    def __init__(
        self,
        folder: Path | str | list[Any],
        steps: int,
        *,
        width: int = 8,
        rate: float = 1e-2,
        decay: float = 0.0,
        samples: int = 40,
        batch: int = 16,
        final: str = "",
        **options: Any,
    ) -> None:
        self.model = net(width)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=rate, weight_decay=decay or 0)
        self.began_at = -1
        options = {"every": 2, "shards": 2, **options}
        data = outlast.Data(dataset(samples), global_batch=batch)
        with outlast.join(
            model=self.model, optimizer=self.optimizer, data=data, checkpoints=folder, **options
        ) as job:
            self.began_at = job.steps_done
            for step in job.steps(steps):
                for x, y in step:
                    step.backward(functional.cross_entropy(self.model(x), y))
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.stepped(job)
                if self.ends(job):
                    break
            if final:
                job.save(final)
        self.ended_at, self.id = job.steps_done, job.id

    def ends(self, job: outlast.Job) -> bool:
        """Whether to leave the loop after this step."""
        return False

    def stepped(self, job: outlast.Job) -> None:
        """After each step."""

    @property
    def digest(self) -> str:
        return state_digest(self.model, self.optimizer)


def saved(folder: Path) -> list[Manifest]:
    """All checkpoints, oldest first, each of them whole."""
    vault = Vault(Files(str(folder)))
    found = [vault.read_manifest(name) for name in vault.manifests()]
    for manifest in found:
        assert verify_chunks(vault.storage, manifest, manifest.chunks) == []
    return found


def steps_saved(folder: Path) -> list[int]:
    return [manifest.step for manifest in saved(folder)]


def without_checkpoints(steps: int) -> str:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = outlast.Data(dataset(), global_batch=16)
    with outlast.join(model=model, optimizer=optimizer, data=data, shards=2) as job:
        for step in job.steps(steps):
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    return state_digest(model, optimizer)
