"""Every primitive that a TPU kernel may use: the machine agrees with jax's interpreters on it.

The primitives are those with a lowering rule for the tensor core. One without a case, and without a
reason in `NOT_IN_KERNELS`, fails `test_every_primitive_has_a_case` by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import primitive_cases
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from primitive_cases import CASES, DMA, RULES, Case, N, X

from pallas_debug.bridge import chip
from pallas_debug.compiler.targets import BUILTIN


@pytest.fixture(autouse=True)
def v5e() -> Iterator[None]:
    (target,) = (target for target in BUILTIN if target.name == "v5e")
    with chip.answering_everywhere(target):
        yield


NARROW = ["int8", "uint8", "int16", "int4", "uint4", "bfloat16", "float16", "bool"]
NARROW += ["float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_dtypes_in_memory(dtype: str) -> None:
    """Loads, stores, strides, copies and masks of each dtype."""
    values = jnp.array(N % 8).astype(dtype)

    def kernel(x_ref: Any, o_ref: Any, tile: Any, sem: Any) -> None:
        tile[...] = x_ref[...]
        pltpu.async_copy(tile.at[0:4], o_ref.at[4:8], sem).wait()
        o_ref[0:4] = tile[pl.ds(1, 4, 2)]

    call = Case(
        kernel,
        values,
        out=values,
        scratch_shapes=[pltpu.VMEM((8, 128), values.dtype), DMA],
    )
    agree(call)


def agree(this: Case) -> None:
    """Run a case on the machine, and in those of jax's interpreters that run it."""
    found = this.run_on_machine()
    compared = 0
    for mode in ("hlo", "tpu"):
        try:
            expected = this.run(mode)
        except Exception:  # noqa: BLE001 - whatever jax raises where it lacks something
            continue
        compared += 1
        for got, other in zip(found, expected, strict=True):
            assert got.dtype == other.dtype
            # XLA fuses operations, which rounds differently.
            np.testing.assert_allclose(got, other, rtol=1e-6, atol=0, err_msg=mode)
    assert compared


BY_NONE = {"beyond_the_interpreters", "random_bits", "memory_spaces"}
"""Cases that neither of jax's interpreters runs correctly in every supported version."""


# Tests.


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - BY_NONE))
def test_the_machine_agrees_with_jax(name: str) -> None:
    agree(CASES[name]())


def test_the_machine_runs_what_no_interpreter_of_jax_does() -> None:
    (found,) = CASES["beyond_the_interpreters"]().run_on_machine()
    np.testing.assert_array_equal(found[1], X)
    np.testing.assert_array_equal(found[2], np.tile(X[3], (8, 1)))
    for rounded, expected in ((found[3], X), (found[4], X + 1), (found[5], X)):
        np.testing.assert_allclose(rounded, expected, rtol=2**-7)


BY_NO_CASE = {
    *("prng_split", "prng_join", "matmul_push_rhs", "matmul_acc_lhs", "matmul_pop"),
    *("matmul_lhs_fifo", "matmul_pop_fifo", "conv", "empty_ref", "emit_pipeline"),
}
"""Primitives that neither of jax's interpreters runs, so that nothing is to be compared."""

NOT_IN_KERNELS = {
    "custom_fusion": "jax.experimental.pallas.fuser evaluates it",
    "dim_as_value": "only of shapes that are exported",
    "pipeline_body": "behind jax_use_emit_pipeline_primitive",
    "eval_jaxpr": "of types that jax lowers before it traces a kernel",
    "reshard": "of arrays over a mesh",
    "stage": "of values at the top level",
}
"""Primitives with a lowering rule that jax does not put into a kernel, and where they are from."""


def test_every_primitive_has_a_case() -> None:
    covered = set().union(*(make().primitives for make in CASES.values()))
    missing = set(RULES) - covered - BY_NO_CASE - set(NOT_IN_KERNELS)
    assert not missing, (
        f"add a case to {primitive_cases.__file__} for: {', '.join(sorted(missing))}"
    )
    assert not covered & {*BY_NO_CASE, *NOT_IN_KERNELS}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["random_bits", "floats", "barriers"])
def test_a_session_in_mode_auto_agrees(name: str) -> None:
    this = CASES[name]()
    for got, expected in zip(this.run("auto"), this.run_on_machine(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0)
