"""Becoming the user's program: from a fork of a preloaded process to what `python script.py` would be.

The replica gets a fresh `__main__`, its own arguments and import path, and preloaded modules in the state
that a fresh import would have given them. A traceback shows the script's frames and none of ours.

It ends as a program does: threads are waited for, exit hooks run, output is written. Then it may have to stay
for others (`parting.py`). Only taking the
interpreter apart is left out, since with torch loaded that takes half a second, in which others wait for a
replica that has failed.
"""

import atexit
import builtins
import contextlib
import ctypes
import importlib
import importlib.machinery
import os
import runpy
import sys
import threading
import types
from typing import Any, NoReturn, Protocol, cast

import msgspec

from outlast.parting import part


class Program(msgspec.Struct, frozen=True):
    """What a fresh replica is about to become: `script.py args…` or `-m module args…`."""

    argv: list[str]
    cwd: str


def _refresh_modules(cwd: str) -> None:
    """Give preloaded modules the state that a fresh import would have given them.

    The standard library's `random` reseeds itself in a fork; numpy and torch do not.
    """
    loaded = cast(dict[str, Any], sys.modules)
    if numpy_random := loaded.get("numpy.random"):
        numpy_random.seed()
    if torch := loaded.get("torch"):
        torch.default_generator.seed()
    if process := loaded.get("multiprocessing.process"):
        process.ORIGINAL_DIR = cwd
        process.current_process().authkey = os.urandom(32)
    if tempfile := loaded.get("tempfile"):
        tempfile.tempdir = None
    importlib.invalidate_caches()
    _widen_openblas()


def _widen_openblas() -> None:
    """Numpy's OpenBLAS was held to one thread while it was preloaded; let it have all of them again."""
    with open("/proc/self/maps") as maps:
        libraries = {line.split()[-1] for line in maps if "openblas" in line}
    wishes = [os.environ.get(f"{name}_NUM_THREADS", "") for name in ("OPENBLAS", "GOTO", "OMP")]
    wish = next((int(text) for text in wishes if text.isdigit() and int(text) > 0), 1 << 10)
    threads = min(wish, len(os.sched_getaffinity(0)))
    for path in libraries:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if threads > 1 and hasattr(library, name):
                getattr(library, name)(threads)
                break


class _TextStream(Protocol):
    def reconfigure(self, *, line_buffering: bool) -> None: ...


def become(program: Program) -> NoReturn:
    """Run the program as `__main__`, as the interpreter itself would, and end with it."""
    status = 0
    try:
        _run(program)
    except KeyboardInterrupt:
        # The interpreter ends by the signal itself, which cannot be imitated.
        raise
    except SystemExit as leaving:
        status = _status(leaving)
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    # Private, but it is how the interpreter itself waits for threads and runs what is registered.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    part(status)
    os._exit(status)


def _status(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    with contextlib.suppress(Exception):
        print(leaving.code, file=sys.stderr)
    return 1


def _run(program: Program) -> None:
    cast(_TextStream, sys.stdout).reconfigure(line_buffering=True)
    _refresh_modules(program.cwd)
    sys.orig_argv = [sys.executable, *program.argv]
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    try:
        if program.argv[0] == "-m":
            sys.argv = ["-m", *program.argv[2:]]
            _set_first_path(program.cwd)
            # Private, but it is what `python -m` itself calls.
            runpy._run_module_as_main(program.argv[1])  # type: ignore[attr-defined]
        else:
            sys.argv = list(program.argv)
            path = os.path.abspath(program.argv[0])
            _set_first_path(os.path.dirname(os.path.realpath(path)))
            loader = importlib.machinery.SourceFileLoader("__main__", path)
            main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
            with open(path, "rb") as source:
                code = compile(source.read(), path, "exec", dont_inherit=True)
            exec(code, main.__dict__)  # noqa: S102 (running the user's script is what this is for)
    except SystemExit:
        raise
    except BaseException:
        _show_only_frames_of_the_script()
        raise


def _set_first_path(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def _show_only_frames_of_the_script() -> None:
    # Whatever hook the script has installed is still the one that prints, but it gets a shorter traceback.
    hook = sys.excepthook

    def shortened(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        entry = shown = trace
        while entry is not None:
            if entry.tb_frame.f_code.co_filename == __file__:
                shown = entry.tb_next
            entry = entry.tb_next
        hook(kind, error.with_traceback(shown), shown)

    sys.excepthook = shortened
