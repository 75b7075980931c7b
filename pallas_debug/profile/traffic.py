"""Bytes copied compared with work done: per grid step, and as a roofline.

Only bytes of copies that the kernel starts are counted, not those that XLA moves before and after
it, such as operands that it keeps in VMEM. Operations are those of the matrix products in the
kernel's Mosaic module, multiplied by how often the compiled products run, and those of vector
instructions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.chips import LANES, SUBLANES, Chip, chip_of
from pallas_debug.ir.mosaic import PRODUCT, operations
from pallas_debug.ir.operations import Module
from pallas_debug.profile import units
from pallas_debug.profile.core.copies import CopyModel, copy_model
from pallas_debug.profile.cycles import AS_LOCAL, CycleEstimate
from pallas_debug.profile.figures import Figure, missing, origin_of, total
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Chain, Tracing

Bound = Literal["memory", "compute", "latency"]

REGISTER = SUBLANES * LANES
"""Number of 32-bit elements in a vector register."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """Matrix products at one place of the kernel.

    Attributes:
      flops: operations of one execution; a multiply-add counts as two.
      dtype: MLIR name of the operand type.
      runs: number of executions; None if the compiled product was not found.
    """

    chain: Chain
    flops: int
    dtype: str
    runs: float | None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Copies compared with work.

    Attributes:
      read, written: bytes from and to HBM, over all steps of one core.
      read_per_step, written_per_step: average bytes per grid step from and to HBM.
      flops: operations of matrix products.
      vector_operations: element-wise operations of vector instructions.
      compute_per_step: cycles of a grid step in which bundles issue or delay.
      copies_per_step: cycles to copy the bytes of a grid step at the chip's bandwidth of HBM, or
        those from or to SMEM if that takes longer.
      bound: "memory" if the bytes of the copies take longer than computation, and most of a step;
        "latency" if the core waits for copies longer than it computes, for another reason; else
        "compute". None if one is unknown, or for copies to other devices, whose time is unknown.
      roofline: minimum time that the published peaks allow, in seconds.
      attained: share of the roofline: `roofline` over our estimate at the chip's clock.
      source: page with the published peaks; empty for an unknown chip.
      resident: operands that XLA placed in VMEM as a whole: the kernel does not copy them, and
        XLA's own copies are not counted.
    """

    read: Figure
    written: Figure
    read_per_step: Figure
    written_per_step: Figure
    flops: Figure
    vector_operations: Figure
    compute_per_step: Figure
    copies_per_step: Figure
    bound: Bound | None
    roofline: Figure
    attained: Figure
    source: str = ""
    resident: tuple[str, ...] = ()


def traffic_of(
    schedule: Schedule, tracing: Tracing, cycles: CycleEstimate, mosaic: Module | None
) -> Traffic:
    """Compare a kernel's copies with its work."""
    chip = chip_of(schedule.chip) if not schedule.is_sparse else None
    model, _ = copy_model(schedule.chip)
    products = products_of(schedule, tracing, cycles.executions, mosaic)
    read, written = _copied(cycles, "hbm_to_"), _copied(cycles, "_to_hbm")
    flops, steps = _flops(products, cycles, mosaic), cycles.core_steps
    moved = total(read, written, note="from and to HBM")
    average = "average over the grid"
    compute = _over(cycles.compute, steps, "cycles", average)
    copying = _over(
        _copying(cycles, moved, model), steps, "cycles", "at the bandwidth of HBM, without latency"
    )
    if chip is None:
        name = "the SparseCore" if schedule.is_sparse else schedule.chip or "this target"
        roofline = attained = missing(f"no peaks are published for {name}", unit="s")
    else:
        roofline = _roofline(flops, moved, products, chip)
        clock = Figure(value=chip.clock, origin="assumed")
        time = _over(cycles.total, clock, "s", "our estimate at the published clock")
        attained = _over(roofline, time, "", "of what the published peaks allow")
    bound = _bound(compute, copying, _over(cycles.waiting, steps, "cycles", ""))
    if AS_LOCAL in cycles.assumptions:
        bound, attained = None, missing("the cycles do not include the links between devices")
    return Traffic(
        read=read,
        written=written,
        read_per_step=_over(read, steps, "bytes", average),
        written_per_step=_over(written, steps, "bytes", average),
        flops=flops,
        vector_operations=_vector_operations(schedule, cycles),
        compute_per_step=compute,
        copies_per_step=copying,
        bound=bound,
        roofline=roofline,
        attained=attained,
        source=chip.source if chip else "",
    )


