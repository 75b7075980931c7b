"""Our cycle estimates against libtpu's own, and bundles traced to lines, for the bundled kernels.

    python benchmarks/cycles.py [--targets v5e,v6e] [--operations matmul,softmax]
        [--tags small] [--gradients] [--table] [--advice] [--to dumps] [--page page.md]

Prints, per target, the median ratio of our estimate to libtpu's and their rank correlation, over
all kernels for which libtpu gives an estimate, and the share of the bundles with vector or matrix
work that are traced to a Python line. `--table` adds a row for each kernel, and `--advice` each
piece of advice. With `--to`, the dumps are kept, and kernels that are in there already are not
compiled again. `--page` writes the page docs/reference/estimates.md.

`ours` is the estimate that `pallas-debug stats` prints, over all kernels, and over those of which
no region or copy depends on data: libtpu assumes that data is zero, but `stats` takes scalar
operands from the call, and enters regions that depend on other data. `at least` is what `stats`
prints below it, without those regions. `same assumptions` is the one for judging the model: like
libtpu's estimate, it assumes that a kernel reads only zeros, and that every copy has the full
bandwidth of HBM.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from as_libtpu import as_libtpu
from pallas_debug_kernels import Spec, operations
from pallas_debug_kernels.registry import BundledOperation
from scipy.stats import spearmanr

import pallas_debug
from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.bundles import Bundle
from pallas_debug.profile.cycles import AS_CALLED
from pallas_debug.profile.stats import Stats
from pallas_debug.profile.tracing import Trace
from pallas_debug.profile.units import is_vector
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile


@dataclass(frozen=True, kw_only=True)
class Row:
    """A kernel on a target.

    Attributes:
      work: bundles with vector or matrix instructions.
      direct, traced: of these, those in which such an instruction names its line, or has one.
    """

    operation: str
    spec: str
    stats: Stats
    same: float | None
    work: int
    direct: int
    traced: int

    @property
    def name(self) -> str:
        return f"{self.operation} {self.spec}: {self.stats.kernel}"

    @property
    def libtpu(self) -> float | None:
        return self.stats.cycles.compiler.value or None

    @property
    def ours(self) -> float | None:
        return self.stats.cycles.total.value

    @property
    def least(self) -> float | None:
        return self.stats.cycles.least.value

    @property
    def assumes_data(self) -> bool:
        """True if the values that the kernel reads decide which regions or copies run."""
        texts = self.stats.cycles.assumptions
        return any("depends on data" in text or AS_CALLED in text for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--targets", default="v5e,v6e,tpu7x,v5p,v4")
    parser.add_argument("--operations", default="")
    parser.add_argument("--tags", default="")
    parser.add_argument("--gradients", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--advice", action="store_true")
    parser.add_argument("--to", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    by_target: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory() as folder:
        root = options.to or Path(folder)
        for target in options.targets.split(","):
            rows = by_target[target] = list(_rows(target, root / target, options))
            _report(target, rows, table=options.table)
            if options.advice:
                _list_advice(rows)
    if options.page is not None:
        options.page.write_text(_page(by_target))


PAGE = """\
# Cycle estimates, kernel by kernel

