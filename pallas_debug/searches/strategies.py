"""Strategies of hypothesis that draw inputs: the values of variables, and `--arg` texts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pallas_debug.errors import UsageError
from pallas_debug.searches.templates import Choices, Drawn, Range, Template, shown

MAX_DRAWN = 256
"""Maximum number of elements of an array that are drawn one by one."""


@dataclass(frozen=True, kw_only=True)
class Input:
    """Arguments of a function.

    Attributes:
      values: of the variables.
      texts: the arguments, as for `--arg`.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    texts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return shown(self.values) or " ".join(self.texts)


@st.composite
def inputs(draw: DrawFn, lets: Mapping[str, Choices], templates: Sequence[Template]) -> Input:
    """Draw the variables in their order, then the arguments; smaller numbers are simpler."""
    values: dict[str, Any] = {}
    for name, choices in lets.items():
        values[name] = draw(_one_of(choices, values))
    return Input(values=values, texts=tuple(_text(draw, one, values) for one in templates))


def _one_of(choices: Choices, values: Mapping[str, Any]) -> SearchStrategy[Any]:
    if not isinstance(choices, Range):
        return st.sampled_from(choices)
    low, high = choices.low.value(values), choices.high.value(values)
    assume(low <= high)
    return st.integers(low, high)


def _text(draw: DrawFn, template: Template, values: Mapping[str, Any]) -> str:
    if template.variable is not None:
        return f"{template.prefix}{values[template.variable]!r}"
    if template.drawn is not None:
        return template.prefix + _drawn(draw, template, template.drawn, values)
    parts = (p if isinstance(p, str) else str(p.value(values)) for p in template.parts)
    return template.prefix + "".join(parts).strip()


def _drawn(draw: DrawFn, template: Template, array: Drawn, values: Mapping[str, Any]) -> str:
    sizes = [size.value(values) for size in array.sizes]
    low, high = array.values.low.value(values), array.values.high.value(values)
    assume(low <= high)
    assume(all(size >= 0 for size in sizes))
    count = math.prod(sizes)
    head = f"{array.dtype}[{','.join(map(str, sizes))}]"
    if count > MAX_DRAWN:
        if array.is_sorted or array.total is not None:
            raise UsageError(
                f"--arg {template.text!r}: {count:,} elements are too many to draw; sorted arrays "
                f"and sums have at most {MAX_DRAWN}"
            )
        return f"{head}=randint({low},{high + 1})"
    if array.total is None:
        found = draw(st.lists(st.integers(low, high), min_size=count, max_size=count))
    else:
        found = _summing(draw, count, low, high, array.total.value(values))
    if array.is_sorted:
        found.sort()
    return f"{head}={np.reshape(found, sizes).astype(int).tolist()}".replace(" ", "")


def _summing(draw: DrawFn, count: int, low: int, high: int, total: int) -> list[int]:
    """Draw numbers within a range that add up to a total."""
    found: list[int] = []
    for left in reversed(range(count)):
        rest = total - sum(found)
        least, most = max(low, rest - left * high), min(high, rest - left * low)
        assume(least <= most)
        found.append(draw(st.integers(least, most)))
    assume(sum(found) == total)
    return found
