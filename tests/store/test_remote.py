"""Dump directories in object stores: in memory, and on an S3 server."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from object_stores import S3, forget

from pallas_debug.errors import DumpDirectoryError, NoDumpsError, UsageError
from pallas_debug.model import Compilation, Kernel, RunRecord
from pallas_debug.store import open_dumps
from pallas_debug.store.remote import fetch
from pallas_debug.store.writer import open_store

Compiled = Callable[..., tuple[Compilation, dict[str, bytes | Path]]]


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3").folder)
    return str(request.getfixturevalue("in_memory")())


def write(url: str, kernel: Kernel, made: tuple[Compilation, dict[str, bytes | Path]]) -> None:
    """Dump a kernel, as a process of its own would."""
    forget()
    store = open_store(url)
    store.put_kernel(kernel, jaxpr="jü", source="x = 1\n")
    if store.find_compilation(kernel, made[0].target, made[0].key) is None:
        store.put_compilation(kernel, *made)
    store.close()


def objects(url: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    return {name[len(root) + 1 :]: fs.cat_file(name) for name in fs.find(root)}


@pytest.mark.slow
def test_what_is_written_is_read(url: str, kernel: Kernel, compiled: Compiled) -> None:
    with pytest.raises(NoDumpsError, match=f"no such directory: {url}, or there is no dump in it"):
        open_dumps(url)
    store = open_store(url)
    assert store.is_empty()
    folder = store.put_kernel(kernel, jaxpr="jü", source="x = 1\n")
    store.put_compilation(kernel, *compiled())
    store.put_run(RunRecord(run="r", name="t[a/b]", kernels=(folder.name,)))
    store.close()

    (stored,) = open_dumps(url).kernels()
    assert (stored.kernel, stored.stage_file("jaxpr").text()) == (kernel, "jü")
    target = stored.target("v5e")
    assert target.text(target.find_pass("finalize")) == "last of first\n"
    assert target.damaged() == []
    assert [run.name for run in open_dumps(url).runs()] == ["t[a/b]"]
    assert [k.name for k in open_dumps(f"{url}/add-01234567").kernels()] == ["add-01234567"]
    assert fetch(f"{url}/add").name == "add"  # a prefix, in a copy of the whole
    assert (fetch(f"{url}/add-01234567/v5e") / "compilation.json").is_file()


@pytest.mark.slow
def test_readers_download_what_changed_and_nothing_else(
    url: str, kernel: Kernel, compiled: Compiled
) -> None:
    def text() -> str:
        (stored,) = open_dumps(url).kernels()
        return stored.target("v5e").text(stored.target("v5e").passes[0])

    write(url, kernel, compiled())
    assert text() == "first\n"
    path = fetch(url) / "add-01234567"
    before = {p: p.stat().st_ino for p in path.rglob("*.*")}
    assert text() == "first\n"
    assert {p: p.stat().st_ino for p in path.rglob("*.*")} == before
    assert open_store(url).find_compilation(kernel, "v5e", "a" * 64) is not None  # no new one
    write(url, kernel, compiled(key="b" * 64, first=b"other\n"))  # of the same size
    assert text() == "other\n"
    (path / "jaxpr.txt").write_text("damaged")  # of the copy
    assert open_dumps(url).kernels()[0].stage_file("jaxpr").text() == "jü"
    fs, root = fsspec.core.url_to_fs(url)
    fs.rm(f"{root}/add-01234567/v5e", recursive=True)
    (stored,) = open_dumps(url).kernels()
    assert (stored.compilations, stored.problem) == ((), None)
    fs.rm(root, recursive=True)
    with pytest.raises(NoDumpsError):
        open_dumps(url)


def test_interrupted_upload_is_no_dump_and_the_next_run_completes_it(
    in_memory: Callable[[], str],
    kernel: Kernel,
    compiled: Compiled,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    url, put = in_memory(), MemoryFileSystem.put_file
    store = open_store(url)
    store.put_kernel(kernel, jaxpr="j", source=None)
    store.put_compilation(kernel, *compiled())
    with monkeypatch.context() as patch:

        def fail(fs: Any, local: str, path: str, **more: Any) -> None:
            if path.endswith(".json"):  # the manifests, which come last
                raise OSError("connection lost")
            put(fs, local, path, **more)

        patch.setattr(MemoryFileSystem, "put_file", fail)
        with pytest.raises(DumpDirectoryError) as caught:
            store.close()
    assert f"cannot write {url}: OSError: connection lost. " in str(caught.value)
    assert f"The dump is in {store.root} on this machine: copy it from there" in str(caught.value)
    assert len(open_dumps(store.root).kernels()) == 1
    with pytest.raises(NoDumpsError):
        open_dumps(url)
    store.close()
    assert open_dumps(url).kernels()[0].target("v5e").damaged() == []


def test_names_that_leave_the_folder_and_other_files_of_the_bucket(
    in_memory: Callable[[], str], kernel: Kernel, compiled: Compiled
) -> None:
    url = in_memory()
    write(url, kernel, compiled())
    fs = fsspec.filesystem("memory")
    root = fs._strip_protocol(url)
    hostile = ("../outside.txt", "add-01234567/../../b", "./x", "add-01234567/k\0", "//double")
    for name in (*hostile, "weights/large.bin", "readme.txt", "runs/tensorboard/a/b.json"):
        fs.store[f"{root}/{name}"] = type(next(iter(fs.store.values())))(fs, name, b"{}")
    copy = fetch(url)
    assert {p.relative_to(copy).parts[0] for p in copy.rglob("*.*")} == {"add-01234567"}
    assert {p.name for p in copy.parent.iterdir()} == {"dumps", ".dumps.json", ".dumps.lock"}


@pytest.mark.parametrize(
    "module, given, error, message",
    [
        ("fsspec.core", "s3://b/d", DumpDirectoryError, "pip install 'pallas-debug[remote]'"),
        ("gcsfs", "gs://b/d", DumpDirectoryError, "pip install 'pallas-debug[remote]'"),
        ("none", "xyz://b/d", UsageError, "xyz://b/d cannot be opened: Protocol not known: xyz"),
        ("none", "s3://", UsageError, "names no folder of a bucket: write it as s3://bucket/dumps"),
        ("none", "s3://b/..", UsageError, "names no folder of a bucket"),
    ],
)
def test_what_cannot_be_opened(
    module: str,
    given: str,
    error: type[Exception],
    message: str,
    fresh_stores: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    for use in (open_dumps, open_store):
        with pytest.raises(error) as caught:
            use(given)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_bucket_that_does_not_exist(s3: S3) -> None:
    with pytest.raises(NoDumpsError, match="no such directory: s3://nowhere/dumps"):
        open_dumps("s3://nowhere/dumps")
    with pytest.raises(DumpDirectoryError, match=r"cannot write s3://nowhere/dumps: .*bucket"):
        open_store("s3://nowhere/dumps")


@pytest.mark.slow
def test_dump_command_on_s3(s3: S3, command: Any) -> None:
    arguments = ("dump", "--to", s3.folder, "-t", "v5e", "pallas_debug_kernels:matmul")
    dumped = command(*arguments)
    assert dumped.returncode == 0, dumped.stderr
    assert f"1 kernel for v5e in {s3.folder}" in dumped.stderr
    again = command(*arguments, "--json")
    assert "(1 of 1 compilation cached)" in again.stderr
    (dump,) = json.loads(again.stdout)["dumps"]
    assert dump["folder"].startswith(f"{s3.folder}/matmul-")


def test_commands_that_read(
    in_memory: Callable[[], str], kernel: Kernel, compiled: Compiled
) -> None:
    from click.testing import CliRunner

    from pallas_debug.cli.group import cli

    where, other = in_memory(), in_memory()
    for url, first in ((where, b"first\n"), (other, b"else\n")):
        write(url, kernel, compiled(first=first))

    def run(*words: object) -> str:
        return CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False).stdout

    assert run("ls", where) == "add-01234567\t\tv5e\tok, 2 of 3 passes changed something\n"
    assert run("ls", where, "-k", "add").startswith("v5e\t00\toriginal\tchanged\t6 B\t\n")
    assert json.loads(run("show", where, "finalize", "--json"))["text"] == "last of first\n"
    assert run("show", f"{where}/ad", "jaxpr") == "jü\n"
    assert run("show", f"{where}/add-01234567/v5e", "0") == "first\n"
    assert run("grep", "last of", where).endswith("02-finalize-llo.mlir:1:last of first\n")
    assert run("diff", f"{where}/add-01234567/v5e", "2").endswith("\n-first\n+last of first\n")
    assert run("diff", where, other, "0").endswith("\n-first\n+else\n")
    assert run("explain", where).endswith("dumps: every kernel compiled\n")


def test_local_use_imports_no_fsspec(run_python: Any) -> None:
    code = (
        "import sys, pallas_debug\n"
        "from pallas_debug.store.writer import open_store\n"
        "open_store('dumps'); list(pallas_debug.open_dumps('dumps'))\n"
        "print([m for m in ('fsspec', 's3fs', 'pallas_debug.store.remote') if m in sys.modules])"
    )
    ran = run_python("-c", code)
    assert ran.stdout == "[]\n", ran.stderr
