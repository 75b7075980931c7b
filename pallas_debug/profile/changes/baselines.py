"""Baselines of performance tests: cycles of kernels, by target and version of libtpu.

A baseline is a small JSON file in the user's repository:

    {
      "kind": "kernel-baseline", "schema": 1, "tool": "pallas-debug",
      "kernels": {"flash_attention": {"v5e": {"0.0.50": {"cycles": 53554, "bundles": 1541, …}}}}
    }

Cycles of different compiler versions are not compared: an update of libtpu changes them, which says
nothing about the kernel.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec

from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.profile.figures import shown
from pallas_debug.profile.stats import Stats
from pallas_debug.quantities import percent

KIND = "kernel-baseline"
SCHEMA = 1
"""Schema version; incremented when readers of an earlier version would misread a baseline."""

UPDATE = "-o pallas_update_baselines=on"

_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")

Status = Literal["within", "faster", "slower", "unknown", "missing", "other version", "recorded"]

FAILS: tuple[Status, ...] = ("slower", "unknown", "missing", "other version")
"""Results that fail a test."""


class BaselineError(DumpFormatError):
    """Baseline that cannot be read: truncated, in another format, or too new."""


@dataclass(frozen=True, kw_only=True)
class BaselineCost:
    """Costs of a kernel in a baseline."""

    cycles: int
    bundles: int | None = None
    spills: int | None = None


Versions = Mapping[str, BaselineCost]


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Content of a baseline file: costs by kernel, target and version of libtpu."""

    kernels: Mapping[str, Mapping[str, Versions]] = field(default_factory=dict)

    def versions(self, kernel: str, target: str) -> Versions:
        return self.kernels.get(kernel, {}).get(target, {})

    def with_costs(self, rows: Iterable[BaselineRow]) -> Baseline:
        """Return a baseline with the current costs of the rows, and all others unchanged."""
        kernels = {k: {t: dict(v) for t, v in by.items()} for k, by in self.kernels.items()}
        for row in rows:
            if row.cost is not None:
                kernels.setdefault(row.kernel, {}).setdefault(row.target, {})[row.libtpu] = row.cost
        return Baseline(kernels=kernels)


@dataclass(frozen=True, kw_only=True)
class BaselineRow:
    """Comparison of a kernel with its baseline.

    Attributes:
      kernel: name of the kernel, with `#2`, `#3`, … for further kernels of that name in one test.
      libtpu: version of the compiler.
      cost: current cost; None if the cycles are unknown, in which case `reason` says why.
      expected: cost in the baseline; None if there is none for this version.
      others: costs in the baseline for other versions of libtpu.
      margin: share by which the cycles may exceed the baseline.
    """

    kernel: str
    target: str
    libtpu: str
    status: Status
    cost: BaselineCost | None
    margin: float
    expected: BaselineCost | None = None
    others: Versions = field(default_factory=dict)
    reason: str = ""

    @property
    def change(self) -> float | None:
        """Relative change of the cycles, such as 0.05 for 5 % more."""
        if self.cost is None or self.expected is None or not self.expected.cycles:
            return None
        return self.cost.cycles / self.expected.cycles - 1

    @property
    def fails(self) -> bool:
        return self.status in FAILS


def margin(text: str | float) -> float:
    """Parse `"5%"`, or a share such as 0.05.

    Raises:
      UsageError: the text is neither, or the number is negative.
    """
    if isinstance(text, str):
        found = _PERCENT.fullmatch(text)
        if found is not None:
            return float(found[1]) / 100
    elif isinstance(text, int | float) and text >= 0:
        return float(text)
    raise UsageError(f"a margin is written as '5%' or 0.05, not as {text!r}")


def compare(stats: Iterable[Stats], baseline: Baseline, allowed: float) -> list[BaselineRow]:
    """Compare kernels with a baseline, in order."""
    rows: list[BaselineRow] = []
    seen = Counter[tuple[str, str]]()
    for this in stats:
        seen[this.kernel, this.target] += 1
        number = seen[this.kernel, this.target]
        name = this.kernel if number == 1 else f"{this.kernel}#{number}"
        rows.append(_compared(this, name, baseline.versions(name, this.target), allowed))
    return rows


def recorded(rows: Iterable[BaselineRow]) -> list[BaselineRow]:
    """Return the rows with the status of having been recorded as the baseline."""
    return [r if r.cost is None else replace(r, status="recorded") for r in rows]