def products_of(
    schedule: Schedule, tracing: Tracing, executions: Sequence[float], mosaic: Module | None
) -> tuple[Product, ...]:
    """Return the matrix products of the Mosaic module, with how often the compiled products run."""
    if mosaic is None:
        return ()
    # jax writes the body of a loop a second time, for iterations left over by unrolling: products
    # of one line add up within a region, and the region with most of them counts.
    in_region: dict[Chain, dict[int, tuple[int, str]]] = defaultdict(dict)
    for product in operations(mosaic, PRODUCT):
        if product.flops is not None:
            line = product.line
            region = max((r.start for r in mosaic.regions if r.start < line < r.stop), default=-1)
            flops, _ = in_region[mosaic.source(line)].get(region, (0, ""))
            in_region[mosaic.source(line)][region] = flops + product.flops, product.types[0].dtype
    found = {chain: max(regions.values()) for chain, regions in in_region.items()}
    runs: dict[Chain, list[float]] = defaultdict(list)
    by_line: dict[Chain, list[float]] = defaultdict(list)
    for at, traces in enumerate(tracing.traces):
        for instruction, trace in zip(schedule.bundles[at].instructions, traces, strict=True):
            if instruction.opcode.startswith("vmatmul") and at < len(executions):
                runs[trace.chain].append(executions[at])
                by_line[trace.chain[:1]].append(executions[at])
    everywhere = [count for counts in runs.values() for count in counts]
    return tuple(
        Product(
            chain=chain,
            flops=flops,
            dtype=dtype,
            runs=_mean(runs.get(chain) or by_line.get(chain[:1]) or everywhere),
        )
        for chain, (flops, dtype) in found.items()
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _flops(products: Sequence[Product], cycles: CycleEstimate, mosaic: Module | None) -> Figure:
    if mosaic is None:
        return missing("there is no Mosaic module")
    if any(product.runs is None for product in products) or not cycles.total.is_known:
        return missing("the number of times the products run is unknown")
    flops = sum(product.flops * (product.runs or 0) for product in products)
    note = "of the products in the Mosaic module, times how often the compiled ones run"
    return Figure(value=round(flops), origin=cycles.total.origin, note=note)


def _vector_operations(schedule: Schedule, cycles: CycleEstimate) -> Figure:
    if not cycles.executions or not cycles.total.is_known:
        return missing("the number of times the bundles run is unknown")
    elements = sum(
        count * REGISTER
        for count, bundle in zip(cycles.executions, schedule.bundles, strict=True)
        for i in bundle.instructions
        if units.slot_of(i.opcode) == units.VALU
    )
    note = f"{REGISTER} for each vector instruction, as for 32 bits"
    return Figure(value=round(elements), origin=cycles.total.origin, note=note)


def _copied(cycles: CycleEstimate, direction: str) -> Figure:
    if not cycles.total.is_known:
        return missing(cycles.total.note, unit="bytes")
    if any("_to_" not in name for name in cycles.copied):
        return missing("the memories of some copies are unknown", unit="bytes")
    chosen = [figure.value for name, figure in cycles.copied.items() if direction in name]
    if None in chosen:
        return missing("the sizes of some copies depend on data", unit="bytes")
    return Figure(
        value=sum(int(value or 0) for value in chosen),
        origin=cycles.total.origin,
        unit="bytes",
        note="of the copies that the kernel starts",
    )


def _copying(cycles: CycleEstimate, moved: Figure, model: CopyModel) -> Figure:
    """Return the cycles in which copies move their bytes, limited by HBM or by SMEM."""
    if moved.value is None:
        return missing(moved.note, unit="cycles")
    sizes = {name: int(figure.value or 0) for name, figure in cycles.copied.items()}
    through_smem = [model.time(d, size)[1] for d, size in sizes.items() if "smem" in d]
    through_hbm = sum(model.hbm_time(direction, size) for direction, size in sizes.items())
    return Figure(value=max(through_hbm, *through_smem, 0.0), origin="assumed", unit="cycles")


def _over(a: Figure, b: Figure, unit: str, note: str) -> Figure:
    if a.value is None or b.value is None:
        return missing(a.note if a.value is None else b.note, unit=unit)
    if not b.value:
        return missing("there is nothing to divide by", unit=unit)
    return Figure(value=a.value / b.value, origin=origin_of(a, b), unit=unit, note=note)


def _bound(compute: Figure, copying: Figure, waiting: Figure) -> Bound | None:
    if compute.value is None or copying.value is None:
        return None
    step = compute.value + (waiting.value or 0)
    if copying.value > compute.value and 2 * copying.value >= step:
        return "memory"
    return "latency" if step > 2 * compute.value else "compute"


def _roofline(flops: Figure, moved: Figure, products: Sequence[Product], chip: Chip) -> Figure:
    if flops.value is None or moved.value is None:
        return missing(flops.note if flops.value is None else moved.note, unit="s")
    if not flops.value and not moved.value:
        return missing("it makes no matrix product and copies nothing from or to HBM", unit="s")
    dtype = max(products, key=lambda p: p.flops * (p.runs or 1)).dtype if products else "bf16"
    peak = chip.flops_of(dtype)
    if peak is None:
        return missing(f"no peak is published for {dtype}", unit="s")
    note = "matrix products at the published peak, or copies at the published bandwidth"
    shortest = max(flops.value / peak, moved.value / chip.bandwidth)
    return Figure(value=shortest, origin="assumed", unit="s", note=note)
