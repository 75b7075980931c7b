"""Costs, advice and what-if on other people's kernels: what is shown, and whether it is true.

    python benchmarks/costs.py [PROJECT=CHECKOUT…] [--dumps dumps] [--only matmul] [--to reference]

The kernels are those of `outside_kernels.py`. jax's come with the installed release; PROJECT is one
of `PROJECTS`, CHECKOUT a folder with its source. Packages that a project's kernels import must be
installed; those that only its server needs (vLLM, PyTorch) are replaced by stubs. Kernels are
compiled once if the dumps are kept with `--dumps`.

For each kernel and target: its cycles, the bottleneck, the lines that make up `SHARE` of the cycles
and the advice. Then blocks and orders of the grid that the advice proposes are compiled, and the
larger blocks of the table of kernels, which no rule chose, to compare the cycles promised with the
cycles compiled. Blocks are parameters of the kernel's function; if it has none, its specs are
rewritten, in which case the kernel has to work with blocks of any size. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from absent import AbsentPackages, import_bare
from outside_kernels import ENTRIES, Entry
from rebuilt import rebuilt

import pallas_debug
from pallas_debug.errors import PallasDebugError, UsageError
from pallas_debug.profile.advice import Advice
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.profile.changed import axis_of
from pallas_debug.profile.rules import RULES
from pallas_debug.profile.stats import Profile
from pallas_debug.profile.whatif import changed_blocks
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile
from pallas_debug.store.stored import StoredKernel

SHARE = 0.8
"""Share of the cycles that the shown lines make up."""
WORTH = 0.1
"""Share of the cycles that a proposal has to save to count in the summary."""
GOOD = (0.9, 1.25)
"""Range of promised over compiled cycles that counts as right."""
LARGER = "(table)"
"""Stands for the kind of the advice where the table of kernels, not a rule, chose a change."""

PROJECTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "tpu-inference": (".", ("tpu_inference",)),
    "maxtext": ("src", ("maxtext", "maxtext.common", "maxtext.kernels")),
    "tokamax": (".", ("tokamax",)),
    "jaxbench": (".", ()),
    "recurrentgemma": (".", ("recurrentgemma", "recurrentgemma.jax")),
    "sglang-jax": ("python", ("sgl_jax", "sgl_jax.srt", "sgl_jax.srt.utils")),
}
"""Folder of a checkout to import from, and the packages whose `__init__` is not run."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A kernel on a target.

    Attributes:
      entry: the function that calls it.
      kernel: name of the kernel.
      profile: its costs; None if there are none.
      failure: why there are none.
    """

    entry: Entry
    kernel: str
    target: str
    profile: Profile | None = None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A change that was compiled.

    Attributes:
      kind: kind of the advice, or LARGER.
      now, promised, compiled: cycles before, with the change as simulated, and as compiled; None if
        they are not known.
      note: why they are not known.
    """

    pair: Pair
    kind: str
    change: str
    now: float | None = None
    promised: float | None = None
    compiled: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return self.promised / self.compiled if self.promised and self.compiled else None


class Dumps:
    """Compiled kernels, in a folder for each function and setting of its blocks."""

    def __init__(self, root: Path, checkouts: Mapping[str, Path]) -> None:
        self._root = root
        self._checkouts = checkouts
        root.mkdir(parents=True, exist_ok=True)

    def has(self, entry: Entry) -> bool:
        project = entry.source.partition(":")[0]
        return project == "jax" or project in self._checkouts

    def pairs(self, entry: Entry, sizes: Mapping[str, int]) -> list[Pair]:
        """Compile a function's kernels for its targets, unless that was done."""
        changed = "".join(f"@{n}={size}" for n, size in sizes.items() if size != entry.sizes[n])
        setting = "@larger" if changed and sizes == entry.larger else changed
        return self._pairs(entry, sizes, setting, contextlib.nullcontext())

    def rebuilt(self, entry: Entry, change: str, blocks: BlockMap) -> list[Pair]:
        """Compile a function's only kernel with changed blocks."""
        order = re.fullmatch(r"order=([\d,]+)", change)
        axes = [int(axis) for axis in order[1].split(",")] if order else None
        setting = "@" + re.sub(r"[^\w=]+", "-", change)
        return self._pairs(entry, entry.sizes, setting, rebuilt(blocks, axes))

    def _pairs(
        self,
        entry: Entry,
        sizes: Mapping[str, int],
        setting: str,
        context: contextlib.AbstractContextManager[None],
    ) -> list[Pair]:
        folder = self._root / (entry.name.replace(" ", "-") + setting)
        failed = folder.with_name(f"{folder.name}.failed")
        if not folder.exists() and not failed.exists():
            try:
                with context:
                    self._compile(entry, sizes, folder)
            except Exception as error:  # noqa: BLE001  other people's code, with our arguments
                failed.write_text(f"{type(error).__name__}: {error}")
        if failed.exists():
            why = failed.read_text().split("\n", 1)[0]
            return [Pair(entry=entry, kernel="–", target=t, failure=why) for t in entry.targets]
        return [
            _pair(entry, stored, target)
            for stored in open_dumps(folder).kernels()
            for target in entry.targets
        ]

    def _compile(self, entry: Entry, sizes: Mapping[str, int], folder: Path) -> None:
        project, _, name = entry.source.partition(":")
        if project != "jax":
            _prepare(project, self._checkouts[project])
        function = entry.make(importlib.import_module(name), **sizes)
        pallas_debug.dump(
            function, *entry.args, targets=entry.targets, to=folder, stages="bundles", jobs=1
        )


