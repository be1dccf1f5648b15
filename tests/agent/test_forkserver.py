"""A replica that was forked must be as good as `python script.py`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.agent.process import Nursery
from outlast.kinship import ExitStatus

Launch = Any


def run(launch: Launch, source: str, *args: str, **options: Any) -> tuple[ExitStatus, list[str], list[str]]:
    """Start a script in a nursery without preload; its status, stdout and stderr."""

    async def story() -> tuple[ExitStatus, list[str], list[str]]:
        async with Nursery(preload=()) as nursery:
            launched = await launch(nursery, source, *args, **options)
            return await launched.ended(), launched.said("stdout"), launched.said("stderr")

    return asyncio.run(story())


def as_python_runs_it(tmp_path: Path, source: str) -> tuple[int, list[str]]:
    script = tmp_path / "script.py"
    script.write_text(source)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    return done.returncode, done.stderr.splitlines()


@pytest.mark.parametrize(
    "source",
    [
        "def f(:\n",
        "import a_module_that_is_not_there\n",
        "def f():\n    raise ValueError('no')\nf()\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('chained') from e\n",
        "import sys\nsys.exit(3)\n",
        "import sys\nsys.exit('a message')\n",
        "import sys\nsys.excepthook = lambda *a: print('mine', a[2].tb_lineno, file=sys.stderr)\n1 / 0\n",
        "import os\nos._exit(7)\n",
        "raise KeyboardInterrupt\n",
    ],
)
def test_a_failing_script_ends_as_it_would_by_itself(launch: Launch, tmp_path: Path, source: str) -> None:
    code, stderr = as_python_runs_it(tmp_path, source)
    status, _, said = run(launch, source)
    assert said == stderr
    assert status == (ExitStatus(code, None) if code >= 0 else ExitStatus(None, -code))


def test_a_missing_script_is_reported_by_the_interpreter(launch: Launch) -> None:
    status, _, stderr = run(launch, "", argv=["missing.py"])
    assert status.code == 2
    assert "can't open file" in stderr[0]


def test_a_missing_folder_is_an_error_of_the_start(launch: Launch, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"replica 1 could not be started: No such file.*nowhere"):
        run(launch, "", cwd=tmp_path / "nowhere")


def test_the_script_sees_an_ordinary_main_module(launch: Launch, tmp_path: Path) -> None:
    source = """
        import os, sys
        print(__name__, __file__, __spec__, __package__, __doc__, type(__builtins__).__name__, sep="|")
        print(sys.argv, sys.path[0], os.getcwd(), sys.stdin.read() == "")
        print(sys.modules["__main__"].__dict__ is globals(), __loader__.get_source("__main__") is not None)
        print(sorted(os.environ) == sorted(["PATH", "OUTLAST_KIN", "LANG"]), os.environ["PATH"])
    """
    (tmp_path / "sub").mkdir()
    environment = {"PATH": "/nowhere", "LANG": os.environ.get("LANG", "")}
    status, stdout, stderr = run(launch, source, "a", "b c", name="sub/script.py", environment=environment)
    assert stdout == [
        f"__main__|{tmp_path}/sub/script.py|None|None|None|module",
        f"['sub/script.py', 'a', 'b c'] {tmp_path}/sub {tmp_path} True",
        "True True",
        "True /nowhere",
    ], stderr
    assert status.success


def test_a_module_is_run_as_python_m_does(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    source = "import sys; print(__name__, __spec__.name, __package__, sys.argv, sys.path[0])"
    argv = ["-m", "package.tool", "x"]
    status, stdout, _ = run(launch, source, name="package/tool.py", argv=argv)
    assert stdout == [f"__main__ package.tool package ['{tmp_path}/package/tool.py', 'x'] {tmp_path}"]
    assert status.success
    status, _, stderr = run(launch, "", argv=["-m", "no_such_module"])
    assert status.code == 1
    assert "No module named no_such_module" in stderr[0]


def test_exit_hooks_and_threads_run_to_their_end(launch: Launch) -> None:
    source = """
        import atexit, threading
        atexit.register(print, "hook")
        gate = threading.Event()
        threading.Thread(target=lambda: (gate.wait(), print("thread"))).start()
        threading.Timer(0.01, gate.set).start()
        print("main", threading.current_thread() is threading.main_thread())
    """
    status, stdout, _ = run(launch, source)
    assert (stdout, status.code) == (["main True", "thread", "hook"], 0)


def test_multiprocessing_and_pickle_know_the_functions_of_main(launch: Launch) -> None:
    source = """
        import multiprocessing, pickle

        def double(x):
            return 2 * x

        if __name__ == "__main__":
            assert pickle.loads(pickle.dumps(double)) is double
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, pool.map(double, [1, 2]))
    """
    status, stdout, stderr = run(launch, source)
    assert stdout == ["fork [2, 4]", "spawn [2, 4]", "forkserver [2, 4]"], stderr
    assert status.success


def test_no_descriptor_session_or_signal_is_inherited(launch: Launch) -> None:
    source = """
        import os, signal
        descriptors = {}
        for name in os.listdir("/proc/self/fd"):
            try:
                descriptors[int(name)] = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
            except FileNotFoundError:
                pass
        print(descriptors)
        print(os.getsid(0) == os.getpgid(0) == os.getpid())
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
        print([signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    try:
        _, stdout, _ = run(launch, source)
    finally:
        os.close(reader)
        os.close(writer)
    assert stdout == ["{0: '/dev/null', 1: 'pipe', 2: 'pipe'}", "True", "True", "True", "set()"]


def test_sigint_is_a_keyboard_interrupt(launch: Launch) -> None:
    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            launched = await launch(nursery, "print('up')\nimport time\ntime.sleep(600)")
            await launched.line()
            launched.process.signal(signal.SIGINT)
            assert await launched.ended() == ExitStatus(None, signal.SIGINT)
            assert launched.said("stderr")[-1] == "KeyboardInterrupt"

    asyncio.run(story())


@pytest.mark.parametrize("cold", [False, True])
def test_the_agent_is_the_parent_and_its_death_is_deadly(launch: Launch, cold: bool) -> None:
    source = """
        import ctypes, os, sys
        signal = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
        print(os.getppid(), signal.value, os.environ.get("OMP_NUM_THREADS"))
    """
    environment = dict(os.environ)
    if cold:
        environment["OMP_NUM_THREADS"] = "13"

    async def story() -> None:
        async with Nursery(preload=()) as nursery:
            launched = await launch(nursery, source, environment=environment)
            threads = environment.get("OMP_NUM_THREADS")
            assert await launched.line() == f"{os.getpid()} {int(signal.SIGKILL)} {threads}"
            assert launched.process.cold.startswith("OMP_NUM_THREADS differs") == cold
            await launched.ended()

    asyncio.run(story())


LEAVES_A_THREAD = "import threading as t\nt.Thread(target=t.Event().wait, daemon=True).start()"


@pytest.mark.parametrize(
    ("name", "module", "reason"),
    [
        ("threaded", LEAVES_A_THREAD, "left 1 thread"),
        ("broken", "raise RuntimeError('half installed')", "RuntimeError: half installed"),
        ("absent", None, "No module named 'absent'"),
    ],
)
def test_a_preload_that_cannot_be_forked_from_falls_back(
    launch: Launch, tmp_path: Path, name: str, module: str | None, reason: str
) -> None:
    if module is not None:
        (tmp_path / f"{name}.py").write_text(module)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    async def story() -> None:
        async with Nursery(preload=["json", name], environment=environment) as nursery:
            ready = await nursery.warm()
            assert ready.preloaded == []
            assert reason in ready.cold
            assert nursery.cold == ready.cold
            launched = await launch(
                nursery, "import sys; print('json' in sys.modules)", environment=environment
            )
            assert await launched.line() == "False"
            assert launched.process.cold == ""
            await launched.ended()

    asyncio.run(story())


def test_a_preload_that_kills_the_process_is_given_up(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os; os.abort()")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    async def story() -> None:
        async with Nursery(preload=["deadly"], environment=environment) as nursery:
            launched = await launch(nursery, "print('up')", environment=environment)
            assert await launched.line() == "up"
            assert nursery.cold == "the forkserver ended with signal 6 while importing deadly"
            await launched.ended()

    asyncio.run(story())


def test_a_preloaded_torch_saves_its_import_and_behaves_as_if_fresh(launch: Launch, tmp_path: Path) -> None:
    source = """
        import os, time
        import torch, numpy
        print("up", flush=True)
        print(torch.rand(3).tolist())
        print(numpy.random.rand(3).tolist())
        product = torch.ones(300, 300) @ torch.ones(300, 300)
        print(torch.get_num_threads(), len(os.listdir("/proc/self/task")), product.sum())
        os._exit(0)
    """

    async def story(nursery: Nursery, environment: dict[str, str]) -> tuple[float, list[str]]:
        launched_at = time.monotonic()
        launched = await launch(nursery, source, environment=environment)
        await launched.line()
        took_s = time.monotonic() - launched_at
        await launched.ended()
        return took_s, launched.said("stdout")

    async def stories() -> None:
        async with Nursery(preload=["torch"]) as nursery:
            ready = await nursery.warm()
            assert ready.preloaded == ["torch"], ready.cold
            cold_s, cold = await story(nursery, {**os.environ, "PYTHONSTARTUP": "x"})
            warm_s, warm = await story(nursery, dict(os.environ))
            _, sibling = await story(nursery, dict(os.environ))
            assert warm_s < cold_s / 3
            assert warm[1] != sibling[1]
            assert warm[2] != sibling[2]
            # As many threads as in a process that imported for itself.
            assert warm[3] == cold[3] == sibling[3]

    asyncio.run(stories())
