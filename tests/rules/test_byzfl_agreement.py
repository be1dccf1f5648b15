"""The same results as ByzFL's, where ByzFL has the rule and is right.

It runs in the venv that `scripts/peers` makes, and the test is skipped without it. Rows are finite: with
others ByzFL goes wrong. Each of its rules gets a copy, since its clipping changes its input in place.
"""

import subprocess
from pathlib import Path

import pytest
import torch

from outlast import rules

PEERS = Path(__file__).parents[2] / ".venv-peers"
F = 2

ASK = """
import sys
from unittest.mock import MagicMock
for name in ("torchvision", "matplotlib", "matplotlib.pyplot", "seaborn"):
    sys.modules[name] = MagicMock()
import byzfl, torch
n, f = int(sys.argv[1]), int(sys.argv[2])
rows = torch.frombuffer(bytearray(sys.stdin.buffer.read()), dtype=torch.float32).view(n, -1)
nnm, clip = byzfl.NNM(f), byzfl.Clipping(c=5.0)
for result in (
    byzfl.Average()(rows.clone()),
    byzfl.Median()(rows.clone()),
    byzfl.TrMean(f)(rows.clone()),
    byzfl.Krum(f)(rows.clone()),
    byzfl.MultiKrum(f)(rows.clone()),
    byzfl.MDA(f)(rows.clone()),
    byzfl.GeometricMedian(nu=1e-9, T=1000)(rows.clone()),
    byzfl.CenteredClipping(L=3, tau=2.0)(rows.clone()),
    byzfl.TrMean(f)(nnm(rows.clone())),
    byzfl.Krum(f)(nnm(rows.clone())),
    byzfl.MultiKrum(f)(clip(rows.clone())),
):
    sys.stdout.buffer.write(bytes(result.float().contiguous().numpy().data))
"""
OURS = [
    rules.Mean(),
    rules.Median(),
    rules.TrimmedMean(F),
    rules.Krum(F),
    rules.MultiKrum(F),
    rules.MDA(F),
    rules.GeometricMedian(iterations=1000),
    rules.CentredClipping(radius=2.0, iterations=3),
    rules.NNM(F) | rules.TrimmedMean(F),
    rules.NNM(F) | rules.Krum(F),
    rules.ClipNorms(5.0) | rules.MultiKrum(F),
]


@pytest.mark.skipif(not (PEERS / ".ready").exists(), reason="scripts/peers makes the venv that this needs")
@pytest.mark.parametrize("n", [11, 12])
def test_agrees_with_byzfl(n: int) -> None:
    torch.manual_seed(n)
    rows = torch.randn(n, 60) + 0.5
    rows[0] *= 20
    command = [str(PEERS / "bin" / "python"), "-c", ASK, str(n), str(F)]
    done = subprocess.run(command, input=bytes(rows.numpy().data), capture_output=True, check=True)
    theirs = torch.frombuffer(bytearray(done.stdout), dtype=torch.float32).view(len(OURS), 60)
    for rule, expected in zip(OURS, theirs, strict=True):
        torch.testing.assert_close(
            rule(rows), expected, rtol=1e-5, atol=1e-5, msg=lambda m, r=rule: f"{r}: {m}"
        )
