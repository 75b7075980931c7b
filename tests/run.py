"""`make test`: static checks, then the tests on the oldest Python that is supported and on the newest.

Each run has all tests that are not marked `slow`, or all of them with `--all`; other arguments go to
pytest. The second Python is the newest one of 3.12 or later if the one at hand is older (the newest
jax needs it), else the oldest that the project supports. The last lines repeat what each run was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST_JAX_NEEDS = (3, 11), (3, 12)


def main(arguments: list[str]) -> int:
    begin = time.monotonic()
    if "--all" in arguments:
        arguments = ["-m", "", *(argument for argument in arguments if argument != "--all")]
    if not is_made(".venv/.installed"):
        return 1
    checked = subprocess.run(["make", "--silent", "check"], cwd=ROOT, check=False).returncode
    results = [("static checks", checked), suite(".venv", arguments)]
    second = second_python()
    if second is None:
        results.append(("no second Python: none of 3.12 or later is on PATH or under pyenv", 0))
    elif is_made(".venv-newest/.installed", "VENV=.venv-newest", f"PYTHON={second}"):
        results.append(suite(".venv-newest", arguments))
    else:
        results.append((f"not installed for {second}", 1))
    print()
    for name, code in results:
        print(f"{name}: {'failed' if code else 'ok'}")
    print(f"in all: {time.monotonic() - begin:.0f} s")
    return max(code for _, code in results)


def suite(venv: str, arguments: list[str]) -> tuple[str, int]:
    """Run the tests in an environment; return what ran, and pytest's exit code."""
    python = ROOT / venv / "bin" / "python"
    shown = subprocess.run(
        [
            python,
            "-c",
            "import sys, jax; print(f'Python {sys.version[:4]}, jax {jax.__version__}')",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    print(f"\n=== {shown} ===", flush=True)
    begin = time.monotonic()
    cache = (
        f"cache_dir={ROOT / venv / '.pytest_cache'}"  # failures of one Python are not the other's
    )
    done = subprocess.run(
        [python, "-m", "pytest", "-o", cache, *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    return f"{shown}, {time.monotonic() - begin:.0f} s", done.returncode


def is_made(target: str, *variables: str) -> bool:
    return not subprocess.run(
        ["make", "--silent", *variables, target], cwd=ROOT, check=False
    ).returncode


def second_python() -> str | None:
    """Return the other end of the supported range, on PATH or under pyenv; None if it is absent."""
    here = version_of(str(ROOT / ".venv" / "bin" / "python"))
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [shutil.which(f"python3.{minor}") for minor in range(OLDEST[1], 20)]
    paths += map(str, pyenv.glob("3.*/bin/python"))
    found = {version_of(path): path for path in filter(None, paths)}
    if here >= NEWEST_JAX_NEEDS:
        return found.get(OLDEST)
    return max(
        ((v, path) for v, path in found.items() if v >= NEWEST_JAX_NEEDS), default=(0, None)
    )[1]


def version_of(python: str) -> tuple[int, ...]:
    """Return the version of a Python; (0,) if it does not run."""
    done = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    match = re.match(r"Python (\d+)\.(\d+)\.\d+$", done.stdout.strip())
    return tuple(map(int, match.groups())) if match else (0,)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
