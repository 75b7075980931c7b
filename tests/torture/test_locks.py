"""The command while another process holds the kernel's lock, and on a disk that fills up."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pallas_debug.store import open_dumps

PROGRAM = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def copy_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]

x = jnp.ones((256, 128))
jax.jit(pl.pallas_call(copy_kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)))(x)
print("there", flush=True)
"""

HOLDER = """
import fcntl, os, sys, time
from pathlib import Path
locks = Path(sys.argv[1], ".locks")
locks.mkdir(parents=True)
held = [os.open(locks / f"{n:03x}-v5e.lock", os.O_RDWR | os.O_CREAT) for n in range(4096)]
for opened in held:
    fcntl.flock(opened, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""

TOOL = Path(sys.executable).with_name("pallas-debug")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[None]:
    """A process that holds the lock of every kernel for v5e."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = ["sh", "-c", 'ulimit -n 5000; exec "$@"', "sh", sys.executable, "-c", HOLDER]
    with subprocess.Popen(
        [*command, str(tmp_path / "dumps")], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


def dump(folder: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [TOOL, "dump", *options, "program.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_a_kernel_whose_lock_is_held_is_not_attempted(tmp_path: Path) -> None:
    with dump(tmp_path, "--timeout=1") as run:
        out, output = run.communicate(timeout=120)
    assert out == "there\n"
    assert run.returncode == 3
    (waits,) = (line for line in output.splitlines() if " waits for " in line)
    assert waits.startswith("pallas-debug: compiling copy_kernel for v5e waits for another process")
    assert waits.endswith("waiting ends after 6 s")
    assert "compiling copy_kernel for v5e was not attempted: another process holds" in output
    assert "pallas-debug: 1 kernel in dumps\n" in output  # and no compilation
    (stored,) = open_dumps(tmp_path / "dumps")
    assert (stored.problem, stored.compilations) == (None, ())


@pytest.mark.slow
@pytest.mark.usefixtures("held")
def test_ctrl_c_while_a_lock_is_waited_for(tmp_path: Path) -> None:
    with dump(tmp_path) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "there\n"
        assert run.stderr is not None
        while " waits for another process " not in run.stderr.readline():
            pass
        run.send_signal(signal.SIGINT)
        _, output = run.communicate(timeout=100)  # which is less than it would wait for the lock
    assert run.returncode == 130
    assert output.endswith(
        "pallas-debug: stopped; finished compilations are in the dump directory\n"
    )
    assert "Traceback" not in output


FULL = """
mount -t tmpfs -o size=72k tmpfs dumps || exit 97
"$1" dump program.py 2> said
code=$?
"$1" ls dumps > list 2>&1
cp -r dumps kept
exit $code
"""


@pytest.mark.slow
def test_after_a_full_disk_the_summary_counts_what_is_there(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("NOT RUN: a full disk: there is no `unshare` here")
    (tmp_path / "dumps").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    own = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--mount", "--map-root-user"]
    done = subprocess.run(
        [*own, "sh", "-c", FULL, "sh", TOOL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 97 or done.stderr.startswith("unshare:"):
        pytest.skip(f"NOT RUN: a full disk: {done.stderr.strip()}")
    message = (tmp_path / "said").read_text()
    assert done.returncode == 3, message
    assert f"cannot dump to {tmp_path}/dumps: the disk is full, or has no inodes left" in message
    assert "pallas-debug: 1 kernel in dumps\n" in message
    (stored,) = open_dumps(tmp_path / "kept")
    assert stored.problem is None
    assert stored.compilations == ()
