"""Functions named by the walkthroughs in `docs/how-it-works.md`."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.cli.output import echo
from pallas_debug.errors import KernelFault
from pallas_debug.store import open_dumps

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()

STEPS = [
    (name, path)
    for name, path in re.findall(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", PAGE)
    if not name.isupper()
]
FILES = re.findall(r"`(\w+/[\w/]+\.py)`", PAGE)


def defined(tree: ast.Module) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (item for item in node.body if isinstance(item, ast.FunctionDef))
            names |= {f"{node.name}.{item.name}" for item in inner}
    return names


@pytest.mark.parametrize("name, path", STEPS, ids=lambda value: value.rpartition("/")[2])
def test_each_function_exists(name: str, path: str) -> None:
    assert name in defined(ast.parse((ROOT / path).read_text()))


@pytest.mark.parametrize("path", sorted(set(FILES)))
def test_each_file_exists(path: str) -> None:
    assert (ROOT / path).is_file()


def steps_of(title: str) -> list[str]:
    section = PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    return re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("title", ["A kernel, from", "A finding, from"])
def test_each_step_names_a_function(title: str) -> None:
    steps = steps_of(title)
    assert len(steps) >= 8
    for step in steps:
        assert re.search(r"`[\w.]+`\s+in\s+`[\w/]+\.py`", step), step


Step = tuple[str, str]
"""A step of a walkthrough: the function's name, and its file."""


def first_functions(title: str) -> list[Step]:
    """The function that each step names first."""
    found = [re.search(r"`([\w.]+)`\s+in\s+`([\w/]+\.py)`", step) for step in steps_of(title)]
    return [(match[1], match[2]) for match in found if match]


def calls_of(steps: list[Step], run: Callable[[], Any]) -> list[Step]:
    """Calls of these functions while `run` runs, in all threads, in order."""
    wanted = {(str(ROOT / path), name): (name, path) for name, path in steps}
    called: list[Step] = []

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            code = frame.f_code
            step = wanted.get((code.co_filename, code.co_qualname))
            if step is not None:
                called.append(step)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return called


def missing_in_order(steps: list[Step], called: list[Step]) -> Step | None:
    """The first step that is not called after those before it; None if there is none."""
    calls: Iterator[Step] = iter(called)
    return next((step for step in steps if step not in calls), None)


def beyond(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8 + 4, 8)]


def rows(x: Any) -> Any:
    whole = pl.BlockSpec((12, 128), lambda i: (0, 0))
    one = pl.BlockSpec((8, 128), lambda i: (i, 0))
    out = jnp.zeros((16, 128))
    return pl.pallas_call(beyond, out_shape=out, grid=(2,), in_specs=[whole], out_specs=one)(x)


X = np.zeros((12, 128), np.float32)


@pytest.mark.slow
def test_the_steps_of_a_kernel_run_in_this_order(tmp_path: Path) -> None:
    def dump_and_show() -> None:
        pallas_debug.dump(rows, X, targets="v5e", to=tmp_path)
        kernel = open_dumps(tmp_path).find("beyond")
        (stored,) = kernel.compilations
        echo(stored.text(stored.find_pass("lower-to-llo")))

    steps = first_functions("A kernel, from")
    elsewhere = {"pallas_debug/compiler/worker.py", "pallas_debug/bridge/libtpu.py"}
    here = [step for step in steps if step[1] not in elsewhere]
    assert len(steps) - len(here) == 2
    assert missing_in_order(here, calls_of(here, dump_and_show)) is None


@pytest.mark.slow
def test_the_steps_of_a_finding_run_in_this_order() -> None:
    steps = [
        step
        for step in first_functions("A finding, from")
        if step[0] != "finding_text"  # only where a face shows it
    ]
    assert len(steps) == 7

    def check() -> None:
        with pytest.raises(KernelFault, match="OutOfBoundsRead"):
            pallas_debug.check(rows)(X)

    assert missing_in_order(steps, calls_of(steps, check)) is None


def test_a_wrong_order_is_found() -> None:
    one, other = ("a", "a.py"), ("b", "b.py")
    assert missing_in_order([one, other], [other, one, one, other]) is None
    assert missing_in_order([one, other], [other, one]) == other
    assert missing_in_order([one, other], []) == one
