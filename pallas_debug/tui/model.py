"""What the panes show: kernels, stages and passes of a dump directory, read when they are needed.

Imports no textual: it is tested, and used by whoever wants the same view without a screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pallas_debug.errors import PallasDebugError
from pallas_debug.ir import diff
from pallas_debug.ir.normal import NOISE
from pallas_debug.model import STAGES, Pass, Stage
from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel, open_dumps


@dataclass(frozen=True, kw_only=True)
class Step:
    """One line of the pane in the middle: a stage before the compiler, or a pass of it.

    Attributes:
      stage: its name where it is a stage.
      pass_: what the dump says of it where it is a pass.
      label: what a person calls it.
    """

    label: str
    stage: Stage | None = None
    pass_: Pass | None = None

    @property
    def changed(self) -> bool:
        """Whether it has a text of its own."""
        return self.pass_ is None or self.pass_.changed

    @property
    def failed(self) -> bool:
        return self.pass_ is not None and self.pass_.failed


class Browser:
    """A dump directory as the terminal UI walks through it.

    Raises:
      DumpDirectoryError: it does not exist, is a file, or cannot be listed.
    """

    def __init__(self, root: Path) -> None:
        self._reader: DumpReader = open_dumps(root)
        self.root = root
        self.names: list[str] = self._reader.names()
        self._read: dict[str, StoredKernel] = {}

    def kernel(self, number: int) -> StoredKernel:
        """A kernel by its place in `names`; read from the disk at the first time."""
        name = self.names[number]
        if name not in self._read:
            self._read[name] = self._reader.read(name)
        return self._read[name]

    def compilation(self, number: int, target: str | None) -> StoredCompilation | None:
        """For a target, or for the first there is, failures before others."""
        found = self.kernel(number).compilations
        for compilation in found:
            if compilation.target == target:
                return compilation
        failed = (c for c in found if c.compilation is None or not c.compilation.ok)
        return next(failed, found[0] if found else None)

    def steps(self, number: int, target: str | None) -> list[Step]:
        """The stages that the dump has of a kernel, and the passes for a target."""
        stored = self.kernel(number)
        compilation = self.compilation(number, target)
        name = compilation.target if compilation else None
        steps = [
            Step(label=stage, stage=stage)
            for stage in STAGES
            if stored.stage_path(stage, name) is not None
        ]
        if compilation is not None and compilation.compilation is not None:
            steps += [
                Step(label=f"{p.number:02d} {p.name}", pass_=p)
                for p in compilation.compilation.passes
            ]
        return steps

    def text(self, number: int, target: str | None, step: Step) -> str:
        """What a step left; where it cannot be read, the reason."""
        stored = self.kernel(number)
        compilation = self.compilation(number, target)
        try:
            if step.stage is not None:
                return stored.stage_text(step.stage, compilation.target if compilation else None)
            assert step.pass_ is not None
            assert compilation is not None
            return compilation.text(step.pass_)
        except PallasDebugError as error:
            return str(error)

    def failing(self, number: int, target: str | None, steps: list[Step]) -> int | None:
        """Where a kernel that failed is to be opened: its failing pass, or the last there is."""
        compilation = self.compilation(number, target)
        failure = compilation and compilation.compilation and compilation.compilation.failure
        if not failure:
            return None
        for i, step in enumerate(steps):
            if step.failed:
                return i
        return len(steps) - 1 if steps else None

    def change(
        self, number: int, target: str | None, steps: Sequence[Step], at: Step, *, noise: bool
    ) -> list[str]:
        """What a step changed of the last one before it that had a text, as `diff -u` has it.

        Args:
          noise: whether renumbered values, locations and the order of attributes count.
        """
        before = [s for s in steps[: steps.index(at)] if s.changed]
        if not before:
            return [f"there is nothing before {at.label}"]
        old, new = (self.lines(number, target, step) for step in (before[-1], at))
        found = diff.diff(old, new, ignore=() if noise else NOISE)
        lines = list(found.unified(before[-1].label, at.label))
        less = "" if noise else " but for numbers of values, locations and the order of attributes"
        return lines or [f"{at.label} is as {before[-1].label}{less}"]

    def lines(self, number: int, target: str | None, step: Step) -> list[str]:
        """The text of a step, by lines."""
        return self.text(number, target, step).removesuffix("\n").split("\n")

    def source_file(self, number: int) -> str | None:
        """The file in which the kernel's function stands, as the compiler names it."""
        kernel = self.kernel(number).kernel
        return kernel.source.file if kernel and kernel.source else None

    def source_lines(self, number: int) -> list[str]:
        """That file as the dump keeps it; where it does not, a line that says so."""
        stored = self.kernel(number)
        try:
            return stored.stage_text("source").removesuffix("\n").split("\n")
        except PallasDebugError as error:
            return [str(error)]
