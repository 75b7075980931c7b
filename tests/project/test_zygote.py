"""Forks of a zygote: same behaviour as a new Python, which is started where they could differ."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from zygote import Zygote

Run = Callable[..., subprocess.CompletedProcess[str]]

PROGRAMS = {
    "nothing": "",
    "exit code": "import sys; sys.exit(7)",
    "large exit code": "import sys; sys.exit(263)",
    "message": "import sys; sys.exit('no')",
    "exception": "def f(): 1 / 0\nf()",
    "syntax": "print(",
    "ctrl+c": "print('a'); raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed": "import os, signal; print('lost'); os.kill(os.getpid(), signal.SIGKILL)",
    "argv": "import sys; print(sys.argv, sys.path, sys.executable, __name__, '__file__' in globals())",
    "folder": "import os; print(os.getcwd(), os.umask(0))",
    "streams": "import os, sys; print([(s.name, s.mode, s.encoding, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)])",
    "stdin": "import sys; print(sys.stdin.read(), [os for os in sys.argv])",
    "signals": "import signal; print([str(signal.getsignal(n)) for n in (1, 2, 3, 10, 13, 15)])",
    "ends": "import atexit, threading, time\natexit.register(print, 'exit')\ndef f():\n time.sleep(0.05); print('thread')\nthreading.Thread(target=f).start(); print('main')",
    "file": "f = open('file.txt', 'w'); print(f.write('text'))",
    "main": "import sys; print(sys.modules['__main__'].__dict__ is globals())",
    "threads": "import os, threading; print(threading.active_count(), len(os.listdir('/proc/self/task')), os.getppid() > 1)",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')))",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_text(fork_python: Run, run_python: Run, program: str, tmp_path: Path) -> None:
    same(fork_python("-c", program, "a"), run_python("-c", program, "a"))
    if "file.txt" in program:
        assert (tmp_path / "file.txt").read_text() == "text"


@pytest.mark.parametrize(
    "options", [["script.py"], ["-m", "script"], ["-mscript"], ["-P", "script.py"]]
)
def test_a_script_and_a_module(
    fork_python: Run, run_python: Run, options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text("raise ValueError('é')\n")
    (tmp_path / "script.py").write_text(
        "import sys\nprint(__name__, __file__, __spec__ and __spec__.name, sys.argv, sys.path[:2])\nimport other\n"
    )
    forked, started = fork_python(*options, "a"), run_python(*options, "a")
    same(forked, started)
    assert "Traceback" in forked.stderr


def same(one: Any, other: Any) -> None:
    for name in ("returncode", "stdout", "stderr"):
        assert getattr(one, name) == getattr(other, name)


def test_standard_input_and_umask_and_signals_are_those_of_the_stand_in(
    zygote: Zygote, tmp_path: Path
) -> None:
    command = ["sh", "-c", 'umask 27; trap "" INT; echo text | "$@"', "sh", *zygote.python]
    program = "import os, signal, sys; print(sys.stdin.read(), os.umask(0), signal.getsignal(2) == signal.SIG_IGN)"
    done = subprocess.run([*command, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "text\n 23 True\n"


def test_the_environment_is_the_whole_of_it(zygote: Zygote) -> None:
    program = "import os; print({**os.environ}, os.system('test $ONE = 1 && test -z $HOME'))"
    kept = {"JAX_PLATFORMS", "XLA_FLAGS", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "PYTHONUNBUFFERED"}
    environment = {name: os.environ[name] for name in kept & set(os.environ)} | {"ONE": "1"}
    done = subprocess.run(
        [*zygote.python, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    text, code = done.stdout.rsplit(maxsplit=1)
    assert code == "0"
    found = eval(text)
    assert found.items() >= environment.items()
    assert "HOME" not in found


def test_what_is_random_differs_from_child_to_child(fork_python: Run) -> None:
    program = "import random, tempfile, numpy, uuid; print(random.random(), tempfile.mktemp(), numpy.random.random(), uuid.uuid4(), sep='\\n')"
    one, other = (fork_python("-c", program).stdout.splitlines() for _ in range(2))
    assert len(one) == 4
    assert not set(one) & set(other)


@pytest.mark.parametrize(
    "name, value, program, expected",
    [
        ("JAX_PLATFORMS", "", "import jax; print(repr(jax.config.jax_platforms))", "''"),
        ("JAX_ENABLE_X64", "1", "import jax; print(jax.config.jax_enable_x64)", "True"),
        ("PYTHONOPTIMIZE", "1", "print(__debug__)", "False"),
        ("PYTHONPATH", "folder", "import sys; print(sys.path[1][-7:])", "/folder"),
        ("PYTHONDONTWRITEBYTECODE", "", "import sys; print(sys.dont_write_bytecode)", "False"),
        ("XLA_FLAGS", "--xla_force_host_platform_device_count=3", "import jax; print(jax.device_count())", "3"),
    ],
)  # fmt: skip
def test_a_variable_that_is_read_early(
    fork_python: Run, name: str, value: str, program: str, expected: str
) -> None:
    assert fork_python("-c", program, **{name: value}).stdout.strip() == expected


def test_what_pages_and_child_runs_set_is_no_reason_to_start_python(
    zygote: Zygote, fork_python: Run, tmp_path: Path
) -> None:
    before = zygote.refusals()
    variables = {"TERM": "dumb", "COLUMNS": "100", "LINES": "50", "HOME": str(tmp_path)}
    environment = {"PYTHONWARNINGS": "", "PYTHONDONTWRITEBYTECODE": "1", "PALLAS_DUMP": "a"}
    program = "import os; print(os.environ['HOME'], os.path.expanduser('~'))"
    done = fork_python("-c", program, PYTHONPATH=str(tmp_path), **variables, **environment)
    assert done.stdout == f"{tmp_path} {tmp_path}\n"
    assert fork_python("-m", "pytest", "--version", **variables).returncode == 0
    assert fork_python("-u", "-c", "").returncode == 0
    assert zygote.refusals() == before


def test_compiler_processes_are_forked_whatever_is_set_for_jax(
    zygote: Zygote, fork_python: Run, tmp_path: Path
) -> None:
    before = zygote.refusals()
    (tmp_path / "files").mkdir()
    words = ("-P", "-m", "pallas_debug.compiler.worker", str(tmp_path / "files"))
    done = fork_python(*words, JAX_ENABLE_COMPILATION_CACHE="false")  # its input is at its end
    assert (done.returncode, done.stdout) == (0, "")
    assert not (tmp_path / "files").exists()
    assert zygote.refusals() == before
    program = "from pallas_debug.compiler import pool; print(*pool.python())"
    assert fork_python("-c", program).stdout.split() == zygote.python


@pytest.mark.parametrize("where", ["PYTHONPATH", "the folder"])
def test_a_module_that_hides_an_imported_one(
    zygote: Zygote, fork_python: Run, where: str, tmp_path: Path
) -> None:
    folder = tmp_path if where == "the folder" else tmp_path / "first"
    folder.mkdir(exist_ok=True)
    (folder / "jax.py").write_text("print('mine')")
    done = fork_python("-c", "import jax", PYTHONPATH=str(tmp_path / "first"))
    assert done.stdout == "mine\n"
    assert zygote.refusals()[-1] == f"file: {folder / 'jax.py'}"


def test_options_of_python_are_left_to_python(zygote: Zygote, fork_python: Run) -> None:
    assert fork_python("-O", "-c", "print(__debug__)").stdout == "False\n"
    assert zygote.refusals()[-1] == "arguments: -O -c 'print(__debug__)'"
    assert fork_python("--version").stdout.startswith("Python 3")
    assert fork_python("nowhere.py").returncode == 2


SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture
def sleeper(zygote: Zygote) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A stand-in, and its child, which sleeps."""
    command = [*zygote.python, "-c", SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        yield it, int(it.stdout.readline())
        it.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_is_passed_on(
    sleeper: tuple[subprocess.Popen[str], int], number: signal.Signals
) -> None:
    stand_in, child = sleeper
    stand_in.send_signal(number)
    _, output = stand_in.communicate(timeout=60)
    assert stand_in.returncode == -number
    assert ("KeyboardInterrupt" in output) == (number == signal.SIGINT)
    ended(child)


def test_a_child_is_killed_with_its_stand_in(
    sleeper: tuple[subprocess.Popen[str], int],
) -> None:
    stand_in, child = sleeper
    stand_in.kill()
    ended(child)


def test_children_run_at_the_same_time(sleeper: object, fork_python: Run) -> None:
    assert fork_python("-c", "print(1)").stdout == "1\n"


def ended(pid: int) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([pidfd], [], [], 60)[0]
    os.close(pidfd)


@pytest.mark.slow
def test_fifty_children_leave_nothing_behind(zygote: Zygote, fork_python: Run) -> None:
    fork_python("-c", "")
    before = left(zygote)
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fork_python("-c", "import jax; print(1)")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for _ in range(46):
        results.append(fork_python("-c", "print(1)"))
    for thread in threads:
        thread.join()
    assert {(done.returncode, done.stdout, done.stderr) for done in results} == {(0, "1\n", "")}
    end = time.monotonic() + 60
    while (after := left(zygote)) > (before[0], "1", "") and time.monotonic() < end:
        time.sleep(0.01)  # it closes a connection after the stand-in has its answer
    assert after <= (before[0], "1", "")


def left(zygote: Zygote) -> tuple[int, str, str]:
    """A zygote's open files, threads and children."""
    process = Path("/proc", str(zygote.pid))
    status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines())
    children = process / "task" / str(zygote.pid) / "children"
    return len(list((process / "fd").iterdir())), status["Threads"], children.read_text()


@pytest.mark.slow
def test_a_zygote_that_is_stopped_takes_its_children_along() -> None:
    zygote = Zygote(os.environ)
    command = [*zygote.python, "-c", SLEEPS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as stand_in:
        assert stand_in.stdout is not None
        child = int(stand_in.stdout.readline())
        socket = Path(zygote.python[-2])
        zygote.stop()
        ended(child)
        assert stand_in.wait(timeout=60) in (255, -signal.SIGKILL)
    assert not socket.exists()
    done = subprocess.run([*command[:-2], "-c", "print(1)"], capture_output=True, check=True)
    assert done.stdout == b"1\n"  # Python itself, where there is no zygote


def test_a_test_process_that_is_killed_leaves_no_zygote() -> None:
    program = (
        "import os, signal, subprocess; from zygote import Zygote\n"
        "zygote = Zygote(os.environ); subprocess.run([*zygote.python, '-c', ''], check=True)\n"
        "print(zygote.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with tempfile.TemporaryDirectory() as left_behind:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).parents[1]),
                "TMPDIR": left_behind,
            },
            stdout=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == -signal.SIGKILL
    ended(int(done.stdout))
