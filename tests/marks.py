"""Marks for tables of tests: rows that are slow, and rows that are one of a kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

with_and_without_xdist = pytest.mark.parametrize(
    "workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)]
)
"""Marks for child runs of pytest: those under xdist start three processes, and are slow."""


def mark_all_but_first(cases: Iterable[Any], key: Callable[..., Hashable]) -> list[Any]:
    """Return the `pytest.param`s, all marked slow but the first with each key.

    `key` gets a case's values; None marks the case.
    """
    seen: set[Hashable] = {None}
    marked = []
    for case in cases:
        found = key(*case.values)
        marks = [*case.marks, pytest.mark.slow] if found in seen else case.marks
        marked.append(pytest.param(*case.values, marks=marks, id=case.id))
        seen.add(found)
    return marked


def first_of_each_fault(kernels: Iterable[Any]) -> list[Any]:
    """Return broken kernels as parameters, all marked slow but the first of each fault."""
    rows = [pytest.param(kernel, id=kernel.name) for kernel in kernels]
    return mark_all_but_first(rows, lambda kernel: kernel.fault)
