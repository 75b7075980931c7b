"""Power failure at every point of a run, losing any combination of unflushed writes.

The writer's operations are recorded while they are performed. For each prefix of the record, the
directory is built that a machine may find when it comes up again:

- The content of a file is certain only if the file was flushed after it was written. Otherwise it
  is empty, zeros, cut short, or there.
- An entry of a folder (a file created, renamed, deleted) is certain only if one of the folders that
  the operation changed was flushed afterwards. Of all others any subset may have lasted, in any
  order: more than a journaling file system would do.
- A rename lasts as a whole or not at all, whichever folders it touches. Journaling and
  copy-on-write file systems guarantee that; FAT does not.

In each of these directories, nothing that is in its place may be half-written, and nothing that
was acknowledged before the failure may be missing, except a compilation that was being replaced.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pallas_debug.model import Compilation, FileRecord, Kernel, Pass, RunRecord, SourceLine
from pallas_debug.store import Store, open_dumps
from pallas_debug.store.disk import Content, Disk, is_as_recorded

ROOT = 0
"""Inode of the folder that holds the dump directory; it lasts."""


@dataclass(frozen=True)
class Entries:
    """Links and unlinks that last together: (folder, name, inode or None)."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Data:
    inode: int
    content: bytes


@dataclass(frozen=True)
class Flush:
    inode: int


Operation = Entries | Data | Flush


@dataclass
class Put:
    """Something that was written: from which operation on it may be seen, from which it must."""

    what: str
    version: str
    began: int
    acknowledged: int = 1 << 60


@dataclass
class Recorder(Disk):
    """A disk that records what is done below `base`."""

    base: Path
    log: list[Operation] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    _folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    _inodes: int = ROOT

    def put(self, what: str, version: str, work: Callable[[], object]) -> None:
        self.puts.append(Put(what, version, began=len(self.log)))
        work()
        self.puts[-1].acknowledged = len(self.log)

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self.made(path)

    def made(self, path: Path) -> None:
        where = self._find(path.parent)
        if path.name not in self._folders[where]:
            self._change((where, path.name, self._new(is_folder=True)))

    def write(self, path: Path, content: Content) -> FileRecord:
        record = super().write(path, content)
        inode = self._new()
        self._change((self._find(path.parent), path.name, inode))
        self.log.append(Data(inode, path.read_bytes()))
        return record

    def flush(self, path: Path) -> None:  # not for real: what lasts is decided here
        assert path.exists()
        self.log.append(Flush(self._find(path)))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        moved = self._find(old)
        self._change(
            (self._find(old.parent), old.name, None), (self._find(new.parent), new.name, moved)
        )

    def _change(self, *changes: tuple[int, str, int | None]) -> None:
        self.log.append(Entries(changes))
        apply(self._folders, changes)

    def _new(self, *, is_folder: bool = False) -> int:
        self._inodes += 1
        if is_folder:
            self._folders[self._inodes] = {}
        return self._inodes

    def _find(self, path: Path) -> int:
        inode = ROOT
        for name in path.relative_to(self.base).parts:
            inode = self._folders[inode][name]
        return inode


def apply(
    folders: dict[int, dict[str, int]], changes: Iterable[tuple[int, str, int | None]]
) -> None:
    for where, name, inode in changes:
        entries = folders.setdefault(where, {})
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def after_power_loss(
    log: list[Operation], entries: Callable[[], bool], data: Callable[[bytes], bytes]
) -> tuple[dict[int, dict[str, int]], dict[int, bytes]]:
    """Folders and contents that a machine finds.

    Args:
      log: what was done before.
      entries: whether a change of entries that was not flushed lasts.
      data: what lasts of content that was not flushed.
    """
    flushed: set[int] = set()
    lasting: list[Operation] = []
    for operation in reversed(log):
        if isinstance(operation, Flush):
            flushed.add(operation.inode)
        elif isinstance(operation, Data):
            is_certain = operation.inode in flushed
            content = operation.content if is_certain else data(operation.content)
            lasting.append(Data(operation.inode, content))
        elif any(where in flushed for where, _, _ in operation.changes) or entries():
            lasting.append(operation)
    folders: dict[int, dict[str, int]] = {ROOT: {}}
    contents: dict[int, bytes] = {}
    for operation in reversed(lasting):
        if isinstance(operation, Data):
            contents[operation.inode] = operation.content
        elif isinstance(operation, Entries):
            apply(folders, operation.changes)
    return folders, contents


def build(
    folders: dict[int, dict[str, int]], contents: dict[int, bytes], inode: int, at: Path
) -> None:
    at.mkdir()
    for name, below in folders.get(inode, {}).items():
        if below in contents:
            (at / name).write_bytes(contents[below])
        else:
            build(folders, contents, below, at / name)


KERNEL = Kernel(name="add", digest="0123456789abcdef" * 4, primitive="pallas_call")


def kernel(version: str) -> tuple[Kernel, str, str]:
    place = SourceLine(file=f"{version}.py", line=1)
    return Kernel(**{**vars(KERNEL), "source": place}), f"jaxpr {version}", f"source {version}"


def compiled(version: str) -> tuple[Compilation, dict[str, bytes | Path]]:
    text = f"pass of {version}\n".encode() * 20
    one = Pass(number=0, name="original", size=len(text), sha256="", seconds=None, changed=True,
               file="passes/00-original.mlir")  # fmt: skip
    made = Compilation(kernel="add", target="v5e", status="ok", key=version, passes=(one,))
    return made, {one.file or "": text, "compiler.log": version.encode(), "empty": b""}


