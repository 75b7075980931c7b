"""Bytes copied compared with work done: per grid step, as arithmetic intensity, and as a roofline.

Only bytes of copies that the kernel starts are counted, not those that XLA moves before and after
it, such as operands that it keeps in VMEM. Operations are those of the matrix products in the
kernel's Mosaic module, multiplied by how often the compiled products run, and those of vector
instructions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pallas_debug.chips import LANES, SUBLANES, chip_of
from pallas_debug.ir.mosaic import COPY, PRODUCT, operations
from pallas_debug.ir.operations import Module
from pallas_debug.profile import units
from pallas_debug.profile.core.copies import CopyModel, copy_model
from pallas_debug.profile.cycles import CycleEstimate
from pallas_debug.profile.figures import Figure, Origin, missing
from pallas_debug.profile.schedule import Schedule
from pallas_debug.profile.tracing import Chain, Tracing

Bound = Literal["memory", "compute", "latency", "links"]

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
      intensity: operations of both kinds per byte copied from or to HBM.
      compute_per_step: cycles of a grid step in which bundles issue or delay.
      copies_per_step: cycles to copy the bytes of a grid step at the chip's bandwidth of HBM, or
        those from or to SMEM if that takes longer.
      bound: "links" if sending bytes to other devices takes longer than all estimated cycles, which
        do not include it; "memory" if the bytes of the copies take longer than computation, and
        most of a step; "latency" if the core waits for copies longer than it computes, for another
        reason; else "compute". None if one is unknown.
      peak_flops: published peak for the products' type, per second.
      peak_bandwidth: published bandwidth of HBM, in bytes per second.
      ridge: intensity above which the matrix units' published peak is the limit.
      sent: bytes copied to other devices; 0 if the kernel makes no such copies.
      sending: minimum time to send these bytes on all links of the chip, in seconds.
      roofline: minimum time that the published peaks allow, in seconds.
      seconds: our cycle estimate, converted by the chip's clock.
      attained: share of the roofline: `roofline` over `seconds`.
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
    intensity: Figure
    compute_per_step: Figure
    copies_per_step: Figure
    bound: Bound | None
    peak_flops: Figure
    peak_bandwidth: Figure
    ridge: Figure
    sent: Figure
    sending: Figure
    roofline: Figure
    seconds: Figure
    attained: Figure
    source: str = ""
    resident: tuple[str, ...] = ()


def traffic_of(
    schedule: Schedule, tracing: Tracing, cycles: CycleEstimate, mosaic: Module | None
) -> Traffic:
    """Compare a kernel's copies with its work."""
    peaks = chip_of(schedule.chip) if not schedule.is_sparse else None
    model, _ = copy_model(schedule.chip)
    products = products_of(schedule, tracing, cycles.executions, mosaic)
    read, written = _copied(cycles, "hbm_to_"), _copied(cycles, "_to_hbm")
    flops, vector = _flops(products, cycles, mosaic), _vector_operations(schedule, cycles)
    steps = cycles.core_steps
    moved = _sum(read, written, "bytes", "from and to HBM")
    work = _sum(flops, vector, "", "of matrix products and vector instructions")
    dtype = max(products, key=lambda p: p.flops * (p.runs or 1)).dtype if products else "bf16"
    chip = "the SparseCore" if schedule.is_sparse else schedule.chip or "this target"
    unknown = f"no peaks are published for {chip}"
    peak_flops = _peak(peaks.flops_of(dtype) if peaks else None, "flop/s", dtype, unknown)
    peak_bandwidth = _peak(peaks.bandwidth if peaks else None, "bytes/s", "of HBM", unknown)
    compute = _over(cycles.compute, steps, "cycles", "average over the grid")
    copying = _over(
        _copying(cycles, moved, model), steps, "cycles", "at the bandwidth of HBM, without latency"
    )
    clock = Figure(value=peaks.clock, origin="assumed") if peaks else missing(unknown)
    seconds = _over(cycles.total, clock, "s", "our estimate at the published clock")
    sent = sent_bytes(schedule, tracing, cycles, mosaic)
    sending = _sending(sent, peaks.links if peaks else None, chip)
    roofline = _roofline(flops, moved, peak_flops, peak_bandwidth, sending)
    is_sending = (sending.value or 0.0) > (seconds.value or math.inf)
    return Traffic(
        read=read,
        written=written,
        read_per_step=_over(read, steps, "bytes", "average over the grid"),
        written_per_step=_over(written, steps, "bytes", "average over the grid"),
        flops=flops,
        vector_operations=vector,
        intensity=_over(work, moved, "operations/byte", "operations per byte from and to HBM"),
        compute_per_step=compute,
        copies_per_step=copying,
        bound="links"
        if is_sending
        else _bound(compute, copying, _over(cycles.waiting, steps, "cycles", "")),
        peak_flops=peak_flops,
        peak_bandwidth=peak_bandwidth,
        ridge=_over(peak_flops, peak_bandwidth, "operations/byte", "peak over bandwidth"),
        sent=sent,
        sending=sending,
        roofline=roofline,
        seconds=seconds,
        attained=missing("the cycles do not include the links, which take longer")
        if is_sending
        else _over(roofline, seconds, "", "of what the published peaks allow"),
        source=peaks.source if peaks else "",
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


def sent_bytes(
    schedule: Schedule, tracing: Tracing, cycles: CycleEstimate, mosaic: Module | None
) -> Figure:
    """Return the bytes copied to other devices, multiplied by how often each compiled copy runs."""
    if mosaic is None:
        return missing("there is no Mosaic module", unit="bytes")
    sizes: dict[Chain, list[int | None]] = defaultdict(list)
    for copy in operations(mosaic, COPY):
        if copy.is_remote:
            (source, *_) = copy.group("source") or (None,)
            sizes[mosaic.source(copy.line)[:1]].append(source.bytes if source else None)
    note = "of copies to other devices"
    if not sizes:
        return Figure(value=0, unit="bytes", note=note)
    runs: dict[Chain, list[float]] = defaultdict(list)
    for at, traces in enumerate(tracing.traces):
        for instruction, trace in zip(schedule.bundles[at].instructions, traces, strict=True):
            if units.is_copy(instruction.opcode) and at < len(cycles.executions):
                runs[trace.chain[:1]].append(cycles.executions[at])
    total = 0.0
    for chain, found in sizes.items():
        times = _mean(runs.get(chain, ()))
        if times is None or any(size is None for size in found):
            return missing("the size or number of the copies is unknown", unit="bytes")
        total += times * sum(size or 0 for size in found)
    return Figure(value=round(total), origin=cycles.total.origin, unit="bytes", note=note)


def _sending(sent: Figure, links: float | None, chip: str) -> Figure:
    if sent.value is None:
        return missing(sent.note, unit="s")
    if not sent.value:
        return Figure(value=0.0, unit="s", note="nothing is sent to other devices")
    if links is None:
        return missing(f"no bandwidth of links is published for {chip}", unit="s")
    note = "on all links of the chip, at half of the published bandwidth of both directions"
    return Figure(value=sent.value / (links / 2), origin="assumed", unit="s", note=note)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _flops(products: Sequence[Product], cycles: CycleEstimate, mosaic: Module | None) -> Figure:
    if mosaic is None:
        return missing("there is no Mosaic module")
    if any(product.runs is None for product in products) or not cycles.total.is_known:
        return missing("the number of times the products run is unknown")
    total = sum(product.flops * (product.runs or 0) for product in products)
    note = "of the products in the Mosaic module, times how often the compiled ones run"
    return Figure(value=round(total), origin=cycles.total.origin, note=note)


def _vector_operations(schedule: Schedule, cycles: CycleEstimate) -> Figure:
    if not cycles.executions or not cycles.total.is_known:
        return missing("the number of times the bundles run is unknown")
    total = sum(
        count * REGISTER
        for count, bundle in zip(cycles.executions, schedule.bundles, strict=True)
        for i in bundle.instructions
        if units.slot_of(i.opcode) == units.VALU
    )
    note = f"{REGISTER} for each vector instruction, as for 32 bits"
    return Figure(value=round(total), origin=cycles.total.origin, note=note)


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


def _origin(*figures: Figure) -> Origin:
    return "assumed" if any(f.origin == "assumed" for f in figures) else "derived"


def _sum(a: Figure, b: Figure, unit: str, note: str) -> Figure:
    if a.value is None or b.value is None:
        return missing(a.note if a.value is None else b.note, unit=unit)
    return Figure(value=a.value + b.value, origin=_origin(a, b), unit=unit, note=note)


def _over(a: Figure, b: Figure, unit: str, note: str) -> Figure:
    if a.value is None or b.value is None:
        return missing(a.note if a.value is None else b.note, unit=unit)
    if not b.value:
        return missing("there is nothing to divide by", unit=unit)
    return Figure(value=a.value / b.value, origin=_origin(a, b), unit=unit, note=note)


def _peak(value: float | None, unit: str, note: str, unknown: str) -> Figure:
    if value is None:
        return missing(unknown, unit=unit)
    return Figure(value=value, origin="assumed", unit=unit, note=f"published, {note}")


def _bound(compute: Figure, copying: Figure, waiting: Figure) -> Bound | None:
    if compute.value is None or copying.value is None:
        return None
    step = compute.value + (waiting.value or 0)
    if copying.value > compute.value and 2 * copying.value >= step:
        return "memory"
    return "latency" if step > 2 * compute.value else "compute"


def _roofline(
    flops: Figure, moved: Figure, peak: Figure, bandwidth: Figure, sending: Figure
) -> Figure:
    work = _over(flops, peak, "s", "")
    copying = _over(moved, bandwidth, "s", "")
    if work.value is None or copying.value is None:
        return missing(work.note if work.value is None else copying.note, unit="s")
    if sending.value is None:
        return missing(sending.note, unit="s")
    if not flops.value and not moved.value and not sending.value:
        return missing("it makes no matrix product and copies nothing from or to HBM", unit="s")
    note = "matrix products at the published peak, or copies at the published bandwidth"
    shortest = max(work.value, copying.value, sending.value)
    return Figure(value=shortest, origin="assumed", unit="s", note=note)
