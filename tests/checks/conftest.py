"""Fixtures for the checks."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="module", autouse=True)
def quick_to_compile() -> Iterator[None]:
    """On such small arrays XLA would optimise for longer than it runs.

    Its fusions also depend on what else is in a program: without them values are equal bit by bit.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
