"""Exit codes: each outcome has one, whichever command it is the outcome of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import installed

import pallas_debug
from pallas_debug.cli.exits import MEANING, OUTCOMES, Exit
from pallas_debug.cli.group import COMMANDS

ROWS = """
import jax
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def lanes(x_ref, o_ref):
    o_ref[...] = jax.numpy.concatenate([x_ref[:, ::2], x_ref[:, 1::2]], axis=1)

def broken(x_ref, o_ref):
    raise RuntimeError("mine")

def double(x, *, scale=1):
    return pl.pallas_call(kernel, out_shape=x)(x)

def unwritten(x):
    return pl.pallas_call(lambda x_ref, o_ref: None, out_shape=x)(x)

def split(x):
    return pl.pallas_call(lanes, out_shape=x)(x)

def raises(x):
    return pl.pallas_call(broken, out_shape=x)(x)

def raised_inputs():
    raise RuntimeError("mine")

def nothing(x):
    return x
"""

X = ["--arg", "f32[8,128]"]
V5E = ["--target=v5e"]

LINES: dict[str, list[list[str]]] = {
    "every kernel compiled": [["dump", "rows:double", *X], ["explain", "dumps"], ["ls", "dumps"]],
    "`verify` judged everything requested, and found nothing": [
        ["verify", "rows:double", *X, *V5E, "--engine=static"]
    ],
    "`ls` found no kernels in the directory": [["ls", "empty"]],
    "a kernel failed to compile": [["dump", "rows:split", "--arg", "f32[128,128]"]],
    "the program raised an exception when it was imported, traced or run": [
        ["dump", "raises.py"],
        ["dump", "-m", "raises"],
        ["dump", "raises:f"],
        ["step", "raises:f"],
        ["step", "rows:raises", *X],
        ["step", "raises.py"],
        ["stats", "rows:raises", *X],
        ["dump", "rows:raises", *X],
        ["dump", "rows:double", "--inputs", "rows:raised_inputs"],
        ["verify", "raises.py", *V5E],
        ["verify", "raises:f", *V5E],
        ["verify", "rows:raises", *X, *V5E],
    ],
    "a reference that raises an exception, or returns other kinds of arrays": [
        ["verify", "rows:double", *X, *V5E, "--reference", "rows:raises"],
    ],
    "the program exited with a status other than 0": [
        ["dump", "exits.py"],
        ["verify", "exits.py", *V5E],
        ["step", "leaves.py"],
    ],
    "`verify` found something, whether or not it could judge the rest": [
        ["verify", "rows:split", "--arg", "f32[128,128]", *V5E, "--engine=compile"]
    ],
    "an interpreter found a fault in a kernel of a script that `dump` ran": [
        ["dump", "--interpret=machine,sanitize", "unwritten.py"]
    ],
    "`grep` found nothing, `explain` recognised nothing": [
        ["grep", "no such text", "dumps"],
        ["grep", "x", "empty"],
        ["explain", "no such error"],
        ["explain", "empty"],
    ],
    "unknown command or option, a missing argument, a value that does not parse": [
        ["dmup", "rows.py"],
        ["show"],
        ["dump"],
        ["dump", "rows:double", "--arg", "f32["],
        ["doctor", "--targets", "--kernels"],
        ["doctor", "--demo", "--json"],
        ["grep", "(", "dumps"],
        *([name, "--no-such-option"] for name in COMMANDS),
    ],
    "unknown target, kernel, stage, pass, engine, check, switch, mode or entry": [
        ["dump", "rows:double", *X, "-t", "v5"],
        ["dump", "rows:double", *X, "--switch=bounds_check"],
        ["dump", "--interpret=tpi", "double.py"],
        ["dump", "pallas_debug_kernels:matmul", "--spec", "nope"],
        ["verify", "rows:double", *X, "-t", "v5"],
        ["verify", "rows:double", *X, "--engine=race"],
        *([name, "dumps", "-k", "dubble"] for name in ("ls", "show", "diff", "source")),
        *([name, "dumps", "-t", "v5"] for name in ("ls", "diff", "source", "reproduce")),
        ["show", "dumps", "mosaic", "-t", "v5"],
        ["show", "dumps", "jaxpr", "-t", "v5"],
        ["show", "dumps", "-t", "v5"],
        *([name, "dumps/vector", "-k", "matmul"] for name in ("ls", "show", "report")),
        ["reproduce", "dumps", "-k", "dubble"],
        ["grep", "x", "dumps", "-k", "dubble"],
        ["grep", "x", "dumps", "-t", "v5"],
        ["grep", "x", "dumps", "-p", "aply"],
        ["show", "dumps", "aply"],
        ["diff", "dumps", "aply"],
        ["diff", "dumps", "--ignore=ssb"],
        ["source", "dumps", "-p", "aply"],
        ["explain", "no-such-entry"],
    ],
    "no such script, module or function": [
        ["dump", "duble.py"],
        ["dump", "-m", "rowz"],
        ["dump", "rowz:double"],
        ["dump", "rowz.py:double"],
        ["dump", "rows:dubble"],
        ["verify", "duble.py"],
        ["verify", "-m", "rowz"],
        ["verify", "rowz:double"],
        ["verify", "rows.py:dubble"],
    ],
    "arguments that the function does not accept": [
        ["dump", "rows:double"],
        ["dump", "rows:double", *X, *X],
        ["dump", "rows:double", *X, "--arg=scael=2"],
        ["verify", "rows:double"],
        ["verify", "rows:double", *X, "--arg=scael=2"],
    ],
    "the program calls no Pallas kernel": [
        ["dump", "nothing.py"],
        ["dump", "rows:nothing", *X],
        ["verify", "nothing.py", *V5E],
        ["verify", "rows:nothing", *X, *V5E],
    ],
    "no such file or directory, or a file in place of a directory of dumps": [
        *([name, "nowhere"] for name in ("ls", "show", "diff", "source", "reproduce")),
        *([name, "no/where"] for name in ("ls", "show", "diff", "source", "reproduce")),
        *([name, "rows.py"] for name in ("ls", "show", "diff", "source", "reproduce")),
        ["grep", "x", "nowhere"],
        ["grep", "x", "rows.py"],
        ["dump", "--to", "rows.py", "rows:double", *X],
        ["verify", "--to", "rows.py", "rows:double", *X],
        ["sweep", "--to", "rows.py", "rows:double", *X, "--over=scale=1"],
        ["explain", "./nowhere"],
        ["verify", "rows:double", *X, "--suppress", "nowhere.toml"],
    ],
    "the directory contains no kernel to show, or several and none was selected": [
        *(
            [name, where]
            for name in ("show", "diff", "source", "reproduce")
            for where in ("empty", "two")
        ),
        ["report", "empty"],
        ["report", "."],
    ],
    "a compilation reached its time limit, and no kernel failed": [
        ["dump", "rows:double", *X, "--timeout=1e-3"],
        ["verify", "rows:double", *X, *V5E, "--engine=compile", "--timeout=1e-3"],
    ],
    "libtpu lacks the topology that a target names": [
        ["dump", "rows:double", *X, "-t", "v5e:99x99"],
        ["verify", "rows:double", *X, "-t", "v5e:99x99", "--engine=compile"],
    ],
    "a kernel was dumped without the schedule that a command reads": [
        ["stats", "dumps"],
        ["timeline", "dumps"],
        ["source", "dumps", "--cost"],
        ["diff", "--stats", "dumps", "dumps"],
    ],
    "part of a dump is damaged or cannot be read": [
        *([name, "damaged"] for name in ("ls", "show", "diff", "source", "explain", "reproduce")),
        *([name, "unreadable"] for name in ("show", "stats", "timeline")),
    ],
    "a file or directory cannot be written: no permission, a full disk": [
        ["dump", "rows:double", *X, "--to", "/proc/dumps"],
        ["reproduce", "dumps", "-o", "/proc/script.py"],
        ["reproduce", "dumps", "-o", "no/such/script.py"],
        ["report", "dumps", "-o", "/proc/report.html"],
        ["report", "dumps", "-o", "no/such/report.html"],
        ["verify", "rows:double", *X, *V5E, "--engine=static", "--sarif", "/proc/found.sarif"],
    ],
    "`browse` without a terminal": [["browse", "dumps"]],
}
"""Command lines by outcome."""

ELSEWHERE = {
    "`verify` found only faults that rest on made-up values of arguments",  # test_verify.py
    "`verify` found nothing, but could not judge everything requested",  # test_verify.py
    "the reader of the output closed the pipe, as in `pallas-debug show … | head`",
    "jax or libtpu is missing or incompatible",  # project/test_without_jax.py
    "`doctor` found that kernels cannot be dumped",  # project/test_without_jax.py
    "`browse` was ended by a signal, or its terminal went away",  # tui/test_terminal.py
    "`verify` was ended by SIGTERM, and printed what was judged until then",  # test_interrupts.py
    "an internal error in pallas-debug",
    "ctrl+c",
    "a command other than `verify`, `browse` and `step` was ended by SIGTERM",  # test_interrupts.py
}
"""Outcomes with a test of their own, below or where it says."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jax
    import jax.numpy as jnp
    from pallas_debug_kernels import vector_add

    root = tmp_path_factory.mktemp("exits")
    (root / "rows.py").write_text(ROWS)
    ones = "import jax.numpy as jnp, rows\nx = jnp.ones((8, 128))\n"
    (root / "raises.py").write_text(f"{ones}rows.raises(x)\n")
    (root / "double.py").write_text(f"{ones}rows.double(x)\n")
    (root / "nothing.py").write_text(f"{ones}rows.nothing(x)\n")
    (root / "unwritten.py").write_text(f"{ones}rows.unwritten(x)\n")
    (root / "leaves.py").write_text("raise SystemExit(5)\n")
    (root / "exits.py").write_text(f"{ones}rows.double(x)\nraise SystemExit(5)\n")
    (root / "empty").mkdir()
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    (dump,) = pallas_debug.dump(vector_add, x, x, to=root / "dumps")
    kernel = root / "dumps" / dump.name
    shutil.copytree(kernel, root / "damaged" / dump.name)
    (root / "damaged" / dump.name / "kernel.json").write_text("{")
    shutil.copytree(kernel, root / "unreadable" / dump.name)
    (root / "unreadable" / dump.name / "v5e" / "compilation.json").write_text("{")
    for name in ("one-01234567", "two-01234567"):
        shutil.copytree(kernel, root / "two" / name)
    return root


