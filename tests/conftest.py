"""Fixtures for all rooms."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

# Several devices for what runs under shard_map; read when jax's CPU backend starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# The key that dumps are signed with; each process of a run has its own.
STATE = tempfile.TemporaryDirectory(prefix="pallas-debug-tests-")
os.environ["XDG_STATE_HOME"] = STATE.name
atexit.register(STATE.cleanup)  # else its finalizer warns

# A shell that starts the suite in the background makes it ignore SIGINT. The processes that it
# starts would inherit that, and what ctrl+c does to them could not be tested.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ("tiers", "evidence")

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torture",
        choices=("short", "full"),
        default="short",
        help="how much tests/torture does: a sample in under a minute, or all of it",
    )


@pytest.fixture(scope="module")
def quick_to_compile() -> Iterator[None]:
    """Compile for the CPU without optimisation: on small arrays that takes longer than the run."""
    import jax  # most of the suite's folders need none

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Runs `python -c CODE` (or `python ARGS`) in a child process in `tmp_path`."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


@pytest.fixture
def command(tmp_path: Path) -> Run:
    """Runs the installed `pallas-debug` in `tmp_path`."""
    script = Path(sys.executable).with_name("pallas-debug")
    if not script.exists():
        pytest.fail(f"the command is not installed beside {sys.executable}")

    def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


COMMANDS = """
import json, os, runpy, sys
script, folder, *runs = sys.argv[1:]
sys.path.insert(0, os.path.dirname(script))  # as where Python itself starts the script
path = list(sys.path)
for n, run in enumerate(runs):
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        name = os.path.join(folder, f"{n}.{stream.name.strip('<>')}")
        file = os.open(name, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream.fileno())
        os.close(file)
    sys.argv[:], sys.path[:] = [script, *json.loads(run)], path
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code or 0
    with open(os.path.join(folder, f"{n}.code"), "w") as file:
        file.write(str(code))
"""

Runs = Callable[..., list[subprocess.CompletedProcess[str]]]


@pytest.fixture
def commands(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, run_python: Run) -> Runs:
    """Runs the installed `pallas-debug` once for each list of arguments, in one child process.

    The start of a process with jax takes longer than it takes to refuse something. For commands
    that change nothing: the process is the same for all of them.
    """
    script = Path(sys.executable).with_name("pallas-debug")

    def run(*wanted: Sequence[object]) -> list[subprocess.CompletedProcess[str]]:
        folder = tmp_path_factory.mktemp("commands")
        words = [[str(word) for word in arguments] for arguments in wanted]
        runs = [json.dumps(arguments) for arguments in words]
        done = run_python("-P", "-c", COMMANDS, str(script), str(folder), *runs)
        assert done.returncode == 0, done
        found = []
        for n, arguments in enumerate(words):
            code, out, err = (
                (folder / f"{n}.{kind}").read_text() for kind in ("code", "stdout", "stderr")
            )
            found.append(subprocess.CompletedProcess(arguments, int(code), out, err))
        return found

    return run
