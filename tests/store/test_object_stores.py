"""Dump directories in object stores: in memory, and on an S3 server."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from object_stores import S3

from pallas_debug.errors import DumpDirectoryError, NoDumpsError, UsageError
from pallas_debug.model import Compilation, Failure, Kernel, RunRecord
from pallas_debug.store import open_dumps, texts
from pallas_debug.store.base import DumpStore, open_store
from pallas_debug.store.files import DumpFile, is_file, is_folder, is_there, pieces
from pallas_debug.store.remote import objects
from pallas_debug.store.remote.paths import ObjectPath, is_local, place

Compiled = Callable[..., tuple[Compilation, dict[str, bytes | Path]]]
Url = Callable[[], str]


# Paths.


@pytest.mark.parametrize(
    "given, text",
    [
        ("s3://bucket/dumps/", "s3://bucket/dumps"),
        ("GS://bucket//a/./b", "gs://bucket/a/b"),
        ("memory://dumps", "memory://dumps"),
        (Path("s3://bucket/dumps"), "s3://bucket/dumps"),  # pathlib drops a slash
    ],
)
def test_url_becomes_an_object_path(given: str | Path, text: str) -> None:
    found = place(given)
    assert isinstance(found, ObjectPath)
    assert not is_local(found)
    assert str(found) == text
    assert place(found) is found


@pytest.mark.parametrize("given", ["dumps", "/tmp/a b", "a:b/c", "file:///tmp/x", Path("x/y")])
def test_everything_else_is_local(given: str | Path) -> None:
    assert is_local(place(given))


def test_object_path_is_a_path() -> None:
    root = place("s3://bucket/dumps")
    below = root / "k-1" / "v5e"
    assert str(below) == "s3://bucket/dumps/k-1/v5e"
    assert (below.name, below.parent, below.is_absolute()) == ("v5e", root / "k-1", True)
    assert str(below.relative_to(root)) == "k-1/v5e"
    assert below.is_relative_to(root)
    assert not below.is_relative_to(Path("s3:/bucket"))
    assert pickle.loads(pickle.dumps(below)) == below
    assert len({below, root / "k-1/v5e", Path("s3:/bucket/dumps/k-1/v5e")}) == 2
    with pytest.raises(TypeError, match="has no path on this machine"):
        os.fspath(below)


def test_what_is_no_path_is_refused() -> None:
    with pytest.raises(UsageError, match="a dump directory is a path or a URL, and not 3"):
        place(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given, message",
    [
        ("s3://", "'s3://' names no bucket: write it as s3://bucket/dumps"),
        ("simplecache::s3://bucket/x", "is a chain of fsspec URLs, which a dump directory cannot"),
    ],
)
def test_url_that_names_no_place(given: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        place(given)
    assert message in str(caught.value)


# What is written is read.


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3").folder)
    return str(request.getfixturevalue("in_memory")())


@pytest.mark.slow
def test_everything_written_is_read(url: str, kernel: Kernel, compiled: Compiled) -> None:
    store = open_store(url)
    assert store.is_empty()
    made, files = compiled()
    folder = store.put_kernel(kernel, jaxpr="jü", source="x = 1\n", program="first\n")
    assert str(folder) == f"{url}/add-01234567"
    assert set(objects.sizes(place(str(folder)))) >= {"kernel.json", "program.py"}
    store.put_kernel(kernel, jaxpr="jü", source="x = 1\n", program="print()\n")
    store.put_compilation(kernel, made, files)
    store.put_run(RunRecord(run="r", name="t[a/b]", kernels=(folder.name,)))
    assert not store.is_empty()
    assert store.keeps(kernel, "v5e")

    reader = open_dumps(url)
    assert reader.names() == ["add-01234567"]
    (stored,) = reader.kernels()
    assert stored.kernel == kernel
    assert stored == reader.find("add") == reader.read("add-01234567")
    assert stored.stage_text("jaxpr") == "jü"
    compilation = stored.target("v5e")
    assert compilation.text(compilation.find_pass("finalize")) == "last of first\n"
    assert compilation.damaged() == []
    assert [run.name for run in reader.runs()] == ["t[a/b]"]
    found = {text.label: text.text for text in texts.texts_in(place(url), texts.ALL, print)}
    assert found["add-01234567/v5e/02-finalize-llo"] == "last of first\n"
    assert {is_there(folder), is_folder(folder), is_file(folder / "kernel.json")} == {True}
    assert not is_there(folder / "nothing")
    found_again = store.find_compilation(kernel, "v5e", made.key)
    assert found_again is not None
    assert found_again.cached
    assert store.find_compilation(kernel, "v5e", "b" * 64) is None
    assert store.find_compilation(kernel, "v6e", made.key) is None


def test_kernel_folder_and_target_folder(url: str, kernel: Kernel, compiled: Compiled) -> None:
    store = open_store(url)
    folder = store.put_kernel(kernel, jaxpr="j", source=None)
    made = store.put_compilation(kernel, *compiled())
    assert [k.name for k in open_dumps(folder).kernels()] == ["add-01234567"]
    names = [text.stage for text in texts.texts_in(made, texts.ALL, print)]
    assert names == ["00-original", "02-finalize-llo"]


def test_text_is_read_again_after_it_changed(url: str, kernel: Kernel, compiled: Compiled) -> None:
    store = open_store(url)
    store.put_kernel(kernel, jaxpr="j", source=None)
    store.put_compilation(kernel, *compiled())
    (stored,) = open_dumps(url).kernels()
    file = stored.target("v5e").file(stored.target("v5e").passes[0])
    first, second = file.open(), file.open()
    assert os.read(first, 99) == os.read(second, 99) == b"first\n"  # each from its own start
    assert file.path.stat().st_ino == os.fstat(first).st_ino
    made, files = compiled(key="b" * 64, first=b"second\n")
    store.put_compilation(kernel, made, files)
    third = file.open()
    assert os.read(third, 99) == b"second\n"
    assert b"".join(pieces(file.path, place(url))) == b"second\n"
    for fd in (first, second, third):
        os.close(fd)


def test_threads_share_copies(
    in_memory: Url, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug import defaults

    monkeypatch.setattr(defaults, "MAX_CACHED_COPIES", 2)
    url = in_memory()
    store = open_store(url)
    store.put_kernel(kernel, jaxpr="j", source="s")
    store.put_compilation(kernel, *compiled())
    (stored,) = open_dumps(url).kernels()
    wanted = [stored.named("jaxpr.txt"), stored.named("source.py"), stored.named("kernel.json")]
    contents = [file.text() for file in wanted]
    problems: list[object] = []

    def read() -> None:
        try:
            for n in range(60):
                file, content = wanted[n % 3], contents[n % 3]
                fd = file.open()
                file.path.stat()
                with os.fdopen(fd) as opened:
                    if opened.read() != content:
                        problems.append("another content")
        except Exception as error:  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


# In memory: what a writer does, step by step.


@pytest.fixture
def memory(in_memory: Url) -> str:
    return in_memory()


def _objects(url: str) -> dict[str, bytes]:
    import fsspec

    fs = fsspec.filesystem("memory", use_listings_cache=False)
    root = fs._strip_protocol(url) + "/"
    return {name.removeprefix(root): fs.cat_file(name) for name in fs.find(url)}


def test_manifest_is_written_last_and_removed_first(
    memory: str, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug.store.remote import objects

    done: list[str] = []
    write, remove = objects.write, objects.remove

    def noting_writes(these: Any) -> None:
        done.extend(f"write {path.name}" for path in these)
        write(these)

    def noting_removals(paths: Any) -> None:
        paths = list(paths)
        done.extend(f"remove {path.name}" for path in paths)
        remove(paths)

    monkeypatch.setattr(objects, "write", noting_writes)
    monkeypatch.setattr(objects, "remove", noting_removals)
    store = open_store(memory)
    store.put_kernel(kernel, jaxpr="j", source="s")
    store.put_compilation(kernel, *compiled())
    assert done == [
        "write writable",
        *("write jaxpr.txt", "write source.py", "write kernel.json"),
        *("write 00-original.mlir", "write 02-finalize-llo.mlir", "write compilation.json"),
    ]
    done.clear()
    store.put_kernel(kernel, jaxpr="j", source="s")
    store.put_compilation(kernel, *compiled())
    assert done == []  # both are there
    made, files = compiled(key="b" * 64)
    files["llo/more.txt"] = b"llo"
    store.put_compilation(kernel, made, files)
    assert done[0] == "remove compilation.json"
    assert done[-1] == "write compilation.json"
    done.clear()
    store.put_compilation(kernel, replace(made, stages=("bundles",)), files)
    assert done[-1] == "write compilation.json"  # with a stage more
    done.clear()
    store.put_compilation(kernel, made, files)
    assert done == []
    store.put_compilation(kernel, *compiled(key="c" * 64))
    assert done[-1] == "remove more.txt"  # of the previous compilation
    assert "add-01234567/v5e/llo/more.txt" not in _objects(memory)


def test_half_written_compilation_is_none(memory: str, kernel: Kernel, compiled: Compiled) -> None:
    import fsspec

    store = open_store(memory)
    store.put_kernel(kernel, jaxpr="j", source=None)
    made, files = compiled()
    folder = store.put_compilation(kernel, made, files)
    fs = fsspec.filesystem("memory")
    fs.rm_file(f"{folder}/passes/02-finalize-llo.mlir")
    assert store.find_compilation(kernel, "v5e", made.key) is None
    (stored,) = open_dumps(memory).kernels()
    (damaged,) = stored.target("v5e").damaged()
    assert damaged == (
        f"{folder}/passes/02-finalize-llo.mlir is missing, and its manifest lists it. "
        "Dump the kernel again."
    )
    store.put_compilation(kernel, made, files)
    assert store.find_compilation(kernel, "v5e", made.key) is not None
    fs.pipe_file(f"{folder}/compilation.json", b"{")
    assert store.find_compilation(kernel, "v5e", made.key) is None
    assert "is truncated" in str(open_dumps(memory).kernels()[0].compilations[0].problem)
    died = Failure(stage="crash", type="x", message="m")
    store.put_compilation(kernel, replace(made, failure=died, status="failed"), files)
    assert store.find_compilation(kernel, "v5e", made.key) is None


def test_writers_of_the_same_kernel(memory: str, kernel: Kernel, compiled: Compiled) -> None:
    """Six writers at once, with two keys: afterwards there is one whole compilation."""
    errors: list[BaseException] = []

    def write(key: str) -> None:
        try:
            for _ in range(8):
                store = open_store(memory)
                store.put_kernel(kernel, jaxpr="j", source="s")
                store.put_compilation(kernel, *compiled(key=key * 64, first=key.encode() * 20))
        except DumpDirectoryError as error:  # the two kinds replaced each other three times
            assert "another process keeps replacing" in str(error)  # noqa: PT017
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=write, args=(key,)) for key in "aaabbb"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = open_store(memory)
    store.put_compilation(kernel, *compiled(key="c" * 64))
    (stored,) = open_dumps(memory).kernels()
    assert stored.problem is None
    assert stored.target("v5e").damaged() == []


def test_replacement_by_others_is_an_error(
    memory: str, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug.store.remote import objects

    sizes = objects.sizes
    monkeypatch.setattr(
        objects, "sizes", lambda folder: {k: v + 1 for k, v in sizes(folder).items()}
    )
    store = open_store(memory)
    with pytest.raises(DumpDirectoryError) as caught:
        store.put_compilation(kernel, *compiled())
    assert str(caught.value) == (
        f"cannot dump to {memory}: another process keeps replacing {memory}/add-01234567/v5e, "
        "with other options or another compiler. Give each its own directory"
    )


def test_listing_takes_few_requests(
    memory: str, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    store = open_store(memory)
    for digit in "0123456789":
        one = replace(kernel, digest=digit * 64)
        store.put_kernel(one, jaxpr="j", source=None)
        store.put_compilation(one, *compiled())
    asked: list[str] = []
    for name in ("info", "ls", "find", "cat_file"):
        method = getattr(MemoryFileSystem, name)

        def noted(*args: Any, _name: str = name, _method: Any = method, **kwargs: Any) -> Any:
            asked.append(_name)
            return _method(*args, **kwargs)

        monkeypatch.setattr(MemoryFileSystem, name, noted)
    assert len(open_dumps(memory).kernels()) == 10
    assert asked.count("cat_file") == 20  # all at once, where the store can
    assert len([one for one in asked if one in ("find", "info")]) <= 2


# Hostile and broken stores.


def test_names_that_leave_the_folder(memory: str, kernel: Kernel) -> None:
    import fsspec

    open_store(memory).put_kernel(kernel, jaxpr="j", source=None)
    fs = fsspec.filesystem("memory")
    root = fs._strip_protocol(memory)
    for name in ("../outside.txt", "a/../../b", "./x", "k\0", "//double"):
        fs.store[f"{root}/{name}"] = type(next(iter(fs.store.values())))(fs, name, b"{}")
    assert [k.name for k in open_dumps(memory).kernels()] == ["add-01234567"]
    file = DumpFile(path=place(memory) / ".." / "outside.txt", root=place(memory))
    with pytest.raises(Exception, match=r"its name contains `\.\.`"):
        file.text()


def test_object_that_is_too_large(
    memory: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_debug.store import files

    open_store(memory).put_kernel(kernel, jaxpr="j" * 100, source=None)
    monkeypatch.setattr(files, "MAX_WHOLE", 10)
    (stored,) = open_dumps(memory).kernels()
    with pytest.raises(Exception, match=r"jaxpr.txt has 100 bytes, more than the 10 that are read"):
        stored.stage_text("jaxpr")


def test_nothing_there(url: str) -> None:
    with pytest.raises(NoDumpsError) as caught:
        open_dumps(url)
    assert str(caught.value) == (
        f"no such directory: {url}, or there is nothing in it. "
        f"`pallas-debug dump --to {url} SCRIPT.py` creates one."
    )


def test_unknown_store() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(UsageError) as caught:
        open_store("xyz://bucket/dumps")
    assert "no object store is called xyz:// (Protocol not known: xyz)" in str(caught.value)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(DumpDirectoryError) as caught:
        open_dumps("s3://bucket/dumps")
    assert str(caught.value) == (
        "s3://bucket/dumps is in an object store, and fsspec, which reads and writes those, is not "
        "installed. Install the extra: pip install 'pallas-debug[remote]'"
    )


def test_missing_package_of_the_store(fresh_stores: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(DumpDirectoryError) as caught:
        open_dumps("gs://bucket/dumps")
    assert "the package for gs:// is missing" in str(caught.value)
    assert "pip install 'pallas-debug[remote]'" in str(caught.value)


@pytest.mark.slow
def test_missing_bucket(s3: S3) -> None:
    for use in (open_dumps, open_store):
        with pytest.raises(DumpDirectoryError) as caught:
            use("s3://nowhere/dumps")
        message = str(caught.value)
        assert "s3://nowhere/dumps" in message
        assert "there is no bucket s3://nowhere" in message
        assert "Check its name, or create it" in message


def test_no_credentials(s3: S3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DumpDirectoryError) as caught:
        open_store(s3.folder)
    message = str(caught.value)
    assert message.startswith(f"cannot write {s3.folder}/.tmp/writable: there are no credentials")
    assert "for s3://bucket (" in message
    assert "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY." in message


@pytest.fixture
def refusing(s3: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    """The server, while it allows this user nothing."""
    import boto3
    from moto import settings
    from moto.core.authorization import ActionAuthenticatorMixin

    iam = boto3.client("iam")
    iam.create_user(UserName=(user := s3.folder.split("/")[3]))
    key = iam.create_access_key(UserName=user)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    monkeypatch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    return s3


@pytest.mark.slow
def test_refused_access(refusing: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DumpDirectoryError) as caught:
        open_store(refusing.folder)
    message = str(caught.value)
    assert f"cannot write {refusing.folder}/.tmp/writable: s3://bucket refuses access (" in message
    assert "Ask its owner for the right to read, list and write objects there" in message
    with pytest.raises(DumpDirectoryError) as caught:
        open_dumps(refusing.folder)
    message = str(caught.value)
    assert f"cannot list {refusing.folder}: s3://bucket refuses access (" in message
    assert "the right to read and list objects there, or use other credentials." in message


def test_invalid_credentials(
    refusing: S3, fresh_stores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN")
    with pytest.raises(DumpDirectoryError) as caught:
        open_store(refusing.folder)
    assert "the credentials for s3://bucket are not valid (" in str(caught.value)


def test_server_goes_away(
    s3: S3, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3fs.core import S3FileSystem

    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store: DumpStore = open_store(s3.folder)
    store.put_kernel(kernel, jaxpr="j", source=None)
    reader = open_dumps(s3.folder)
    (stored,) = reader.kernels()
    S3FileSystem.clear_instance_cache()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(DumpDirectoryError) as caught:
        store.put_compilation(kernel, *compiled())
    message = str(caught.value)
    assert "the server did not answer for " in message
    assert "Check the network and AWS_ENDPOINT_URL, then run again" in message
    # It is not asked again for each file: the same message, at once.
    with pytest.raises(DumpDirectoryError) as again:
        reader.kernels()
    assert str(again.value) == message
    assert reader.read(stored.name).problem is not None
    assert not is_there(stored.folder)


# The command, and what it costs without an object store.


@pytest.mark.slow
def test_command_on_s3(s3: S3, command: Any) -> None:
    where = s3.folder
    dumped = command("dump", "--to", where, "-t", "v5e", "pallas_debug_kernels:matmul")
    assert dumped.returncode == 0, dumped.stderr
    assert f"1 kernel for v5e in {where}" in dumped.stderr
    again = command("dump", "--to", where, "-t", "v5e", "pallas_debug_kernels:matmul")
    assert "(1 of 1 compilation cached)" in again.stderr


def test_commands_that_read(
    in_memory: Url, kernel: Kernel, compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from pallas_debug.cli.group import cli

    where, other = in_memory(), in_memory()
    for url, first in ((where, b"first\n"), (other, b"else\n")):
        folder = open_store(url).put_kernel(kernel, jaxpr="{ lambda ; }", source="x = 1\n")
        open_store(url).put_compilation(kernel, *compiled(first=first))

    def run(*words: object) -> str:
        return CliRunner().invoke(cli, list(map(str, words)), catch_exceptions=False).stdout

    folder = f"{where}/add-01234567"
    assert run("ls", where) == "add-01234567\t\tv5e\tok, 2 of 3 passes changed something\n"
    assert run("ls", where, "-k", "add").startswith("v5e\t00\toriginal\tchanged\t6 B\t\n")
    shown = json.loads(run("show", where, "finalize", "--json"))
    assert shown["text"] == "last of first\n"
    assert run("show", f"{where}/ad", "jaxpr") == "{ lambda ; }\n"
    assert run("show", f"{folder}/v5e", "0") == "first\n"
    path = f"{folder}/v5e/passes/02-finalize-llo.mlir"
    assert run("grep", "last of", where) == f"{path}:1:last of first\n"
    assert run("grep", "-c", "last of", where) == f"{path}:1\n"
    assert run("diff", f"{folder}/v5e", "2").endswith("\n-first\n+last of first\n")
    between = run("diff", where, "0", "--against", other)
    assert between.endswith("\n-first\n+else\n")
    assert run("explain", where) == f"{where}: every kernel compiled\n"


def test_browser(in_memory: Url, kernel: Kernel, compiled: Compiled) -> None:
    from pallas_debug.tui.model.browser import Browser, TextPlace
    from pallas_debug.tui.model.document import Document
    from pallas_debug.tui.model.state import spot_of
    from pallas_debug.tui.model.watch import Watch

    url = in_memory()
    store = open_store(url)
    store.put_kernel(kernel, jaxpr="j", source="x = 1\n")
    store.put_compilation(kernel, *compiled())
    browser = Browser(place(url))
    (entry,) = browser.entries
    steps = browser.steps(entry, "v5e")
    labels = ["source", "jaxpr", "00 original", "01 idle", "02 finalize-llo"]
    assert [step.label for step in steps] == labels
    last = TextPlace(entry=entry, target="v5e", step=steps[-1])
    assert browser.text(last) == "last of first\n"
    assert browser.size(last) == 14
    file = browser.file(last)
    document = Document.open(file.path, file.open, is_watched=False)
    assert document.grow() == "same"
    assert document.size == 14
    document.close()
    assert spot_of(browser.roots).roots == (url,)
    watch = Watch(browser)
    store.put_kernel(replace(kernel, digest="9" * 64), jaxpr="j", source=None)
    found = watch.look(entry, browser.stored(entry).folder)
    assert (found.entries, found.is_changed) == (None, False)  # object stores are not watched
    assert len(browser.listed()) == 2


def test_local_use_imports_no_fsspec(run_python: Any) -> None:
    code = (
        "import sys, pallas_debug\n"
        "from pallas_debug.store.base import open_store\n"
        "open_store('dumps'); list(pallas_debug.open_dumps('dumps'))\n"
        "print([m for m in ('fsspec', 's3fs', 'pallas_debug.store.remote.objects') if m in sys.modules])"
    )
    ran: subprocess.CompletedProcess[str] = run_python("-c", code)
    assert ran.stdout == "[]\n", ran.stderr
