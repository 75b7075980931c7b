"""The suite: static checks, then the tests on the Python at hand and on a second one.

`make test` runs every test that is not marked `slow`, and one quarter of those that are: a quarter
that depends on the number of commits, and another one on the second Python. The second Python is
the newest of 3.12 or later where the one at hand is older (there the newest jax can be had), else
the oldest that the project supports; it runs the folders whose outcome can depend on Python or jax.
`make test-all` (`--all`) runs everything on both. Other arguments go to pytest. The last lines say
what each run used, and what did not run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
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

JAX_FREE = ("docs", "ir", "project", "report", "store", "tui")
"""Folders of tests that the second Python runs with `--all` alone: no jax is involved there, or (as
for the commands of the documentation) one version is shown."""

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


def main(arguments: list[str]) -> int:
    is_all = "--all" in arguments
    arguments = [argument for argument in arguments if argument != "--all"]
    first, other = ([], []) if is_all else (quarter(0), [*quarter(2), *second_folders(arguments)])
    check = subprocess.run(["make", "--silent", "check"], cwd=ROOT, check=False).returncode
    runs = [suite(VENV / "bin" / "python", [*first, *arguments])]
    second = second_python()
    missing = None
    if second is None:
        missing = "no second Python: there is none of 3.12 or later on PATH or under pyenv"
    elif not install(second):
        missing = f"no second run: the project could not be installed for {second}"
    else:
        runs.append(suite(SECOND_VENV / "bin" / "python", [*other, *arguments]))
    print(f"\nstatic checks: {'failed' if check else 'ok'}")
    for run in runs:
        outcome = "failed" if run.code else "ok"
        print(f"{run.description}: {outcome} in {run.seconds:.0f} s")
    if missing:
        print(missing)
    if not is_all:
        print(
            f"slow tests: quarters {first[-1]} and {other[1]} of 0 to {QUARTERS - 1}; second Python: "
            f"without {', '.join(JAX_FREE)}. `make test-all` runs the rest too."
        )
    return max(check, *(run.code for run in runs))


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


def second_folders(arguments: list[str]) -> list[str]:
    """The folders of tests for the second Python, unless the caller names files or folders."""
    if any((ROOT / argument.partition("::")[0]).exists() for argument in arguments):
        return []
    folders = sorted(path.parent.name for path in (ROOT / "tests").glob("*/test_*.py"))
    return [f"tests/{name}" for name in dict.fromkeys(folders) if name not in JAX_FREE]


def suite(python: Path, arguments: list[str]) -> Run:
    """The tests on one Python."""
    printed = subprocess.run(
        [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
    ).stdout
    description = ", ".join(f"{name} {version}" for name, version in json.loads(printed).items())
    print(f"\n=== {description} ===", flush=True)
    start = time.monotonic()
    # Hundreds of child processes import these, and where PYTHONDONTWRITEBYTECODE is set each of
    # them would compile them anew.
    subprocess.run([python, "-m", "compileall", "-q", *PACKAGES], cwd=ROOT, check=False)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return Run(description=description, code=code, seconds=time.monotonic() - start)


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
