"""Record of a correct kernel, and arrays to call it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class CorrectKernel:
    """A function that calls kernels, and computes what its reference computes.

    Attributes:
      reference: the same in NumPy or jax.numpy.
      args: arguments of both.
    """

    function: Callable[..., Any]
    reference: Callable[..., Any]
    args: tuple[np.ndarray, ...]

    @property
    def name(self) -> str:
        return self.function.__name__


CORRECT: list[CorrectKernel] = []


def equals(reference: Callable[..., Any], *args: np.ndarray) -> Callable[..., Any]:
    """Decorate a function that equals `reference` on `args`: add it to `CORRECT`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        CORRECT.append(CorrectKernel(function=function, reference=reference, args=args))
        return function

    return add


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape, dtype)


def table(*entries: int) -> np.ndarray:
    return np.array(entries, np.int32)
