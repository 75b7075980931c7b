"""Normal forms of tiny kernels: those of this jax, and those of one that moved a parameter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.pallas.mosaic import primitives as tpu_primitives
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug._api import doctor
from pallas_debug.bridge import meaning, versions
from pallas_debug.bridge.jaxprs import mechanisms
from pallas_debug.session import Options, Session


def test_the_forms_are_the_stored_ones() -> None:
    assert meaning.changed() == []
    assert set(meaning.stored()) == set(meaning.KERNELS)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Source and destination of a DMA change places in its list of operands."""
    bind = tpu_primitives.dma_start_p.bind

    def bind_moved(*args: Any, tree: Any, **params: Any) -> Any:
        source, destination, *rest = tpu_primitives._dma_unflatten(tree, args)
        flat, tree = tpu_primitives._dma_flatten(destination, source, *rest)
        return bind(*flat, tree=tree, **params)

    monkeypatch.setattr(tpu_primitives.dma_start_p, "bind", bind_moved)
    jax.clear_caches()  # of what was traced before
    yield
    monkeypatch.undo()
    jax.clear_caches()


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A jax that is newer than those that we know."""
    monkeypatch.setattr(versions, "NEWEST", "0.10.1")
    meaning.examine.cache_clear()
    yield
    meaning.examine.cache_clear()
    mechanisms.changed.clear()


@pytest.mark.slow
@pytest.mark.usefixtures("moved")
def test_a_moved_parameter_changes_the_forms_of_what_copies() -> None:
    changed = {one.name: one for one in meaning.changed()}
    assert list(changed) == ["dma", "emit_pipeline", "a mesh of TensorCores", "SparseCore"]
    assert changed["dma"].features == {"dma_start", "dma_wait"}
    assert changed["dma"].expected.startswith("CopyStart source=RefPlace(ref=%0, view=")
    assert changed["dma"].found.startswith("CopyStart source=RefPlace(ref=%2) destination=")


def test_an_exception_is_a_changed_form(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("unexpected keyword argument 'ref'")

    monkeypatch.setattr(meaning, "launch", fails)
    changed = meaning.changed()
    assert [one.name for one in changed] == list(meaning.KERNELS)
    assert {one.found for one in changed} == {"TypeError: unexpected keyword argument 'ref'"}


def double(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * 2


def copy(x_ref: Any, o_ref: Any) -> None:
    pltpu.sync_copy(x_ref, o_ref)


def call(kernel: Any, x: Any) -> Any:
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    specs = {"in_specs": [hbm], "out_specs": hbm} if kernel is copy else {}
    return pl.pallas_call(kernel, out_shape=x, **specs)(x)


X = jnp.ones((8, 128))


@pytest.mark.slow
@pytest.mark.usefixtures("moved", "untested")
def test_an_untested_jax_runs_what_it_does_not_change() -> None:
    verdict = pallas_debug.verify(call, double, X, engines="static,machine")
    assert verdict.ok, verdict
    with pallas_debug.interpret("machine"):
        assert float(call(double, X).sum()) == 2 * X.size


@pytest.mark.usefixtures("moved", "untested")
def test_what_an_untested_jax_changes_is_refused_by_name() -> None:
    verdict = pallas_debug.verify(call, copy, X, engines="static,machine")
    assert not verdict.ok
    assert not verdict.findings
    reasons = {gap.engine: gap.reason for gap in verdict.gaps}
    assert set(reasons) == {"static", "machine"}
    for reason in reasons.values():
        assert f"jax {jax.__version__} changed the meaning of dma, which the kernel uses" in reason
        assert "expects `CopyStart source=RefPlace(ref=%0, view=" in reason
        assert "and finds `CopyStart source=RefPlace(ref=%2) destination=" in reason
        assert f"Install a tested jax ({versions.OLDEST} to 0.10.1), or report this" in reason


@pytest.mark.usefixtures("moved", "untested")
def test_doctor_names_what_changed() -> None:
    (check,) = [check for check in doctor._hooks() if check.name == "meaning"]
    assert check.state == "warning"
    assert check.detail.startswith("not as in a tested jax: dma (expected `CopyStart ")
    assert "refuse kernels with these, the rest works" in str(check.remedy)


def test_a_tested_jax_is_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meaning, "changed", lambda: pytest.fail("examined"))
    meaning.examine.cache_clear()
    with Session(Options(interpret="machine")):
        call(double, X)
    assert meaning.examine() == []