def run(disk: Recorder) -> None:
    """A run that writes, and replaces, everything that a dump directory holds."""
    stores: list[Store] = []
    disk.put("store", "", lambda: stores.append(Store(disk.base / "dumps", disk=disk)))
    (store,) = stores

    def put_kernel(version: str, program: str | None = None) -> None:
        this, jaxpr, source = kernel(version)
        put = functools.partial(store.put_kernel, jaxpr=jaxpr, source=source, program=program)
        disk.put("kernel", version, lambda: put(this))

    def put_compilation(version: str) -> None:
        disk.put("v5e", version, lambda: store.put_compilation(KERNEL, *compiled(version)))

    # A new kernel is written together with its program.
    disk.put("program", "one", lambda: put_kernel("one", program="program one"))
    put_compilation("one")
    put_compilation("two")
    put_kernel("two")
    disk.put("run", "n", lambda: store.put_run(RunRecord(run="r", name="n")))
    disk.put("program", "two", lambda: store.put_program(KERNEL, "program two"))
    put_compilation("three")
    put_kernel("three")


def allowed(puts: list[Put], what: str, now: int) -> set[str | None]:
    """The versions that may be found: from the last that was acknowledged on."""
    these = [put for put in puts if put.what == what]
    acknowledged = [n for n, put in enumerate(these) if put.acknowledged <= now]
    begun = [put.version for put in these if put.began < now]
    return {None, *begun} if not acknowledged else set(begun[acknowledged[-1] :])


def compilation_in(folder: Path) -> str | None:
    """The version of a target's folder, every file of which is as it was written."""
    if not folder.exists():
        return None
    (stored,) = open_dumps(folder.parent).kernels()[0].compilations
    assert stored.problem is None, stored
    found = stored.compilation
    assert found is not None
    _, files = compiled(found.key)
    assert set(found.files) == set(files)
    for name, record in found.files.items():
        assert is_as_recorded(folder / name, record), name
        assert (folder / name).read_bytes() == files[name]
    assert {p.name for p in folder.iterdir()} == {"passes", "compiler.log", "empty",
                                                  "compilation.json"}  # fmt: skip
    return found.key


def kernel_in(folder: Path) -> set[str | None]:
    """The versions of a kernel's files, which are replaced one after the other."""
    if not (folder / "kernel.json").exists():
        assert not folder.exists() or not any(p.is_file() for p in folder.iterdir())
        return {None}
    (stored,) = open_dumps(folder).kernels()
    assert stored.problem is None, stored
    assert stored.kernel is not None
    assert stored.kernel.source is not None
    return {
        stored.kernel.source.file.removesuffix(".py"),
        stored.stage_text("jaxpr").removeprefix("jaxpr "),
        stored.stage_text("source").removeprefix("source "),
    }


def check(root: Path, puts: list[Put], now: int) -> None:
    folder = root / "add-01234567"
    is_being_put = any(p.what == "v5e" and p.began < now < p.acknowledged for p in puts)
    found = compilation_in(folder / "v5e")
    assert found in allowed(puts, "v5e", now) or (found is None and is_being_put)
    assert kernel_in(folder) <= allowed(puts, "kernel", now)
    program = folder / "program.py"
    text = program.read_text().removeprefix("program ") if program.exists() else None
    assert text in allowed(puts, "program", now)
    runs = [record.name for record in open_dumps(root).runs()] if root.exists() else []
    assert (runs[0] if runs else None) in allowed(puts, "run", now)


class Lasting(Disk):
    """A disk without flushes, for what comes after the failure."""

    def flush(self, path: Path) -> None:
        assert path.exists()


@pytest.mark.slow
def test_power_loss(memory_path: Path, is_full: bool) -> None:
    base = memory_path / "base"
    base.mkdir()
    disk = Recorder(base)
    run(disk)
    assert len(disk.log) > 100
    chances = random.Random(13)
    kinds: list[tuple[Callable[[], bool], Callable[[bytes], bytes]]] = [
        (lambda: False, lambda content: b""),
        (lambda: True, lambda content: bytes(len(content))),
        (lambda: chances.random() < 0.5, lambda content: content[: chances.randrange(99)]),
        (lambda: chances.random() < 0.9, lambda content: chances.choice([content, b""])),
    ]
    step, kinds = (1, kinds + kinds[2:] * 3) if is_full else (3, kinds)
    for now in range(0, len(disk.log) + 1, step):
        for entries, data in kinds:
            found = after_power_loss(disk.log[:now], entries, data)
            build(*found, ROOT, memory_path / "after")
            root = memory_path / "after" / "dumps"
            check(root, disk.puts, now)
            store = Store(root, disk=Lasting())
            check(root, disk.puts, now)
            store.put_compilation(KERNEL, *compiled("four"))
            assert store.find_compilation(KERNEL, "v5e", "four") is not None
            shutil.rmtree(memory_path / "after")


@pytest.mark.parametrize("left_out", ["files", "folders"])
def test_a_writer_that_does_not_flush_is_caught(memory_path: Path, left_out: str) -> None:
    """The model itself: without these flushes, something that was acknowledged is not found."""
    base = memory_path / "base"
    base.mkdir()
    disk = Recorder(base)
    run(disk)
    files = {operation.inode for operation in disk.log if isinstance(operation, Data)}
    log = [
        operation
        for operation in disk.log
        if not isinstance(operation, Flush) or (operation.inode in files) != (left_out == "files")
    ]
    found = after_power_loss(log, lambda: False, lambda content: b"")
    build(*found, ROOT, memory_path / "after")
    with pytest.raises(AssertionError):
        check(memory_path / "after" / "dumps", disk.puts, len(disk.log))
