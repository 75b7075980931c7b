"""A kernel that has no room in a chip's memory is reported before it is compiled or interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug.compiler import job
from pallas_debug.errors import KernelFault
from pallas_debug.verdict import Request, Verdict, Verifier, verify

LARGE = jax.ShapeDtypeStruct((2048, 4096), jnp.float32)

NO_ROOM = "it was not compiled: it does not fit in the chip's memory"


def has_no_room(x: jax.Array, rows: int = 1024) -> jax.Array:
    def has_no_room(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...] * 2

    spec = pl.BlockSpec((rows, 4096), lambda i: (i, 0))
    grid = (x.shape[0] // rows,)
    return pl.pallas_call(has_no_room, out_shape=x, grid=grid, in_specs=[spec], out_specs=spec)(x)


def cells(verdict: Verdict) -> dict[str, tuple[str, str | None, tuple[str, ...]]]:
    return {
        o.column: (o.status, o.reason, tuple(gap.reason for gap in o.gaps))
        for o in verdict.outcomes
        if o.kernel
    }


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Targets that a kernel is compiled for."""
    asked: list[str] = []
    compile_ = job.Jobs.compile

    def noted(self: job.Jobs, captured: Any, target: Any, *rest: Any, **named: Any) -> Any:
        asked.append(target.name)
        return compile_(self, captured, target, *rest, **named)

    monkeypatch.setattr(job.Jobs, "compile", noted)
    return asked


def test_verify_neither_compiles_nor_interprets_it(compiled: list[str]) -> None:
    verdict = verify(has_no_room, LARGE, targets="v5e,v6e")
    (finding,) = verdict.findings
    assert (finding.kind, finding.targets, finding.engines) == (
        "VmemOverflow",
        ("v5e", "v6e"),
        ("static",),
    )
    assert compiled == []
    why = "nothing was interpreted: kernel `has_no_room` does not fit into the memory of v5e, v6e"
    assert cells(verdict) == {
        "static": ("found", None, ()),
        "v5e": ("found", None, (NO_ROOM,)),
        "v6e": ("found", None, (NO_ROOM,)),
        "machine": ("unjudged", why, ()),
    }


def ended_with(run: Callable[[], Any]) -> Callable[[], BaseException | None]:
    def program() -> BaseException | None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - as a command runs it
            return error
        return None

    return program


def raises_before_its_branch_is_taken() -> None:
    small = jnp.ones((8, 4096))
    jax.jit(lambda n: jax.lax.cond(n > 0, lambda: has_no_room(small, 8), lambda: small))(0)
    raise ValueError("after the call")


@pytest.mark.parametrize(
    "run,engines,reason",
    [
        (
            lambda: has_no_room(jnp.ones(LARGE.shape)),
            "static,compile,machine",
            "it did not run: it does not fit in the chip's memory",
        ),
        (
            raises_before_its_branch_is_taken,
            "static,machine",
            "the program stopped before the kernel had run to its end: ValueError: after the call",
        ),
    ],
)
def test_a_kernel_that_a_program_does_not_reach(
    run: Callable[[], Any], engines: str, reason: str
) -> None:
    request = Request(engines=engines, targets="v5e")
    verdict = Verifier("script").of_program(ended_with(run), request)
    assert cells(verdict)["machine"] == ("unjudged", reason, ())


def test_the_machine_is_not_said_to_have_found_what_kept_a_program_from_running() -> None:
    request = Request(engines="static,machine", targets="v5e")
    run = ended_with(lambda: has_no_room(jnp.ones(LARGE.shape)))
    verdict = Verifier("script").of_program(run, request)
    assert cells(verdict) == {
        "static": ("found", None, ()),
        "machine": ("unjudged", "it did not run: it does not fit in the chip's memory", ()),
    }


@pytest.mark.slow
def test_verify_goes_on_with_the_targets_that_it_fits(compiled: list[str]) -> None:
    small = jax.ShapeDtypeStruct((640, 4096), jnp.float32)
    verdict = verify(has_no_room, small, 320, targets="v5e,v6e")
    assert [f.targets for f in verdict.findings] == [("v5e",)]
    assert set(compiled) == {"v6e"}
    assert {column: status for column, (status, *_) in cells(verdict).items()} == {
        "static": "found",
        "v5e": "found",
        "v6e": "ok",
        "machine": "ok",
    }


def test_check_stops_before_it_runs() -> None:
    ran = []

    def called(x: jax.Array) -> jax.Array:
        y = has_no_room(x)
        ran.append(y)
        return y

    x = jnp.zeros((2048, 4096))
    with pytest.raises(KernelFault, match="VmemOverflow in kernel `has_no_room`") as caught:
        pallas_debug.check(called, "index")(x)
    assert caught.value.finding is not None
    assert caught.value.finding.targets == ("v4", "v5e", "v5p", "v6e", "tpu7x")
    assert ran == []


def test_check_judges_the_chip_that_it_is_told() -> None:
    def halves(x: jax.Array) -> jax.Array:
        return has_no_room(x, 320)

    x = jnp.zeros((640, 4096))
    report, _ = pallas_debug.check(halves, "index")(x)  # fits v6e
    assert report.ok
    with pytest.raises(KernelFault, match="VmemOverflow"):
        pallas_debug.check(halves, "index", chip="v5e")(x)
