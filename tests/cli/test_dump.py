"""`pallas-debug dump`, as installed: scripts, modules, functions, and their failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.cli import programs
from pallas_debug.errors import UsageError

SCRIPT = """
import sys
import jax, jax.numpy as jnp
from pallas_debug_kernels import vector_add
x = jnp.ones(1024)
print("sum", float(vector_add(x, x).sum()), *sys.argv[1:])
"""

BROKEN = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
def broken_kernel(x_ref, o_ref):
    o_ref[...] = jnp.cumsum(x_ref[...], axis=0)
x = jnp.ones((8, 128))
print(pl.pallas_call(broken_kernel, out_shape=x)(x)[-1, 0])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_a_script_is_run_and_its_kernels_dumped(
    real_command: Any, script: Path, tmp_path: Path
) -> None:
    done = real_command("dump", "--target", "v5e,v6e", "script.py", "--its", "own arguments")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sum 2048.0 --its own arguments\n"
    assert "pallas-debug: 1 kernel for v5e, v6e in dumps" in done.stderr
    assert "next: pallas-debug report dumps" in done.stderr
    (kernel,) = (tmp_path / "dumps").glob("vector_add-*")
    assert (kernel / "v5e" / "passes").is_dir()
    assert (kernel / "v6e" / "mosaic.mlir").is_file()
    (run,) = (tmp_path / "dumps" / "runs").glob("*/*.json")
    recorded = json.loads(run.read_text())
    assert recorded["kernels"] == [kernel.name]
    assert not recorded.get("gaps")  # it was recorded when all was compiled


@pytest.mark.slow
def test_nothing_of_libtpu_reaches_the_terminal(real_command: Any, script: Path) -> None:
    environment = {"JAX_PLATFORMS": ""}  # jax itself would look for a TPU
    done = real_command("dump", script, **environment)
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "pallas-debug" not in line] == []


@pytest.mark.slow
def test_a_module_is_run(command: Any, script: Path, tmp_path: Path) -> None:
    done = command("dump", "-m", "script", "argument")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "sum 2048.0 argument\n"


@pytest.mark.slow
@pytest.mark.parametrize("behind", [True, False])
def test_a_function_is_traced(command: Any, behind: bool, tmp_path: Path) -> None:
    shape = "--arg=bf16[1,1,128,128]"
    options = [shape, shape, shape, "--arg", "causal=True", "--target=v6e", "--to=here"]
    what = "pallas_debug_kernels:flash_attention"
    done = command("dump", *([what, *options] if behind else [*options, what]))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "1 kernel for v6e in here" in done.stderr
    assert next((tmp_path / "here").glob("flash_attention-*/v6e")).is_dir()


@pytest.mark.slow
def test_the_second_time_nothing_is_compiled(command: Any, script: Path) -> None:
    command("dump", script)
    again = command("dump", script)
    assert "(1 of 1 compilation cached)" in again.stderr


@pytest.mark.slow
def test_a_kernel_that_fails_makes_the_exit_code_1(command: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done = command("dump", "broken.py")
    assert done.returncode == 1
    assert done.stdout == "8.0\n"
    assert "broken.py:5: Unimplemented primitive in Pallas TPU lowering" in done.stderr
    assert "(1 failed)" in done.stderr
    following = done.stderr.rsplit("next: pallas-debug ", 1)[1].split()
    (explained, shown) = (command(*following), command("show", *following[1:], "error"))
    assert (explained.returncode, shown.returncode) == (0, 0)
    assert "\nunimplemented-primitive: " in explained.stdout
    assert "NotImplementedError in broken_kernel-" in shown.stdout
    assert "broken.py:5   o_ref[...] = jnp.cumsum(x_ref[...], axis=0)" in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "source,code,message",
    [
        ("1 / 0", 1, "script.py raised ZeroDivisionError; the kernels that it had lowered were kept"),
        ("raise SystemExit(7)", 1, "script.py exited with 7; the kernels that it had lowered were kept"),
        ("raise SystemExit(0)", 0, "1 kernel for v5e in dumps"),
        ("raise SystemExit", 0, "1 kernel for v5e in dumps"),
        ("def f(:", 1, "script.py raised SyntaxError; nothing was dumped\n"),
    ],
)  # fmt: skip
def test_a_script_that_ends_badly(
    command: Any, script: Path, source: str, code: int, message: str, tmp_path: Path
) -> None:
    script.write_text(SCRIPT + source)
    done = command("dump", "script.py")
    assert done.returncode == code
    assert message in done.stderr
    assert "0 kernels" not in done.stderr
    if code == 1 and "(:" not in source:
        assert len(list((tmp_path / "dumps").glob("vector_add-*/v5e"))) == 1
    if "1 / 0" in source:
        assert "ZeroDivisionError: division by zero" in done.stderr
        assert "runpy" not in done.stderr


def test_words_and_options_after_a_function_are_told_apart(command: Any, script: Path) -> None:
    script.write_text("def double(x):\n    return x + x\n")
    done = command("dump", "script:double", "--args", "f32[8]")
    assert done.returncode == 2
    assert "Usage: pallas-debug dump [OPTIONS] WHAT" in done.stderr
    assert "No such option '--args'" in done.stderr or "No such option: --args" in done.stderr
    done = command("dump", "script:double", "--targets", "v5e")
    (error,) = (line for line in done.stderr.splitlines() if "No such option" in line)
    assert "--target?" in error.replace("'", "")
    assert "--arg" not in error
    done = command("dump", "script:double", "--arg", "f32[8]", "f32[9]")
    assert done.returncode == 2
    assert (
        "script:double is a function, and its arguments cannot follow it: 'f32[9]'. Pass them with "
        "--arg: --arg 'f32[9]'"
    ) in done.stderr


def test_a_kernel_in_place_of_its_caller_is_recognised() -> None:
    def rows(x_ref: Any, o_ref: Any) -> None: ...

    with pytest.raises(UsageError) as error:
        programs.check_call("script:rows", rows, [1], {})
    assert str(error.value).endswith(
        "missing a required argument: 'o_ref'. Pass --arg once per argument, such as --arg "
        "'f32[128,128]' or --arg causal=True. Its signature: rows(x_ref: 'Any', o_ref: 'Any') -> "
        "'None'. It looks like a kernel: name the function that passes it to pl.pallas_call"
    )


@pytest.mark.slow
def test_a_script_without_kernels(command: Any, script: Path) -> None:
    script.write_text("print('hello')")
    done = command("dump", "script.py")
    assert done.returncode == 2
    assert "script.py called no Pallas kernel: nothing was dumped." in done.stderr
    assert "Does it call kernels only on a TPU, or only define them?" in done.stderr


@pytest.mark.slow
def test_a_file_of_tests_is_for_pytest(commands: Any, script: Path) -> None:
    tests = script.with_name("test_rows.py")
    tests.write_text("def test_rows(): pass")
    for command, option, done in zip(
        ("dump", "verify"),
        ("--pallas-dump", "--pallas-verify"),
        commands(("dump", "test_rows.py"), ("verify", "test_rows.py")),
        strict=True,
    ):
        assert done.returncode == 2, command
        message = f"A file of tests is run by pytest: pytest {option} test_rows.py"
        assert message in done.stderr


NO_SENSE: list[tuple[list[str], str]] = [
    (["dump", "missing.py"], "no such script: missing.py. Name a Python file, `-m` and a "
     "module, or package.module:function."),
    (["dump", "--target=v99", "script.py"], "unknown target 'v99'; the known ones are"),
    (["dump", "--arg=3", "script.py"], "--arg is for package.module:function"),
    (["dump", "nowhere:f"], "there is no module 'nowhere': is it installed, or should you be "
     "in another directory?"),
    (["dump", "json:nothing"], "json has no 'nothing'"),
    (["dump", "json:__doc__"], "json:__doc__ is a str, not a function"),
    (["dump", "--target=", "script.py"], "'--target': is empty; omit it to use the default"),
    (["dump", "--to=", "script.py"], "Invalid value for '-o' / '--to': the path is empty."),
    (["ls", ""], "Invalid value for '[WHERE]': the path is empty."),
    (["explain", ""], "say what to explain: a file, a directory of dumps"),
    (["verify", "script.py", "--budget=nan"], "'--budget': nan is not a number."),
    (["stats", "script.py"], "pallas-debug dump script.py"),
    (["step", "json:dumps", "-a", "3"], "no Pallas kernel was called. Does the program "
     "call kernels only on a TPU, or only define them?"),
    (["dump", "-a", "wat[8]", "json:dumps"], "unknown dtype 'wat'; "
     "write it as jax does, such as bf16, f32, i32 or float8_e4m3fn; an argument is an array"),
    (["dump", "-a", "f33[2]", "json:dumps"], "unknown dtype 'f33' (did you mean 'f32'?); write"),
    (["dump", "--timeout=0", "script.py"], "Invalid value for '--timeout'"),
    (["dump"], "Missing argument 'WHAT'"),
    (["wat"], "no such command: wat"),
    (["dmp"], "no such command: dmp (did you mean 'dump'?)"),
    (["a.py"], "no such command: a.py; to compile its kernels: pallas-debug dump a.py"),
    (["dump", "--tragets=v5e", "script.py"], "--targ"),
    (["dump", "--target=v5", "script.py"], "unknown target 'v5' (did you mean 'v5e' or 'v5p'?)"),
    (["dump", "-"], "no such script: -"),
    (["verify", "/dev/null"], "not a file: /dev/null"),
    (["dump", "."], "not a file: .. Name a Python file, `-m` and a module, or "),
    (["dump", "scirpt.py"], "no such script: scirpt.py (did you mean 'script.py'?)"),
    (["dump", "script"], "no such script: script (did you mean 'script.py'?)"),
    (["dump", "-a", "f32[2]", "json.dumps"], "and 'json.dumps' is a script or module"),
    (["dump", "-m", "scirpt"], "there is no module 'scirpt' (did you mean 'script'?)"),
    (["dump", "scirpt.py:f"], "no such file: scirpt.py (did you mean 'script.py'?)"),
    (["dump", "--switch=log_recordr", "script.py"], "'log_recordr' (did you mean 'log_recorder'?)"),
    (["dump", "json:JSONDecodr"], "json has no 'JSONDecodr' (did you mean 'JSONDecoder'?)"),
    (["verify", "--search", "--json", "json:loads"], "--search prints no JSON"),
    (["dump", "json:loads"], "json:loads cannot be called with these arguments: missing a "
     "required argument: 's'. Pass --arg once per argument, such as --arg 'f32[128,128]' or --arg "
     "causal=True. Its signature: loads(s, *, cls=None"),
]  # fmt: skip


@pytest.mark.slow
def test_what_makes_no_sense_exits_with_2(commands: Any, script: Path) -> None:
    script.with_name("package").mkdir()
    script.with_name("package").joinpath("__init__.py").touch()
    results = commands(*(arguments for arguments, _ in NO_SENSE))
    for done, (_, message) in zip(results, NO_SENSE, strict=True):
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr


def test_a_function_that_raises_while_it_is_traced(command: Any) -> None:
    done = command("dump", "--arg=f32[3,3]", "--arg=f32[4,4]", "pallas_debug_kernels:matmul")
    assert done.returncode == 1
    assert "pallas_debug_kernels:matmul raised ValueError: " in done.stderr


KERNEL_ALONE = """
import jax

