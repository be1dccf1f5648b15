"""Machines that compute alike have the same fingerprint; where they do not, the way out is named."""

import os
import subprocess
import sys

import msgspec
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from outlast.state.fingerprint import Fingerprint, differences, probe, take_fingerprint


def test_a_process_agrees_with_itself() -> None:
    one, other = take_fingerprint(), take_fingerprint()
    assert one == other and differences(one, other) == []
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Fingerprint) == one


def test_taking_a_fingerprint_leaves_no_trace() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    take_fingerprint()
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()


def test_no_hook_of_somebody_else_is_run() -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a step that is none")

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        probe()
    finally:
        handle.remove()


def test_the_probe_does_not_depend_on_what_surrounds_it() -> None:
    alone = probe()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert probe() == alone


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("torch", "1.0", "Here torch is .*, there it is 1.0. Install the same version"),
        ("python", "3.1", "Python"),
        ("machine", "abacus", "architecture"),
        ("threads", 77, "there it is 77. Give both the same OMP_NUM_THREADS"),
        ("default_dtype", "torch.float64", "set_default_dtype"),
        ("deterministic", "on", "use_deterministic_algorithms"),
        ("mkldnn", False, "oneDNN"),
        ("matmul_precision", "medium", "set_float32_matmul_precision"),
        ("probe", "0" * 32, "although all known settings are the same.*ATEN_CPU_CAPABILITY=default"),
    ],
)
def test_each_difference_is_named_with_its_ways_out(field: str, value: object, words: str) -> None:
    here = take_fingerprint()
    (found,) = differences(here, msgspec.structs.replace(here, **{field: value}))
    assert "exact=False" in found
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found)


def test_the_weaker_capability_is_the_common_one() -> None:
    base = take_fingerprint()

    def advice(a: str, b: str) -> str:
        one, other = (msgspec.structs.replace(base, cpu_capability=name) for name in (a, b))
        (found,) = differences(one, other)
        return found

    assert "ATEN_CPU_CAPABILITY=avx2," in advice("AVX512", "AVX2")
    assert "ATEN_CPU_CAPABILITY=default," in advice("DEFAULT", "AVX2")
    assert "ATEN_CPU_CAPABILITY=default," in advice("SVE256", "AVX2")


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="the CPU has no other capability to compare"
)
def test_the_probe_sees_another_capability() -> None:
    code = (
        "from outlast.state.fingerprint import take_fingerprint as take; f = take(); "
        "print(f.cpu_capability, f.threads, f.probe)"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1"}

    def run(**settings: str) -> list[str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env={**env, **settings}, capture_output=True, text=True, check=True)
        return done.stdout.split()

    plain, other = run(), run(ATEN_CPU_CAPABILITY="default")
    assert plain[1] == other[1] == "1" and other[0] == "DEFAULT"
    assert plain[2] != other[2]
