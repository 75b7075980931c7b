"""Lookup of the kernel that a command's WHERE names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pallas_debug.errors import UsageError
from pallas_debug.report import one_line
from pallas_debug.store import StoredKernel, open_dumps
from pallas_debug.store.files import is_folder, is_there
from pallas_debug.store.layout import COMPILATION


def kernel_at(where: Path, name: str | None = None) -> tuple[StoredKernel, str | None]:
    """Return the kernel at a path, and the target if the path is a target's folder.

    Args:
      where: as for `kernel_in`; or a dump directory followed by a prefix of a kernel's name.
      name: of the kernel, if `where` contains several.

    Raises:
      UsageError: there is no such kernel, or there are several.
      DumpDirectoryError: there is no such directory.
    """
    if not is_there(where) and is_folder(where.parent) and where.name:
        return open_dumps(where.parent).find(where.name), None
    return kernel_in(where, name)


def kernel_in(directory: Path, name: str | None = None) -> tuple[StoredKernel, str | None]:
    """Return the kernel in a dump directory, kernel's or target's folder, or raw dumps.

    Raises:
      UsageError, DumpDirectoryError: as `kernel_at`.
    """
    target = None
    if is_there(directory / COMPILATION):
        directory, target = directory.absolute().parent, directory.absolute().name
    reader = open_dumps(directory)
    return (reader.find(name) if name else only(reader.kernels(), directory)), target


def only(kernels: Sequence[StoredKernel], where: Path) -> StoredKernel:
    """Return the only kernel of a directory.

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
