"""Reader of dump directories: ours and libtpu's, intact and damaged."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pallas_debug import store as store_package
from pallas_debug.errors import DumpDirectoryError, DumpFormatError, UsageError
from pallas_debug.model import Compilation, Kernel, Pass, RunRecord
from pallas_debug.store import DumpReader, Store, open_dumps

Compiled = Callable[..., tuple[Compilation, dict[str, bytes | Path]]]


@pytest.fixture
def folder(tmp_path: Path, kernel: Kernel, compiled: Compiled) -> Path:
    """One kernel, compiled for v5e and v6e."""
    store = Store(tmp_path / "dumps")
    folder = store.put_kernel(kernel, jaxpr="the jaxpr", source="the source")
    for target in ("v5e", "v6e"):
        compilation, files = compiled(target=target)
        files["stablehlo.mlir"] = f"StableHLO for {target}".encode()
        store.put_compilation(kernel, compilation, files)
    return folder


def test_whole(folder: Path, kernel: Kernel) -> None:
    for root in (folder.parent, folder):  # a directory of kernels, or one kernel's folder
        (stored,) = open_dumps(root)
        assert (stored.name, stored.kernel, stored.problem) == ("add-01234567", kernel, None)
        assert [c.target for c in stored.compilations] == ["v5e", "v6e"]
        assert stored.stage_file("jaxpr").text() == "the jaxpr"
        assert stored.stage_file("source").text() == "the source"
        assert stored.stage_file("stablehlo", "v6e").text() == "StableHLO for v6e"


def test_what_is_no_kernel_is_passed_over(folder: Path) -> None:
    Store(folder.parent).put_run(RunRecord(run="r", name="n"))
    (folder.parent / ".git").mkdir()
    (folder.parent / "README.md").write_text("x")
    (folder / "notes").mkdir()
    (stored,) = open_dumps(folder.parent)
    assert [c.target for c in stored.compilations] == ["v5e", "v6e"]


# Directories that are none.


@pytest.mark.parametrize(
    "root, message",
    [
        ("nowhere", "no such directory: {}. `pallas-debug dump SCRIPT.py` creates one."),
        ("nowhere/below", "no such directory: {}. `pallas-debug dump SCRIPT.py` creates one."),
        ("file", "{} is a file, or lies below one; name the directory that holds the dumps."),
        ("file/below", "{} is a file, or lies below one; name the directory that holds the dumps."),
        ("x" * 300, "{} cannot be listed: File name too long."),
    ],
)
def test_no_directory(tmp_path: Path, root: str, message: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DumpDirectoryError) as error:
        open_dumps(tmp_path / root)
    assert str(error.value) == message.format(tmp_path / root)


# Damage. The rest of the directory stays readable.


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "{path} is empty: its writer was stopped. Delete its folder and dump again."),
        (None, "{folder} holds no kernel.json: it is not a kernel's folder, or is incomplete."),
    ],
)
def test_damaged_kernel(folder: Path, kernel: Kernel, content: bytes | None, problem: str) -> None:
    Store(folder.parent).put_kernel(
        replace(kernel, name="zoom", digest="f" * 64), jaxpr="j", source=None
    )
    path = folder / "kernel.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    add, zoom = open_dumps(folder.parent)
    assert add.problem == problem.format(path=path, folder=folder)
    assert (add.name, add.kernel) == ("add-01234567", None)
    assert [c.target for c in add.compilations] == ["v5e", "v6e"]
    assert add.stage_file("jaxpr").text() == "the jaxpr"
    assert (zoom.problem, zoom.name) == (None, "zoom-ffffffff")
    assert open_dumps(folder.parent).find("add").problem == add.problem


@pytest.mark.parametrize("length", [0, 40])
def test_damaged_compilation(folder: Path, length: int) -> None:
    path = folder / "v5e" / "compilation.json"
    path.write_bytes(path.read_bytes()[:length])
    (stored,) = open_dumps(folder.parent)
    assert stored.problem is None
    v5e, v6e = stored.compilations
    assert (v5e.target, v5e.compilation) == ("v5e", None)
    assert v5e.problem is not None
    assert v5e.problem.startswith(f"{path} is {'truncated or' if length else 'empty'}")
    assert v5e.problem.endswith(" Delete its folder and dump again.")
    assert v6e.problem is None
    assert stored.stage_file("stablehlo", "v5e").text() == "StableHLO for v5e"
    for ask in (lambda: v5e.find_pass("original"), lambda: v5e.text(one_pass())):
        with pytest.raises(DumpFormatError) as error:
            ask()
        assert str(error.value) == v5e.problem


@pytest.mark.parametrize(
    "content, why",
    [
        (b"", "is damaged: it has 0 bytes, and its manifest records 6. Dump the kernel again; "),
        (b"first\n\n", "is damaged: it has 7 bytes, and its manifest records 6. "),
        (b"fir\xff\xfe\n", "is damaged: its SHA-256 begins with "),
        (None, "cannot be read: No such file or directory. Dump again."),
    ],
)
def test_a_pass_that_is_not_as_recorded(folder: Path, content: bytes | None, why: str) -> None:
    path = folder / "v5e" / "passes" / "00-original.mlir"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    v5e = open_dumps(folder).kernels()[0].target("v5e")
    with pytest.raises(DumpFormatError) as error:
        v5e.text(v5e.find_pass("original"))
    assert str(error.value).startswith(f"{path} {why}")
    if content is None:
        missing = f"{path} is missing, and its manifest lists it. Dump the kernel again."
        assert v5e.damaged() == [missing]
    elif len(content) != 6:  # no text is read to find what is damaged
        assert v5e.damaged() == [str(error.value)]
    assert v5e.text(v5e.find_pass("finalize-llo")) == "last of first\n"


def test_a_folder_that_was_replaced_since_it_was_read_is_not_called_damaged(folder: Path) -> None:
    (stored,) = open_dumps(folder)
    v5e = stored.target("v5e")
    manifest, path = folder / "v5e" / "compilation.json", folder / "v5e/passes/00-original.mlir"
    text = b"another first\n"
    document = json.loads(manifest.read_text())
    record = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    document["passes"][0] |= record
    document["files"]["passes/00-original.mlir"] = record
    manifest.write_text(json.dumps(document))
    path.write_bytes(text)
    assert v5e.text(v5e.find_pass("original")) == "another first\n"


# Finding.


@pytest.fixture
def several(tmp_path: Path) -> DumpReader:
    """Kernels `add` at two shapes, `add_one`, `mul`, and `a/b`, whose folder is `a_b-…`."""
    store = Store(tmp_path)
    for name, digest in (("add", "1"), ("add", "2"), ("add_one", "3"), ("mul", "4"), ("a/b", "5")):
        kernel = Kernel(name=name, digest=digest * 64, primitive="p")
        store.put_kernel(kernel, jaxpr="j", source=None)
    return open_dumps(tmp_path)


def test_find(several: DumpReader) -> None:
    for wanted, name in {
        "add-11111111": "add-11111111",
        "add-1": "add-11111111",
        "add_one": "add_one-33333333",
        "add_": "add_one-33333333",
        "mul": "mul-44444444",
        "m": "mul-44444444",
        "a/b": "a_b-55555555",
        "a/": "a_b-55555555",
        "a_b": "a_b-55555555",
    }.items():
        assert several.find(wanted).name == name


@pytest.mark.parametrize(
    "wanted, message",
    [
        (
            "ad",
            "'ad' names several kernels in {}: add-11111111, add-22222222, add_one-33333333. "
            "Add more of the name.",
        ),
        (
            "dd",
            "no kernel 'dd' (did you mean 'add'?) in {}; there are: a_b-55555555, add-11111111, "
            "add-22222222, add_one-33333333, mul-44444444",
        ),
    ],
)
def test_find_not_one(several: DumpReader, wanted: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        several.find(wanted)
    assert str(error.value) == message.format(several.root)


def test_target(tmp_path: Path, kernel: Kernel, compiled: Compiled) -> None:
    store = Store(tmp_path)
    store.put_kernel(kernel, jaxpr="j", source=None)
    (stored,) = open_dumps(tmp_path)
    with pytest.raises(UsageError) as error:
        stored.target(None)
    assert str(error.value) == "add-01234567 is not compiled for any target; dump it again"
    store.put_compilation(kernel, *compiled(target="v5e:2x4"))
    (stored,) = open_dumps(tmp_path)
    for name in (None, "v5e:2x4", "v5e-2x4"):
        assert stored.target(name).target == "v5e:2x4"
    with pytest.raises(UsageError) as error:
        stored.target("v4")
    assert str(error.value) == "add-01234567 has no target 'v4'; there are: v5e:2x4"
    store.put_compilation(kernel, *compiled(target="v6e"))
    (stored,) = open_dumps(tmp_path)
    with pytest.raises(UsageError) as error:
        stored.target(None)
    assert str(error.value) == "add-01234567: select a target; there are: v5e:2x4, v6e"


# Passes.


def test_find_pass(folder: Path) -> None:
    v5e = open_dumps(folder).kernels()[0].target("v5e")
    for wanted, name in {
        **dict.fromkeys(("0", "00", "0000", "rig"), "original"),
        **dict.fromkeys(("2", "finalize-llo", "final"), "finalize-llo"),
        "idle": "idle",
    }.items():
        assert v5e.find_pass(wanted).name == name


def test_find_no_pass(folder: Path) -> None:
    v5e = open_dumps(folder).kernels()[0].target("v5e")
    for wanted, answer in {
        **dict.fromkeys(("3", "relayout", "²"), ": 00 original, 01 idle, 02 finalize-llo"),
        "al": "; several match: 00 original, 02 finalize-llo",
        "": "; several match: 00 original, 01 idle, 02 finalize-llo",
    }.items():
        with pytest.raises(UsageError) as error:
            v5e.find_pass(wanted)
        assert str(error.value) == f"no pass {wanted!r} for v5e{answer}"


def one_pass() -> Pass:
    return Pass(number=7, name="other", size=0, seconds=None, changed=True)


# What a browser of many kernels asks for: nothing is read that is not shown.


def test_names_are_listed_without_a_look_into_folders(folder: Path, data: Path) -> None:
    root = folder.parent
    (root / "loop").symlink_to("loop")
    (root / "empty").mkdir()
    (root / "runs").mkdir()
    (root / ".tmp").mkdir(exist_ok=True)
    for path in (data / "libtpu-0.0.50" / "add").iterdir():
        shutil.copy(path, root)
    reader = open_dumps(root)
    assert reader.names() == ["add-01234567", "empty", "add"]
    assert reader.read("empty").problem == (
        f"{root / 'empty'} holds no kernel.json: it is not a kernel's folder, or is incomplete."
    )
    assert reader.read("add").compilations[0].target == "raw"
    assert reader.read("gone").problem == "gone is no longer in this directory"


def test_texts_are_found_by_their_names(folder: Path, data: Path) -> None:
    llo = folder / "v6e" / "llo"
    llo.mkdir()
    (llo / "02-bundles.txt").write_text("x")
    (folder / "v5e" / "compilation.json").write_text("{")  # none is read
    reader = open_dumps(folder.parent)
    texts = [(t.target, t.stage, t.path.is_file()) for t in reader.texts(folder.name)]
    passes = ["stablehlo", "00-original", "02-finalize-llo"]
    assert texts == [
        (None, "jaxpr", True),
        *[("v5e", stage, True) for stage in passes],
        *[("v6e", stage, True) for stage in [*passes, "llo:02-bundles"]],
    ]
    assert [(t.label, t.path) for t in open_dumps(folder).texts(folder.name)] == [
        (t.label, t.path) for t in reader.texts(folder.name)
    ]
    assert list(reader.texts("nothing")) == []
    raw = [t.stage for t in open_dumps(data / "libtpu-0.0.42" / "add").texts("add")]
    assert raw[:2] == ["00-deserialization", "01-original"]
    assert len(raw) == 19


def test_runs_are_read_one_by_one_without_those_that_cannot_be(folder: Path) -> None:
    store = Store(folder.parent)
    paths = [store.put_run(RunRecord(run="r", name=name)) for name in ("a", "b", "c")]
    runs = open_dumps(folder.parent).runs()
    assert next(runs).name == "a"
    paths[1].write_text("{")  # not read yet
    assert [run.name for run in runs] == ["c"]


def test_readers_start_without_what_writes() -> None:
    code = "import sys, pallas_debug.store; print('pallas_debug.store.writer' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = store_package.Nothing
