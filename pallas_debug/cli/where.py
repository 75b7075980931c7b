"""Lookup of the kernel that a command's WHERE names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pallas_debug.errors import DumpFormatError, UsageError, meant
from pallas_debug.render import one_line, typed
from pallas_debug.store import StoredKernel, open_dumps
from pallas_debug.store.files import is_folder, is_there
from pallas_debug.store.layout import COMPILATION, KERNEL, is_url


def local(place: str | Path) -> Path:
    """Return the path of a place; if that is a URL, of a copy of what is there."""
    if not is_url(place):
        return Path(place)
    from pallas_debug.store.remote import fetch  # imports what local files do not need

    return fetch(str(place))


def kernel_at(where: Path, name: str | None = None) -> tuple[StoredKernel, str | None]:
    """Return the kernel at a path, and the target if the path is a target's folder.

    Args:
      where: a dump directory, the folder of a kernel or target in one, or raw dumps; or a dump
        directory followed by a prefix of a kernel's name, as in `dumps/rmsnorm`.
      name: name of the kernel, if `where` contains several.

    Raises:
      UsageError: there is no such kernel, or there are several.
      NoDumpsError: there is no such directory.
      DumpFormatError: the kernel cannot be read.
    """
    found, target = _found(where, name)
    if found.problem:
        raise DumpFormatError(found.problem)
    return found, target


def split_prefix(where: Path) -> tuple[Path, str | None]:
    """Split `dumps/rmsnorm`, if it is not a path, into a dump directory and a kernel's prefix."""
    if is_there(where) or not where.name or not is_folder(where.parent):
        return where, None
    is_bare = where.parent == Path()
    if is_bare and not any(is_there(folder / KERNEL) for folder in _starting_with(where.name)):
        return where, None  # the name of a directory, rather than of a kernel in this one
    if not is_bare and not _holds_dumps(where.parent):
        return where, None  # nothing next to it is a kernel, so it is a missing directory
    return where.parent, where.name


def split_target(where: Path) -> tuple[Path, str | None]:
    """Split the folder of a target into that of its kernel, and the target's name."""
    if not is_there(where / COMPILATION):
        return where, None
    whole = where.absolute()
    return whole.parent, whole.name


def either(prefix: str | None, name: str | None) -> str | None:
    """Return the kernel that a path ends with, or that `--kernel` names; the longer, if both do.

    Raises:
      UsageError: they name different kernels.
    """
    if prefix is None or name is None or prefix.startswith(name):
        return prefix or name
    if name.startswith(prefix):
        return name
    raise UsageError(
        f"the path names the kernel {prefix!r}, and --kernel {name!r}: pass only one of them"
    )


def _holds_dumps(folder: Path) -> bool:
    """Return whether a folder is a dump directory or contains raw dumps directly."""
    try:
        children = list(folder.iterdir())
    except OSError:
        return True  # opening it raises an error that says why
    return any(is_there(child / KERNEL) or child.is_file() for child in children)


def _dumps_below(folder: Path) -> list[str]:
    """The dump directories among a directory's folders."""
    try:
        children = sorted(folder.iterdir())
        return [
            child.name
            for child in children
            if not is_there(child / KERNEL)
            and is_folder(child)
            and any(is_there(kernel / KERNEL) for kernel in child.iterdir())
        ]
    except OSError:
        return []


def _starting_with(name: str) -> list[Path]:
    try:
        return [found for found in Path().iterdir() if found.name.startswith(name)]
    except OSError:  # this directory cannot be listed
        return []


def _found(where: Path, name: str | None) -> tuple[StoredKernel, str | None]:
    where, prefix = split_prefix(where)
    if prefix is not None:
        return open_dumps(where).find(either(prefix, name) or prefix), None
    where, target = split_target(where)
    reader = open_dumps(where)
    return (reader.find(name) if name else only(reader.kernels(), where)), target


def only(kernels: Sequence[StoredKernel], where: Path) -> StoredKernel:
    """Return the only kernel of a directory.

    Raises:
      UsageError: there is none, or several.
    """
    found = [k for k in kernels if k.kernel is not None or k.compilations]
    kernels = found or without_strangers(kernels, where)
    if len(kernels) == 1:
        return kernels[0]
    if not kernels:
        raise UsageError(no_kernels(where))
    listed = ", ".join(one_line(k.name) for k in kernels[:20])
    more = f", and {len(kernels) - 20} more" if len(kernels) > 20 else ""
    raise UsageError(
        f"select a kernel of {one_line(where)} with --kernel; there are: {listed}{more}"
    )


def without_strangers(kernels: Sequence[StoredKernel], where: Path) -> Sequence[StoredKernel]:
    """Return the kernels of a directory; none if it only contains dump directories."""
    is_any = any(k.kernel is not None or k.compilations for k in kernels)
    return kernels if is_any or not _dumps_below(where) else ()


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
    """Check that at least one kernel was compiled for each requested target.

    Raises:
      UsageError: no kernel was compiled for a target.
    """
    compiled = [c for k in kernels for c in k.compilations]
    known = sorted({one_line(c.target) for c in compiled})
    for name in wanted:
        if compiled and not any(name in (c.target, c.folder.name) for c in compiled):
            raise UsageError(
                f"no kernel here was compiled for {name!r}{meant(name, known)}; "
                f"there are: {', '.join(known)}"
            )
