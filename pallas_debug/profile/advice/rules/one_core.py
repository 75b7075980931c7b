"""Advice: the whole grid runs on one core of a chip, as no axis is declared parallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pallas_debug.profile.advice.advice import Advice, AdviceKind, derived
from pallas_debug.profile.advice.pipelines import has_own_blocks, ordered_axes
from pallas_debug.profile.advice.subject import AdviceSubject

MIN_GAIN = 0.25
"""Minimum share of a step's cycles that the other core would save."""

CORES: Mapping[str, int] = {"v5p": 2}
"""Cores of a jax device, for chips on which libtpu has been observed to split a grid over cores."""


def advise_one_core(subject: AdviceSubject) -> Iterator[Advice]:
    cores = CORES.get(subject.schedule.chip or "", 1)
    blocks, step = subject.blocks, subject.step
    if cores == 1 or subject.cores > 1 or blocks is None or step is None or any(blocks.parallel):
        return
    # All cores share the bandwidth of HBM.
    gain = 1 - max(step.compute / cores, step.copies) / step.total if step.total else 0.0
    if gain < MIN_GAIN or subject.kernel.aliases or len(blocks.pipelined) < len(blocks.operands):
        return
    ordered = ordered_axes(subject, blocks)
    if ordered is None:
        return
    outputs = [o for o in blocks.pipelined if o.kind == "output"]
    # Inside of an axis whose index is read, a step may depend on scratch of the previous step.
    # Outside of all such axes, the first index starts with unwritten scratch, so others may, too.
    axes = [
        axis
        for axis, size in enumerate(blocks.grid[: min(ordered, default=len(blocks.grid))])
        if size >= cores and all(has_own_blocks(o, axis) for o in outputs)
    ]
    if not axes:
        return
    axis = max(axes, key=lambda axis: (blocks.grid[axis] % cores == 0, blocks.grid[axis]))
    semantics = ["parallel" if n == axis else "arbitrary" for n in range(len(blocks.grid))]
    listed = "".join(f'"{name}", ' for name in semantics).rstrip()
    yield KIND.advice(
        source=subject.kernel.source,
        message=(
            f"all {blocks.points:,} steps of the grid run on one core, but "
            f"{subject.schedule.chip} has {cores}, which can share a grid along an axis that "
            "is declared parallel"
        ),
        remedy=(
            f"declare axis {axis} parallel, since no step along it depends on another one: "
            f"compiler_params=pltpu.CompilerParams(dimension_semantics="
            f"({listed if len(semantics) == 1 else listed.rstrip(',')}))"
        ),
        evidence=(
            derived("grid steps", blocks.points),
            derived("indices of that axis", blocks.grid[axis]),
            derived("cycles that a step computes", round(step.compute), unit="cycles"),
            derived("cycles that its copies take", round(step.copies), unit="cycles"),
        ),
    )


KIND = AdviceKind(
    name="one-core",
    title="A grid on one of two cores",
    condition=(
        f"On {', '.join(CORES)}, no axis of the grid is declared parallel, but one could be (the "
        "kernel does not read its index, it encloses the axes whose indices the kernel reads, and "
        "each output has its own blocks along it), and the other core would save at least "
        f"{MIN_GAIN:.0%} of a step's cycles."
    ),
    remedy="Declare the axis parallel in `dimension_semantics`.",
    rule=advise_one_core,
)
