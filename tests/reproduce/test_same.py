"""Comparison of failures, and the result of a script."""

from __future__ import annotations

import pytest

from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.reproduce import run
from pallas_debug.reproduce.same import signature_of


@pytest.mark.parametrize(
    "first,second,same",
    [
        (("lowering", "Cannot store 8 scalars at /a/b.py:3"), ("lowering", "Cannot store 9 scalars at c.py:5"), True),
        (("lowering", "Cannot store"), ("compile", "Cannot store"), False),
        (("lowering", "primitive: cumsum. Please file an issue at https://a/b."), ("lowering", "primitive: cumsum"), True),
        (("lowering", "primitive: cumsum"), ("lowering", "primitive: sort"), False),
        (("compile", "INTERNAL: E2003: a is 3\nloc"), ("compile", "OTHER: E2003: b"), True),
        (("compile", "INTERNAL: E2003: a"), ("compile", "INTERNAL: E2002: a"), False),
        (("compile", "a 1\n\nat location: x"), ("compile", "a 2\n\nat location: y"), True),
        (("crash", "words F1 f.cc:3] Check failed: rem == 0 (8 vs. 0)\nmore"), ("crash", "Check failed: rem == 0 (4 vs. 0)"), True),
        (("crash", "Check failed: rem == 0"), ("crash", "Check failed: a == 0"), False),
        (("compile", "failed with MLIR module name `a` HLO name `b.1`: bad"), ("compile", "failed with MLIR module name `c` HLO name `d.2`: bad"), True),
        (("timeout", "after 3 s"), ("timeout", "after 4 s"), True),
    ],
)  # fmt: skip
def test_what_makes_failures_the_same(
    first: tuple[str, str], second: tuple[str, str], same: bool
) -> None:
    assert (signature_of(*first) == signature_of(*second)) is same


DIES = """
import os, sys
sys.stderr.write("noise\\nF1 a.cc:3] Check failed: rem == 0 (8 vs. 0)\\n    @ 0x1 frame\\n")
sys.stderr.flush()
os.abort()
"""


def test_what_a_script_shows() -> None:
    died = run.executed(DIES, timeout=60)
    assert died.failure is not None
    assert (died.failure.stage, died.failure.type) == ("crash", "SIGABRT")
    assert died.failure.message == (
        "the script died of SIGABRT. Its last output: F1 a.cc:3] Check failed: rem == 0 (8 vs. 0)"
    )
    recorded = Failure(stage="crash", type="SIGABRT", message="Check failed: rem == 0 (4 vs. 0)")
    assert died.is_as(recorded)
    assert not died.is_as(None)
    slow = run.executed("import time\ntime.sleep(60)", timeout=0.5)
    assert slow.failure is not None
    assert slow.failure.message == "the script did not end within 0.5 s and was stopped"
    with pytest.raises(CannotRunError) as error:
        run.executed("print('there is no compiler: none'); raise SystemExit(3)", timeout=60)
    assert str(error.value) == (
        "the script exited with 3 before it reached the kernel: there is no compiler: none"
    )
