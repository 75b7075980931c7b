"""The suite: static checks, then the tests on the Python at hand and on a second one.

`make test` runs every test that is not marked `slow`, and one quarter of those that are: a quarter
that changes with every commit, and another one on the second Python. The second Python is the
newest of 3.12 or later if the one at hand is older (the newest jax needs it), else the oldest that
the project supports; of the folders that depend little on Python and jax it runs a quarter.
`make test-all` (`--all`) runs everything on both. Other arguments go to pytest; of files and folders
named there every test runs. The last lines say what each run used, how long it took, and what did
not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VENV = ROOT / ".venv"
SECOND_VENV = ROOT / ".venv-newest"
PACKAGES = ("pallas_debug", "kernels", "pytest_plugin")
OLDEST = (3, 11)
NEWEST_JAX_NEEDS = (3, 12)
QUARTERS = 4

SAMPLED = ("cli", "docs", "ir", "report", "store", "torture", "tui")
"""Test folders of which the second Python runs a quarter: they say little about Python and jax that
the other folders, which run on both, do not."""

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
    """One run of the suite, and what came of it."""

    description: str
    code: int
    seconds: float
    cpu: float
    skipped: tuple[str, ...]


def main(arguments: list[str]) -> int:
    is_all = "--all" in arguments or any(map(is_path, arguments))
    arguments = [argument for argument in arguments if argument != "--all"]
    first: list[str] = []
    other: list[str] = []
    if not is_all:
        first = quarter(0)
        other = [*quarter(2), "--sampled", ",".join(SAMPLED)]
    start = time.monotonic()
    check = subprocess.run(["make", "--silent", "check"], cwd=ROOT, check=False).returncode
    checked = time.monotonic() - start
    runs = [suite(VENV / "bin" / "python", [*first, *arguments])]
    second = second_python()
    missing = None
    if second is None:
        missing = "no second Python: there is none of 3.12 or later on PATH or under pyenv"
    elif not install(second):
        missing = f"no second run: the project could not be installed for {second}"
    else:
        runs.append(suite(SECOND_VENV / "bin" / "python", [*other, *arguments]))
    print(f"\nstatic checks: {'failed' if check else 'ok'} in {checked:.0f} s")
    for run in runs:
        outcome = "failed" if run.code else "ok"
        print(f"{run.description}: {outcome} in {run.seconds:.0f} s ({run.cpu:.0f} CPU s)")
        for reason in run.skipped:
            print(f"  not run: {reason}")
    if missing:
        print(missing)
    if not is_all:
        ran = f"quarters {first[-1]} and {other[1]}" if len(runs) > 1 else f"quarter {first[-1]}"
        print(f"slow tests: {ran} of 0 to {QUARTERS - 1}; `make test-all` runs all of them.")
        if len(runs) > 1:
            print(f"The second Python ran a quarter of {', '.join(SAMPLED)}, too.")
    return max(check, *(run.code for run in runs))


def is_path(argument: str) -> bool:
    """Whether an argument for pytest names a file or folder; then all of its tests run."""
    return not argument.startswith("-") and (ROOT / argument.partition("::")[0]).exists()


def quarter(offset: int) -> list[str]:
    """Arguments that choose a quarter of the slow tests: another one after every commit."""
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    commits = int(counted) if counted.strip().isdigit() else 0  # 0: no git checkout, as in an sdist
    return ["--quarter", str((commits + offset) % QUARTERS)]


def suite(python: Path, arguments: list[str]) -> Run:
    """The tests on one Python."""
    printed = subprocess.run(
        [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
    ).stdout
    description = ", ".join(f"{name} {version}" for name, version in json.loads(printed).items())
    print(f"\n=== {description} ===", flush=True)
    start, before = time.monotonic(), cpu_of_children()
    # Hundreds of child processes import these, and where PYTHONDONTWRITEBYTECODE is set each of
    # them would compile them anew.
    subprocess.run([python, "-m", "compileall", "-q", *PACKAGES], cwd=ROOT, check=False)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", *arguments]
    with tempfile.TemporaryDirectory() as scratch:
        environment["TIERS_SKIPPED"] = str(Path(scratch) / "skipped")
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        skipped = Path(environment["TIERS_SKIPPED"])
        reasons = skipped.read_text().splitlines() if skipped.exists() else []
    if len(reasons) > MAX_REASONS:
        more = f"… and {len(reasons) - MAX_REASONS} more reasons; pytest's summary has them"
        reasons[MAX_REASONS:] = [more]
    return Run(
        description=description,
        code=code,
        seconds=time.monotonic() - start,
        cpu=cpu_of_children() - before,
        skipped=tuple(reasons),
    )


def cpu_of_children() -> float:
    """CPU seconds of child processes that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system


def second_python() -> str | None:
    """The other end of the range that we support, or None where it is not to be found."""
    here = sys.version_info[:2]
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
        answer = subprocess.run(
            [candidate, "--version"], capture_output=True, text=True, check=False
        )
        match = re.match(r"Python (\d+)\.(\d+)\.\d+$", answer.stdout.strip())
        if answer.returncode == 0 and match:
            found.append(((int(match[1]), int(match[2])), candidate))
    return found


def install(python: str) -> bool:
    """The project with all it needs for its tests, in an environment of that Python."""
    mark = SECOND_VENV / ".installed"
    project = ROOT / "pyproject.toml"
    if mark.exists() and mark.stat().st_mtime >= project.stat().st_mtime:
        return True
    print(f"\ninstalling for {python} …", flush=True)
    pip = [SECOND_VENV / "bin" / "python", "-m", "pip", "install", "--quiet"]
    steps = (
        [python, "-m", "venv", SECOND_VENV],
        [*pip, "--disable-pip-version-check", "--editable", ".[dev]"],
    )
    for step in steps:
        if subprocess.run(step, cwd=ROOT, check=False).returncode:
            return False
    mark.touch()
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
