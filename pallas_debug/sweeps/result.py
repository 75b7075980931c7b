"""Outcome of a sweep: figures or failure of each setting, best setting first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from pallas_debug import render
from pallas_debug.profile.figures import Figure, missing, shown
from pallas_debug.quantities import size_text

if TYPE_CHECKING:
    from pallas_debug.sweeps.predict import Prediction

FailedAt = Literal["tracing", "lowering", "compile", "crash", "timeout", "setup", "worker"]


@dataclass(frozen=True, kw_only=True)
class SettingFailure:
    """Reason why a setting has no figures.

    Attributes:
      stage: `tracing` (the function raised), `worker` (its process died), or the stage of the
        kernel's failure.
      type: the exception's class, or what ended the process.
      message: first line of the message.
      kernel: the kernel that did not compile, if any.
      cause, advice: parts of the explanation; empty if there is none.
    """

    stage: FailedAt
    type: str
    message: str
    kernel: str | None = None
    cause: str = ""
    advice: str = ""

    @property
    def is_final(self) -> bool:
        """True if running the same setting again would fail in the same way."""
        return self.stage in ("tracing", "lowering", "compile")

    def __str__(self) -> str:
        place = f"{self.kernel}: " if self.kernel else ""
        why = "; ".join(filter(None, (self.cause, self.advice)))
        return f"{place}{self.message}" + (f" ({why})" if why else "")


@dataclass(frozen=True, kw_only=True)
class SettingResult:
    """A setting on a target: totals over the kernels that the function calls.

    Attributes:
      setting: values of the swept arguments, as texts.
      kernels: names of the kernels' folders in the dump directory.
      cycles: our estimate.
      vmem: VMEM of the kernel that needs most.
      left_out: elements of each operand that are in no block.
      partial: operands of which other settings leave out less, so that they do more work.
      failure: why there are no figures; None if there are.
      is_cached: whether an earlier run had compiled everything.
    """

    setting: Mapping[str, str]
    target: str
    kernels: tuple[str, ...] = ()
    cycles: Figure = field(default_factory=lambda: missing("not compiled", unit="cycles"))
    bundles: Figure = field(default_factory=lambda: missing("not compiled"))
    spills: Figure = field(default_factory=lambda: missing("not compiled"))
    vmem: Figure = field(default_factory=lambda: missing("not compiled", unit="bytes"))
    left_out: Mapping[str, int] = field(default_factory=dict)
    partial: tuple[str, ...] = ()
    failure: SettingFailure | None = None
    is_cached: bool = False

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def label(self) -> str:
        return ", ".join(f"{name}={text}" for name, text in self.setting.items())

    @property
    def reason(self) -> str | None:
        """Why it is not compared with others; None if it is."""
        if self.failure is not None:
            return str(self.failure)
        if not self.partial:
            return None
        parts = [f"{self.left_out[name]:,} elements of {name}" for name in self.partial]
        return (
            f"its blocks leave out {' and '.join(parts)} that others cover, and it does less work; "
            "choose blocks that divide the arrays, or round the grid up with pl.cdiv"
        )

    def _rank(self) -> tuple[bool, bool, float, float, float]:
        """Sort key: fewest cycles first, then bundles; then partial results, then failures."""
        numbers = (self.cycles.value, self.bundles.value, self.vmem.value)
        cycles, bundles, vmem = (float("inf") if n is None else float(n) for n in numbers)
        return not self.ok, bool(self.partial), cycles, bundles, vmem


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Outcome of a sweep.

    Attributes:
      name: name of the function.
      results: results by target, in the order requested, best first; those without figures come
        last.
      unfinished: settings without a result, because the sweep was stopped.
      problems: problems that do not belong to a setting, a sentence each.
      seconds: duration of the sweep.
      is_stopped: whether ctrl+c ended it.
      predictions: simulated cycles of all settings, by target, best first; empty if all settings
        were to be compiled.
    """

    name: str
    targets: tuple[str, ...]
    results: tuple[SettingResult, ...]
    unfinished: tuple[Mapping[str, str], ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float = 0.0
    is_stopped: bool = False
    predictions: tuple[Prediction, ...] = ()

    @property
    def ok(self) -> bool:
        """True if every setting was tried, and one compiled for each target."""
        is_whole = not self.unfinished and not self.problems and not self.undecided
        return is_whole and all(self.compiled(target) for target in self.targets)

    @property
    def undecided(self) -> tuple[SettingResult, ...]:
        """Settings that may have failed for unrelated reasons; they are tried again."""
        return tuple(r for r in self.results if r.failure and not r.failure.is_final)

    def best(self, target: str | None = None) -> SettingResult | None:
        """Return the best setting for a target, by default the first one.

        Returns None if none compiled, or the cycles of all depend on numbers that are known only
        at run time, such as a dynamic grid's.
        """
        of_target = self.compiled(target or self.targets[0])
        return next((r for r in of_target if r.cycles.value is not None), None)

    def compiled(self, target: str) -> tuple[SettingResult, ...]:
        """Return the settings that compiled for a target, best first."""
        return tuple(r for r in self.results if r.target == target and r.ok)

    def __repr__(self) -> str:
        compiled = sum(r.ok for r in self.results)
        best = self.best()
        best_text = f", best {best.label}: {best.cycles} cycles" if best is not None else ""
        return f"<SweepResult {self.name}: {compiled} of {len(self.results)} compiled{best_text}>"

    def __str__(self) -> str:
        return table_text(self.results)


def ranked(results: Sequence[SettingResult], targets: Sequence[str]) -> tuple[SettingResult, ...]:
    """Sort results by target, best first."""
    order = {target: n for n, target in enumerate(targets)}
    least: dict[tuple[str, str], int] = {}
    for result in results:
        for name, count in result.left_out.items():
            key = result.target, name
            least[key] = min(count, least.get(key, count))
    compared = (
        replace(
            result,
            partial=tuple(
                name
                for name, count in result.left_out.items()
                if count > least[result.target, name]
            ),
        )
        for result in results
    )
    return tuple(sorted(compared, key=lambda r: (order.get(r.target, len(order)), *r._rank())))


def table(
    results: Sequence[SettingResult], reasons: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of a table.

    Args:
      reasons: why settings failed or are partial; rows refer to them by number. Without, each row
        has its own reason.
    """
    names = list(results[0].setting) if results else []
    titles = ["target", *names, "cycles", "bundles", "spills", "VMEM", "status"]
    return titles, [_row(result, reasons) for result in results]


def reasons_of(results: Sequence[SettingResult]) -> list[str]:
    """Return why settings failed or are not compared, each reason once."""
    return list(dict.fromkeys(r.reason for r in results if r.reason is not None))


def _row(result: SettingResult, reasons: Sequence[str]) -> list[str]:
    figures = (result.cycles, result.bundles, result.spills)
    status, why = "ok", result.reason
    if why is not None:
        what = "failed" if result.failure is not None else "partial"
        at = f" at {result.failure.stage}" if result.failure is not None else ""
        number = f"{at} ({reasons.index(why) + 1})" if why in reasons else ""
        status = f"{what}{number}" if number else f"{what}: {why}"
    vmem = result.vmem.value
    used = size_text(vmem) if vmem is not None else "-"
    return [result.target, *result.setting.values(), *map(_cell, figures), used, status]


def _cell(figure: Figure) -> str:
    return figure.formula or shown(figure.value)


def predicted(
    predictions: Sequence[Prediction], results: Sequence[SettingResult]
) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows of a table of simulated cycles, with those of compiled settings."""
    compiled = {(r.target, r.label): r for r in results if r.ok}
    titles = ["target", *(predictions[0].setting if predictions else ()), "simulated", "compiled"]
    rows = []
    for one in predictions:
        label = ", ".join(f"{name}={text}" for name, text in one.setting.items())
        result = compiled.get((one.target, label))
        cycles = _cell(one.cycles) if one.cycles.is_known else f"- ({one.cycles.note})"
        made = _cell(result.cycles) if result is not None else "-"
        rows.append([one.target, *one.setting.values(), cycles, made])
    return titles, rows


def table_text(results: Sequence[SettingResult]) -> str:
    """Return results as a plain-text table, followed by the reasons for failures."""
    reasons = reasons_of(results)
    titles, rows = table(results, reasons)
    return "\n".join([*render.aligned([titles, *rows]), *notes(reasons)])


def notes(reasons: Sequence[str]) -> list[str]:
    """Return the lines that explain the numbers of reasons in a table."""
    return [f"({number}) {reason}" for number, reason in enumerate(reasons, 1)]
