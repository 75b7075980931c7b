"""Errors while a call is traced: where they are, who raises them, and what to do."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from small_calls import ROWS, X, called, copy, one

from pallas_debug.errors import CannotRunError
from pallas_debug.session import pretending
from pallas_debug.verdict import Request, Verifier, verify


def test_only_what_fails_in_a_kernel_is_said_to_be_in_one() -> None:
    def fails(*_: Any) -> None:
        raise ValueError("not today")

    def no_kernel(x: Any) -> Any:
        return fails() or called()(x)

    short = pl.BlockSpec((8,), lambda i: (i,))
    functions = {
        "no kernel": no_kernel,
        "fails": called(functools.partial(fails)),
        "named": called(fails, name="named"),
        "copy": called(in_specs=[short]),
        "body": lambda x: pl.kernel(
            fails, out_type=x, mesh=pltpu.create_tensorcore_mesh("core"), name="body"
        )(x),
    }
    for name, function in functions.items():
        assert one(function, X, engines="static").kernel == name


def test_an_exception_of_the_users_own_code_is_not_said_to_be_of_jax() -> None:
    def fails(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * (1 / 0)

    finding = one(called(fails), X, engines="static")
    assert finding.source is not None
    assert finding.source.text == "o_ref[...] = x_ref[...] * (1 / 0)"
    assert (finding.kind, finding.message) == ("TraceError", "ZeroDivisionError: division by zero")
    assert finding.advice == "fix this line: it raises the exception itself"


def test_jax_may_be_involved_where_an_object_of_its_has_no_such_attribute() -> None:
    def fails(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = pl.BlockSpec((8, 128)).no_such_attribute

    finding = one(called(fails), X, engines="static")
    assert finding.message.endswith("'BlockSpec' object has no attribute 'no_such_attribute'")
    assert finding.advice == "fix this line: it raises the exception itself"


def test_a_name_that_a_module_lacks_is_not_put_down_to_the_chip() -> None:
    def fails(x: Any) -> Any:
        platform = jax.lib.no_such_bridge.get_backend().platform
        return called()(x) if platform else x

    with pretending(("v5e",)):
        finding = one(fails, X, engines="static")
    assert finding.message.endswith("module 'jax.lib' has no attribute 'no_such_bridge'")
    assert finding.advice == "fix this line: it raises the exception itself"


def test_the_error_that_ends_a_program_is_explained() -> None:
    traces = []

    def ends(x: Any) -> Any:
        traces.append(x)
        if len(traces) > 1:  # when it runs
            raise RuntimeError(
                "No registered implementation for untyped custom call to "
                "xla.sdy.GlobalToLocalShape for Host"
            )
        return called()(x)

    (outcome,) = verify(ends, X, targets="v5e", engines="machine").unjudged
    assert outcome.reason is not None
    assert "the program stopped before the kernel had run to its end: " in outcome.reason
    assert outcome.reason.endswith(
        ": a program for a mesh runs on fewer devices than the mesh has; run it on as many "
        "devices; on a CPU, set XLA_FLAGS=--xla_force_host_platform_device_count=N before jax is "
        "imported"
    )


def test_a_program_that_is_stopped_before_its_kernel_is_not_said_to_have_none() -> None:
    stop = CannotRunError("the kernel is too long")
    verdict = Verifier("script.py").of_program(
        lambda: stop, Request(targets="v5e", engines="machine")
    )
    assert (verdict.ok, verdict.findings) == (False, ())
    assert "where it stopped: CannotRunError: the kernel is too long" in verdict.problems[0]


def test_code_that_stops_without_a_tpu_is_told_of_pretending() -> None:
    def refuses(x_ref: Any, o_ref: Any) -> None:
        raise ValueError("this TPU has no SparseCore")

    def fails(x: Any) -> Any:
        assert jax.default_backend() == "tpu", "run this elsewhere"
        return x

    finding = one(fails, X, engines="static")
    assert finding.message == "AssertionError: run this elsewhere"
    assert finding.advice == (
        "fix this line: it raises the exception itself; if the cause is that there is no TPU "
        "here, pass --pretend"
    )

    def places(x: Any) -> Any:
        return x if sorted(device.coords for device in jax.devices()) else None

    finding = one(places, X, engines="static")
    assert finding.advice is not None
    assert finding.advice.endswith("; if the cause is that there is no TPU here, pass --pretend")
    with pretending(("v5e",)):
        finding = one(called(refuses), X, engines="static")
    assert finding.advice is not None
    assert finding.advice.endswith(
        "; the chip that it queries is v5e here: --target names another one"
    )


def test_an_exception_of_another_package_is_not_said_to_be_of_jax() -> None:
    def fails(x: Any) -> Any:
        np.linalg.inv(np.zeros((3, 4)))
        return called()(x)

    finding = one(fails, X, engines="static")
    assert finding.message == "LinAlgError: Last 2 dimensions of the array must be square"
    assert finding.source is not None
    assert finding.source.text == "np.linalg.inv(np.zeros((3, 4)))"
    assert finding.advice == "fix what the message names: numpy raised the exception, not jax"

    def compares(x: Any) -> Any:
        np.testing.assert_array_equal(np.zeros(2), np.ones(2))
        return called()(x)

    finding = one(compares, X, engines="static")
    assert finding.message == "AssertionError: Arrays are not equal"
    assert finding.source is not None
    assert finding.source.text == "np.testing.assert_array_equal(np.zeros(2), np.ones(2))"


@pytest.mark.parametrize("code", ["if x\n", "if x:\ny"], ids=["syntax", "indentation"])
def test_a_file_that_python_cannot_compile_is_not_said_to_be_refused_by_jax(code: str) -> None:
    def fails(x: Any) -> Any:
        compile(f"x = 1\n{code}", "rows.py", "exec")
        return called()(x)

    finding = one(fails, X, engines="static")
    assert finding.message in (
        "SyntaxError: expected ':'",
        "IndentationError: expected an indented block after 'if' statement on line 2",
    )
    assert finding.source is not None
    assert (finding.source.file, finding.source.text) == ("rows.py", code.split("\n")[-1] or "if x")
    assert finding.advice == "fix this line: it raises the exception itself"


def test_a_module_that_is_not_there_is_to_be_installed() -> None:
    def fails(x: Any) -> Any:
        import no_such_module

        return no_such_module.scale(x)

    finding = one(fails, X, engines="static")
    assert finding.message == "ModuleNotFoundError: No module named 'no_such_module'"
    assert finding.advice == "install the package that the message names, or correct the import"


def test_a_kernel_called_with_arrays_is_not_said_to_store_to_a_value() -> None:
    def indexed(o_ref: Any) -> None:
        o_ref[pl.program_id(0)] = 1

    for finding in (one(copy, X, X, engines="static"), one(indexed, X, engines="static")):
        assert finding.message.endswith(" is a kernel, and was called with arrays")
        assert finding.advice == (
            "name or call the function that passes this kernel to pl.pallas_call"
        )

    def assigns(x_ref: Any, o_ref: Any) -> None:
        x_ref[...].__setitem__(0, 1)

    assert "immutable" in one(called(assigns), X, engines="static").message


def test_a_refusal_by_jax_is_said_to_be_of_jax() -> None:
    def fails(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.reshape(x_ref[...], (3, 3))

    assert one(called(fails), X, engines="static").advice == (
        "fix what the message names: jax rejected the call while tracing it"
    )


def test_program_id_under_grad_is_explained() -> None:
    def scaled(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * pl.program_id(0).astype(jnp.float32)

    call = called(scaled, grid=(2,), in_specs=[ROWS], out_specs=ROWS)
    finding = one(jax.grad(lambda x: call(x).sum()), X, engines="static")
    assert finding.message.endswith("in axis_frame, while jax differentiates the kernel")
    assert finding.cause is not None
    assert "pl.program_id and pl.num_programs have no value" in finding.cause
    assert finding.advice is not None
    assert finding.advice.startswith("wrap the call in jax.custom_vjp")


def test_program_id_outside_of_a_kernel_is_explained() -> None:
    finding = one(lambda x: called()(x) + pl.program_id(0), X, engines="static")
    assert finding.message.endswith("in axis_frame, outside of a kernel")
    assert finding.advice is not None
    assert finding.advice.startswith("call it in the kernel function")


@pytest.mark.parametrize("params", [{"mosaic": {}}, {"triton": {"num_warps": 4}}])
def test_compiler_parameters_in_a_dict(params: Any) -> None:
    """As up to jax 0.4; in ring-attention and linearnexus."""
    finding = one(called(compiler_params=params), X, engines="static,compile")
    assert finding.message == "pallas_call() got a dict as compiler_params"
    assert finding.advice == (
        "write pltpu.CompilerParams(…) in place of dict(mosaic=dict(…)), and CompilerParams(…) of "
        "jax.experimental.pallas.triton in place of dict(triton=dict(…))"
    )


def test_an_argument_of_a_kernel_that_was_renamed() -> None:
    """As up to jax 0.9; in tutorials."""

    def call(x: Any) -> Any:
        mesh: Any = None
        return pl.kernel(copy, out_shape=x, mesh=mesh)(x)

    finding = one(call, X, engines="static")
    assert finding.advice == (
        "write out_type= in place of out_shape=, and scratch_types= in place of scratch_shapes="
    )