libtpu's own estimate of the cycles of each bundled kernel, and ours with the same assumptions (see
[How far to trust the cycles](../guides/performance.md#how-far-to-trust-the-cycles)). A cell is
empty if libtpu has no estimate, as for v4. In the summary, `ours` is what `stats` prints, and
`at least` is the same without work that depends on data. Written by `benchmarks/cycles.py --page`
with libtpu {libtpu}.

`ours` differs most where work depends on data, which libtpu skips (splash and paged attention), and
for arrays of one element, which XLA loads before the kernel: libtpu's estimate includes that time.

libtpu counts no wait for a number loaded from SMEM, which takes 6 cycles on v5e and is part of the
schedule: with the same assumptions, a loop over such numbers takes up to 1.5 times its estimate.

With libtpu 0.0.50, the correlation on tpu7x is 0.967 with the same assumptions, and 0.957 for small
kernels: XLA moves some operands into VMEM, the core copies them from there by loads and stores, and
libtpu charges 1,200 cycles or more for the wait for such a copy, although it is already complete.

"""


def _page(by_target: Mapping[str, Sequence[Row]]) -> str:
    """Return the page that compares the estimates: a row per kernel, and two columns per target."""
    columns = {
        target: {row.name: row for row in rows}
        for target, rows in by_target.items()
        if any(row.libtpu for row in rows)
    }
    summary = [
        "| median of ours / libtpu's, rank correlation, kernels | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    by_kind = {target: _pairs(list(rows.values())) for target, rows in columns.items()}
    for label in next(iter(by_kind.values()), {}):
        cells = [_agreement(kinds[label]) for kinds in by_kind.values()]
        summary.append(f"| {label} | {' | '.join(cells)} |")
    lines = [
        "| operation, spec: kernel | " + " | ".join(f"{t}: libtpu | ours" for t in columns) + " |",
        "|---|" + "--:|--:|" * len(columns),
    ]
    for name in dict.fromkeys(name for rows in columns.values() for name in rows):
        cells = [cell for rows in columns.values() for cell in _compared(rows.get(name))]
        if any(cells):
            lines.append(f"| {name} | {' | '.join(cells)} |")
    head = PAGE.format(libtpu=importlib.metadata.version("libtpu"))
    return head + "\n".join([*summary, "", *lines]) + "\n"


def _agreement(pairs: Sequence[tuple[float, float]]) -> str:
    if len(pairs) < 2:
        return ""
    median = statistics.median(value / libtpu for value, libtpu in pairs)
    return f"{median:.3f}, {_rank(pairs):.3f}, {len(pairs)}"


def _compared(row: Row | None) -> tuple[str, str]:
    if row is None or not row.libtpu or row.same is None:
        return "", ""
    return f"{row.libtpu:,.0f}", f"{row.same:,.0f}"


def _rows(target: str, root: Path, options: Any) -> Iterator[Row]:
    seen: set[str] = set()
    for operation, spec, variant, function in _calls(target, options):
        name = f"{operation.name}{variant}"
        to = root / name / spec.name
        try:
            dumps = pallas_debug.dump(
                function, *_arguments(spec), targets=target, to=to, stages="estimate"
            )
        except PallasDebugError as error:
            print(f"{name} {spec.name} on {target}: {error}", flush=True)
            continue
        for dump in dumps:
            if dump.name in seen or not dump.ok:
                continue
            seen.add(dump.name)
            stored = open_dumps(to).find(dump.name)
            found = read_profile(stored, stored.target(target))
            if found is not None:
                schedule, traces = found.profile.schedule, found.profile.tracing.traces
                work = [_of_vectors(*pair) for pair in zip(schedule.bundles, traces, strict=True)]
                direct = [[t.chain and t.origin == "compiler" for t in one] for one in work]
                yield Row(
                    operation=name,
                    spec=spec.name,
                    stats=found.profile.stats,
                    same=as_libtpu(schedule),
                    work=sum(map(bool, work)),
                    direct=sum(map(any, direct)),
                    traced=sum(any(t.chain for t in one) for one in work),
                )


def _of_vectors(bundle: Bundle, traces: Sequence[Trace]) -> list[Trace]:
    """Return the lines of a bundle's vector and matrix instructions."""
    pairs = zip(bundle.instructions, traces, strict=True)
    return [trace for instruction, trace in pairs if is_vector(instruction.opcode)]


def _calls(target: str, options: Any) -> Iterator[tuple[BundledOperation, Spec, str, Any]]:
    names = set(filter(None, options.operations.split(",")))
    tags = set(filter(None, options.tags.split(",")))
    for operation in operations():
        for spec in operation.specs:
            if (names and operation.name not in names) or (tags and tags.isdisjoint(spec.tags)):
                continue
            if target not in spec.not_on:
                yield operation, spec, "", _forward(operation, spec)
                if options.gradients and operation.differentiable:
                    yield operation, spec, " (gradient)", _gradient(operation, spec)


def _forward(operation: BundledOperation, spec: Spec) -> Any:
    return lambda *args: operation.function(*args, **spec.kwargs)


def _gradient(operation: BundledOperation, spec: Spec) -> Any:
    def total(*args: jax.Array) -> jax.Array:
        return operation.function(*args, **spec.kwargs).astype(jnp.float32).sum()

    return jax.grad(total, argnums=operation.differentiable)


def _arguments(spec: Spec) -> list[Any]:
    return [spec.values.get(i, arg) for i, arg in enumerate(spec.args)]


def _list_advice(rows: Sequence[Row]) -> None:
    for row in rows:
        for advice in row.stats.advice:
            at = f"{Path(advice.source.file).name}:{advice.source.line}" if advice.source else "-"
            print(f"{row.name}: {advice.kind} at {at}: {advice.message} {advice.remedy}")


def _report(target: str, rows: Sequence[Row], *, table: bool) -> None:
    print(f"\n## {target}: {len(rows)} kernels")
    if table:
        print("| kernel | bundles | libtpu | ours | at least | same assumptions | ratio |")
        print("|---|--:|--:|--:|--:|--:|--:|")
        for row in rows:
            ratio = f"{row.same / row.libtpu:.2f}" if row.same and row.libtpu else "-"
            cycles = row.stats.cycles
            print(
                f"| {row.name} | {row.stats.bundles} | {cycles.compiler} | {cycles.total} | "
                f"{cycles.least} | {row.same or 0:,.0f} | {ratio} |"
            )
    for label, pairs in _pairs(rows).items():
        if len(pairs) < 2:
            print(f"{label}: libtpu estimates {len(pairs)} of them")
            continue
        ratios = sorted(value / libtpu for value, libtpu in pairs)
        print(
            f"{label}: {len(pairs)} kernels, median ratio {statistics.median(ratios):.3f}, "
            f"from {ratios[0]:.2f} to {ratios[-1]:.2f}, rank correlation {_rank(pairs):.4f}"
        )
    bundles = sum(row.work for row in rows)
    for label in ("direct", "traced"):
        traced = sum(getattr(row, label) for row in rows)
        shares = [getattr(row, label) / row.work for row in rows if row.work]
        if shares:
            print(
                f"{label}: {traced:,} of {bundles:,} bundles with vector or matrix work "
                f"({traced / bundles:.1%}), at least {min(shares):.1%} of each kernel's"
            )


def _pairs(rows: Sequence[Row]) -> dict[str, list[tuple[float, float]]]:
    """Return our estimates with libtpu's, by kind of ours."""
    kinds = {
        "ours": ("ours", rows),
        "ours, where no work depends on data": ("ours", [r for r in rows if not r.assumes_data]),
        "at least": ("least", rows),
        "same assumptions": ("same", rows),
    }
    return {
        label: [
            (value, row.libtpu)
            for row in chosen
            if row.libtpu and (value := getattr(row, attribute)) is not None
        ]
        for label, (attribute, chosen) in kinds.items()
    }


def _rank(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's rank correlation."""
    return float(spearmanr([ours for ours, _ in pairs], [theirs for _, theirs in pairs]).statistic)


if __name__ == "__main__":
    main()
