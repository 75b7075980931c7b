"""Records of the broken kernels: names, faulty lines, lookups, refusals."""

import dataclasses
from pathlib import Path

import broken_kernels
import jax
import pallas_debug_kernels.broken as bundled
import pytest
from broken_kernels import (
    ALL,
    BROKEN,
    BUNDLED,
    FOR_GPU,
    BrokenKernel,
)

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind

FOLDERS = [Path(package.__file__).parent for package in (bundled, broken_kernels)]
each = pytest.mark.parametrize("kernel", [*ALL, *FOR_GPU], ids=lambda kernel: kernel.name)


def test_there_are_at_least_40_and_every_name_is_its_own() -> None:
    assert len(BROKEN) >= 40
    assert len({kernel.name for kernel in ALL}) == len(ALL)
    assert len({kernel.summary for kernel in ALL}) == len(ALL)


WITHOUT_A_KERNEL = {
    Fault.PRINT_NOT_SUPPORTED: "tests/explain",
    Fault.REMOVED_NAME: "tests/verdict/test_removed.py",
    Fault.ZERO_SIZE_OPERAND: "tests/analysis",
    Fault.UNSEEDED_RANDOM_BITS: "tests/machine/sanitizer/test_random_bits.py",
    Fault.UNSUPPORTED_LAYOUT: "tests/explain",
    Fault.TRACE_ERROR: "what has no kind of its own",
    Fault.MISPLACED_OPERAND: "tests/verdict/test_placement.py",
    Fault.LOWERING_ERROR: "what has no kind of its own",
    Fault.COMPILE_ERROR: "what has no kind of its own",
}


def test_every_fault_has_a_kernel() -> None:
    found = {Fault(kernel.fault) for kernel in (*ALL, *FOR_GPU)}
    assert found.isdisjoint(WITHOUT_A_KERNEL)
    assert found | set(WITHOUT_A_KERNEL) == set(Fault)


@each
def test_the_record_is_complete(kernel: BrokenKernel) -> None:
    assert Fault(kernel.fault).value == kernel.fault  # the name of today, not a former one
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
    named = {target for refusal in kernel.refused for target in refusal.targets}
    assert named <= set(kernel.targets)
    assert kernel.hint is None or (HintKind(kernel.hint) and kernel.fault == "ValueMismatch")


@each
def test_the_faulty_line_is_marked_in_the_kernel(kernel: BrokenKernel) -> None:
    path = Path(kernel.file)
    assert path.parent == FOLDERS[kernel not in BUNDLED]
    assert path.stem == kernel.topic
    lines = path.read_text().splitlines()
    assert lines[kernel.line - 1].endswith("  # FAULT")


def test_every_marker_belongs_to_one_record() -> None:
    marked = {
        (str(path), number)
        for folder in FOLDERS
        for path in folder.glob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("  # FAULT")
    }
    assert marked == {(kernel.file, kernel.line) for kernel in (*ALL, *FOR_GPU)}
