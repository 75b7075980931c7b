"""Functions and arguments of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_debug.comparison.tolerances import Tolerance
from pallas_debug.model import Target


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A function whose result is compared, and how.

    Attributes:
      target: chip to trace it for, if its kernels are looked for.
      name: of the function.
      reference: name of the reference.
      other: the reference, to be run in lock-step if both call kernels; None if it is not to be.
      same_dtypes: whether both must return the same dtypes.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    target: Target
    name: str
    reference: str
    tolerance: Tolerance = field(default_factory=Tolerance)
    same_dtypes: bool = True
    other: Callable[..., Any] | None = None
