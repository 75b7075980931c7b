"""Raw Mosaic dumps: parsing of libtpu's file names, real and unusual ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pallas_debug.store import open_dumps, raw

VERSIONS = ["libtpu-0.0.42", "libtpu-0.0.50"]
DIED = (
    ", but a complete compile ends with finalize-llo: libtpu died in the next pass, was stopped, "
    "or is still running, or files are missing here"
)


# Written by the real compiler.


@pytest.mark.parametrize("version", VERSIONS)
def test_compiled(data: Path, version: str) -> None:
    (found,) = raw.compiles((data / version / "add").iterdir())
    assert found.kernel == "add"
    assert found.whole
    assert [p.number for p in found.passes] == list(range(len(found.passes)))
    names = [p.name for p in found.passes]
    assert names[:2] == ["deserialization", "original"]
    assert names[-1] == "finalize-llo"
    assert "infer-vector-layout" in names
    assert ("post-canon-optimization" in names) == (version == "libtpu-0.0.50")
    assert not any(p.failed for p in found.passes)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "name, stage, message",
    [
        ("add", None, None),
        (
            "misaligned",
            "compile",
            "the pass infer-vector-layout failed; raw dumps do not contain the message",
        ),
        ("aborting", "crash", f"the last pass that libtpu wrote is infer-vector-layout{DIED}"),
    ],
)
def test_read(data: Path, version: str, name: str, stage: str | None, message: str | None) -> None:
    folder = data / version / name
    if not folder.exists():
        return  # 0.0.42 does not abort
    (stored,) = open_dumps(folder).kernels()
    assert (stored.name, stored.problem) == (name, None)
    target = stored.target("raw")
    assert target.compilation is not None
    failure = target.compilation.failure
    assert (failure and failure.stage, failure and failure.message) == (stage, message)
    assert failure is None or failure.last_pass == "infer-vector-layout"
    assert f"func.func @{name}" in target.text(target.find_pass("original"))
    before = None
    for p in target.compilation.passes:
        text = target.text(p)
        assert p.changed == (text != before or p.failed)
        before = text


# Odd names.


@pytest.mark.parametrize(
    "kernel",
    [
        *("add", "a-post-b", "x-original", "x-post", "x-failed", "0001-mosaic-dump-x"),
        *("größe", "a b\nc", "x-post-deserialization"),
    ],
)
def test_kernel_names(data: Path, tmp_path: Path, kernel: str) -> None:
    for path in (data / "libtpu-0.0.50" / "add").iterdir():
        shutil.copy(path, tmp_path / path.name.replace("-add-", f"-{kernel}-"))
    (renamed,) = raw.compiles(tmp_path.iterdir())
    (plain,) = raw.compiles((data / "libtpu-0.0.50" / "add").iterdir())
    assert renamed.kernel == kernel
    assert [p.name for p in renamed.passes] == [p.name for p in plain.passes]
    assert [p.failed for p in renamed.passes] == [False] * len(plain.passes)


@pytest.mark.parametrize(
    "head, kernel",
    [
        ("module {\n  func.func @add(%arg0: i32) {", "add"),
        ('module {\n  func.func @"\\C3\\BC \\22q\\22"(%arg0: i32) {', 'ü "q"'),
        ("module {\n  func.func @a.b$c-d(%arg0: i32) {", "a.b$c-d"),
        ("module {\n}", "anonymous"),
        ("", "anonymous"),
        ("\x00\xff\xfe", "anonymous"),
        (" " * 70_000 + "func.func @late(", "anonymous"),
    ],
)
def test_anonymous(tmp_path: Path, head: str, kernel: str) -> None:
    path = tmp_path / "1795185118477198487-0001-mosaic-dump-anonymous-original.txt"
    path.write_text(head, encoding="latin-1")
    (found,) = raw.compiles([path])
    assert found.kernel == kernel


# Several compiles, foreign files, and compiles that came to nothing.


def test_foreign_files_are_passed_over(data: Path, tmp_path: Path) -> None:
    copy(data / "libtpu-0.0.50" / "add", tmp_path)
    alone = raw.compiles(tmp_path.iterdir())
    for name in (
        "notes.txt",
        ".hidden",
        "1795185118477198487-0001-mosaic-dump-add-original.mlirbc",
        "1795185118477198487-0001-mosaic-dump-add.txt",
        "1795185118477198487-0001-mosaic-dump-original.txt",
        "1795185118477198487-0001-mosaic-dump-add-post-.txt",
        "12-0001-mosaic-dump-add-original.txt",
        "x-0001-mosaic-dump-add-original.txt",
        "module_0001.jit_add.hlo.txt",
    ):
        (tmp_path / name).write_bytes(b"\x00foreign")
    (tmp_path / "1795185118477198488-0001-mosaic-dump-b-original.txt").mkdir()
    assert raw.compiles(p for p in tmp_path.iterdir() if p.is_file()) == alone
    names = [k.name for k in open_dumps(tmp_path).kernels() if k.kernel is not None]
    assert names == ["add"]


def test_several_compiles_of_one_kernel(data: Path, tmp_path: Path) -> None:
    for version, later in (("libtpu-0.0.42", 0), ("libtpu-0.0.50", 0), ("libtpu-0.0.50", 10**9)):
        copy(data / version / "add", tmp_path, later=later)
    found = raw.compiles(tmp_path.iterdir())
    assert [c.kernel for c in found] == ["add"] * 3
    assert sorted(found, key=lambda c: c.stamp) == found
    assert [c.passes[0].name for c in found] == ["deserialization"] * 3
    assert [c.whole for c in found] == [True] * 3
    assert [len(c.passes) for c in found] == [19, 22, 22]
    reader = open_dumps(tmp_path)
    assert [k.name for k in reader.kernels()] == ["add", "add#2", "add#3"]
    assert reader.find("add#2").name == "add#2"


@pytest.mark.parametrize("version", VERSIONS)
def test_died_before_its_first_pass(data: Path, tmp_path: Path, version: str) -> None:
    for path in (data / version / "add").glob("*-0000-*"):
        shutil.copy(path, tmp_path)
    (found,) = raw.compiles(tmp_path.iterdir())
    assert (found.kernel, found.whole) == ("add", False)
    assert [p.name for p in found.passes] == ["deserialization"]
    (stored,) = open_dumps(tmp_path).kernels()
    failure = stored.compilations[0].compilation.failure  # type: ignore[union-attr]
    assert failure is not None
    assert failure.stage == "crash"
    assert failure.message == "the last pass that libtpu wrote is deserialization" + DIED


def copy(source: Path, to: Path, later: int = 0) -> None:
    """Copy raw dumps, as if written so many nanoseconds later."""
    for path in source.iterdir():
        stamp, _, rest = path.name.partition("-")
        shutil.copy(path, to / f"{int(stamp) + later}-{rest}")
