"""The shape of the code: what is public, who may import whom, and what must never be loaded."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outlast

SOURCE = Path(outlast.__file__).parent

# Each package and what of Outlast it may import, beside itself. Dependencies point one way: what is lower in
# the table knows nothing of what is above it. `cli` is the top: it may import anything.
ALLOWED = {
    "__main__": {"entry"},
    "entry": {"cli"},
    "testing": {"run", "train", "state", "observe", "wire", "protocol", "kinship", "crashpoints", "errors"},
    "run": {"observe", "wire", "protocol", "kinship", "errors"},
    "etcd": {"coordinator", "wire", "kinship", "errors"},
    "coordinator": {"observe", "wire", "protocol", "kinship", "errors"},
    "agent": {"observe", "wire", "protocol", "kinship", "parting", "errors"},
    "train": {
        "locks",
        "mesh",
        "rules",
        "state",
        "observe",
        "wire",
        "protocol",
        "kinship",
        "parting",
        "crashpoints",
        "errors",
    }
    | {"observe"},
    "mesh": {"wire", "protocol", "locks", "errors"},
    "state": {"protocol", "kinship", "errors"},
    "rules": {"errors"},
    "sim": {"protocol", "kinship", "errors"},
    "observe": {"wire", "protocol", "errors"},
    "wire": {"protocol", "errors"},
    "protocol": {"errors"},
    "kinship": set(),
    "crashpoints": set(),
    "locks": set(),
    "parting": set(),
    "errors": set(),
}

# What a package may import from elsewhere, where that matters.
PURE = {
    "__future__",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "math",
    "struct",
    "typing",
    "msgspec",
}
# Rules can be used by themselves, with torch and nothing else.
STANDALONE = {
    "abc",
    "contextlib",
    "contextvars",
    "logging",
    "random",
    "shutil",
    "statistics",
    "threading",
    "torch",
}
FOREIGN = {"protocol": PURE, "errors": set[str](), "rules": (PURE - {"msgspec"}) | STANDALONE}

PUBLIC = {
    "Checkpoint",
    "Data",
    "Job",
    "OutlastError",
    "Step",
    "join",
    "load",
    "rules",
    "seed",
    "state_digest",
}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[str]:
    """The full names of all that a file imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own(name: str) -> str | None:
    """The package of Outlast that a name belongs to, or None if it is somebody else's."""
    root, *rest = name.split(".")
    return rest[0] if root == "outlast" else None


def test_the_public_names_are_pinned() -> None:
    # In a process of its own, since modules that others have imported show as names, too.
    code = (
        "import outlast, types\n"
        "modules = {name for name, value in vars(outlast).items() if isinstance(value, types.ModuleType)}\n"
        "print(*(name for name in dir(outlast) if not name.startswith('_') and name not in modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == PUBLIC
    assert set(outlast.__all__) == PUBLIC


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_dependencies_point_one_way(path: Path) -> None:
    here = package(path)
    if here in ("cli", "__init__"):
        return
    assert here in ALLOWED, f"{here} is new: say in ALLOWED what it may import"
    for name in imports(path):
        target = own(name)
        if target is not None:
            assert target == here or target in ALLOWED[here], f"{here} must not import {name}"
        elif here in FOREIGN:
            assert name.split(".")[0] in FOREIGN[here], f"{here} must not import {name}"


def test_the_table_has_no_circles() -> None:
    order = list(ALLOWED)
    for name, allowed in ALLOWED.items():
        for target in allowed - {"cli"}:
            assert order.index(target) > order.index(name), f"{name} → {target} points up"


def test_the_simulator_makes_no_core_and_no_driver_of_its_own() -> None:
    """It plays with what it is cast: the driver makes the participant, and that the cores."""
    forbidden = {"Participant", "StepCore", "MemberCore", "SaveCore"}
    for path in modules():
        if package(path) == "sim":
            calls = [
                node.func for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.Call)
            ]
            made = {call.id for call in calls if isinstance(call, ast.Name)}
            assert not made & forbidden, f"{path} makes {made & forbidden}"


def test_nothing_is_ever_pickled() -> None:
    for path in modules():
        for name in imports(path):
            assert name.split(".")[0] not in ("pickle", "cPickle", "marshal", "shelve", "dill"), path


def test_rules_load_nothing_else_of_outlast() -> None:
    code = "import sys, outlast.rules; print(*(name for name in sys.modules if name.startswith('outlast.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded == {"rules", "errors"}


@pytest.mark.parametrize(
    "module", ["outlast.agent.service", "outlast.coordinator.service", "outlast.observe.promises"]
)
def test_services_load_neither_torch_nor_rich(module: str) -> None:
    assert not {"torch", "rich", "numpy"} & loaded_by(module)


def test_storages_load_neither_torch_nor_clients_that_are_not_asked_for() -> None:
    assert not {"torch", "numpy", "obstore", "hdfs_native"} & loaded_by("outlast.state.storage.opening")


def loaded_by(module: str) -> set[str]:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())
