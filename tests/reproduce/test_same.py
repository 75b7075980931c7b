"""Comparison of failures."""

from __future__ import annotations

import pytest

from pallas_debug.reproduce.same import signature


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
    assert (signature(*first) == signature(*second)) is same
