"""Two containers with the same host name in one directory, where process IDs are meaningless."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WRITING = Path(__file__).with_name("driving.py").read_text()

WRITER = f"""{WRITING}
import os, sys
root, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = Store(root)
for number in range(first, first + count):
    put_kernel(store, number)
    put_compilation(store, number)
    put_compilation(store, 0, number)  # which the other writer replaces, too
print(os.getpid())
"""

SWEEPER = f"""{WRITING}
import sys, time
sweeps = 0
while not Path(sys.argv[2]).exists():
    Store(Path(sys.argv[1]))
    sweeps += 1
    time.sleep(0.001)
print(sweeps)
"""

CHECK = f"""{WRITING}
import sys
from pallas_debug.store import open_dumps
root, count = Path(sys.argv[1]), int(sys.argv[2])
found = {{stored.name: stored for stored in open_dumps(root)}}
assert len(found) == count + 1, len(found)
for stored in found.values():
    check(stored)
    assert stored.name == "k-00000000" or stored.problem is None, stored.problem
assert list((root / ".tmp").iterdir()) == []
"""


@pytest.mark.slow
def test_two_pid_namespaces_write_one_directory(tmp_path: Path, is_full: bool) -> None:
    writes = 2000 if is_full else 200
    each = writes // 2 // 3 + 1  # three writes for each kernel
    root, end = tmp_path / "dumps", tmp_path / "end"
    separately = in_namespace()
    sweeper = start([*separately, sys.executable, "-c", SWEEPER, root, end])
    writers = [
        start([*separately, sys.executable, "-c", WRITER, root, 1 + n * each, each])
        for n in range(2)
    ]
    try:
        pids = [finished(writer) for writer in writers]
    finally:
        end.touch()
        sweeps = finished(sweeper)
    assert pids == ["1", "1"]  # of namespaces of their own
    assert int(sweeps) > 10
    finished(start([sys.executable, "-c", CHECK, root, 2 * each]))


def in_namespace() -> list[str]:
    """The command that runs another as the first process of a PID namespace."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("NOT RUN: two PID namespaces on one directory: there is no `unshare` here")
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [unshare, *user, "--pid", "--fork", "--kill-child"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"NOT RUN: two PID namespaces on one directory: {tried.stderr.strip()}")
    return command


def start(command: list[object]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    with process:
        output, problem = process.communicate(timeout=600)
    assert process.returncode == 0, problem
    return output.strip()
