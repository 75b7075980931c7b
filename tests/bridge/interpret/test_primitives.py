"""Every primitive that a TPU kernel may use: both interpreters and the machine agree on it.

An interpreter that lacks one refuses it by name.

The primitives are those with a lowering rule for the tensor core. One without a case, and without a
reason in `REFUSED` or `NOT_IN_KERNELS`, fails `test_every_primitive_has_a_case` by name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import primitive_cases
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from primitive_cases import BF16, CASES, DMA, RULES, Case, N

from pallas_debug.bridge import chip
from pallas_debug.bridge.interpret import limits
from pallas_debug.compiler.targets import BUILTIN
from pallas_debug.errors import InterpretModeError
from pallas_debug.session import Options, Session


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
    """Run a case on the machine and in both interpreters, or in the one that `auto` selects."""
    why = limits.why_not_hlo(this.equation.params)
    results = {"machine": this.run_on_machine()}
    if this.hlo is not None:
        assert why is not None
        assert this.hlo in why
        results["tpu"] = this.run("auto")
        with contextlib.suppress(InterpretModeError):  # equal, or refused by name
            results["hlo"] = in_session(this, "hlo")
    else:
        assert why is None
        results.update(hlo=this.run("hlo"), tpu=this.run("tpu"))
    if "prng_random_bits" in this.primitives:  # the TPU's numbers are not documented
        results.pop("machine")
    for name, found in results.items():
        for got, expected in zip(found, results["tpu"], strict=True):
            assert got.dtype == expected.dtype
            # XLA fuses operations, which rounds differently.
            np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0, err_msg=name)


def in_session(this: Case, mode: str) -> list[np.ndarray]:
    with Session(Options(interpret=mode, chip="v5e")):
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(this.call)(*this.args))]


# Tests.


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_both_interpreters_agree(name: str) -> None:
    agree(CASES[name]())


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
    missing = set(RULES) - covered - set(limits._NOWHERE) - set(NOT_IN_KERNELS)
    assert not missing, (
        f"add a case to {primitive_cases.__file__} for: {', '.join(sorted(missing))}"
    )
    assert not covered & {*limits._NOWHERE, *NOT_IN_KERNELS}


def test_auto_needs_the_machine_for_random_bits_alone() -> None:
    needed = {n for n, make in CASES.items() if limits.why_machine(make().equation.params)}
    assert needed == {"random_bits"}


@pytest.mark.parametrize("name", ["random_bits", "floats", "barriers"])
def test_a_session_in_mode_auto_agrees(name: str) -> None:
    this = CASES[name]()
    for got, expected in zip(in_session(this, "auto"), this.run_on_machine(), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=0)


def test_what_no_interpreter_runs_is_refused_by_name() -> None:
    def kernel(x_ref: Any, o_ref: Any) -> None:
        pltpu.matmul_push_rhs(x_ref[...], staging_register=0, mxu_index=0)  # the push
        o_ref[...] = x_ref[...]

    for mode in ("auto", "hlo", "tpu"):
        with pytest.raises(InterpretModeError) as caught:
            Case(kernel, jnp.zeros((128, 128), BF16), out=jnp.zeros((128, 128), BF16)).run(mode)
        assert str(caught.value).startswith(
            "kernel `kernel` cannot be interpreted: jax's interpreters have no operations on the "
            f"registers of the MXU ({__file__}:"
        )
        assert str(caught.value).endswith("# the push). Run it on a TPU")
