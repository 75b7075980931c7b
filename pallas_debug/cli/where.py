"""Lookup of the kernels that a command's WHERE names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pallas_debug import defaults, followup
from pallas_debug.errors import DumpFormatError, UsageError, meant
from pallas_debug.render import one_line, typed
from pallas_debug.store import DumpReader, StoredCompilation, StoredKernel, open_dumps
from pallas_debug.store.files import is_folder, is_there
from pallas_debug.store.layout import COMPILATION, KERNEL, is_url


@dataclass(frozen=True, kw_only=True)
class Place:
    """What WHERE and the options of a command name.

    Attributes:
      root: a dump directory, a kernel's folder in one, or a directory of raw dumps.
      kernel: name of a kernel in it, or its beginning; None if none was named.
      target: name of a target; None if none was named.
    """

    root: Path
    kernel: str | None = None
    target: str | None = None

    @property
    def is_one(self) -> bool:
        """True if a single kernel is named, rather than a dump directory."""
        return self.kernel is not None or is_there(self.root / KERNEL)

    @property
    def reader(self) -> DumpReader:
        """Reader of the directory."""
        return open_dumps(self.root)

    def path(self, name: str) -> Path:
        """Return the path that names a kernel of this place, as in `dumps/rmsnorm-1c9f3a2b`."""
        return self.root if is_there(self.root / KERNEL) else self.root / name

    def kernels(self) -> list[StoredKernel]:
        """Return the kernel that is named, or all; none of a directory of dump directories."""
        if self.kernel is not None:
            found = [self.reader.find(self.kernel)]
        else:
            found = self.reader.kernels()
            is_any = any(k.kernel is not None or k.compilations for k in found)
            found = found if is_any or not _dumps_below(self.root) else []
        check_targets(() if self.target is None else (self.target,), found)
        return found

    def only(self) -> StoredKernel:
        """Return the one kernel that is named, or that is there."""
        kernels = self.kernels()
        known = [k for k in kernels if k.kernel is not None or k.compilations] or kernels
        if not known:
            raise UsageError(no_kernels(self.root))
        if len(known) > 1:
            listed = ", ".join(one_line(k.name) for k in known[:20])
            more = f", and {len(known) - 20} more" if len(known) > 20 else ""
            raise UsageError(
                f"{one_line(self.root)} has several kernels: name one of {listed}{more}"
            )
        if known[0].problem:
            raise DumpFormatError(known[0].problem)
        return known[0]

    def chosen(self) -> list[tuple[StoredKernel, str | None]]:
        """Return the kernels, each with its targets; with None if it was not compiled."""
        found: list[tuple[StoredKernel, str | None]] = []
        for kernel in self.kernels():
            found += [(kernel, c.target) for c in self.compilations(kernel)] or [(kernel, None)]
        if len(found) <= 1:
            self.only()
        return found

    def compilations(self, kernel: StoredKernel) -> list[StoredCompilation]:
        """Return the compilations of a kernel: that for the target, or all if none was named."""
        return [c for c in kernel.compilations if self.target in (None, c.target, c.folder.name)]

    def first_failure(self, kernels: Sequence[StoredKernel]) -> str | None:
        """Command about the first compilation that failed; None if there is none."""
        return followup.first_failure(
            (self.path(k.name), [c.compilation for c in self.compilations(k)]) for k in kernels
        )

    def look(self, kernels: Sequence[StoredKernel], *words: str, other: str | None = None) -> str:
        """Command with these words about the first kernel with a schedule; else the list."""
        others = () if other is None else (other,)
        for kernel in kernels:
            for stored in self.compilations(kernel):
                if stored.compilation is not None and "bundles" in stored.compilation.stages:
                    at = self.path(kernel.name)
                    return followup.command(*words, at, *others, "-t", stored.target)
        return followup.command("ls", self.root)


def local(place: str | Path) -> Path:
    """Return the path of a place; if that is a URL, of a copy of what is there."""
    if not is_url(place):
        return Path(place)
    from pallas_debug.store.remote import fetch  # imports what local files do not need

    return fetch(str(place))


def place_at(where: str | Path, kernel: str | None = None, target: str | None = None) -> Place:
    """Return what a command's WHERE, `--kernel` and `--target` name.

    Args:
      where: a dump directory, the folder of a kernel or target in one, or raw dumps; a dump
        directory followed by the beginning of a kernel's name, as in `old/rmsnorm`; or only that,
        of a kernel in `dumps`.
      kernel: name of the kernel, if `where` contains several.
      target: name of the target; by default that of a target's folder.
    """
    path = local(where)
    if is_there(path / COMPILATION):
        folder = path.absolute()
        path, target = folder.parent, target or folder.name
    root, prefix = split_prefix(path)
    named = max(kernel or "", prefix or "", key=len) or None  # the one that says more
    return Place(root=root, kernel=named, target=target)


def split_prefix(where: Path) -> tuple[Path, str | None]:
    """Split `old/rmsnorm` or `rmsnorm`, if it is not a path, into a directory and a kernel."""
    if is_there(where) or not where.name or not is_folder(where.parent):
        return where, None
    if where.parent != Path():
        # Where nothing next to it is a kernel, it is a missing directory.
        return (where.parent, where.name) if _holds_dumps(where.parent) else (where, None)
    if _has_kernels(Path()):
        return Path(), where.name
    dumps = Path(defaults.DIRECTORY)
    return (dumps, where.name) if is_folder(dumps) else (where, None)


def _has_kernels(folder: Path) -> bool:
    return any(is_there(child / KERNEL) for child in _children(folder))


def _holds_dumps(folder: Path) -> bool:
    """Return whether a folder is a dump directory or contains raw dumps directly."""
    # Opening one that cannot be listed raises an error that says why.
    is_raw = any(child.is_file() for child in _children(folder))
    return is_raw or _has_kernels(folder) or not os.access(folder, os.R_OK)


def _dumps_below(folder: Path) -> list[str]:
    """The dump directories among a directory's folders."""
    children = (child for child in _children(folder) if not is_there(child / KERNEL))
    return [child.name for child in children if is_folder(child) and _has_kernels(child)]


def _children(folder: Path) -> list[Path]:
    """List a folder, in order; nothing if it cannot be listed."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def no_kernels(where: Path) -> str:
    """Message that a directory contains no kernels, with where to find some or how to dump them."""
    below = [one_line(where / name) for name in _dumps_below(where)[:5]]
    if below:
        return f"no kernels in {one_line(where)}; there are dumps in {', '.join(below)}"
    return (
        f"no kernels in {one_line(where)}; `pallas-debug dump --to {typed(where)} SCRIPT.py` "
        "adds some"
    )


def check_targets(wanted: Sequence[str], kernels: Sequence[StoredKernel]) -> None:
    """Check that at least one kernel was compiled for each requested target."""
    compiled = [c for k in kernels for c in k.compilations]
    known = sorted({one_line(c.target) for c in compiled})
    for name in wanted:
        if compiled and not any(name in (c.target, c.folder.name) for c in compiled):
            raise UsageError(
                f"no kernel here was compiled for {name!r}{meant(name, known)}; "
                f"there are: {', '.join(known)}"
            )
