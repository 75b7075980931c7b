"""What is recorded of a kernel that is slow on purpose."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import jax

MARK = "# SLOW"
"""Ends the line of a slow kernel that the advice is expected to name."""


@dataclass(frozen=True, kw_only=True)
class SlowKernel:
    """A kernel that is slow on purpose, and its twin, to which the remedy was applied.

    Attributes:
      advice: kind of the advice expected on `function`; none is expected on `remedied`.
      rearrange: of the arguments, for a twin that takes them in another layout.
      parts: phrases of the message or remedy.
      helper: the function with the marked line, if that is not `function` itself.
      targets: chips that it is compiled for, the first one most often.
    """

    advice: str
    summary: str
    function: Callable[..., jax.Array]
    remedied: Callable[..., jax.Array]
    args: tuple[jax.ShapeDtypeStruct, ...]
    rearrange: Callable[..., tuple[jax.Array, ...]] | None = None
    parts: tuple[str, ...] = ()
    helper: Callable[..., jax.Array] | None = None
    targets: tuple[str, ...] = ("v5e", "v6e")

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        """Name of the file that defines it."""
        return inspect.unwrap(self.helper or self.function).__code__.co_filename.rpartition("/")[2]

    @property
    def remedied_args(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        if self.rearrange is None:
            return self.args
        return tuple(jax.eval_shape(self.rearrange, *self.args))

    @property
    def line(self) -> int | None:
        """Number of the marked line; None if the advice is about no single line."""
        lines, first = inspect.getsourcelines(inspect.unwrap(self.helper or self.function))
        marked = [first + i for i, line in enumerate(lines) if line.rstrip().endswith(MARK)]
        return marked[0] if marked else None