def _compared(stats: Stats, name: str, versions: Versions, allowed: float) -> BaselineRow:
    libtpu = stats.versions.get("libtpu", "unknown")
    cost = _cost(stats)
    expected = versions.get(libtpu)
    change = None if cost is None or expected is None else cost.cycles - expected.cycles
    status: Status
    if cost is None:
        status = "unknown"
    elif change is None:
        status = "other version" if versions else "missing"
    else:
        assert expected is not None
        limit = allowed * expected.cycles
        status = "slower" if change > limit else "faster" if change < -limit else "within"
    total = stats.cycles.total
    return BaselineRow(
        kernel=name,
        target=stats.target,
        libtpu=libtpu,
        status=status,
        cost=cost,
        margin=allowed,
        expected=expected,
        others={v: c for v, c in versions.items() if v != libtpu},
        reason="" if cost else f"{total}, {total.note}" if total.formula else total.note,
    )


def _cost(stats: Stats) -> BaselineCost | None:
    cycles, bundles, spills = stats.cycles.total.value, stats.bundles.value, stats.spills.value
    if cycles is None:
        return None
    return BaselineCost(
        cycles=round(cycles),
        bundles=None if bundles is None else round(bundles),
        spills=None if spills is None else round(spills),
    )


def sentence(row: BaselineRow, file: str) -> str:
    """Describe the outcome of a comparison, and what to do about it."""
    what = f"{row.kernel} on {row.target}, libtpu {row.libtpu}"
    now = shown(row.cost.cycles) if row.cost else "-"
    if row.status == "unknown":
        return (
            f"{what}: its cycles are unknown: {row.reason or 'there is no schedule'}. "
            "Pass arrays with values for the arguments that decide it, or assert its bundles or "
            "spills instead."
        )
    if row.status == "missing":
        return (
            f"{what}: {now} cycles, but {file} has no baseline for it. Record one with `pytest "
            f"{UPDATE}`, and commit the file."
        )
    if row.status == "other version":
        known = ", ".join(f"{v}: {shown(c.cycles)}" for v, c in sorted(row.others.items()))
        return (
            f"{what}: {now} cycles, but {file} has baselines only for other versions ({known}). "
            "Cycles of two compilers are not compared: look at what changed, record this version "
            f"with `pytest {UPDATE}`, and commit the file."
        )
    if row.status == "recorded":
        return f"{what}: {now} cycles, recorded in {file}"
    assert row.expected is not None
    share = percent(abs(row.change or 0), 1)
    limit = f"{row.margin:.3g}" if row.margin >= 1 else f"{row.margin * 100:.3g} %"
    before = shown(row.expected.cycles)
    if row.status == "within":
        return f"{what}: {now} cycles, within {limit} of its baseline of {before}"
    if row.status == "faster":
        return (
            f"{what}: {now} cycles, {share} fewer than its baseline of {before}. "
            f"Record the gain with `pytest {UPDATE}`, or losing it later goes unnoticed."
        )
    return (
        f"{what}: {now} cycles, {share} more than its baseline of {before}; {limit} is "
        f"allowed.{_grew(row)} `pallas-debug stats` and `pallas-debug source --cost` show where "
        f"they go; if the loss is intended, record it with `pytest {UPDATE}`."
    )


def _grew(row: BaselineRow) -> str:
    """Describe which other costs grew."""
    parts = []
    for name in ("bundles", "spills"):
        before, now = getattr(row.expected, name), getattr(row.cost, name)
        if before is not None and now is not None and now > before:
            parts.append(f"{name} grew from {before:,} to {now:,}")
    return f" Its {' and its '.join(parts)}." if parts else ""


HEADINGS = ("kernel", "target", "libtpu", "cycles", "baseline", "change", "spills", "result")


def cells(row: BaselineRow) -> tuple[str, ...]:
    """Return the cells of a table, in the order of `HEADINGS`."""
    change = "-" if row.change is None else percent(row.change, 1, signed=True)
    return (
        row.kernel,
        row.target,
        row.libtpu,
        shown(row.cost.cycles) if row.cost else "-",
        shown(row.expected.cycles) if row.expected else "-",
        change,
        shown(row.cost.spills) if row.cost else "-",
        row.status,
    )


def encode(baseline: Baseline) -> str:
    """Return the text of a file, in an order that makes small diffs."""
    document = {
        "kernels": msgspec.to_builtins(baseline.kernels),
        "kind": KIND,
        "schema": SCHEMA,
        "tool": "pallas-debug",
    }
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def decode(text: str | bytes, file: str) -> Baseline:
    """Parse the text of a file.

    Raises:
      BaselineError: the text is not a baseline, is damaged, or has a newer version.
    """
    try:
        document: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BaselineError(
            f"{file} is truncated or not JSON ({error}): restore it, or delete it and record it "
            f"again with `pytest {UPDATE}`"
        ) from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise BaselineError(f"{file} is not a file of kernel baselines: name another file")
    schema = document.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise BaselineError(
            f"{file} was written by a newer version (schema {schema!r}; this one reads {SCHEMA}): "
            "update pallas-debug"
        )
    try:
        return msgspec.convert({"kernels": document.get("kernels", {})}, Baseline)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BaselineError(f"{file} is damaged: {error}. Restore it, or delete it") from error
