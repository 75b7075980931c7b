"""Functions and settings of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.model import Target


@dataclass(frozen=True, kw_only=True)
class ComparedCall:
    """A function whose result is compared, with the settings of the comparison.

    Attributes:
      target: chip for which to trace it, to find its kernels.
      name: name of the function.
      reference: name of the reference.
      other: the reference.
      made_up: arguments whose values were made up.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    target: Target
    name: str
    reference: str
    other: Callable[..., Any]
    tolerance: Tolerance = field(default_factory=Tolerance)
    made_up: tuple[str, ...] = ()
