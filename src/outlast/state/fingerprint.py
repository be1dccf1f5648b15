"""Whether two machines compute the same bits.

Exact mode promises that it does not matter who computed a shard. That holds only where the same kernels run:
matrix products depend on the number of threads, AdamW on the CPU's vector instructions, everything on the
version of torch. So replicas compare a `Fingerprint` when they join. Most of it is settings, which can be
named and changed; what no setting tells is found by the `probe`, a small computation whose bits are hashed.
"""

from __future__ import annotations

import hashlib
import platform
import sys

import msgspec
import torch
from torch import Tensor
from torch.optim.adamw import adamw

from outlast.state.image import copy_piece, describe

_CAPABILITIES = ("DEFAULT", "AVX2", "AVX512")
"""Those that a stronger CPU can be told to stay within, from weak to strong."""

_OR = "or let replicas differ with exact=False"


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """What the bits of a computation depend on, beside its inputs."""

    torch: str
    python: str
    machine: str
    cpu_capability: str
    threads: int
    default_dtype: str
    deterministic: str
    mkldnn: bool
    matmul_precision: str
    probe: str


_WORDS = {
    "torch": ("torch", "Install the same version on both"),
    "python": ("Python", "Use the same version on both"),
    "machine": ("the machine's architecture", "Use machines of one architecture"),
    "threads": (
        "the number of torch threads",
        "Give both the same OMP_NUM_THREADS or torch.set_num_threads()",
    ),
    "default_dtype": ("the default dtype", "Call torch.set_default_dtype() alike on both"),
    "deterministic": ("the deterministic mode", "Call torch.use_deterministic_algorithms() alike on both"),
    "mkldnn": ("the use of oneDNN", "Set torch.backends.mkldnn alike on both"),
    "matmul_precision": ("matmul precision", "Call torch.set_float32_matmul_precision() alike on both"),
}


def take_fingerprint() -> Fingerprint:
    """That of this process as it is set up now; takes some milliseconds and leaves no trace."""
    return Fingerprint(
        torch=str(torch.__version__),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        threads=torch.get_num_threads(),
        default_dtype=str(torch.get_default_dtype()),
        deterministic=_deterministic(),
        mkldnn=bool(torch.backends.mkldnn.enabled),
        matmul_precision=torch.get_float32_matmul_precision(),
        probe=probe(),
    )


def differences(here: Fingerprint, there: Fingerprint) -> list[str]:
    """What keeps two replicas from computing the same bits, one sentence each, with the ways out."""
    found = []
    for field, (what, fix) in _WORDS.items():
        a, b = getattr(here, field), getattr(there, field)
        if a != b:
            found.append(f"Here {what} is {a}, there it is {b}. {fix}, {_OR}.")
    if here.cpu_capability != there.cpu_capability:
        found.append(
            f"Here the CPU's capability is {here.cpu_capability}, there it is {there.cpu_capability}. Start "
            f"every replica with ATEN_CPU_CAPABILITY={_common_capability(here, there)}, {_OR}."
        )
    if here.probe != there.probe:
        found.append(
            f"A small computation gives other bits here ({here.probe[:8]}) than there ({there.probe[:8]})"
            + ("." if found else ", although all known settings are the same.")
            + f" Force a common capability with ATEN_CPU_CAPABILITY={_common_capability(here, there)}, {_OR}."
        )
    return found


def probe() -> str:
    """The hash of what this process makes of a fixed computation. No random numbers are drawn."""
    with torch.no_grad(), torch.autocast("cpu", enabled=False), torch.device("cpu"):
        results = _computation()
    image = describe([str(index) for index in range(len(results))], results, b"", b"")
    content = bytearray(image.total_bytes)
    copy_piece(image, results, range(image.total_bytes), memoryview(content))
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _computation() -> list[Tensor]:
    """Odd sizes, so that the ends of vector loops run, too; large enough to be spread over threads."""
    a, b = _numbers(67, 515), _numbers(515, 131)
    images, kernels = _numbers(3, 5, 17, 19), _numbers(7, 5, 3, 3)
    row = _numbers(33, 257) * 4
    return [
        a @ b,
        a.bfloat16() @ b.bfloat16(),
        torch.nn.functional.conv2d(images, kernels, padding=1),
        row.softmax(dim=1),
        row.exp(),
        row.tanh(),
        row.sum(),
        # Whether numbers below the normal range are flushed to zero, for which torch has no question.
        torch.tensor([1e-38], dtype=torch.float32) * 1e-3,
        *_adamw_steps(_numbers(1031), _numbers(1031) * 3),
    ]


def _adamw_steps(weights: Tensor, gradient: Tensor) -> list[Tensor]:
    """By the function and not the class, whose steps would run hooks that somebody else has set."""
    mean, square, step = (
        torch.zeros_like(weights),
        torch.zeros_like(weights),
        torch.zeros((), dtype=torch.float32),
    )
    for scale in (1.0, 0.3):
        adamw(
            [weights],
            [gradient * scale],
            [mean],
            [square],
            [],
            [step],
            foreach=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=1e-3,
            weight_decay=0.01,
            eps=1e-8,
            maximize=False,
        )
    return [weights, mean, square]


def _numbers(*shape: int) -> Tensor:
    """Numbers from -1 to 1 that look like noise and are exact in float32, so that all begin with the same."""
    count = int(torch.Size(shape).numel())
    scrambled = torch.arange(count, dtype=torch.int64) * 40503 % 65537
    return (scrambled.to(torch.float32) / 32768 - 1).reshape(shape)


def _deterministic() -> str:
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else "on"


def _common_capability(here: Fingerprint, there: Fingerprint) -> str:
    both = (here.cpu_capability, there.cpu_capability)
    known = all(capability in _CAPABILITIES for capability in both)
    # Two machines of the same capability that still differ have only the plain kernels left to share.
    if not known or both[0] == both[1]:
        return "default"
    return min(both, key=_CAPABILITIES.index).lower()
