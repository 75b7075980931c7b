"""Normal forms of tiny kernels: those of this jax, and those of one that moved a parameter."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax._src.pallas.mosaic import primitives as tpu_primitives

from pallas_debug.bridge import meaning


def test_the_forms_are_the_stored_ones() -> None:
    assert meaning.changed() == []
    assert set(meaning.stored()) == set(meaning.KERNELS)


def test_a_moved_parameter_changes_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Source and destination of a DMA change places in its list of operands."""
    bind = tpu_primitives.dma_start_p.bind

    def moved(*args: Any, tree: Any, **params: Any) -> Any:
        source, destination, *rest = jax.tree.unflatten(tree, args)
        flat, tree = jax.tree.flatten((destination, source, *rest))
        return bind(*flat, tree=tree, **params)

    monkeypatch.setattr(tpu_primitives.dma_start_p, "bind", moved)
    jax.clear_caches()  # of what was traced before
    assert meaning.changed() == ["dma", "emit_pipeline"]
    monkeypatch.undo()
    jax.clear_caches()


def test_an_exception_is_a_changed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("unexpected keyword argument 'ref'")

    monkeypatch.setattr(meaning, "launch", fails)
    assert meaning.changed() == list(meaning.KERNELS)
