"""Atomic writes to a dump directory, with concurrent writers and killed processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_debug.model import Compilation, Failure, FileRecord, Kernel, SourceLine
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.store import Store, disk, open_dumps
from pallas_debug.store.disk import Content

Compiled = Callable[..., tuple[Compilation, dict[str, bytes | Path]]]

WRITER = """
import sys
from pathlib import Path
from pallas_debug.model import Compilation, Kernel, Pass
from pallas_debug.store import Store
KERNELS = [Kernel(name=f"k{i}", digest=f"{i:x}" * 64, primitive="p") for i in range(3)]
def compiled(key):
    one = Pass(number=0, name="original", size=9, seconds=None, changed=True, file="p.mlir")
    return Compilation(kernel="k", target="v5e", status="ok", key=key, passes=(one,))
"""

MANY_TIMES = f"""{WRITER}
me = sys.argv[2]
store = Store(Path(sys.argv[1]))
for _ in range(60):
    for kernel in KERNELS:
        store.put_kernel(kernel, jaxpr="the jaxpr", source="the source")
        store.put_compilation(kernel, compiled(me * 64), {{"p.mlir": me.encode() * 9}})
"""


def test_a_kernel_written_again_keeps_its_compilations(
    tmp_path: Path, kernel: Kernel, compiled: Compiled
) -> None:
    store = Store(tmp_path)
    store.put_kernel(kernel, jaxpr="j", source="s")
    compilation, files = compiled()
    store.put_compilation(kernel, compilation, files)
    moved = replace(kernel, source=SourceLine(file="moved.py", line=2))
    store.put_kernel(moved, jaxpr="j", source="new s")
    (stored,) = open_dumps(tmp_path)
    assert stored.kernel == moved
    assert stored.stage_file("source").text() == "new s"
    assert [c.compilation for c in stored.compilations] == [recorded(compilation, files)]


def test_a_program_and_blocks_are_written_with_a_new_kernel(tmp_path: Path, kernel: Kernel) -> None:
    store = Store(tmp_path)
    blocks = BlockMap(unknown="its grid is dynamic")
    folder = store.put_kernel(kernel, jaxpr="j", source=None, program="p1", blocks=blocks)
    written = {"blocks.json", "jaxpr.txt", "kernel.json", "program.py"}
    assert {p.name for p in folder.iterdir()} == written
    before = {p.name: p.stat().st_ino for p in folder.iterdir()}
    store.put_kernel(kernel, jaxpr="j", source=None)
    assert {p.name: p.stat().st_ino for p in folder.iterdir()} == before  # nothing has changed
    store.put_kernel(kernel, jaxpr="j2", source=None, program="p2")
    assert (folder / "program.py").read_text() == "p2"


def test_compilation(tmp_path: Path, kernel: Kernel, compiled: Compiled) -> None:
    store = Store(tmp_path / "dumps")
    store.put_kernel(kernel, jaxpr="j", source=None)
    compilation, files = compiled(target="v5e:2x4")
    log = tmp_path / "compiler.log"
    log.write_bytes(b"words")
    folder = store.put_compilation(kernel, compilation, {**files, "compiler.log": log})
    assert folder == tmp_path / "dumps" / "add-01234567" / "v5e-2x4"
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == {
        *("compilation.json", "compiler.log", ORIGINAL, "passes/02-finalize-llo.mlir")
    }
    assert (folder / "compiler.log").read_bytes() == b"words"
    assert log.exists()


def test_another_key_replaces_all_that_was_there(
    tmp_path: Path, kernel: Kernel, compiled: Compiled
) -> None:
    store = Store(tmp_path)
    store.put_kernel(kernel, jaxpr="j", source=None)
    old, files = compiled(key="a" * 64)
    store.put_compilation(kernel, old, {**files, "compiler.log": b"old"})
    new, files = compiled(key="b" * 64, first=b"new\n")
    folder = store.put_compilation(kernel, new, files)
    assert not (folder / "compiler.log").exists()
    assert (folder / "passes" / "00-original.mlir").read_bytes() == b"new\n"
    assert store.find_compilation(kernel, "v5e", "a" * 64) is None
    assert store.find_compilation(kernel, "v6e", "b" * 64) is None
    assert store.find_compilation(replace(kernel, digest="f" * 64), "v5e", "b" * 64) is None
    found = store.find_compilation(kernel, "v5e", "b" * 64)
    assert found == replace(recorded(new, files), cached=True)
    (stored,) = open_dumps(tmp_path).kernels()
    assert stored.target("v5e").compilation == recorded(new, files)  # not how it was found


def test_files_are_flushed_before_they_are_published(
    tmp_path: Path, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    unflushed: set[Path] = set()
    write, rename = disk.write, Path.rename

    def written(path: Path, content: Content) -> FileRecord:
        unflushed.add(path)
        return write(path, content)

    def renamed(old: Path, new: Path) -> Path:
        assert not [path for path in unflushed if path.is_relative_to(old)]
        return rename(old, new)

    monkeypatch.setattr(disk, "write", written)
    monkeypatch.setattr(disk, "flush", unflushed.discard)
    monkeypatch.setattr(Path, "rename", renamed)
    store = Store(tmp_path / "dumps")
    for text in ("one", "two"):
        store.put_kernel(kernel, jaxpr=text, source=None, program=text)
        store.put_compilation(kernel, *compiled(key=text))
    assert not unflushed


# Finding what is there.


ORIGINAL, LOG, MANIFEST = "passes/00-original.mlir", "compiler.log", "compilation.json"


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / ORIGINAL).unlink(),
        lambda folder: (folder / ORIGINAL).write_bytes(b""),
        lambda folder: (folder / ORIGINAL).write_bytes(b"First\n"),
        lambda folder: as_pipe(folder / LOG),
        lambda folder: as_pipe(folder / MANIFEST),
        lambda folder: edited(folder, '"compiler.log"', '"../v5e/compiler.log"'),
        lambda folder: edited(folder, '"compiler.log"', f'"{folder}/compiler.log"'),
        lambda folder: edited(folder, f'"file": "{ORIGINAL}"', '"file": "x.mlir"'),
        lambda folder: (folder / MANIFEST).unlink(),
        lambda folder: (folder / MANIFEST).write_bytes(b"\xff\x00"),
        lambda folder: ((folder / MANIFEST).unlink(), (folder / MANIFEST).mkdir()),
    ],
)
def test_what_is_damaged_is_not_found_and_written_again(
    tmp_path: Path, kernel: Kernel, compiled: Compiled, damage: Callable[[Path], object]
) -> None:
    store = Store(tmp_path)
    compilation, files = compiled()
    files["compiler.log"] = b"the log\n"
    damage(store.put_compilation(kernel, compilation, files))
    assert store.find_compilation(kernel, "v5e", compilation.key) is None
    store.put_compilation(kernel, compilation, files)
    assert store.find_compilation(kernel, "v5e", compilation.key) is not None


def edited(folder: Path, old: str, new: str) -> None:
    """Replace words of the manifest."""
    path = folder / MANIFEST
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "stage, found",
    [("compile", True), ("lowering", True), ("timeout", False), ("crash", False)],
)
def test_a_failure_that_may_be_the_machines_is_not_found(
    tmp_path: Path, kernel: Kernel, stage: str, found: bool
) -> None:
    store = Store(tmp_path)
    failure = Failure(stage=stage, type="X", message="m")  # type: ignore[arg-type]
    failed = Compilation(kernel="add", target="v5e", status="failed", key="k", failure=failure)
    store.put_compilation(kernel, failed, {})
    assert (store.find_compilation(kernel, "v5e", "k") is not None) == found


# Other processes, and ones that are killed.


@pytest.mark.slow
def test_two_processes_write_the_same_kernels(tmp_path: Path) -> None:
    with child(MANY_TIMES, tmp_path, "a") as one, child(MANY_TIMES, tmp_path, "b") as other:
        while one.poll() is None or other.poll() is None:
            if not tmp_path.joinpath("k0-00000000").exists():
                continue
            for stored in open_dumps(tmp_path):
                assert stored.problem is None
                for found in stored.compilations:
                    assert found.problem is None
            time.sleep(0.005)
        assert (one.returncode, other.returncode) == (0, 0)
    kernels = open_dumps(tmp_path).kernels()
    assert [k.name for k in kernels] == ["k0-00000000", "k1-11111111", "k2-22222222"]
    for stored in kernels:
        target = stored.target("v5e")
        assert target.compilation is not None
        assert target.text(target.compilation.passes[0]) == target.compilation.key[0] * 9
        assert stored.stage_file("jaxpr").text() == "the jaxpr"
    assert list((tmp_path / ".tmp").iterdir()) == []


def recorded(compilation: Compilation, files: Mapping[str, bytes | Path]) -> Compilation:
    """A compilation as its manifest has it: with a record of every file beside it."""
    records = {}
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.read_bytes()
        records[name] = FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest())
    return replace(compilation, files=records)


@contextlib.contextmanager
def child(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that runs `code`; killed at the end if it is not done."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
