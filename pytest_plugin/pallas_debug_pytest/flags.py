"""`--pallas-flags`: flags for libtpu, which reads them once, when it is loaded.

They are set before the first `conftest.py` is imported. Imported when the option is used; must not
import jax, which may look for a TPU.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "LIBTPU_INIT_ARGS"
_OURS = "xla_mosaic_dump_to"


def check(value: str) -> None:
    """Check that libtpu can parse the flags.

    Raises:
      ValueError: libtpu cannot parse them; the message names the problem.
    """
    words = value.split()
    if not words or not words[0].startswith("-"):
        raise ValueError(f"{value!r} is not a list of flags; write it as '--xla_a=1 --xla_b=2'")
    if any(quote in value for quote in "\"'"):
        raise ValueError(f"{value!r} contains quotes, which libtpu does not support")
    if any(word.lstrip("-").partition("=")[0] == _OURS for word in words):
        raise ValueError(f"--{_OURS} is set by --pallas-dump; pass the directory there")


def add(config: pytest.Config, value: str) -> None:
    """Append the flags to those in the environment, until the run ends.

    Raises:
      pytest.UsageError: libtpu has already been loaded in this process.
    """
    if is_loaded():
        raise pytest.UsageError(
            "--pallas-flags comes too late: libtpu is loaded in this process already, and reads "
            f"its flags once. Set {VARIABLE} in the environment, or find out which plugin "
            "(-p, entry point) uses jax while pytest starts"
        )
    before = os.environ.get(VARIABLE)
    if before is not None and before.endswith(value):
        return  # an xdist worker inherits the environment of its controller
    os.environ[VARIABLE] = f"{before} {value}" if before else value
    config.add_cleanup(lambda: _restore(before))


def is_loaded() -> bool:
    """Return whether libtpu is loaded in this process; `import libtpu` alone does not load it."""
    try:
        return "libtpu.so" in Path("/proc/self/maps").read_text()
    except OSError:
        return False


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before
