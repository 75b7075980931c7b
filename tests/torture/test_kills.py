"""SIGKILL at random points: what is there is complete; only what was being replaced may be away."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pallas_debug.store import open_dumps

WRITING = Path(__file__).with_name("driving.py").read_text()
SEED = 13

KILLED = f"""{WRITING}
import os, random, sys, time
from pallas_debug.store import open_dumps
from pallas_debug.store import disk

def flush(path):  # a kill, unlike a power failure, loses nothing that was written
    assert path.exists()

disk.flush = flush

def write(root, done, version):
    store = Store(root)
    while True:
        version += 1
        put_kernel(store, 1, version)
        put_compilation(store, 1, version)
        os.write(done, version.to_bytes(4, "little"))

root, kills, chances = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
ours = Store(root)
put_kernel(ours, 1)
put_compilation(ours, 1)
began = time.monotonic()
put_kernel(ours, 1, 1)
put_compilation(ours, 1, 1)
took = min(0.2, time.monotonic() - began)
acknowledged, replaced = 1, 0
for n in range(kills):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        write(root, writing, acknowledged)
    os.close(writing)
    time.sleep(chances.uniform(0.2, 4) * took)
    os.kill(child, 9)
    os.waitpid(child, 0)
    while told := os.read(reading, 4):
        replaced += 1
        acknowledged = int.from_bytes(told, "little")
    os.close(reading)
    Store(root)
    (stored,) = open_dumps(root)
    found = [
        int(stored.kernel.source.file.removesuffix(".py")),
        int(stored.stage_file("jaxpr").text().removeprefix("jaxpr ")),
        int(stored.stage_file("source").text().removeprefix("source ")),
        *([check(stored)] if stored.compilations else []),  # else it was just being replaced
    ]
    assert set(found) <= {{acknowledged, acknowledged + 1}}, (found, acknowledged)
    assert list((root / ".tmp").iterdir()) == []
    acknowledged = max(found)
    put_kernel(ours, 1, acknowledged)
    put_compilation(ours, 1, acknowledged)
    left = [path.name for path in (root / ".tmp").iterdir()]
    assert not left, (n, left)
print(replaced)
"""


@pytest.mark.slow
def test_a_writer_is_killed_while_it_replaces(memory_path: Path, is_full: bool) -> None:
    kills = 1000 if is_full else 100
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(memory_path / "dumps"), str(kills), str(SEED)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > kills / 10  # kills that come before anything is written show nothing


PROGRAM = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def one_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2.0

def two_kernel(x_ref, o_ref):
    o_ref[...] = jnp.exp(x_ref[...])

def test_kernels():
    x = jnp.ones((256, 128))
    for kernel in (one_kernel, two_kernel):
        jax.jit(pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype)))(x)

if __name__ == "__main__":
    test_kernels()
"""


@pytest.mark.slow
def test_dump_and_pytest_are_killed(tmp_path: Path, is_full: bool) -> None:
    """Each run has other lines, so each compiles again and replaces what the last one wrote."""
    chances = random.Random(SEED)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    began = time.monotonic()
    with started(tmp_path, 0) as run:
        assert run.wait(120) == 0
    longest = time.monotonic() - began
    before = compilations(tmp_path / "dumps")
    assert [name for name, _ in before] == ["one_kernel", "two_kernel"]
    keys = set(before.values())
    for n in range(1, 101 if is_full else 3):
        with started(tmp_path, n) as run:
            time.sleep(chances.uniform(longest / 3, longest))
            run.kill()
            run.wait(60)
            wait_for_orphans(tmp_path)
        found = compilations(tmp_path / "dumps")
        assert found.keys() <= before.keys(), n
        keys |= set(found.values())
    with started(tmp_path, 1000) as run:
        assert run.wait(120) == 0
    last = compilations(tmp_path / "dumps")
    assert last.keys() == before.keys()
    assert not keys & set(last.values())
    assert list((tmp_path / "dumps" / ".tmp").iterdir()) == []
    assert list(temporary.iterdir()) == []  # what the killed runs left, too


class started:
    """A run of `dump` or pytest, with a program whose lines no other run has."""

    def __init__(self, folder: Path, number: int) -> None:
        program = folder / "test_program.py"
        program.write_text("\n" * number + PROGRAM)
        tools = Path(sys.executable).parent
        dump = [tools / "pallas-debug", "dump", program]
        test = [tools / "pytest", "-q", "-p", "no:cacheprovider", "--pallas-dump=dumps", program]
        self.run = subprocess.Popen(
            test if number % 2 else dump,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp"), "TORTURE": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.run

    def __exit__(self, *_: object) -> None:
        self.run.kill()
        self.run.wait()


def wait_for_orphans(folder: Path) -> None:
    """Until every process that a run started has ended by itself."""
    deadline = time.monotonic() + 60
    while left := list(processes(folder)):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def processes(folder: Path) -> Iterator[int]:
    mark = b"TORTURE=" + os.fsencode(folder)
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in entry.read_bytes().split(b"\0"):
                yield int(entry.parent.name)
        except OSError:
            continue


def compilations(root: Path) -> dict[tuple[str, str], str]:
    """The keys of all compilations, every file of which is as it was written."""
    found = {}
    for stored in open_dumps(root):
        assert stored.problem is None, stored.problem
        assert stored.kernel is not None
        for this in stored.compilations:
            assert this.problem is None, this.problem
            assert this.compilation is not None
            assert len(this.compilation.files) > 10
            for name, record in this.compilation.files.items():
                content = (this.folder / name).read_bytes()
                assert hashlib.sha256(content).hexdigest() == record.sha256, name
            found[stored.kernel.name, this.target] = this.compilation.key
    return found
