"""Python lines behind the lines of any text: the source itself, compiler text, and bundles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir.operations import Kind, Module, guess_kind
from pallas_debug.model import SourceLine
from pallas_debug.tui.model.browser import Browser, Entry, KernelStep, TextPlace

if TYPE_CHECKING:
    from pallas_debug.ir.bundles import Instruction

Line = tuple[str, int]
"""File and number of a Python line."""

MAX_FOLLOWED = 4_000_000
"""Maximum size in bytes of a text through which operations are followed."""

_SHOWN = 60
"""Number of first lines from which the kind of a text is guessed."""


class PythonText(Module):
    """Python source, whose lines come from themselves."""

    def __init__(self, lines: Sequence[str], file: str) -> None:
        super().__init__(lines, "text")
        self.file = file

    def source(self, line: int) -> tuple[SourceLine, ...]:
        return (SourceLine(file=self.file, line=line + 1),)

    def placed(self, line: int) -> Sequence[tuple[str, tuple[SourceLine, ...]]]:
        return [("", self.source(line))]

    @cached_property
    def from_source(self) -> dict[Line, list[int]]:
        return {(self.file, line + 1): [line] for line in range(len(self.lines))}


class BundleText(Module):
    """Bundles, whose instructions have Python lines even where the compiler names none.

    Args:
      mosaic: returns the kernel's module before any pass.
    """

    def __init__(self, lines: Sequence[str], mosaic: Callable[[], Module | None]) -> None:
        super().__init__(lines, "bundles")
        self._mosaic = mosaic

    @cached_property
    def instructions(self) -> dict[int, list[tuple[Instruction, tuple[SourceLine, ...]]]]:
        """Instructions of each line, with their Python lines, innermost first."""
        from pallas_debug.ir.bundles import read_bundles  # both are slow to import
        from pallas_debug.profile.tracing import trace

        listing = read_bundles("\n".join(self.lines))
        traces = trace(listing, self._mosaic()).traces
        return {
            bundle.line: [
                (instruction, trace.chain)
                for instruction, trace in zip(bundle.instructions, of_bundle, strict=True)
            ]
            for bundle, of_bundle in zip(listing.bundles, traces, strict=True)
        }

    def source(self, line: int) -> tuple[SourceLine, ...]:
        found = (source for _, chain in self.instructions.get(line, ()) for source in chain)
        return tuple(dict.fromkeys(found))

    def placed(self, line: int) -> Sequence[tuple[str, tuple[SourceLine, ...]]]:
        return [(i.opcode, chain) for i, chain in self.instructions.get(line, ())]


def module_of(
    browser: Browser, place: TextPlace, lines: Sequence[str], kind: Kind | None = None
) -> Module:
    """Parse the lines of a text."""
    if place.step.stage == "source":
        return PythonText(lines, browser.source_file(place.entry) or "")
    kind = kind or guess_kind("\n".join(lines[:_SHOWN]))
    if kind == "bundles":
        return BundleText(lines, partial(_mosaic, browser, place))
    return Module(lines, kind)


def is_followed(step: KernelStep) -> bool:
    """Return whether operations can be followed into the text of a step."""
    return step.changed and step.of_kernel and step.stage != "stablehlo"


def followed(browser: Browser, place: TextPlace, steps: Sequence[KernelStep]) -> dict[str, Module]:
    """Read the texts through which operations can be followed, by their labels.

    Texts of more than `MAX_FOLLOWED` bytes are left out, and so are bundles before the last ones.
    """
    found: dict[str, Module] = {}
    for step in filter(is_followed, steps):
        at = replace(place, step=step)
        if step != place.step and browser.size(at) > MAX_FOLLOWED:
            continue
        module = module_of(browser, at, browser.lines(at))
        is_bundles = module.kind == "bundles" and step.label != "bundles"
        if step == place.step or (module.kind != "text" and not is_bundles) or step.stage:
            found[step.label] = module
    return found


def _mosaic(browser: Browser, place: TextPlace) -> Module | None:
    try:
        file = browser.stored(place.entry).stage_file("mosaic", place.target)
        return Module.of(file.text(), "mlir")
    except PallasDebugError:
        return None


def moved_to(browser: Browser, old: Entry, new: Entry) -> Callable[[Line], Line]:
    """Return a function from the lines of one kernel's file to those of another version of it."""
    files = browser.source_file(old) or "", browser.source_file(new) or ""
    if old == new or not all(files):
        return lambda line: line
    from pallas_debug.ir.match import moved_lines

    lines = moved_lines(browser.source_lines(old), browser.source_lines(new))

    def moved(line: Line) -> Line:
        if line[0] != files[0]:
            return line
        above = next((n for n in range(line[1], 0, -1) if n in lines), 0)
        return files[1], line[1] + lines.get(above, 0) - above

    return moved
