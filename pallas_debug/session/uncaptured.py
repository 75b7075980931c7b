"""Kernels that a session knows of, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_debug.errors import PallasDebugError


@dataclass(frozen=True, kw_only=True)
class Uncaptured:
    """A kernel that jax lowered but that could not be captured."""

    name: str
    problem: PallasDebugError

    def __str__(self) -> str:
        return f"kernel `{self.name}` could not be captured: {self.problem}"
