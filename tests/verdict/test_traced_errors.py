"""Errors while a call is traced: where they are, who raises them, and what to do."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from meshes import tensorcore_mesh
from small_calls import ROWS, X, called, one

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
        "body": lambda x: pl.kernel(fails, out_type=x, mesh=tensorcore_mesh(), name="body")(x),
    }
    for name, function in functions.items():
        assert one(function, X, engines="static").kernel == name


def own(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * (1 / 0)


def attribute(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = pl.BlockSpec((8, 128)).no_such_attribute


def refused(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = jnp.reshape(x_ref[...], (3, 3))


def of_numpy(x: Any) -> Any:
    np.linalg.inv(np.zeros((3, 4)))
    return called()(x)


def not_installed(x: Any) -> Any:
    import no_such_module

    return no_such_module.scale(x)


def scaled(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...] * pl.program_id(0).astype(jnp.float32)


SCALED = called(scaled, grid=(2,), in_specs=[ROWS], out_specs=ROWS)
FIX = "fix this line: it raises the exception itself"


@pytest.mark.parametrize(
    "function, message, advice",
    [
        (called(own), "ZeroDivisionError: division by zero", FIX),
        (called(attribute), "'BlockSpec' object has no attribute 'no_such_attribute'", FIX),
        (called(refused), "", "fix what the message names: jax rejected the call while tracing it"),
        (of_numpy, "square", "fix what the message names: numpy raised the exception, not jax"),
        (not_installed, "'no_such_module'", "install the package that the message names"),
        (
            jax.grad(lambda x: SCALED(x).sum()),
            "while jax differentiates",
            "wrap the call in jax.cu",
        ),
        (
            lambda x: called()(x) + pl.program_id(0),
            "outside of a kernel",
            "call it in the kernel f",
        ),
    ],
)
def test_who_raised_an_exception_and_what_to_do(function: Any, message: str, advice: str) -> None:
    finding = one(function, X, engines="static")
    assert message in finding.message
    assert str(finding.advice).startswith(advice)
    assert finding.source.file == __file__


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
    assert finding.advice == f"{FIX}; if it needs a TPU, pass --pretend"

    def places(x: Any) -> Any:
        return x if sorted(device.coords for device in jax.devices()) else None

    finding = one(places, X, engines="static")
    assert finding.advice.endswith("; if it needs a TPU, pass --pretend")
    with pretending(("v5e",)):
        finding = one(called(refuses), X, engines="static")
    assert finding.advice.endswith(
        "; the chip that it queries is v5e here: --target names another one"
    )
