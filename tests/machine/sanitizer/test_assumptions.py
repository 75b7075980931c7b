"""What a kernel tells the compiler of its memory with `pltpu.annotate`, and does all the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import pallas_debug
from pallas_debug.model import Finding

X = np.ones((16, 128), np.float32)

pytestmark = pytest.mark.skipif(not hasattr(pltpu, "annotate"), reason="since jax 0.12")


def annotated(ref: Any, **assumed: bool) -> Any:
    return pltpu.annotate(ref, **assumed)  # type: ignore[attr-defined, unused-ignore]


def findings(kernel: Callable[..., None]) -> list[Finding]:
    rows = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
        kernel,
        grid=(2,),
        in_specs=[rows],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(X.shape, jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
    )
    report, _ = pallas_debug.check(call, sanitize=True)(X)
    assert report.not_checked == ()
    return list(report.findings)


def doubled(**assumed: bool) -> Callable[..., None]:
    def kernel(x_ref: Any, out_ref: Any, scratch_ref: Any) -> None:
        scratch_ref[...] = x_ref[...] * 2  # STORED
        out_ref[...] = annotated(scratch_ref, **assumed)[...] + 1  # LOADED

    return kernel


def test_memory_that_is_stored_to_is_not_without_stores() -> None:
    (found,) = findings(doubled(no_store=True))
    assert (found.kind, found.operand, found.grid_point) == ("FalseHint", "scratch_ref", (0,))
    assert found.message == (
        "scratch_ref, float32[8, 128] in VMEM, is stored to, although pltpu.annotate(…, "
        "no_store=True) says that it is not"
    )
    assert found.cause == "the compiler may repeat, after the store, a load that came before it"
    assert found.advice == (
        "remove no_store: it is for memory that only copies and the pipeline write to"
    )
    lines(found, "LOADED", "STORED")


def test_a_load_that_depends_on_a_store_has_a_dependency() -> None:
    (found,) = findings(doubled(no_hazard_no_deps=True))
    assert (found.kind, found.operand, found.count) == ("FalseHint", "scratch_ref", 2)
    assert found.message == (
        "scratch_ref, float32[8, 128] in VMEM, is read after a store to the same elements, "
        "although pltpu.annotate(…, no_hazard_no_deps=True) says that loads do not depend on stores"
    )
    assert found.cause == "the compiler may move this load before that store"
    assert found.advice == "remove no_hazard_no_deps; no_hazard=True keeps the order"
    lines(found, "LOADED", "STORED")


def lines(found: Finding, this: str, other: str) -> None:
    """Check the two lines of a finding."""
    assert found.source is not None
    assert str(found.source.text).endswith(this)
    assert found.witness.other is not None
    assert str(found.witness.other.text).endswith(other)


def test_what_is_annotated_truly_is_no_finding() -> None:
    def inputs(x_ref: Any, out_ref: Any, scratch_ref: Any) -> None:
        out_ref[...] = annotated(x_ref, no_store=True)[...] + 1

    def apart(x_ref: Any, out_ref: Any, scratch_ref: Any) -> None:
        marked = annotated(scratch_ref, no_hazard_no_deps=True)
        marked[:4] = x_ref[:4]

        @pl.when(pl.program_id(0) == 0)
        def _() -> None:
            scratch_ref[4:] = jnp.zeros((4, 128))  # the next grid point reads it

        out_ref[...] = jnp.zeros((8, 128))

        @pl.when(pl.program_id(0) == 1)
        def _() -> None:
            out_ref[:4] = marked[4:]

    for kernel in (inputs, apart, doubled(no_hazard=True), doubled(no_bank_conflict=True)):
        assert findings(kernel) == []
