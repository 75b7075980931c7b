"""The table of kernels that are wrong on purpose: names, lines at fault, lookups, expectations."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pallas_debug_kernels
import pytest
from broken_kernels import BROKEN, BrokenKernel, Fault, JaxEngine, Reaction, broken

FOLDER = Path(pallas_debug_kernels.__file__).parent / "broken"
each = pytest.mark.parametrize("kernel", BROKEN, ids=lambda kernel: kernel.name)


def test_there_are_at_least_40_and_every_name_is_its_own() -> None:
    assert len(BROKEN) >= 40
    assert len({kernel.name for kernel in BROKEN}) == len(BROKEN)
    assert len({kernel.summary for kernel in BROKEN}) == len(BROKEN)


def test_every_class_of_fault_has_a_kernel() -> None:
    assert {kernel.fault for kernel in BROKEN} == set(Fault)
    assert all(fault.value.isalnum() and fault.value[0].isupper() for fault in Fault)
    assert len(set(Fault)) == len(Fault.__members__)


def test_found_by_name() -> None:
    for kernel in BROKEN:
        assert broken(kernel.name) is kernel


def test_unknown_name() -> None:
    with pytest.raises(ValueError) as error:
        broken("sound")
    names = ", ".join(kernel.name for kernel in BROKEN)
    assert str(error.value) == (
        f"There is no broken kernel 'sound'. The broken kernels are: {names}."
    )


@each
def test_the_line_at_fault_is_marked_in_the_kernel(kernel: BrokenKernel) -> None:
    path = Path(kernel.file)
    assert path.parent == FOLDER
    assert path.stem == kernel.topic
    lines = path.read_text().splitlines()
    assert lines[kernel.line - 1].endswith("  # FAULT")
    code = kernel.function.__code__
    assert code.co_firstlineno < kernel.line
    assert f"def {kernel.name}(" in lines[code.co_firstlineno - 1]


def test_every_marker_belongs_to_one_record() -> None:
    marked = {
        (str(path), number)
        for path in FOLDER.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("  # FAULT")
    }
    assert marked == {(kernel.file, kernel.line) for kernel in BROKEN}


@each
def test_the_record_is_complete(kernel: BrokenKernel) -> None:
    assert kernel.summary.endswith(".")
    assert kernel.repaired is not kernel.function
    assert [(a.shape, a.dtype) for a in kernel.make_args()] == [
        (a.shape, a.dtype) for a in kernel.args
    ]
    with jax.enable_x64(kernel.x64):
        wanted = jax.eval_shape(kernel.reference, *kernel.args)
        found = jax.eval_shape(kernel.repaired, *kernel.args)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    with pytest.raises(dataclasses.FrozenInstanceError):
        kernel.summary = "sound"


@each
def test_a_verdict_that_raises_or_prints_says_what(kernel: BrokenKernel) -> None:
    for engine in Engine:
        for verdict in kernel.expected.of(engine):
            speaks = verdict.outcome in (Reaction.RAISES, Reaction.PRINTS, Reaction.ABORTS)
            assert bool(verdict.message) == speaks


def test_fixed_values() -> None:
    table, pages = broken("page_past_the_pool").make_args()
    np.testing.assert_array_equal(table, jnp.array([2, 0, 9]))
    np.testing.assert_array_equal(pages, broken("page_past_the_pool").make_args()[1])
    assert not np.array_equal(pages, broken("page_past_the_pool").make_args(seed=1)[1])


def test_verdicts_differ_by_version() -> None:
    abort = broken("mask_as_column")
    assert (
        abort.expectation(JaxEngine.COMPILE, libtpu_version="0.0.42.1").reaction is Reaction.RAISES
    )
    assert (
        abort.expectation(JaxEngine.COMPILE, libtpu_version="0.0.50.1").reaction is Reaction.ABORTS
    )
    race = broken("read_before_wait")
    assert race.expectation(JaxEngine.TPU_RACES, jax_version="0.10.2").reaction is Reaction.PRINTS
    assert race.expectation(JaxEngine.TPU_RACES, jax_version="0.12.0.1").reaction is Reaction.RAISES


def test_verdicts_differ_by_target() -> None:
    kernel = broken("int8_matmul")
    assert kernel.targets == ("v5e", "v4")
    assert kernel.expectation(JaxEngine.COMPILE, target="v4").reaction is Reaction.RAISES
    assert kernel.expectation(JaxEngine.COMPILE, target="v5e").reaction is Reaction.PASSES
    assert kernel.expectation(JaxEngine.COMPILE).reaction is Reaction.PASSES


def test_what_an_engine_refuses_never_comes_to_the_next() -> None:
    traced = broken("captured_constant")
    assert traced.expectation(JaxEngine.TRACE).reaction is Reaction.RAISES
    for engine in set(Engine) - {JaxEngine.TRACE}:
        assert traced.expectation(engine).reaction is Reaction.NOT_APPLICABLE
    lowered = broken("cumulative_sum")
    assert lowered.expectation(JaxEngine.LOWER).reaction is Reaction.RAISES
    assert lowered.expectation(JaxEngine.COMPILE).reaction is Reaction.NOT_APPLICABLE
    assert lowered.expectation(JaxEngine.HLO).reaction is Reaction.PASSES


def test_two_cores_are_as_one_unless_told() -> None:
    for kernel in BROKEN:
        if kernel.topic not in ("grid", "dma", "semaphores"):
            assert kernel.expected.tpu_races is None
