"""A kernel and a compilation to store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_debug.model import Compilation, Kernel, Pass

DATA = Path(__file__).parent / "data"

Compiled = Callable[..., tuple[Compilation, dict[str, bytes | Path]]]


@pytest.fixture
def data() -> Path:
    """Raw dumps by the real compiler: `<libtpu>/<kernel>/`; made by `make.py` beside them."""
    return DATA


@pytest.fixture
def kernel() -> Kernel:
    return Kernel(name="add", digest="0123456789abcdef" * 4, primitive="pallas_call")


@pytest.fixture
def compiled() -> Compiled:
    """Makes a compilation with three passes, the second of which changes nothing."""

    def make(
        key: str = "a" * 64, target: str = "v5e", first: bytes = b"first\n"
    ) -> tuple[Compilation, dict[str, bytes | Path]]:
        texts = [("original", first), ("idle", first), ("finalize-llo", b"last of " + first)]
        files: dict[str, bytes | Path] = {}
        passes = []
        before = None
        for number, (name, text) in enumerate(texts):
            file = None if text == before else f"passes/{number:02d}-{name}.mlir"
            if file:
                files[file] = text
            passes.append(
                Pass(
                    number=number,
                    name=name,
                    size=len(text),
                    seconds=None,
                    changed=text != before,
                    file=file,
                )
            )
            before = text
        made = Compilation(kernel="add", target=target, status="ok", key=key, passes=tuple(passes))
        return made, files

    return make
