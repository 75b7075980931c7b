"""Races between the cores of a device, which share its HBM, and semaphores between them."""

from __future__ import annotations

import linecache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.model import Finding
from pallas_debug.session import Options, Session
from tests.meshes import tensorcore_mesh

F32 = jnp.float32
TILE = pltpu.VMEM((8, 128), F32)
HALVES = jax.ShapeDtypeStruct((2, 8, 128), F32)
X = np.arange(2 * 8 * 128, dtype=np.float32).reshape(2, 8, 128)


def sanitized(function: Any, x: Any = X) -> tuple[tuple[Finding, ...], Any]:
    with Session(Options(interpret="machine,sanitize", chip="v5p")) as session:
        try:
            out = jax.block_until_ready(jax.jit(function)(x))
        except Exception:  # noqa: BLE001 - a deadlock, which is a finding
            out = None
    assert not session.unchecked
    return session.observer.findings, out


def swapped(x: Any, order: str) -> Any:
    """Each core reads what the other has written to HBM."""

    @pl.kernel(
        out_type=[HALVES] * 2,
        mesh=tensorcore_mesh(2),
        scratch_types=[TILE, TILE, pltpu.SemaphoreType.REGULAR],
    )
    def swap(x_ref: Any, shared_ref: Any, out_ref: Any, tile: Any, theirs: Any, sem: Any) -> None:
        core = jax.lax.axis_index("core")
        pltpu.sync_copy(x_ref.at[core], tile)
        if order == "too early":
            pl.semaphore_signal(sem, 1, core_index=1 - core)
            pl.semaphore_wait(sem, 1)
        pltpu.sync_copy(tile, shared_ref.at[core])
        if order == "core_barrier":
            pltpu.core_barrier(pltpu.get_barrier_semaphore(), core_axis_name="core")
        if order in ("signal", "to itself"):
            pl.semaphore_signal(sem, 1, core_index=core if order == "to itself" else 1 - core)
            pl.semaphore_wait(sem, 1)
        pltpu.sync_copy(shared_ref.at[1 - core], theirs)
        pltpu.sync_copy(theirs, out_ref.at[core])

    return swap(x)[1]


@pytest.mark.parametrize("order", ["signal", "core_barrier"])
def test_cores_in_order(order: str) -> None:
    findings, out = sanitized(lambda x: swapped(x, order))
    assert not findings
    np.testing.assert_array_equal(out, X[::-1])


@pytest.mark.parametrize("order, reader", [("none", 0), ("to itself", 0), ("too early", 1)])
def test_what_another_core_writes_is_read_in_no_order(order: str, reader: int) -> None:
    (finding,), _ = sanitized(lambda x: swapped(x, order))
    assert (str(finding.kind), finding.operand) == ("DataRace", "shared_ref")
    source, other = (linecache.getline(at.file, at.line) for at in (finding.source, finding.other))
    assert "sync_copy(shared_ref.at[1 - core], theirs)" in source
    assert "sync_copy(tile, shared_ref.at[core])" in other
    assert finding.witness.index == f"shared_ref[{1 - reader}, 0:8, 0:128]"
    writer = 1 - reader
    for core, side in zip((reader, writer), finding.message.splitlines(), strict=True):
        assert side.endswith(f" at grid point ({core},) on core {core}")
    assert finding.cause == (
        "two cores access the same memory, and no semaphore orders the accesses"
    )
    assert finding.advice == (
        f"let core {writer} signal core {reader}, which waits for that, or call "
        "pltpu.core_barrier in between"
    )
    assert {str(found.kind) for found in finding.consequences} <= {"UninitializedRead"}


@pytest.mark.parametrize("step, is_broken", [(8, True), (12, False)])
def test_cores_write_the_same_rows(step: int, is_broken: bool) -> None:
    def spread(x: Any) -> Any:
        @pl.kernel(
            out_type=jax.ShapeDtypeStruct((12 + step, 128), F32),
            mesh=tensorcore_mesh(2),
            scratch_types=[pltpu.VMEM((12, 128), F32)],
        )
        def rows(x_ref: Any, out_ref: Any, tile: Any) -> None:
            core = jax.lax.axis_index("core")
            pltpu.sync_copy(x_ref, tile)
            pltpu.sync_copy(tile, out_ref.at[pl.ds(core * step, 12)])

        return rows(x)

    findings, _ = sanitized(spread, np.ones((12, 128), np.float32))
    if not is_broken:
        assert not findings
        return
    (finding,) = findings
    assert str(finding.kind) == "DataRace"
    assert "out_ref[8:20, 0:128]" in finding.message
    assert "; both access out_ref[8:12, 0:128]" in finding.message


def handed_over(x: Any, to: int) -> Any:
    """Core 0 writes, signals core `to`, and core 1 waits for the signal."""

    @pl.kernel(
        out_type=[jax.ShapeDtypeStruct((8, 128), F32)] * 2,
        mesh=tensorcore_mesh(2),
        scratch_types=[TILE, pltpu.SemaphoreType.REGULAR],
    )
    def hand_over(x_ref: Any, shared_ref: Any, out_ref: Any, tile: Any, sem: Any) -> None:
        core = jax.lax.axis_index("core")

        @pl.when(core == 0)
        def _() -> None:
            pltpu.sync_copy(x_ref.at[0], tile)
            pltpu.sync_copy(tile, shared_ref)
            pl.semaphore_signal(sem, 1, core_index=to)

        @pl.when(core == 1)
        def _() -> None:
            pl.semaphore_wait(sem, 1)
            pltpu.sync_copy(shared_ref, tile)
            pltpu.sync_copy(tile, out_ref)

    return hand_over(x)[1]


def test_a_signal_to_the_wrong_core() -> None:
    """The two kernels differ in the core alone, which jax does not print."""
    for _ in range(2):
        findings, out = sanitized(lambda x: handed_over(x, 1))
        assert not findings
        np.testing.assert_array_equal(out, X[0])
        (finding,), _ = sanitized(lambda x: handed_over(x, 0))
        assert str(finding.kind) == "Deadlock"
        assert finding.message.startswith("sem on core 1 is at 0, but the wait needs 1")
        assert finding.cause == "it is signalled less often than it is waited for"
        assert "on the device and core that waits" in finding.advice


def test_kernels_that_signal_other_cores_have_digests_of_their_own() -> None:
    digests = []
    for to in (0, 1, 0):
        with Session(Options(interpret="machine", chip="v5p")) as session:
            jax.jit(lambda x, to=to: handed_over(x, to)).lower(X)
        digests += [kernel.digest for kernel in session.kernels]
    assert digests[0] == digests[2] != digests[1]
