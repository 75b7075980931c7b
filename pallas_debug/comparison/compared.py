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
      other: the reference, to run with rounded products; None not to.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    target: Target
    name: str
    reference: str
    tolerance: Tolerance = field(default_factory=Tolerance)
    other: Callable[..., Any] | None = None
