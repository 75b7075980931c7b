"""Exit codes: each outcome has one, whichever command it is the outcome of."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import installed
from generator.outcomes import OUTCOMES

import pallas_debug
from pallas_debug.cli.exits import MEANING, Exit
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

LINES: dict[str, str] = {
    "every kernel compiled": """
        dump rows:double -a f32[8,128]
        explain,ls dumps
    """,
    "`verify` judged everything requested, and found nothing": """
        verify rows:double -a f32[8,128] -t v5e --engine=static
    """,
    "`ls` found no kernels in the directory": "ls empty",
    "a kernel failed to compile": "dump rows:split -a f32[128,128]",
    "the program raised an exception when it was imported, traced or run": """
        dump,step,verify raises.py
        dump -m raises
        dump,step,verify raises:f
        dump,step,stats,verify rows:raises -a f32[8,128]
        dump rows:double --inputs rows:raised_inputs
    """,
    "a reference that raises an exception, or returns other kinds of arrays": """
        verify rows:double -a f32[8,128] -t v5e --reference rows:raises
    """,
    "the program exited with a status other than 0": """
        dump,verify exits.py
        step leaves.py
    """,
    "`verify` found something, whether or not it could judge the rest": """
        verify rows:split -a f32[128,128] -t v5e --engine=compile
    """,
    "`grep` found nothing, `explain` recognised nothing": """
        grep nowhere-in-it dumps
        grep x empty
        explain wat
        explain no-such-entry
        explain empty
    """,
    "unknown command or option, a missing argument, a value that does not parse": f"""
        dmup rows.py
        dump,verify,sweep
        dump rows:double -a f32[
        doctor --targets --kernels
        doctor --kernels --json
        grep ( dumps
        {",".join(COMMANDS)} --no-such-option
    """,
    "unknown target, kernel, stage, pass, engine, check, switch or mode": """
        dump,verify rows:double -a f32[8,128] -t v5
        dump rows:double -a f32[8,128] --switch=bounds_check
        dump pallas_debug_kernels:matmul --spec nope
        verify rows:double -a f32[8,128] --engine=race
        ls,show,diff,source,reproduce dumps -k dubble
        ls,show,diff,source,reproduce dumps -t v5
        show dumps mosaic -t v5
        show dumps jaxpr -t v5
        ls,show,report dumps/vector -k matmul
        grep x dumps -k dubble
        grep x dumps -t v5
        grep x dumps -p aply
        show,diff dumps aply
        diff dumps --ignore=ssb
        source dumps -p aply
    """,
    "no such script, module or function": """
        dump,verify duble.py
        dump,verify -m rowz
        dump,verify rowz:double
        dump rowz.py:double
        dump rows:dubble
        verify rows.py:dubble
    """,
    "arguments that the function does not accept": """
        dump,verify rows:double
        dump rows:double -a f32[8,128] -a f32[8,128]
        dump,verify rows:double -a f32[8,128] -a scael=2
    """,
    "the program calls no Pallas kernel": """
        dump,verify nothing.py
        dump,verify rows:nothing -a f32[8,128]
    """,
    "no such file or directory, or a file in place of a directory of dumps": """
        ls,show,diff,source,reproduce nowhere
        ls,show,diff,source,reproduce no/where
        ls,show,diff,source,reproduce rows.py
        grep x nowhere
        grep x rows.py
        dump,verify --to rows.py rows:double -a f32[8,128]
        sweep --to rows.py rows:double -a f32[8,128] --over=scale=1
        explain ./nowhere
        verify rows:double -a f32[8,128] --suppress nowhere.toml
    """,
    "the directory contains no kernel to show, or several and none was selected": """
        show,diff,source,reproduce,report empty
        show,diff,reproduce two
        report .
    """,
    "a compilation reached its time limit, and no kernel failed": """
        dump rows:double -a f32[8,128] --timeout=1e-3
        verify rows:double -a f32[8,128] -t v5e --engine=compile --timeout=1e-3
    """,
    "libtpu lacks the topology that a target names": """
        dump rows:double -a f32[8,128] -t v5e:99x99
        verify rows:double -a f32[8,128] -t v5e:99x99 --engine=compile
    """,
    "a kernel was dumped without the schedule that a command reads": """
        stats,timeline dumps
        source dumps --cost
        diff --stats dumps dumps
    """,
    "part of a dump is damaged or cannot be read": """
        ls,show,diff,source,explain,reproduce damaged
        show,stats,timeline unreadable
    """,
    "a file or directory cannot be written: no permission, a full disk": """
        dump rows:double -a f32[8,128] --to /proc/dumps
        reproduce,report dumps -o /proc/file
        reproduce,report dumps -o no/such/file
        verify rows:double -a f32[8,128] -t v5e --engine=static --sarif /proc/found.sarif
    """,
    "`browse` without a terminal": "browse dumps",
}
"""Command lines by outcome; words that are joined by commas are commands with the same arguments."""

ELSEWHERE = {
    "`verify` found only faults that rest on made-up values of arguments",  # test_verify.py
    "`verify` found nothing, but could not judge everything requested",  # test_verify.py
    "the reader of the output closed the pipe, as in `pallas-debug show … | head`",
    "jax or libtpu is missing or incompatible",  # project/test_without_jax.py
    "`doctor` found that kernels cannot be dumped",  # project/test_without_jax.py
    "`browse` was ended by a signal, or its terminal went away",  # tui/test_terminal.py
    "an internal error in pallas-debug",  # test_hostile.py
    "ctrl+c",
    "a command other than `browse` was ended by SIGTERM",  # test_interrupts.py
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
    (dump,) = pallas_debug.dump(vector_add, x, x, stages="mosaic", to=root / "dumps")
    kernel = root / "dumps" / dump.name
    shutil.copytree(kernel, root / "damaged" / dump.name)
    (root / "damaged" / dump.name / "kernel.json").write_text("{")
    shutil.copytree(kernel, root / "unreadable" / dump.name)
    (root / "unreadable" / dump.name / "v5e" / "compilation.json").write_text("{")
    for name in ("one-01234567", "two-01234567"):
        shutil.copytree(kernel, root / "two" / name)
    return root


def lines_of(outcome: str) -> list[list[str]]:
    written = [line.split() for line in LINES[outcome].splitlines() if line.strip()]
    return [[name, *words] for names, *words in written for name in names.split(",")]


def test_every_outcome_has_a_line() -> None:
    assert set(OUTCOMES) == {*LINES, *ELSEWHERE}
    assert set(OUTCOMES.values()) == set(MEANING) == set(Exit)
    used = {line[0] for outcome in LINES for line in lines_of(outcome)}
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
    for line in lines_of(outcome):
        elsewhere = line[0] in ("dump", "verify") and "--to" not in line
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
        return done.returncode, done.stderr.partition(": ")[0]

    assert code("ls dumps >&-") == (Exit.OK, "next")
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
        "pallas-debug: running the command failed: the disk is full ([Errno 28] No space left on "
        "device). Free some space and run it again. Neither your program nor its kernels are at "
        "fault.\n"
    )


@pytest.mark.slow
def test_ctrl_c(run_python: Any) -> None:
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
    raise KeyboardInterrupt

guard.guarded(cli)
"""
    for kind in ("interrupt", "extension"):
        assert run_python("-c", code, "--kind", kind).returncode == OUTCOMES["ctrl+c"]


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
