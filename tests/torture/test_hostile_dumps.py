"""Hostile dumps for `reproduce`, `--run` and `--shrink`: their fields, their origin, the question."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hostile_programs import CANARY, PROGRAM, WRITE, in_kernel, of

from pallas_debug.errors import CannotRunError, DumpFormatError, PallasDebugError
from pallas_debug.model import Failure, Kernel
from pallas_debug.render import one_line
from pallas_debug.reproduce import grammar, recorded, script
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.store import Store, open_dumps, origin


@dataclass(frozen=True)
class Dumps:
    """A dump directory made for a test."""

    root: Path
    folder: Path
    kernel: Kernel

    def change(self, file: str, **fields: Any) -> None:
        path = self.folder / file
        document = json.loads(path.read_text())
        path.write_text(json.dumps({**document, **fields}))


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    kernel = Kernel(name="double", digest="0" * 64, primitive="pallas_call")
    store = Store(tmp_path / "dumps")
    folder = store.put_kernel(kernel, jaxpr="{}", source=None)
    store.put_program(kernel, grammar.emitted(PROGRAM))
    base = of()
    assert base.compilation is not None
    failure = Failure(
        stage="lowering",
        type="NotImplementedError",
        message="Unimplemented primitive in Pallas TPU lowering for tc: cumsum.",
    )
    compilation = replace(base.compilation, failure=failure)
    store.put_compilation(kernel, compilation, {"stablehlo.mlir": b"module {}"})
    return Dumps(tmp_path / "dumps", folder, kernel)


def read(dumps: Dumps) -> Recorded:
    (stored,) = open_dumps(dumps.root).kernels()
    return recorded.read(stored, None)


FIELDS = [
    ({"target": "v5e:9999x9999"}, "the dump is for the unknown target 'v5e:9999x9999'; "),
    ({"target": "../../etc"}, "the dump is for the unknown target '../../etc'; "),
    ({"target": "a\nb"}, "the dump is for the unknown target 'a\\nb'; "),
    ({"num_devices": 10**9}, "is recorded as compiled for 1000000000 devices, but only "
     "1 to 1024 are possible: the dump was changed. Dump the kernel again"),
    ({"num_devices": 0}, "is recorded as compiled for 0 devices"),
    ({"num_devices": -1}, "`num_devices` is -1, which is not between 0 and "),
    ({"switches": ["log_recorder", "__import__"]}, "was compiled with the switch '__import__', "
     "which this version of pallas-debug does not have; it has log_recorder, "),
    ({"switches": ["\x1b[2J"]}, "was compiled with the switch '\\x1b[2J', "),
    ({"target": "tpu", "device_kind": "TPU v9\nimport os"}, "is a device, not a topology"),
]  # fmt: skip


@pytest.mark.parametrize("fields,why", FIELDS, ids=lambda given: ascii(given)[:40])
def test_fields_of_a_compilation(dumps: Dumps, fields: dict[str, Any], why: str) -> None:
    (manifest,) = dumps.folder.glob("*/compilation.json")
    if "target" in fields:
        manifest = manifest.rename(manifest.with_name("compilation.json"))
    dumps.change(str(manifest.relative_to(dumps.folder)), **fields)
    with pytest.raises(PallasDebugError) as error:
        script.script_of(read(dumps))
    assert why in str(error.value)
    assert str(error.value).isprintable()


def test_a_mesh_of_any_size(dumps: Dumps) -> None:
    shutil.rmtree(dumps.folder / "v5e")
    dumps.change("kernel.json", mesh={"x": 10**18, "y": 10**18})
    (stored,) = open_dumps(dumps.root).kernels()
    with pytest.raises(CannotRunError, match="is recorded as compiled for 1025 devices"):
        recorded.read(stored, "v5e")


def test_origin(dumps: Dumps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = origin.key_file()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o077 == 0
    assert read(dumps).is_ours
    program = dumps.folder / "program.py"
    before = program.read_text()
    program.write_text(before + "\n")
    assert not read(dumps).is_ours
    program.write_text(before)
    dumps.change("kernel.json", digest="1" * 64)
    assert not read(dumps).is_ours
    dumps.change("kernel.json", digest="0" * 64)
    assert read(dumps).is_ours
    program.write_text("# There is no program of this kernel: it has none.\n")
    assert read(dumps).program is None
    assert read(dumps).is_ours  # its StableHLO is what is run, and is signed too
    (dumps.folder / "v5e" / "stablehlo.mlir").write_text("module { }")
    with pytest.raises(DumpFormatError, match=r"stablehlo\.mlir is damaged"):
        read(dumps)
    dumps.change("v5e/compilation.json", files={})  # a forged manifest agrees with the file
    assert not read(dumps).is_ours
    program.write_text(before)
    for signature in ("", "0" * 64, "é" * 99, "a" * 10_000):
        (dumps.folder / "program.py.hmac").write_text(signature)
        assert not read(dumps).is_ours
    (dumps.folder / "program.py.hmac").unlink()
    os.mkfifo(dumps.folder / "program.py.hmac")
    assert not read(dumps).is_ours
    key.chmod(0o644)  # others could have read it
    (dumps.folder / "program.py.hmac").unlink()
    Store(dumps.root).put_program(dumps.kernel, before)
    assert not (dumps.folder / "program.py.hmac").exists()
    key.chmod(0o600)
    Store(dumps.root).put_program(dumps.kernel, before)
    assert read(dumps).is_ours
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert not read(dumps).is_ours
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nowhere")
    Store(dumps.root).put_program(dumps.kernel, before + "\n")  # goes on without a key
    assert (dumps.folder / "program.py").read_text() == before + "\n"
    assert not read(dumps).is_ours


ASKED = (
    "double for v5e is not run: its dump was not made by you on this machine, or was changed "
    "since. Write the script without --run and --shrink, read it, then pass --trust to run "
    "it in a confined process"
)


@pytest.mark.slow
def test_dumps_of_somebody_else(commands: Any, command: Any, dumps: Dumps, tmp_path: Path) -> None:
    (dumps.folder / "program.py.hmac").unlink()
    hostile = shutil.copytree(dumps.root, tmp_path / "hostile")
    (program,) = hostile.glob("*/program.py")
    program.write_text(in_kernel(f"exec({WRITE!r})"))
    ran, shrunk, written, *refused = commands(
        ["reproduce", dumps.root, "--run"],
        ["reproduce", dumps.root, "--shrink", "-o", "small.py"],
        ["reproduce", dumps.root],
        ["reproduce", hostile, "--run", "--trust"],
        ["reproduce", hostile, "--shrink", "--trust"],
        ["reproduce", hostile],
    )
    for done in (ran, shrunk):
        assert (done.returncode, done.stdout, done.stderr) == (3, "", f"pallas-debug: {ASKED}\n")
    assert not (tmp_path / "small.py").exists()
    assert (written.returncode, written.stderr) == (0, "")
    assert written.stdout.startswith("# -*- coding: utf-8 -*-\n# The kernel 'double', with jax ")
    for done in refused:
        assert (done.returncode, done.stdout) == (3, "")
        assert (
            "the dump's program is refused at line 18: this is not a function that" in done.stderr
        )
        assert f"in `exec({WRITE!r})`." in done.stderr
        assert "Traceback" not in done.stderr
    trusted = command("reproduce", dumps.root, "--run", "--trust", "-o", "again.py")
    assert trusted.returncode == 0, trusted.stderr
    assert "double for v5e: the same failure, at lowering: " in trusted.stderr
    assert list(tmp_path.rglob(CANARY)) == []


def test_the_question(dumps: Dumps, tmp_path: Path) -> None:
    dumps.change("kernel.json", name="do\x1b[2J\u202euble")
    (dumps.folder / "program.py.hmac").unlink()
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [Path(sys.executable).with_name("pallas-debug"), "reproduce", dumps.root, "--run"],
        stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, b"\n")
    message = b""
    try:
        while part := os.read(ours, 4096):
            message += part
    except OSError:  # the end, of a terminal
        pass
    os.close(ours)
    assert child.wait(60) == 3
    text = message.decode()
    shown = one_line("do\x1b[2J\u202euble for v5e")
    assert f"pallas-debug: the dump of {shown} was not made by you on this machine" in text
    assert "its origin is unknown." in text
    assert "Run its kernel in a confined process? [y/N]:" in text
    assert "is not run: you declined" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
