"""The suite: static checks, and the tests on the current Python and on a second one, side by side.

`make test` runs every test that is not marked `slow`, and an eighth of those that are: others
after each commit, and others on the second Python. The second
Python is the newest of 3.12 or later if the one at hand is older (the newest jax needs it), else
the oldest that the project supports. It is installed while the first one already tests. It runs
all unmarked tests and an eighth of the slow ones in the files that say most about jax's internals, an
eighth of the other unmarked tests, and one in 32 of the other slow ones.

The first Python has two workers and the second one has one, and the static checks run beside them:
tests that wait for a child or a deadline leave a core to the others. The output of the second Python
follows that of the first. The last lines say what each run used, how long it took, and what did not
run.

`make test-all` (`--all`) runs everything on both. Other arguments go to pytest; of files and
folders named there every test runs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
SECOND_VENV = ROOT / ".venv-newest"
PACKAGES = ("pallas_debug", "kernels", "pytest_plugin")
OLDEST = (3, 11)
NEWEST_JAX_NEEDS = (3, 12)
EIGHTHS, PARTS = 8, 32

WHOLE = (
    "bridge/interpret/test_primitives.py",
    "bridge/interpret/test_params.py",
    "bridge/test_capture.py",
    "bridge/test_fit.py",
    "bridge/test_interpret.py",
    "bridge/test_libtpu.py",
    "bridge/test_patches.py",
    "machine/test_beyond.py",
    "machine/test_pipelines.py",
    "session/test_doctor.py",
    "verdict/test_traced_errors.py",
    "verdict/test_truth.py",
)
"""Files of tests/ of which the second Python runs what the first does, every unmarked test and an eighth
of the slow ones: they depend most on what jax calls things and how it works."""

MAX_SECONDS = 2400
"""Time after which a run is aborted, with the stacks of its threads; pytest ends a test that hangs
(`faulthandler_timeout` in pyproject.toml), and this one what hangs between tests or at the end."""

MAX_REASONS = 12
"""Skip reasons repeated in the last lines, per run."""

_VERSIONS = """
import importlib.metadata as m, json, platform
found = {"Python": platform.python_version()}
for name in ("jax", "libtpu"):
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: found[name] = "none"
print(json.dumps(found))
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the suite.

    Attributes:
      cpu: CPU seconds, child processes included.
      folders: CPU seconds by folder.
      costly: CPU seconds of tests that take more than they should.
      ran: number of tests.
      left_out: number of tests whose turn it was not, by the part of their tier that runs.
      skipped: reasons for which tests were skipped.
    """

    description: str
    code: int
    seconds: float
    cpu: float
    folders: Mapping[str, float]
    costly: Mapping[str, float]
    skipped: tuple[str, ...]
    ran: int
    left_out: Mapping[str, int]


def main(arguments: list[str]) -> int:
    start = time.monotonic()
    is_all = "--all" in arguments or any(map(is_path, arguments))
    arguments = [argument for argument in arguments if argument != "--all"]
    first: list[str] = []
    other: list[str] = []
    if not is_all:
        first = turn(0)
        other = [*turn(2), "--sparse", "--whole", ",".join(WHOLE)]
    with ThreadPoolExecutor() as executor:
        second = second_python()
        # Beside the first environment, and then its run, as far as it takes.
        installed = executor.submit(install, SECOND_VENV, second) if second else None
        if not install(VENV):
            return 1
        ready = time.monotonic() - start
        checking = executor.submit(static_checks)
        with tempfile.TemporaryFile("w+") as output:
            # A third of the work, so one worker: each imports and collects all tests, for 20 s of CPU.
            workers = 2 if is_all else 1
            wanted = ["-n", str(workers), *other, *arguments]
            testing = executor.submit(second_suite, installed, wanted, output)
            runs = [suite(VENV / "bin" / "python", ["-n", "2", *first, *arguments])]
            run, missing = testing.result()
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout)
        runs += [run] if run else []
        check, checked = checking.result()
    print(f"\ninstallation: {ready:.0f} s before the first run")
    print(f"static checks: {'failed' if check else 'ok'} in {checked:.0f} s")
    for done in runs:
        report(done)
    if missing:
        print(missing)
    if not is_all:
        turns = [int(first[-1]), int(other[1])]
        print(
            f"slow tests: eighth {turns[0] % EIGHTHS} of 0 to {EIGHTHS - 1}; "
            "`make test-all` runs all."
        )
        if len(runs) > 1:
            print(
                f"The second Python ran part {turns[1]} of 0 to {PARTS - 1} of the slow tests, and of "
                f"the others an eighth; all others, and an eighth of the slow ones, in {', '.join(WHOLE)}."
            )
    print(f"in all: {time.monotonic() - start:.0f} s")
    return max(check, *(done.code for done in runs))


def static_checks() -> tuple[int, float]:
    """Exit code of `make check`, and seconds; its output appears where it fails."""
    start = time.monotonic()
    done = subprocess.run(
        ["make", "--silent", "check"],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(f"\n=== static checks failed ===\n{done.stdout}", flush=True)
    return done.returncode, time.monotonic() - start


def second_suite(
    installed: Future[bool] | None, arguments: list[str], output: IO[str]
) -> tuple[Run | None, str | None]:
    """The run on the second Python, once that is installed; or why there is none."""
    if installed is None:
        return None, "no second Python: there is none of 3.12 or later on PATH or under pyenv"
    if not installed.result():
        return None, "no second run: the project could not be installed for the second Python"
    return suite(SECOND_VENV / "bin" / "python", arguments, output), None


def report(run: Run) -> None:
    outcome = "failed" if run.code else "ok"
    print(f"{run.description}: {outcome} in {run.seconds:.0f} s ({run.cpu:.0f} CPU s)")
    print(f"  {run.ran} tests ran")
    for part, count in run.left_out.items():
        print(f"  {count} were left out, of a tier of which {part} runs each time")
    folders = ", ".join(f"{name} {cpu:.0f}" for name, cpu in run.folders.items())
    print(f"  CPU seconds by folder: {folders}")
    for test, cpu in run.costly.items():
        print(f"  costly: {cpu:.1f} s  {test}")
    reasons = [f"  not run: {reason}" for reason in run.skipped]
    print(*reasons[:MAX_REASONS], sep="\n", end="\n" if reasons else "")
    if len(reasons) > MAX_REASONS:
        more = len(reasons) - MAX_REASONS
        print(f"  not run: … and {more} more reasons; pytest's summary has them")


def is_path(argument: str) -> bool:
    """Return whether a pytest argument names a file or folder; then all of its tests run."""
    return not argument.startswith("-") and (ROOT / argument.partition("::")[0]).exists()


def turn(offset: int) -> list[str]:
    """Arguments that choose an eighth of the slow tests: a different one after each commit."""
    git = [shutil.which("git") or "false", "rev-list", "--count", "HEAD"]
    counted = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    commits = int(counted) if counted.strip().isdigit() else 0  # 0: no git checkout, as in an sdist
    return ["--turn", str((commits + offset) % PARTS)]


def suite(python: Path, arguments: list[str], output: IO[str] | None = None) -> Run:
    """The tests on one Python; into `output`, or onto the terminal."""
    printed = subprocess.run(
        [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
    ).stdout
    description = ", ".join(f"{name} {version}" for name, version in json.loads(printed).items())
    print(f"\n=== {description} ===", file=output, flush=True)
    start = time.monotonic()
    # Child processes import these, and where PYTHONDONTWRITEBYTECODE is set each of them would
    # compile them.
    subprocess.run([python, "-m", "compileall", "-q", *PACKAGES], cwd=ROOT, check=False)
    command = [python, "-m", "pytest", "--dist", "worksteal", *arguments]
    if output is not None:  # two runs at once cannot share a cache of failures
        command += ["-o", f"cache_dir={python.parents[1] / '.pytest_cache'}"]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "summary.json")
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "TIERS_SUMMARY": str(path)}
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output
        ) as process:
            # Python prints the stacks on this signal: pytest enables faulthandler.
            limit = threading.Timer(MAX_SECONDS, os.kill, [process.pid, signal.SIGABRT])
            limit.start()
            _, status, used = os.wait4(process.pid, 0)
            limit.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode == -signal.SIGABRT:
            print(f"\naborted after {MAX_SECONDS} s: it did not end", file=output, flush=True)
        summary = json.loads(path.read_text()) if path.exists() else {}
    return Run(
        description=description,
        code=abs(process.returncode),
        seconds=time.monotonic() - start,
        cpu=used.ru_utime + used.ru_stime,
        folders=summary.get("folders", {}),
        costly=summary.get("costly", {}),
        skipped=tuple(summary.get("skipped", ())),
        ran=summary.get("ran", 0),
        left_out=summary.get("left_out", {}),
    )


def second_python() -> str | None:
    """The other end of the range that we support, or None where it is not to be found."""
    here = version_of(VENV / "bin" / "python") or sys.version_info[:2]
    found = {version: path for version, path in pythons() if version != here}
    if here < NEWEST_JAX_NEEDS:
        newer = [version for version in found if version >= NEWEST_JAX_NEEDS]
        return found[max(newer)] if newer else None
    return found.get(OLDEST)


def pythons() -> list[tuple[tuple[int, int], str]]:
    """Versions and paths of the Pythons on PATH and under pyenv that really run."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates += [str(path) for path in sorted(pyenv.glob("3.*/bin/python"))]
    found = []
    for candidate in filter(None, candidates):
        version = version_of(candidate)
        if version is not None:
            found.append((version, candidate))
    return found


def version_of(python: str | Path) -> tuple[int, int] | None:
    """The version of a Python; None if it does not run."""
    try:
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.match(r"Python (\d+)\.(\d+)\.\d+$", done.stdout.strip())
    return (int(match[1]), int(match[2])) if match and done.returncode == 0 else None


def install(venv: Path, python: str | None = None) -> bool:
    """The project with all it needs for its tests, in an environment of that Python."""
    folder = venv.relative_to(ROOT)
    chosen = [f"VENV={folder}", f"PYTHON={python}"] if python else []
    # The target's name is the Makefile's.
    command = ["make", "--silent", *chosen, folder / ".installed"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
