"""Ctrl+c while XLA has the main thread: what is counted, and how a command ends."""

import itertools
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug import interrupts
from pallas_debug.cli.exits import Exit
from pallas_debug.machine.machine import Machine
from pallas_debug.verdict.run import NOT_CONCLUDED

LONG = """
import jax

@jax.jit
def run(n):
    return jax.lax.fori_loop(0, n, lambda i, x: x * 1.5 % 7, 1.0)

run(10).block_until_ready()
print("there", flush=True)
run(2_000_000_000).block_until_ready()
"""


@pytest.mark.slow
def test_a_program_of_xla_ends_with_the_second_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LONG)
    run = subprocess.Popen(
        [Path(sys.executable).with_name("pallas-debug"), "verify", "script.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stderr is not None
    while run.stdout.readline() != "there\n":
        pass
    used = cpu_seconds(run.pid)
    while cpu_seconds(run.pid) < used + 0.5:  # from Python's print into XLA
        assert run.poll() is None
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    time.sleep(interrupts.AGAIN_AFTER + 0.5)
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    _, output = run.communicate(timeout=120)
    lines = [line for line in output.splitlines() if not PROGRESS.match(line)]
    assert lines == ["pallas-debug: stopped"]
    assert run.returncode == 130


PROGRESS = re.compile(r"pallas-debug: [\d,]+ s: ")
"""Line of a command that takes some seconds."""


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used; unlike wall time, it says how far the process has come."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_sigterm_ends_a_command_as_ctrl_c_does(tmp_path: Path) -> None:
    """So that the terminal is as it was, and no file of the compiler is left."""
    (tmp_path / "slow.py").write_text(
        "import time\ndef slow(x):\n    print('there', flush=True); time.sleep(600)"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    run = subprocess.Popen(
        [
            Path(sys.executable).with_name("pallas-debug"),
            "dump", "slow:slow", "--arg=f32[8,128]",
        ],
        cwd=tmp_path, env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    assert run.stdout.readline() == "there\n"
    deadline = time.monotonic() + 60
    while not list(temporary.iterdir()):  # the compiler starts while the function is traced
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.terminate()
    _, output = run.communicate(timeout=120)
    assert output.endswith(
        "pallas-debug: stopped; finished compilations are in the dump directory\n"
    )
    assert "Traceback" not in output
    assert run.returncode == Exit.TERMINATED == 128 + signal.SIGTERM
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_sigterm_ends_a_command_while_xla_runs_a_program(forks: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LONG)
    run = subprocess.Popen(
        [forks, Path(sys.executable).with_name("pallas-debug"), "dump", "script.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout is not None
    while run.stdout.readline() != "there\n":
        pass
    run.terminate()
    run.communicate(timeout=120)
    assert run.returncode == Exit.TERMINATED == 128 + signal.SIGTERM


STOPPED = """
import os, signal, threading, time
import jax
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]

def add(x):
    if not isinstance(x, jax.core.Tracer):
        END
    beyond = pl.BlockSpec(x.shape, lambda i: (1, 0))
    return pl.pallas_call(kernel, grid=(1,), out_shape=x, in_specs=[beyond])(x)

def right(x):
    return x
"""

IN_PYTHON = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"


@pytest.mark.slow
def test_verify_prints_what_was_answered_before_it_was_stopped(
    command: Any, tmp_path: Path
) -> None:
    (tmp_path / "stopped.py").write_text(STOPPED.replace("END", IN_PYTHON))
    options = ("--reference=stopped:right", "-e", "static,machine,values")
    done = command("verify", "stopped:add", "--arg=f32[8,128]", *options)
    assert done.returncode == 130, done.stderr
    header, row, *_ = done.stdout.splitlines()
    assert header.split() == ["kernel", "static", "machine", "values"]
    assert row.split() == ["kernel", "FOUND", "?", "?"]
    assert "no reference" not in done.stdout
    assert "BlockOutOfBounds in kernel `kernel`" in done.stdout
    assert "not judged: kernel machine, kernel values: stopped by ctrl+c" in done.stdout
    assert f"note: {NOT_CONCLUDED}" in done.stdout


@pytest.mark.slow
def test_what_was_compiled_before_the_end_is_in_the_table(command: Any, tmp_path: Path) -> None:
    """The program is stopped while it runs, once the dump has a folder for the target."""
    waits = "[time.sleep(0.1) for _ in range(600) if not glob.glob('dumps/*/v5e')]"
    text = STOPPED.replace("END", f"{waits}; {IN_PYTHON}").replace("import os", "import glob, os")
    text = text.replace("(1, 0)", "(0, 0)")  # libtpu aborts at a block that is out of bounds
    (tmp_path / "stopped.py").write_text(text)
    options = ("-e", "compile,machine", "--target=v5e", "--to=dumps")
    done = command("verify", "stopped:add", "--arg=f32[8,128]", *options)
    assert done.returncode == 130, done.stderr
    header, row, *_ = done.stdout.splitlines()
    assert header.split() == ["kernel", "v5e", "machine"]
    assert row.split() == ["kernel", "ok", "?"]


def press() -> None:
    """Press ctrl+c, in the main thread."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        return
    pytest.fail("ctrl+c had no effect")


def wait_for(number: int) -> None:
    deadline = time.monotonic() + 60
    while interrupts.count() != number and time.monotonic() < deadline:
        time.sleep(0.001)
    assert interrupts.count() == number


def test_each_one_is_counted_in_the_block_and_none_outside() -> None:
    before = interrupts.count()
    press()
    assert interrupts.count() == before
    with interrupts.listening(), interrupts.listening():
        before = interrupts.count()
        press()
        wait_for(before + 1)
        press()
        wait_for(before + 2)
    press()
    assert interrupts.count() == before + 2


def test_somebody_elses_wakeup_descriptor_is_kept() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        begin = interrupts.count()
        with interrupts.listening():
            press()
        assert select.select([read], [], [], 10)[0]
        assert interrupts.count() == begin
        assert signal.set_wakeup_fd(write) == write
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def test_only_an_error_of_jax_since_then_is_its_work() -> None:
    with interrupts.listening():
        begin = interrupts.count()
        error = jax.errors.JaxRuntimeError("a callback failed")
        assert not interrupts.is_cause(error, begin)
        press()
        wait_for(begin + 1)
        assert interrupts.is_cause(error, begin)
        assert not interrupts.is_cause(AssertionError("of the user"), begin)
        assert not interrupts.is_cause(error, begin + 1)


def test_a_program_ends_in_the_threads_of_its_callbacks() -> None:
    raised: list[BaseException] = []

    def callback(begin: int) -> None:
        try:
            interrupts.end_if_since(begin)
        except interrupts.Interrupted as error:
            raised.append(error)

    with interrupts.listening():
        begin = interrupts.count()
        press()
        wait_for(begin + 1)
        callback(begin)  # in the main thread Python has raised
        assert raised == []
        for since in (begin + 1, begin):
            thread = threading.Thread(target=callback, args=(since,))
            thread.start()
            thread.join()
    assert [str(error) for error in raised] == ["stopped by ctrl+c"]


@pytest.mark.slow
def test_a_forked_process_does_not_write_into_the_pipe_of_its_parent() -> None:
    code = """
import os, signal, sys, time, warnings
from pallas_debug import interrupts
from pallas_debug.verdict.run import NOT_CONCLUDED
warnings.simplefilter("ignore")
with interrupts.listening():
    child = os.fork()
    if child == 0:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except KeyboardInterrupt:
            with interrupts.listening():
                pass
            os._exit(interrupts.count() + 40)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    time.sleep(0.2)
    print(interrupts.count())
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "40\n0\n"


@pytest.mark.parametrize("mode", ["auto", "machine,sanitize"])
def test_a_block_that_interprets_raises_keyboard_interrupt(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the key is pressed in a callback, of which XLA makes a `JaxRuntimeError`."""
    real, calls = Machine.step, itertools.count()

    def press_at_the_fifth(*args: Any) -> Any:
        if next(calls) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return real(*args)

    def copy(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = x_ref[...]

    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    x = jnp.ones((256, 128))
    kernel = pl.pallas_call(copy, grid=(32,), in_specs=[block], out_specs=block, out_shape=x)
    monkeypatch.setattr(Machine, "step", press_at_the_fifth)
    with pytest.raises(KeyboardInterrupt), pallas_debug.interpret(mode):
        kernel(x).block_until_ready()
    assert next(calls) < 32
    monkeypatch.setattr(Machine, "step", real)
    with pallas_debug.interpret(mode):  # nothing is left over
        assert bool((kernel(x) == x).all())