@jax.jit
def flag(x, kind):
    return x

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...]
"""


SETTINGS = """
import os
os.environ["JAX_ENABLE_X64"] = "1"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=3"
import jax
from jax.experimental import pallas as pl

def copy(x_ref, o_ref):
    o_ref[...] = x_ref[...]

def call(x):
    print(jax.config.jax_enable_x64, len(jax.devices()))
    return pl.pallas_call(copy, out_shape=x)(x)

if __name__ == "__main__":
    call(jax.numpy.zeros((8, 128)))
"""


@pytest.mark.slow
def test_settings_that_a_program_makes_in_the_environment(commands: Any, tmp_path: Path) -> None:
    """XLA reads its own when it is first used; jax has read its variables before."""
    (tmp_path / "settings.py").write_text(SETTINGS)
    for done in commands(
        ["dump", "--target=v5e", "settings.py"],
        ["dump", "--arg=f32[8,128]", "settings:call"],
    ):
        assert done.returncode == 0, done.stderr
        assert done.stdout == "False 3\n"
        assert "JAX_ENABLE_X64 had no effect: jax was imported before the program." in done.stderr


def test_what_jax_refuses_is_shown_without_our_frames(command: Any, tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(KERNEL_ALONE)
    done = command("dump", "--arg=f32[3,3]", "--arg='relu'", "alone:flag")
    assert done.returncode == 1
    assert "TypeError: Error interpreting argument to <function flag" in done.stderr
    assert "File " not in done.stderr
    done = command("dump", "--arg=f32[8,128]", "--arg=f32[8,128]", "alone:kernel")
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert "alone:kernel raised TypeError: " in line
    assert line.endswith("pass a kernel to pl.pallas_call, without calling it")


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_ctrl_c_leaves_what_was_finished_and_nothing_running(
    hangs: bool, script: Path, tmp_path: Path
) -> None:
    """While the script sleeps, and while a compilation hangs after the script."""
    wait = "" if hangs else "import time; time.sleep(60)"
    script.write_text(f"{SCRIPT}print('there', flush=True)\n{wait}")
    tool = Path(sys.executable).with_name("pallas-debug")
    run = subprocess.Popen(
        [tool, "dump", "script.py"], cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not (children := _children(run.pid)):
        time.sleep(0.01)
    if hangs:
        os.kill(int(children[0]), signal.SIGSTOP)
    assert run.stdout is not None
    while run.stdout.readline() != "there\n":
        pass
    deadline = time.monotonic() + (0.5 if hangs else 120)
    while not list(tmp_path.glob("dumps/*/v5e/compilation.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(run.pid)
    run.send_signal(signal.SIGINT)
    _, output = run.communicate(timeout=120)
    assert run.returncode == 130
    assert "pallas-debug: stopped; finished compilations are in the dump directory" in output
    assert "Traceback" not in output
    assert not [pid for pid in children if Path("/proc", pid).exists()]
    if not hangs:
        assert len(list(tmp_path.glob("dumps/vector_add-*/v5e/compilation.json"))) == 1
        assert list((tmp_path / "dumps" / ".tmp").iterdir()) == []


def _children(pid: int) -> list[str]:
    """Compilers of a process. One that is stopped before it is one would stop its parent, too."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True,
                           text=True, check=False, env={**os.environ})  # fmt: skip
    lines = found.stdout.splitlines()
    return [line.split()[0] for line in lines if "pallas_debug.compiler.worker" in line]
