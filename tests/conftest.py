"""Fixtures for all rooms."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

# Several devices for what runs under shard_map; read when jax's CPU backend starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# A shell that starts the suite in the background makes it ignore SIGINT. The processes that it
# starts would inherit that, and what ctrl+c does to them could not be tested.
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On CI, pytest shows failures in full a second time, in its summary.
for variable in ("CI", "BUILD_NUMBER"):
    os.environ.pop(variable, None)


pytest_plugins = ("jaxless", "object_stores")

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--torture",
        choices=("short", "full"),
        default="short",
        help="how much tests/torture does: a sample in under a minute, or all of it",
    )
    parser.addoption(
        "--bless", action="store_true", help="write golden files, whose difference a person reads"
    )


def pytest_collection_finish() -> None:
    """Spare the garbage collector what lives as long as the run: jax and some 9,000 tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def without_asking() -> Iterator[None]:
    """Forget which kernels' code queried its chip: later tests may use the same kernels."""
    yield
    chip = sys.modules.get("pallas_debug.bridge.chip")
    if chip is not None:
        chip._askers.clear()
        chip._has_asked.value = False


@pytest.fixture(scope="module", autouse=True)
def no_session_stays_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the last test of a file that leaves a session open, for it compiles all later kernels."""
    yield
    assert watching() == (), f"{request.node.nodeid} leaves a session open"


@pytest.fixture(autouse=True)
def no_test_opens_a_session_for_the_next() -> Iterator[None]:
    before = watching()  # by a fixture of the file
    yield
    assert watching() == before, "the test leaves a session open"


def watching() -> tuple[object, ...]:
    """Watchers of the kernels that jax lowers in this process."""
    hook = sys.modules.get("pallas_debug.bridge.lowering.hook")
    return () if hook is None else tuple(hook._watchers)


@pytest.fixture(scope="module")
def quick_to_compile() -> Iterator[None]:
    """Compile for the CPU without optimisation: on small arrays that takes longer than the run."""
    import jax  # most of the suite's folders need none

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture
def blessed(pytestconfig: pytest.Config) -> Callable[[Path, str], None]:
    """Compares a text with that of a golden file; `--bless` writes it."""

    def compare(path: Path, text: str) -> None:
        if pytestconfig.getoption("bless"):
            path.write_text(text)
        assert text == path.read_text()

    return compare


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A script that stands for `python`, but forks; see `forked.py`."""
    folder, program = tmp_path_factory.mktemp("forks"), Path(__file__).with_name("forked.py")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -ISu {program} {folder}/socket "$@"\n')
    python.chmod(0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"{folder}/socket")
        listener.listen(64)
        number = listener.fileno()
        command = [sys.executable, program, str(number)]
        server = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.PIPE)
    yield str(python)
    server.communicate()  # the end of its input, with which it ends


@pytest.fixture
def fork_python(forks: str, tmp_path: Path) -> Run:
    """Runs what stands for `python -c CODE` (or `python ARGS`) in `tmp_path`; see `forked.py`."""
    return lambda *words, **environment: run([forks, *words], tmp_path, environment)


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Runs `python -c CODE` (or `python ARGS`) in `tmp_path`: imports, early variables, signals."""
    return lambda *words, **environment: run([sys.executable, *words], tmp_path, environment)


@pytest.fixture
def command(fork_python: Run) -> Run:
    """Runs the installed `pallas-debug` in `tmp_path`."""
    return partial(fork_python, installed())


@pytest.fixture
def commands(command: Run) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Runs the installed `pallas-debug` once for each list of arguments."""
    return lambda *wanted: [command(*words) for words in wanted]


@pytest.fixture
def real_command(run_python: Run) -> Run:
    """What `command` does, with a start of Python; each family of commands has a test with it."""
    return partial(run_python, installed())


@pytest.fixture
def left_out() -> tuple[str, ...]:
    """Plugins that `run_pytest` leaves out; files that need them override this.

    hypothesis is imported by every run for its line in the header, for longer than all else takes.
    """
    return ("hypothesispytest",)


@pytest.fixture
def run_pytest(
    forks: str,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    left_out: tuple[str, ...],
) -> Callable[..., pytest.RunResult]:
    """Runs pytest in a child process, as `pytester.runpytest_subprocess` does; see `forked.py`.

    For `-n 2`, the workers are forked as well.
    """
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    numbers = itertools.count()

    def run(*arguments: str) -> pytest.RunResult:
        words = ["-m", "pytest", f"--basetemp={pytester.path / f'run-{next(numbers)}'}"]
        words += [f"-pno:{name}" for name in left_out]
        for n, word in enumerate(arguments):
            if word == "-n":
                words += ["--tx", f"{arguments[n + 1]}*popen//python={forks}"]
            elif n and arguments[n - 1] == "-n":
                words += ["--dist=load"]
            else:
                words.append(word)
        return pytester.run(forks, *words, timeout=240)

    return run


def run(
    command: Sequence[object], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def installed() -> Path:
    script = Path(sys.executable).with_name("pallas-debug")
    if not script.exists():
        pytest.fail(f"the command is not installed beside {sys.executable}")
    return script