def _pair(entry: Entry, stored: StoredKernel, target: str) -> Pair:
    name = stored.kernel.name
    try:
        compiled = stored.target(target)
        read = read_profile(stored, compiled)
    except PallasDebugError as error:
        return Pair(entry=entry, kernel=name, target=target, failure=str(error).split("\n", 1)[0])
    if read is None or not read.profile.schedule.bundles:
        failure = compiled.compilation.failure
        why = failure.headline if failure else "no schedule was written"
        return Pair(entry=entry, kernel=name, target=target, failure=why)
    return Pair(entry=entry, kernel=name, target=target, profile=read.profile)


def _prepare(project: str, checkout: Path) -> None:
    """Make a project's modules importable, without what only a server needs."""
    folder, packages = PROJECTS[project]
    root = checkout / folder
    if str(root) in sys.path:
        return
    sys.path.insert(0, str(root))
    sys.meta_path.append(AbsentPackages("vllm", "torch", "torchax", "xprof"))
    for package in packages:
        import_bare(package, root.joinpath(*package.split(".")))


# Changes, as the simulator and as the functions write them


def _axes(pair: Pair) -> Sequence[str]:
    return next((axes for part, axes in pair.entry.axes.items() if part in pair.kernel), ())


def _proposal(row: Advice) -> tuple[str, float | None]:
    """Return the change that advice proposes, and the cycles that it promises."""
    return row.what_if.change, row.what_if.cycles.value


def _sizes(pair: Pair, change: str) -> dict[str, int] | None:
    """Return values of the function's parameters for a change; None if it has no such ones."""
    found, blocks = pair.entry.sizes, pair.profile.blocks if pair.profile is not None else None
    asked = _parsed(change)
    if blocks is None or asked is None:
        return None
    for (name, dimension), size in asked.items():
        operand = next(o for o in blocks.pipelined if o.name == name)
        axis, axes = axis_of(blocks, operand, dimension), _axes(pair)
        if axis is None or axis >= len(axes) or not axes[axis]:
            return None
        for parameter in axes[axis].split():
            found[parameter] = found[parameter] * size // operand.dimensions[dimension].size
    return found


def _parsed(change: str) -> dict[tuple[str, int], int] | None:
    """Parse sizes of blocks, by operand and dimension; None for another change."""
    found = [re.fullmatch(r"(.+)\[(\d+)\]=(\d+)", text) for text in change.split(", ")]
    if not all(found):
        return None
    return {(size[1], int(size[2])): int(size[3]) for size in found if size is not None}


def _difference(change: str, profile: Profile) -> str:
    """Say which block of a compiled kernel is not that of the change; empty if there is none."""
    operands = profile.blocks.operands if profile.blocks is not None else ()
    sizes = {(o.name, n): d.size for o in operands for n, d in enumerate(o.dimensions)}
    for (name, n), size in (_parsed(change) or {}).items():
        if sizes.get((name, n)) != size:
            return f"{name}[{n}] is {sizes.get((name, n))} in the compiled kernel"
    return ""


def _larger(pair: Pair) -> str:
    """Return the larger blocks of the table as a change; empty if the grid does not follow them."""
    blocks = pair.profile.blocks if pair.profile is not None else None
    found = []
    for axis, names in enumerate(_axes(pair)):
        now, larger = pair.entry.blocks.get(names.partition(" ")[0], (1, 1))
        fitting = (
            f"{operand.name}[{n}]={dimension.size * larger // now}"
            for operand in (blocks.pipelined if blocks is not None else ())
            for n, dimension in enumerate(operand.dimensions)
            if axis_of(blocks, operand, n) == axis
        )
        if larger != now:
            found += [text for text in [next(fitting, "")] if text]
    return ", ".join(found)


