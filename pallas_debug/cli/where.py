"""What the commands that read texts are pointed at: a kernel by a path, its stages and passes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.model import STAGES, Pass
from pallas_debug.report import one_line

if TYPE_CHECKING:
    from pallas_debug.ir.operations import Module
    from pallas_debug.store import StoredCompilation, StoredKernel

OF_KERNEL = ("source", "jaxpr")
"""Stages that are the same for every target."""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A text of a kernel: a stage, or what a pass left.

    Attributes:
      target: None for a stage that is the same for every target.
      stage: as one names it on the command line: `mosaic`, `13-infer-vector-layout`.
    """

    kernel: str
    target: str | None
    stage: str
    text: str

    @property
    def label(self) -> str:
        return "/".join(filter(None, (self.kernel, self.target, self.stage)))

    @property
    def lines(self) -> list[str]:
        return self.text.removesuffix("\n").split("\n") if self.text else []

    def module(self) -> Module:
        from pallas_debug.ir.operations import Module

        return Module(self.lines)

    def as_json(self) -> dict[str, str | None]:
        return {"kernel": self.kernel, "target": self.target, "stage": self.stage}


def kernel_at(where: Path, name: str | None = None) -> tuple[StoredKernel, str | None]:
    """The kernel at a path, and the target where the path is of one.

    Args:
      where: a dump directory, a kernel's or a target's folder in one, a directory of raw dumps; or
        any of the first and last with the start of a kernel's name behind it.
      name: of the kernel, where `where` holds several.

    Raises:
      UsageError: there is no such kernel, or several are.
      DumpDirectoryError: there is no such directory.
    """
    from pallas_debug.store import open_dumps
    from pallas_debug.store.files import is_there
    from pallas_debug.store.names import COMPILATION

    if is_there(where / COMPILATION):
        whole = where.absolute()
        return kernel_at(whole.parent, name)[0], whole.name
    if not is_there(where) and os.path.isdir(where.parent) and where.name:  # noqa: PTH112 - no raise
        return open_dumps(where.parent).find(where.name), None
    reader = open_dumps(where)
    return (reader.find(name) if name else only(reader.kernels(), where)), None


def only(kernels: Sequence[StoredKernel], where: Path) -> StoredKernel:
    """The one kernel of a directory.

    Raises:
      UsageError: there is none, or several.
    """
    if len(kernels) == 1:
        return kernels[0]
    if not kernels:
        raise UsageError(f"no kernels in {one_line(where)}")
    listed = ", ".join(one_line(k.name) for k in kernels[:20])
    more = f", and {len(kernels) - 20} more" if len(kernels) > 20 else ""
    raise UsageError(
        f"say which kernel of {one_line(where)} with --kernel; there are: {listed}{more}"
    )


def passes_of(stored: StoredCompilation) -> tuple[Pass, ...]:
    """The passes of a compilation.

    Raises:
      DumpFormatError: it cannot be read.
    """
    if stored.compilation is None:
        raise DumpFormatError(stored.problem or f"{one_line(stored.folder)} cannot be read")
    return stored.compilation.passes


def text_of_pass(kernel: StoredKernel, stored: StoredCompilation, wanted: Pass) -> Text:
    """What a pass left."""
    return Text(
        kernel=kernel.name,
        target=stored.target,
        stage=f"{wanted.number:02d}-{wanted.name}",
        text=stored.text(wanted),
    )


def text_of(kernel: StoredKernel, target: str | None, stage: str) -> Text:
    """A stage by its name, or a pass by number, name or part of its name.

    Raises:
      UsageError: there is none such, or no target was named where there are several.
    """
    for known in STAGES:
        if stage == known:
            text = kernel.stage_text(known, target)
            if known in OF_KERNEL:
                return Text(kernel=kernel.name, target=None, stage=known, text=text)
            named = kernel.target(target).target
            return Text(kernel=kernel.name, target=named, stage=known, text=text)
    stored = kernel.target(target)
    return text_of_pass(kernel, stored, stored.find_pass(spelled(stage)))


def spelled(stage: str) -> str:
    """`13-infer-vector-layout`, as we print it, is the pass `13`."""
    number, dash, _ = stage.partition("-")
    return number if dash and number.isdecimal() else stage


def stages_of(kernel: StoredKernel, target: str | None, *, every: bool = False) -> list[Text]:
    """All that the dump keeps of a kernel for a target, in the order of its making.

    Args:
      every: passes that changed nothing, too.
    """
    found = []
    for stage in STAGES[1:]:
        path = kernel.stage_path(stage, target)
        if path is not None:
            found.append(text_of(kernel, target, stage))
    if not kernel.compilations:
        return found
    stored = kernel.target(target)
    for number, wanted in enumerate(passes_of(stored)):
        if every or wanted.changed or number == 0:
            found.append(text_of_pass(kernel, stored, wanted))
    return found
