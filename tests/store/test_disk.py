"""Directories that cannot be written: files, full and read-only disks, deleted directories.

Each test mounts a small disk of its own, in the mount namespace of a child process.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from pallas_debug.errors import DumpDirectoryError
from pallas_debug.model import Kernel
from pallas_debug.store import Store, disk, open_dumps
from pallas_debug.store.disk import write_whole

CANNOT_MOUNT = 97

PRELUDE = """
import subprocess, sys
from pathlib import Path
from pallas_debug.errors import DumpDirectoryError
from pallas_debug.model import Compilation, Kernel, RunRecord
from pallas_debug.store import Store, open_dumps
root = Path(sys.argv[1])
kernel = Kernel(name="add", digest="0" * 64, primitive="p")
ok = Compilation(kernel="add", target="v5e", status="ok", key="k")
def refusal(work):
    try:
        work()
    except DumpDirectoryError as error:
        return str(error)
    raise SystemExit("it was not refused")
"""

FULL = f"""{PRELUDE}
store = Store(root)
other = Kernel(name="b", digest="1" * 64, primitive="p")
store.put_kernel(kernel, jaxpr="j", source=None)
store.put_compilation(kernel, ok, {{"small": b"x"}})
for work in (
    lambda: store.put_compilation(kernel, ok, {{"large": b"x" * 1_000_000}}),
    lambda: store.put_kernel(kernel, jaxpr="j" * 1_000_000, source=None),
    lambda: store.put_kernel(other, jaxpr="j" * 1_000_000, source=None),
    lambda: store.put_compilation(other, ok, {{"large": b"x" * 1_000_000}}),
    lambda: store.put_run(RunRecord(run="r", name="n", kernels=("k" * 1_000_000,))),
):
    print(refusal(work))
(stored,) = open_dumps(root)
assert stored.problem is None and stored.target("v5e").compilation.key == ok.key
assert stored.stage_file("jaxpr").text() == "j"
assert (stored.folder / "v5e" / "small").read_bytes() == b"x"
assert store.keeps(kernel) and store.keeps(kernel, "v5e")
assert not store.keeps(other) and not store.keeps(other, "v5e")
assert list((root / ".tmp").iterdir()) == []
"""


def test_full_disk(tmp_path: Path) -> None:
    message = on_disk_of_its_own(FULL, tmp_path, "size=128k")
    assert (
        message
        == [
            f"cannot dump to {tmp_path}: the disk is full, or has no inodes left (`df -i`). "
            "Free some space, or dump elsewhere; the files written until then are complete"
        ]
        * 5
    )


def test_a_file_that_is_replaced_keeps_its_link_and_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "page.html", tmp_path / "link.html"
    file.touch(mode=0o600)
    link.symlink_to(file)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o600)
    write_whole(Path("/dev/null"), b"dropped")


@pytest.mark.parametrize(
    "number, cause",
    [
        (errno.ENOSPC, "the disk is full, or has no inodes left (`df -i`). Free some space, or "),
        (errno.EDQUOT, "your disk quota is used up. Free some space, or dump elsewhere"),
        (errno.EFBIG, f"[Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: 'x'"),
        (errno.EACCES, "it is not writable. Dump elsewhere, or change its permissions"),
        (errno.EROFS, "it is not writable. Dump elsewhere, or change its permissions"),
        (errno.EIO, f"[Errno {errno.EIO}] {os.strerror(errno.EIO)}: 'x'"),
    ],
)
@pytest.mark.parametrize("owner, operation", [(disk, "write"), (disk, "flush"), (Path, "rename")])
def test_errors_of_the_disk(
    tmp_path: Path,
    kernel: Kernel,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    operation: str,
    number: int,
    cause: str,
) -> None:
    store = Store(tmp_path)
    monkeypatch.setattr(owner, operation, refusal(number))
    with pytest.raises(DumpDirectoryError) as error:
        store.put_kernel(kernel, jaxpr="j", source=None)
    assert str(error.value).startswith(f"cannot dump to {tmp_path}: {cause}")
    assert list((tmp_path / ".tmp").iterdir()) == []
    assert list(open_dumps(tmp_path)) == []


def refusal(number: int) -> Callable[..., NoReturn]:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number), "x")

    return refuse


@pytest.mark.parametrize("below", ["", "a/b"])
def test_a_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("precious")
    root = tmp_path / "file" / below
    with pytest.raises(DumpDirectoryError) as error:
        Store(root)
    assert str(error.value) == (
        f"cannot dump to {root}: it is a file, or lies below one. "
        "Name a directory; it is created if it does not exist."
    )
    assert (tmp_path / "file").read_text() == "precious"


def test_it_goes_while_the_run_goes_on(tmp_path: Path, kernel: Kernel) -> None:
    root = tmp_path / "dumps"
    store = Store(root)
    store.put_kernel(kernel, jaxpr="j", source=None)
    shutil.rmtree(root)
    message = f"cannot dump to {root}: it no longer exists. Was it deleted during the run?"
    with pytest.raises(DumpDirectoryError) as error:
        store.put_kernel(kernel, jaxpr="j", source=None)
    assert str(error.value) == message
    with pytest.raises(DumpDirectoryError) as error, store.claim(kernel, "v5e"):
        pass
    assert str(error.value) == message
    assert store.find_compilation(kernel, "v5e", "k") is None


def on_disk_of_its_own(code: str, root: Path, options: str) -> list[str]:
    """What `code` prints, run with a tmpfs at `root` that no other process sees."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("no disk can be mounted for this test: there is no `unshare`")
    own = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--mount", "--map-root-user"]
    mount = f'mount -t tmpfs -o "$1" tmpfs "$2" || exit {CANNOT_MOUNT}; exec "$3" -c "$4" "$2"'
    done = subprocess.run(
        [*own, "sh", "-c", mount, "sh", options, str(root), sys.executable, code],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT_MOUNT or done.stderr.startswith("unshare:"):
        pytest.skip(f"no disk can be mounted for this test: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