def _comparisons(dumps: Dumps, pair: Pair) -> Iterator[Comparison]:
    """Compile what is promised: changes that the advice proposes, and the larger blocks."""
    profile = pair.profile
    if profile is None:
        return
    for row in profile.advice:
        change, promised = _proposal(row)
        if _parsed(change) is None and not change.startswith("order="):
            continue
        if (sizes := _sizes(pair, change)) is not None:
            others = dumps.pairs(pair.entry, sizes)
        elif not pair.entry.blocks and profile.blocks is not None:
            blocks = changed_blocks(profile.blocks, change.split(", "))
            others = dumps.rebuilt(pair.entry, change, blocks)
        else:
            others = []
        yield _compared(pair, row.kind, change, promised, others)
    if change := _larger(pair):
        others = dumps.pairs(pair.entry, pair.entry.larger)
        try:
            promised = profile.simulator.what_if(change.split(", ")).cycles.value
        except UsageError as error:
            yield Comparison(pair=pair, kind=LARGER, change=change, note=str(error))
        else:
            yield _compared(pair, LARGER, change, promised, others)


def _compared(
    pair: Pair, kind: str, change: str, promised: float | None, others: Sequence[Pair]
) -> Comparison:
    other = next((other for other in others if _name(other) == _name(pair)), None)
    compiled, note = None, "no parameter of the function"
    if other is not None and other.profile is not None:
        note = _difference(change, other.profile)
        compiled = None if note else other.profile.cycles.total.value
    elif others:
        note = (other or others[0]).failure
    return Comparison(
        pair=pair,
        kind=kind,
        change=change,
        now=pair.profile.cycles.total.value if pair.profile is not None else None,
        promised=promised,
        compiled=compiled,
        note=note,
    )


def _name(pair: Pair) -> tuple[str, str]:
    """Return the target and the kernel, whose name may contain sizes."""
    return pair.target, re.sub(r"\d+", "", pair.kernel)


# What is printed


def _report(pair: Pair) -> Iterator[str]:
    yield f"## {pair.entry.name}: {pair.kernel}, {pair.target}: {_cycles(pair)} cycles"
    if pair.profile is None:
        yield f"   failed: {pair.failure}"
    else:
        yield from (f"   {text}" for text in pair.profile.bottleneck)
        yield f"   {100 * SHARE:.0f} %: {', '.join(_lines(pair.profile))}"
        yield from (f"   {_shown(row, pair.profile)}" for row in pair.profile.advice)


def _cycles(pair: Pair) -> str:
    return "–" if pair.profile is None else str(pair.profile.cycles.total)


def _lines(profile: Profile) -> Iterator[str]:
    """Lines of Python that make up SHARE of the cycles that have a line."""
    found = profile.costs.lines()
    total, shown = sum(part.total for _, part in found), 0.0
    for source, part in found:
        if shown >= SHARE * total:
            return
        shown += part.total
        share = part.total / profile.costs.total
        yield f"{Path(source.file).name}:{source.line} {100 * share:.0f} %"


def _saving(row: Advice, profile: Profile) -> float:
    _, promised = _proposal(row)
    now = profile.cycles.total.value
    return 1 - promised / now if now and promised is not None else math.nan


def _shown(row: Advice, profile: Profile) -> str:
    operand = f" of {row.operand}" if row.operand else ""
    at = f" at {Path(row.source.file).name}:{row.source.line}" if row.source else ""
    return f"{row.kind}{operand}{at}: {100 * _saving(row, profile):.0f} % ({_proposal(row)[0]})"


def _pairs_table(pairs: Iterable[Pair]) -> Iterator[str]:
    yield "| function | kernel | target | cycles | bottleneck | lines | advice |"
    yield "| --- | --- | --- | ---: | --- | --- | --- |"
    for pair in pairs:
        cells = [pair.entry.name, f"`{pair.kernel}`", pair.target, _cycles(pair)]
        if pair.profile is None:
            cells += [f"failed: {pair.failure}", "", ""]
        else:
            tree = map(str, pair.profile.bottleneck)
            rows = [_shown(row, pair.profile) for row in pair.profile.advice]
            cells += ["<br>".join(tree), ", ".join(_lines(pair.profile)), "<br>".join(rows)]
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _comparisons_table(comparisons: Iterable[Comparison]) -> Iterator[str]:
    columns = ("function", "kernel", "target", "chosen by", "change")
    yield f"| {' | '.join(columns)} | cycles | promised | compiled | ratio |"
    yield f"|{' --- |' * len(columns)} ---: | ---: | ---: | ---: |"
    for c in comparisons:
        numbers = ("–" if n is None else f"{n:,.0f}" for n in (c.now, c.promised, c.compiled))
        ratio = f"{c.ratio:.2f}" if c.ratio is not None else c.note or "–"
        where = f"{c.pair.entry.name} | `{c.pair.kernel}` | {c.pair.target}"
        yield f"| {where} | {c.kind} | `{c.change}` | {' | '.join(numbers)} | {ratio} |"


