"""Compiled kernels give the bits of eager ones; where nothing can be compiled, the work gets done."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from outlast import rules
from outlast.rules import compiling
from outlast.rules.exchanges import MiddleOfExchanges
from outlast.rules.kernels import AroundMedian, Blend, Kernel, Middle


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(compiling, "_compiled", {})
    yield
    torch._dynamo.reset()


def contributions(n: int, d: int) -> torch.Tensor:
    torch.manual_seed(0)
    rows = torch.randn(n, d)
    # Zeros of both signs, ties, infinities and NaN: where implementations of a minimum differ.
    rows[:, ::3] = torch.where(torch.rand(n, rows[:, ::3].shape[1]) < 0.5, 0.0, -0.0)
    rows[: n // 2, 1::7] = rows[0, 1::7]
    rows[0, 2::5], rows[1, 2::5] = torch.nan, -torch.inf
    return rows


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler")
@pytest.mark.filterwarnings("ignore")
def test_compiled_kernels_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, soak: bool
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    rows = contributions(7, 40_003)
    swapped = MiddleOfExchanges(base=1, mixtures=3, exchanges=1, first=1, last=2)
    kernels: list[Kernel] = [Blend(), Middle(2, 5), swapped, *([AroundMedian(3)] if soak else [])]
    for kernel in kernels:
        finite = rows.nan_to_num(nan=1.0, neginf=-1.0) if kernel == Blend() else rows
        coefficients = torch.linspace(-1, 2, 7)
        expected, found = torch.empty(40_003), torch.empty(40_003)
        compiling.run_eagerly(kernel, list(finite), coefficients, expected)
        for begin in (0, 1, 40_003 - 77):
            # The same kernel serves all lengths and places in memory.
            part = slice(begin, None)
            with caplog.at_level(logging.WARNING, "outlast.rules"):
                compiling.run(kernel, [row[part] for row in finite], coefficients, found[part], pays=True)
            assert torch.equal(found[part].view(torch.int32), expected[part].view(torch.int32))
    assert not caplog.records, "it was not compiled"


def test_without_a_compiler_the_work_is_done_and_the_reason_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "PAYS_ELEMENTS", 1)
    rows = torch.randn(5, 1000)
    with rules.eager():
        expected = rules.Median()(rows)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.WARNING, "outlast.rules"):
        for _ in range(3):
            assert torch.equal(rules.Median()(rows), expected)
    assert [record.message for record in caplog.records if "no C++ compiler" in record.message]
    assert len(caplog.records) == 1


def test_a_compilation_that_fails_is_tried_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compiling, "PAYS_ELEMENTS", 1)
    tried = []

    def broken(*args: object) -> None:
        tried.append(args)
        raise RuntimeError("no space left on device")

    monkeypatch.setattr(compiling, "_compile", lambda compute: broken)
    rows = torch.randn(5, 1000)
    with rules.eager():
        expected = rules.TrimmedMean(1)(rows)
    assert not tried
    with caplog.at_level(logging.WARNING, "outlast.rules"):
        for _ in range(3):
            assert torch.equal(rules.TrimmedMean(1)(rows), expected)
    assert len(tried) == 1 and "no space left" in caplog.text