def test_every_outcome_has_a_line() -> None:
    assert set(OUTCOMES) == {*LINES, *ELSEWHERE}
    assert set(OUTCOMES.values()) == set(MEANING) == set(Exit)
    used = {line[0] for lines in LINES.values() for line in lines}
    assert used >= set(COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("outcome", LINES)
def test_an_outcome_has_the_same_code_in_every_command(
    command: Any, folder: Path, outcome: str, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    if outcome.startswith("every kernel"):
        (tmp_path / "dumps").unlink()
        shutil.copytree(folder / "dumps", tmp_path / "dumps")
    wrong = []
    for line in LINES[outcome]:
        elsewhere = line[0] == "dump" and "--to" not in line
        done = command(line[0], *(["--to=out"] if elsewhere else []), *line[1:])
        messages = done.stderr.strip().splitlines()
        if done.returncode != OUTCOMES[outcome]:
            wrong.append((done.returncode, line, messages[-1:] or done.stdout[-200:]))
        assert "Traceback" not in done.stderr or "raise" in line[1] + line[-1], line
        assert "internal error" not in done.stderr, messages
        assert done.returncode == 0 or messages or done.stdout or line[0] == "grep", line
    assert not wrong


def test_arguments_without_their_option(commands: Any) -> None:
    what = "pallas_debug_kernels:softmax"
    words = ["f32[8,128]", "axis=0"]
    for done in commands(*([name, what, *words] for name in ("dump", "verify", "step"))):
        assert done.returncode == 2
        assert done.stderr == (
            f"pallas-debug: {what} is a function, and its arguments cannot follow it: "
            "'f32[8,128]'. Pass them with --arg: --arg 'f32[8,128]' --arg axis=0\n"
        )


@pytest.mark.slow
def test_the_reader_of_the_output_goes_away(folder: Path) -> None:
    script = f"{installed()} show dumps finalize-llo | head -c 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")


def test_the_reader_goes_away_between_lines() -> None:
    code = """
from pallas_debug.cli import guard, output
import click

@click.command()
def cli():
    while True:
        output.echo("a line")

guard.guarded(cli)
"""
    script = '"$0" -c "$1" | head -n 1; exit ${PIPESTATUS[0]}'
    done = subprocess.run(
        ["bash", "-c", script, sys.executable, code], capture_output=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (Exit.OK, b"a line\n", b"")


@pytest.mark.slow
def test_a_closed_output(folder: Path) -> None:
    def code(line: str) -> tuple[int, str]:
        script = f"{installed()} {line}"
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    assert code("ls dumps >&-") == (Exit.OK, "")
    assert code("ls nowhere 2>&-") == (Exit.USAGE, "")
    assert code("ls dumps <&- >&- 2>&-") == (Exit.OK, "")


def test_an_output_without_room() -> None:
    code = """
from pallas_debug.cli import guard, output
import click

@click.command()
def cli():
    output.echo("a line")

guard.guarded(cli)
"""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == Exit.CANNOT_RUN
    assert done.stderr == (
        "pallas-debug: the output cannot be written: No space left on device. Free some space, or "
        "write elsewhere.\n"
    )


@pytest.mark.slow
def test_internal_errors_and_ctrl_c(run_python: Any) -> None:
    code = """
from pallas_debug.cli import guard
import signal
import click

@click.command()
@click.option("--kind")
def cli(kind):
    if kind == "extension":
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("Encountered an error while initializing the extension.") from None
    raise {"bug": ZeroDivisionError, "memory": MemoryError, "disk": OSError,
           "interrupt": KeyboardInterrupt}[kind]("mine")

guard.guarded(cli)
"""
    codes = {
        kind: run_python("-c", code, "--kind", kind).returncode
        for kind in ("bug", "memory", "disk", "interrupt", "extension")
    }
    internal = OUTCOMES["an internal error in pallas-debug"]
    assert codes == {
        "bug": internal,
        "memory": internal,
        "disk": internal,
        "interrupt": OUTCOMES["ctrl+c"],
        "extension": OUTCOMES["ctrl+c"],
    }


ENDS = """
import atexit, sys, threading, time, types

class Torn:
    def __del__(self):
        print("torn down", flush=True)

def late():
    time.sleep(0.1)
    print("thread")

print(type(sys.stdout).__name__)
held = types.ModuleType("held")
held.torn = Torn()
sys.modules["held"] = held
atexit.register(print, "handler")
threading.Thread(target=late).start()
sys.exit(3)
"""


@pytest.mark.slow
def test_the_process_ends_without_tearing_down_what_it_holds(
    real_command: Any, tmp_path: Path
) -> None:
    """Threads and `atexit` handlers of the program have their turn, and all output is written."""
    (tmp_path / "ends.py").write_text(ENDS)
    result = real_command("dump", "ends.py")
    assert result.returncode == Exit.FAILED
    assert result.stdout.splitlines()[-2:] == ["thread", "handler"]
    assert "torn down" not in result.stdout + result.stderr
