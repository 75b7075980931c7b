"""Opening of files in a dump: what is refused, and the messages."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_debug.errors import DumpDirectoryError, DumpFormatError
from pallas_debug.store import files
from pallas_debug.store.files import DumpFile

OUTSIDE = (
    "Nothing outside the directory that you name is read; to read a dump that consists of links, "
    "copy it with `cp -rL` or name the directory that they lead to."
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with a file in a folder, beside one that must not be read."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("SECRET")
    (tmp_path / "dumps" / "k" / "passes").mkdir(parents=True)
    (tmp_path / "dumps" / "k" / "passes" / "00").write_text("text")
    return tmp_path / "dumps"


def refused(path: Path, root: Path) -> str:
    with pytest.raises(DumpFormatError) as error:
        files.read(path, root)
    with pytest.raises(DumpFormatError) as again:
        DumpFile(path=path, root=root).text()
    assert str(error.value) == str(again.value)
    return str(error.value)


def test_a_file_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert files.read(root / "k" / "passes" / "00", root) == b"text"
    monkeypatch.chdir(root)
    assert files.read(Path("k/passes/00"), Path()) == b"text"
    (root / "link").symlink_to(root)  # the directory that was named may be a link
    link = root / "link"
    assert files.read(link / "k" / "passes" / "00", link) == b"text"
    assert "k" in files.listed(link, link).folders


def test_links_within_the_directory_are_followed(root: Path) -> None:
    (root / "again").symlink_to("k")
    (root / "k" / "passes" / "01").symlink_to("00")
    (root / "k" / "passes" / "02").symlink_to(root / "k" / "passes" / "01")
    for name in ("again/passes/00", "k/passes/01", "again/passes/02"):
        assert files.read(root / name, root) == b"text"
    names = files.listed(root / "again" / "passes", root).files
    assert sorted(names) == ["00", "01", "02"]


def test_links_out_of_the_directory_are_refused(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    (root / "k" / "file").symlink_to("../../secret/file")
    (root / "out").symlink_to(secret)
    (root / "by").symlink_to("out")
    for path in (root / "k" / "file", root / "out" / "file", root / "by" / "file"):
        assert refused(path, root) == (
            f"{path} was not read: it is a link, or lies below one, that leads out to "
            f"{secret / 'file'}. {OUTSIDE}"
        )
    with pytest.raises(DumpDirectoryError, match="that leads out to"):
        files.listed(root / "out", root)


def test_links_in_a_circle(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    for path in (root / "a", root / "a" / "file"):
        expected = (
            f"{path} was not read: its links form a loop, or change while it is read. {OUTSIDE}"
        )
        assert refused(path, root) == expected


@pytest.mark.parametrize(
    "path,why",
    [
        ("k/../../secret/file", "its name contains `..`"),
        ("k/pass\0", "its name contains a NUL"),
    ],
)
def test_names_that_are_refused(root: Path, path: str, why: str) -> None:
    shown = str(root / path).replace("\0", "\\x00")
    assert refused(root / path, root) == f"{shown} was not read: {why}. {OUTSIDE}"


def test_a_folder_that_becomes_a_link_after_the_check_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is resolved while it leads inside, and leads outside when it is opened."""
    (root / "link").symlink_to("k/passes")
    real = os.path.realpath
    (tmp_path / "secret" / "passes").mkdir()
    (tmp_path / "secret" / "passes" / "00").write_text("SECRET")

    def realpath(path: Path) -> str:
        found = real(path)
        if path == root / "link" / "00":
            (root / "k").rename(root / "moved")
            (root / "k").symlink_to(tmp_path / "secret")
        return found

    monkeypatch.setattr(os.path, "realpath", realpath)
    with pytest.raises(DumpFormatError, match="its links form a loop, or change"):
        files.read(root / "link" / "00", root)


def make_socket(path: Path) -> None:
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


@pytest.mark.parametrize(
    "make,kind",
    [
        (lambda path: os.mkfifo(path), "a named pipe"),
        (lambda path: path.mkdir(), "a directory"),
        (make_socket, "a socket"),
        (lambda path: os.mknod(path, 0o20666, os.makedev(1, 5)), "a device"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    root: Path, make: Callable[[Path], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    path = root / "k" / "odd"
    try:
        make(path)
    except PermissionError:
        pytest.skip("only the superuser makes devices")
    assert refused(path, root) == (
        f"{path} is {kind} and not a regular file, so it was not read. Delete it and dump again."
    )
    with pytest.raises(DumpFormatError, match=f"is {kind} and not a regular file"):
        DumpFile(path=path, root=None).open()


def test_a_file_above_the_limit(root: Path) -> None:
    path = root / "k" / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DumpFormatError) as error:
        files.read(path, root, limit=files.MAX_MANIFEST)
    assert str(error.value) == (
        f"{path} has 1,099,511,627,776 bytes, more than the 67,108,864 that are read. "
        "If the compiler really wrote so much, look at it with `less`; if not, delete it."
    )
    with path.open("wb") as file:
        file.truncate(files.MAX_WHOLE + 1)
    with pytest.raises(DumpFormatError) as error:
        DumpFile(path=path, root=root).text()
    assert "more than the 33,554,432 that are read; `browse` and `grep` read larger ones." in str(
        error.value
    )
    os.close(DumpFile(path=path, root=root).open())


def test_a_missing_file_stays_an_error_of_its_own(root: Path) -> None:
    for path in (root / "none", root / "k" / "passes" / "00" / "below"):
        with pytest.raises(FileNotFoundError):
            files.read(path, root)
        with pytest.raises(DumpFormatError, match=r"cannot be read: .* Dump again\."):
            DumpFile(path=path, root=root).text()


def test_no_permission(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a patch: the superuser, who may run the tests, can read whatever there is."""
    real, path = os.open, root / "k" / "passes" / "00"

    def refuse(name: str, flags: int, *args: int, **kwargs: int) -> int:
        if name == "00":
            raise PermissionError(13, os.strerror(13), name)
        return real(name, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    assert refused(path, root) == (
        f"{path} cannot be read: Permission denied. Change its permissions, or dump again."
    )


@pytest.mark.parametrize("name", ["../k", "/etc/passwd", "a/../../b", "", ".", "a\0b"])
def test_names_in_manifests_that_lead_elsewhere(name: str) -> None:
    with pytest.raises(DumpFormatError) as error:
        files.check_name(name, Path("k/v5e/compilation.json"))
    shown = name.replace("\0", "\\x00")
    assert str(error.value) == (
        f"k/v5e/compilation.json names the file {shown!r}, which is not a path below its own folder: "
        "the manifest was edited, or was made to read other files. "
        "It is not opened; dump the kernel again."
    )
