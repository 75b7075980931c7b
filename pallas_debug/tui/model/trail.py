"""History of an operation, text by text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pallas_debug.ir.operations import Module, name_of
from pallas_debug.tui.model.origins import BundleText

if TYPE_CHECKING:
    from pallas_debug.ir.follow import Fate

PassFate = Literal[
    "same", "changed", "renamed", "lowered", "split", "merged", "gone", "new", "first"
]

FATES: dict[PassFate, str] = {
    "first": "",
    "new": "+ new",
    "same": "= same",
    "changed": "~ changed",
    "renamed": "→ renamed",
    "lowered": "↓ lowered",
    "split": "⑂ split",
    "merged": "⑃ merged",
    "gone": "✗ gone",
}
"""Labels of fates: an operation is `new` if it does not come from one in the previous pass."""

_BACKWARDS: dict[Fate, PassFate] = {"split": "merged", "merged": "split", "gone": "new"}
"""Action of a pass for each fate that is found by following the passes backwards."""

_MAX_TEXT = 1000

_MAX_LINES = 4
"""Maximum number of lines of a text to list singly, instead of once per operation."""


@dataclass(frozen=True, kw_only=True)
class TrailRow:
    """Row of a trail: an operation in one text.

    Attributes:
      label: label of the text's step.
      line: line of the text, from 0; None if the operation is gone.
      fate: what became of the operation in this text.
      here: whether the trail starts from this line.
    """

    label: str
    line: int | None
    fate: PassFate
    text: str
    here: bool = False


Loader = Callable[[], Mapping[str, Module]]
"""Function that returns the texts in order, parsed, by their labels. Called in a thread."""


def trail_rows(load: Loader, label: str, line: int) -> list[TrailRow]:
    """Return the rows of a trail, from the first text with the operation to the last.

    Empty if the text no longer has the line, as a file may be replaced at any time.
    """
    from pallas_debug.ir.follow import Trail, counterparts

    loaded = load()
    labels, modules = list(loaded), list(loaded.values())
    start = labels.index(label)
    if line >= len(modules[start].lines):
        return []
    trail = Trail(modules)
    places: dict[int, tuple[int, ...]] = {start: (line,)}
    fates: dict[int, PassFate] = {}
    for step in trail.trace(start, line):
        fates[step.module + 1] = _BACKWARDS.get(step.fate, step.fate)
        if step.lines:
            places[step.module] = step.lines
    fates.setdefault(min(places), "first")
    for step in trail.follow(start, line):
        places[step.module], fates[step.module] = step.lines, step.fate
    end = len(modules) - 1
    if not places.get(end) and isinstance(modules[end], BundleText):  # lost on the way
        places[end] = tuple(counterparts(modules[start], line, modules[end]))
        fates[end] = "lowered" if places[end] else "gone"
    wanted = {source.place for source in modules[start].source(line)}
    return [
        TrailRow(
            label=labels[at],
            line=number,
            fate=fates[at],
            text=text,
            here=(at, number) == (start, line),
        )
        for at in sorted(places)
        for number, text in _listed(modules[at], places[at], wanted)
    ]


def _listed(
    module: Module, lines: Sequence[int], wanted: Set[tuple[str, int]]
) -> Iterator[tuple[int | None, str]]:
    """Yield the lines of a trail in a text; of many, the first with each operation.

    Args:
      wanted: the Python lines of the trail, to which the instructions of a bundle are reduced.
    """
    if not lines:
        yield None, ""
    named: dict[str, list[tuple[int, str]]] = {}
    for line in lines:
        text = module.lines[line]
        name = name_of(text, module.kind) or ""
        if isinstance(module, BundleText):
            of_line = [i for i, c in module.instructions[line] if wanted & {s.place for s in c}]
            text = "  ;;  ".join(instruction.text for instruction in of_line) or text
            name = of_line[0].opcode if of_line else name
        named.setdefault(name, []).append((line, text[:_MAX_TEXT]))
    for of_name in named.values():
        if len(lines) <= _MAX_LINES:
            yield from of_name
        else:
            line, text = of_name[0]
            yield line, f"{text}  ×{len(of_name)}" if len(of_name) > 1 else text