def _summary(pairs: Sequence[Pair], comparisons: Sequence[Comparison]) -> Iterator[str]:
    profiles = [pair.profile for pair in pairs if pair.profile is not None]
    totals = [profile.cycles.total for profile in profiles]
    numbers = sum(total.is_known for total in totals)
    formulas = sum(not total.is_known and total.formula is not None for total in totals)
    worth = sum(any(_saving(row, p) >= WORTH for row in p.advice) for p in profiles)
    kinds = Counter(row.kind for profile in profiles for row in profile.advice)
    yield (
        f"- {len(pairs)} kernel-target pairs of {len({p.entry.name for p in pairs})} functions: "
        f"{numbers} with a number of cycles, {formulas} with a formula, "
        f"{len(pairs) - numbers - formulas} that could not be compiled."
    )
    yield f"- {worth} pairs with a proposal worth {100 * WORTH:.0f} % of the cycles or more."
    yield f"- Advice by kind: {', '.join(f'{rule.name} {kinds[rule.name]}' for rule in RULES)}."
    for title, is_larger in (("blocks that the advice proposes", False), ("larger blocks", True)):
        chosen = [c for c in comparisons if (c.kind == LARGER) == is_larger]
        ratios = [c.ratio for c in chosen if c.ratio is not None]
        good = sum(GOOD[0] <= ratio <= GOOD[1] for ratio in ratios)
        yield (
            f"- Cycles promised over cycles compiled, {title}: {good} of {len(ratios)} within "
            f"{GOOD[0]} to {GOOD[1]}; {len(chosen) - len(ratios)} without a ratio."
        )


def _page(pairs: Sequence[Pair], comparisons: Sequence[Comparison]) -> str:
    compiled = [p.profile.compilation for p in pairs if p.profile and p.profile.compilation]
    versions = Counter(
        ", ".join(f"{name} {c.versions.get(name, '?')}" for name in ("jax", "libtpu"))
        for c in compiled
    )
    lines = [
        "# Costs of other projects' kernels",
        "",
        "What `pallas-debug stats` shows for kernels of jax and of other projects: the cycles, "
        f"where they go, the lines with {100 * SHARE:.0f} % of the cycles that have a line, and "
        "the advice, with the share of the cycles that it saves. The second table compares what "
        "changes promise with the estimate for the changed kernel. Kernels were compiled with "
        f"{'; '.join(f'{text} ({count} pairs)' for text, count in versions.most_common())}, for "
        "arguments of usual sizes.",
        "",
        *_summary(pairs, comparisons),
        "",
        *_pairs_table(pairs),
        "",
        "## Promised and compiled",
        "",
        f"`{LARGER}` stands for larger blocks that the benchmark chose, not the advice. Kernels "
        "whose function has no parameter for blocks were compiled with rewritten block specs.",
        "",
        *_comparisons_table(comparisons),
        "",
        "What it does not show:",
        "",
        "- Both sides of a ratio are estimates; [measured times](real-time.md) are for a v6e only.",
        "- Proposals other than sizes of blocks and orders of the grid are not compiled: most "
        "of them state the least that remains, not what a change gives.",
        "",
        "Made by `benchmarks/costs.py`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", metavar="PROJECT=CHECKOUT")
    parser.add_argument("--only", default="", help="functions whose name contains this")
    parser.add_argument("--dumps", type=Path, help="keep the dumps in this folder")
    parser.add_argument("--to", type=Path, help="write costs.md in this folder")
    options = parser.parse_args()
    checkouts = {}
    for text in options.checkouts:
        project, _, path = text.partition("=")
        if project not in PROJECTS or not Path(path).is_dir():
            parser.error(f"{text!r} is no checkout of {', '.join(PROJECTS)}")
        checkouts[project] = Path(path).resolve()
    pairs: list[Pair] = []
    comparisons: list[Comparison] = []
    with tempfile.TemporaryDirectory() as folder:
        dumps = Dumps(options.dumps or Path(folder), checkouts)
        for entry in ENTRIES:
            if options.only not in entry.name or not dumps.has(entry):
                continue
            for pair in dumps.pairs(entry, entry.sizes):
                print(*_report(pair), sep="\n", flush=True)
                pairs.append(pair)
                comparisons += _comparisons(dumps, pair)
        print("", *_comparisons_table(comparisons), "", *_summary(pairs, comparisons), sep="\n")
        if options.to:
            (options.to / "costs.md").write_text(_page(pairs, comparisons))


if __name__ == "__main__":
    main()
