"""`pallas-debug verify`, as installed: functions, scripts, formats, and invalid requests."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.cli import verify
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.store.reader import open_dumps
from pallas_debug.verdict import Outcome, Verdict

ROWS = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

@jax.jit
def gather(x):
    def rows(x_ref, o_ref):
        start = pl.program_id(0) * 8 + 4
        o_ref[...] = x_ref[pl.ds(start, 8), :]
    whole = pl.BlockSpec((16, 128), lambda i: (0, 0))
    return pl.pallas_call(
        rows, out_shape=x, grid=(2,), in_specs=[whole],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )(x)

if __name__ == "__main__":
    gather(jnp.ones((16, 128)))
"""

LINE = 9
ARGUMENT = "--arg=f32[16,128]"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "rows.py"
    path.write_text(ROWS)
    return path


@pytest.mark.slow
def test_a_fault_is_said_once_in_every_format(command: Any, module: Path, tmp_path: Path) -> None:
    options = ["--json", "--sarif", "out.sarif", "-e", "static,machine"]
    done = command("verify", "rows:gather", ARGUMENT, *options)
    assert done.returncode == 1, done.stderr
    verdict = json.loads(done.stdout)
    (finding,) = verdict["findings"]
    assert finding["kind"] == "OutOfBoundsRead"
    assert finding["witness"]["source"]["line"] == LINE
    assert finding["witness"]["grid_point"] == [1]
    assert set(finding["engines"]) == {"static", "machine"}
    by_engine = {o["engine"]: o["status"] for o in verdict["outcomes"]}
    assert by_engine["static"] == by_engine["machine"] == "found"
    sarif = json.loads((tmp_path / "out.sarif").read_text())
    (result,) = sarif["runs"][0]["results"]
    assert result["ruleId"] == "OutOfBoundsRead"
    assert "CpuCallback" not in done.stderr  # jax's own stack of the callback that stopped it


GATED = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

assert jax.devices()[0].platform == "tpu", "this needs a TPU"
def double_kernel(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

def double(x):
    return pl.pallas_call(double_kernel, out_shape=x)(x)

if __name__ == "__main__":
    double(jnp.ones((8, 128)))
"""


@pytest.mark.slow
def test_code_that_asks_for_a_tpu(command: Any, commands: Any, tmp_path: Path) -> None:
    """A script, a module that is imported, and `dump`."""
    (tmp_path / "gated.py").write_text(GATED)
    options = ["-e", "static", "-t", "v6e"]
    refused, script, function, dumped = commands(
        ["verify", *options, "gated.py"],
        ["verify", *options, "--pretend", "gated.py"],
        ["verify", *options, "--pretend", "gated:double", "--arg=f32[8,128]"],
        ["dump", "-t", "v6e", "--pretend", "gated.py"],
    )
    assert refused.returncode == 1
    assert refused.stdout.startswith(
        "TraceError\n  gated.py:5   assert jax.devices()[0].platform == "
    )
    assert "if it needs a TPU, pass --pretend\n" in refused.stdout
    for passed in (script, function):
        assert passed.returncode == 0, passed.stdout + passed.stderr
        assert passed.stdout.splitlines()[1].split() == ["double_kernel", "ok"]
    assert dumped.returncode == 0, dumped.stderr
    assert "1 kernel for v6e in " in dumped.stderr


@pytest.mark.slow
def test_the_dump_directory_keeps_the_findings(command: Any, module: Path, tmp_path: Path) -> None:
    done = command("verify", "rows:gather", ARGUMENT, "-e", "machine", "-t", "v5e", "-o", "kept")
    assert done.returncode == 1, done.stderr
    (record,) = open_dumps(tmp_path / "kept").runs()
    assert record.name == "gather"
    assert {*record.judged} == {*record.kernels}
    assert [*record.judged.values()] == [("machine",)]
    (finding,) = record.findings
    assert (finding.kind, finding.kernel) == ("OutOfBoundsRead", "rows")
    assert finding.source is not None
    assert finding.source.line == LINE
    assert command("report", "kept", "-o", "report.html").returncode == 0
    chunks = re.findall(
        '<script type="text/plain" id="[^"]*">([^<]*)</script>',
        (tmp_path / "report.html").read_text(),
    )
    documents = [json.loads(zlib.decompress(base64.b64decode(c), -15)) for c in chunks]
    notes = [note for document in documents for note in document.get("notes", ())]
    assert notes == [
        [LINE, "finding", f"OutOfBoundsRead: {finding.message}"],
        [LINE, "finding", f"try: {finding.advice}"],
    ]


@pytest.mark.slow
def test_suppressed_findings_do_not_fail(command: Any, module: Path, tmp_path: Path) -> None:
    (tmp_path / "pallas-debug.toml").write_text(
        '[[suppress]]\nkind = "OutOfBoundsRead"\nkernel = "rows"\nreason = "to be mended"\n'
    )
    done = command("verify", "rows:gather", ARGUMENT, "-e", "machine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not counted: OutOfBoundsRead in kernel `rows`: to be mended" in done.stdout


@pytest.mark.slow
def test_a_script_is_judged_by_every_engine(command: Any, module: Path, tmp_path: Path) -> None:
    done = command("verify", "rows.py", "--target", "v5e", "--to", "kept", "-v")
    assert done.returncode == 1, done.stderr
    assert "seen by: machine, static" in done.stdout
    assert f"rows.py:{LINE}   o_ref[...] = x_ref[pl.ds(start, 8), :]" in done.stdout
    assert (
        done.stdout.splitlines()[-1]
        == "rows.py: not everything was done (what the program runs after rows.py:17, where it "
        "stopped: OutOfBoundsRead in kernel `rows`, grid point (1,)); 1 finding in 1 kernel; "
        "values not judged (no reference)"
    )
    assert list((tmp_path / "kept").glob("rows-*/v5e/compilation.json"))


@pytest.mark.slow
def test_an_engine_that_was_named_has_to_judge(command: Any, tmp_path: Path) -> None:
    """A target that does not apply to a kernel is not asked, unless it was requested by name."""
    text = ROWS.replace(" + 4", "").replace(
        "grid=(2,)", "grid=(2,), compiler_params=triton.CompilerParams()"
    )
    (tmp_path / "rows.py").write_text("from jax.experimental.pallas import triton\n" + text)
    done = command("verify", "rows.py", "-t", "v5e")
    assert done.returncode == 0, done.stdout + done.stderr
    done = command("verify", "rows.py", "-e", "compile", "-t", "v5e")
    assert done.returncode == 3, done.stdout + done.stderr
    header, row, *_, last = done.stdout.splitlines()
    assert (header.split(), row.split()) == (["kernel", "v5e"], ["rows", "?"])
    assert last.startswith("rows.py: 1 of 1 judgement not made (v5e: rows is a kernel for a GPU")
    assert last.endswith("nothing is known about its kernels; values not judged (no reference)")


def test_a_trace_that_fails_is_a_finding_at_its_line(command: Any, tmp_path: Path) -> None:
    bad = ROWS.replace("x_ref[pl.ds(start, 8), :]", "x_ref[pl.ds(start, 8), :, :]")
    (tmp_path / "bad.py").write_text(bad)
    done = command("verify", "bad:gather", ARGUMENT)
    assert done.returncode == 1, done.stderr
    assert f"bad.py:{LINE}   o_ref[...] = x_ref[pl.ds(start, 8), :, :]" in done.stdout
    done = command("verify", "bad.py")
    assert done.returncode == 1, done.stderr
    assert f"bad.py:{LINE}   o_ref[...] = x_ref[pl.ds(start, 8), :, :]" in done.stdout


def test_python_s_if_in_a_kernel_is_explained_at_its_line(command: Any, tmp_path: Path) -> None:
    (tmp_path / "cond.py").write_text(
        "from jax.experimental import pallas as pl\n"
        "def positive(x):\n"
        "    def kernel(x_ref, o_ref):\n"
        "        o_ref[...] = x_ref[...]\n"
        "        if x_ref[0, 0] < 0:\n"
        "            o_ref[...] = -x_ref[...]\n"
        "    return pl.pallas_call(kernel, out_shape=x)(x)\n"
    )
    wanted = "cond:positive", "--arg=f32[8,128]", "--target=v5e"
    judged = command("verify", *wanted, "-v", cwd=tmp_path)
    dumped = command("dump", *wanted, cwd=tmp_path)
    assert judged.returncode == 1
    assert "  cond.py:5   if x_ref[0, 0] < 0:\n" in judged.stdout
    assert "  cause: a kernel is traced once for all values, but `if`, `while`" in judged.stdout
    assert "Python's `if` or `while` on a value" in dumped.stderr
    for message in (judged.stdout, dumped.stderr):
        assert "in a function decorated with @pl.when(condition); choose" in message
        assert "jax.lax.cond" in message


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["rows:gather", ARGUMENT, ARGUMENT], "too many positional arguments. Pass --arg once per"),
        (
            ["rows:gather", ARGUMENT, "-e", "magic"],
            "no engine magic; there are static, compile, machine, values",
        ),
        (["math:sqrt", "--arg", "2.0"], "sqrt calls no Pallas kernel with these arguments"),
        (["rows:gather", ARGUMENT, "--suppress", "gone.toml"], "gone.toml cannot be read"),
    ],
)
def test_what_makes_no_sense(
    command: Any, module: Path, arguments: list[str], message: str
) -> None:
    done = command("verify", *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert done.stdout == ""


PAGES = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

def gather(table, pool):
    def copy_page(table_ref, page_ref, out_ref):
        out_ref[...] = page_ref[...]
    page = (1, 8, 128)
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(3,),
        in_specs=[pl.BlockSpec(page, lambda i, table_ref: (table_ref[i], 0, 0))],
        out_specs=pl.BlockSpec(page, lambda i, table_ref: (i, 0, 0)),
    )
    shape = jax.ShapeDtypeStruct((3, 8, 128), pool.dtype)
    return pl.pallas_call(copy_page, grid_spec=spec, out_shape=shape)(table, pool)

def inputs():
    return (jnp.array([0, 1, 9]),), {"pool": jnp.ones((4, 8, 128))}

def broken():
    raise LookupError("no such batch")

if __name__ == "__main__":
    args, kwargs = inputs()
    jax.jit(gather)(*args, **kwargs)
"""
PAST_THE_POOL = (
    "page_ref returns block 9 along dimension 0 of float32[4, 8, 128], which has 4 blocks"
)


@pytest.mark.slow
def test_real_inputs_decide(command: Any, tmp_path: Path) -> None:
    (tmp_path / "pages.py").write_text(PAGES)
    static = ["verify", "pages:gather", "-e", "static", "-t", "v5e"]
    for given in (
        ["--arg", "i32[3]=[0,1,9]", "--arg=pool=f32[4,8,128]"],
        ["--inputs", "pages:inputs"],
    ):
        done = command(*static, *given)
        assert done.returncode == 1, done.stdout + done.stderr
        assert PAST_THE_POOL in done.stdout
    done = command(*static, "--arg", "i32[3]=[0,1,3]", "--arg", "f32[4,8,128]")
    assert done.returncode == 0, done.stdout
    done = command("dump", "pages:gather", "--inputs", "pages:inputs", "-t", "v5e")
    assert done.returncode == 0, done.stderr
    for given, code, message in (
        (["pages:gather", "--inputs", "pages"], 2, "--inputs takes a function as package.module"),
        (["pages:gather", "--inputs", "pages:gone"], 2, "pages has no 'gone'"),
        (["pages:gather", "--inputs", "pages:gather"], 2, "--inputs pages:gather cannot be called with "
         "these arguments: missing a required argument: 'table'"),
        (["pages:gather", "--inputs", "pages:broken"], 1, "raised LookupError: no such batch"),
        (["pages:gather", "--inputs", "pages:inputs", "--arg", "1"], 2, "--arg and --inputs all "
                                                                        "specify the arguments: "
                                                                        "pass only one of them"),
        (["pages.py", "--inputs", "pages:inputs"], 2, "--inputs is for package.module:function"),
        (["pages:gather", "--arg", "i32[3]=[0,1"], 2, "column 8: '[' was never closed"),
    ):  # fmt: skip
        done = command("verify", *given)
        assert done.returncode == code, done.stderr
        assert message in done.stderr.replace("\n", " ")
        assert "pallas_debug/" not in done.stderr


REFERENCES = """
import jax.numpy as jnp

def shifted(x):
    return jnp.roll(x, -4, axis=0)

def doubled(x):
    return x * 2

def raising(x):
    return x.reshape(3, 3)  # wrong

def half(x):
    return x[:8]

def two(x, y):
    return x
"""


@pytest.mark.slow
def test_tolerances_of_a_reference(command: Any, module: Path, tmp_path: Path) -> None:
    (tmp_path / "refs.py").write_text(REFERENCES)
    module.write_text(
        ROWS.replace(" + 4", "").replace(
            "x_ref[pl.ds(start, 8), :]", "x_ref[pl.ds(start, 8), :] * 3"
        )
    )
    asked = ["rows:gather", ARGUMENT, "-e", "machine", "--reference", "refs:doubled"]
    assert command("verify", *asked).returncode == 1
    loose = command("verify", *asked, "--rtol", "0.6", "--atol=0", "--json")
    assert loose.returncode == 0, loose.stderr
    verdict = json.loads(loose.stdout)
    assert (verdict["ok"], verdict["reference"]) == (True, "doubled")
    assert {o["engine"]: o["status"] for o in verdict["outcomes"]}["values"] == "ok"


@pytest.mark.parametrize(
    "reference, message",
    [
        (
            "refs:raising",
            "the reference raising raised TypeError at refs.py:11 (return x.reshape(3, 3)  # wrong): ",
        ),
        (
            "refs:two",
            "refs:two cannot be called with these arguments: missing a required argument: 'y'",
        ),
        ("refs", "--reference takes a function as package.module:function, not 'refs'"),
        (
            "broken:f",
            "--reference broken:f: broken raised ZeroDivisionError when it was imported: division by zero",
        ),
    ],
)
def test_a_reference_that_cannot_be_compared_with_is_a_usage_error(
    command: Any, module: Path, tmp_path: Path, reference: str, message: str
) -> None:
    (tmp_path / "refs.py").write_text(REFERENCES)
    (tmp_path / "broken.py").write_text("1 / 0")
    done = command("verify", "rows:gather", ARGUMENT, "-e", "machine", "--reference", reference)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pallas-debug: {message}" in done.stderr
    if reference == "refs:raising":
        assert 'refs.py", line 11, in raising' in done.stderr
        assert "jax/_src" not in done.stderr


def next_of(verdict: Verdict, *words: str) -> str:
    with verify.command.make_context("verify", list(words)) as context:
        return verify.next_command(verdict, verify.VerifyOptions(**context.params))


JUDGED = Outcome(kernel="rows", digest="0", engine="machine", status="ok")
FUNCTION = "rows:gather", "--arg", "f32[16,128]"


@pytest.mark.parametrize(
    "outcome, words, command",
    [
        (JUDGED, FUNCTION, "verify -t all rows:gather --arg 'f32[16,128]'"),
        (JUDGED, [*FUNCTION, "-t", "v6e"], "stats dumps"),
        (JUDGED, [*FUNCTION, "-e", "machine", "-o", "my dumps"], "stats 'my dumps'"),
        (
            JUDGED.in_part("7 of 9 grid points", (2, 9)),
            [*FUNCTION, "--reference", "rows:plain", "--budget", "60"],
            "verify --budget 240 --reference rows:plain rows:gather --arg 'f32[16,128]'",
        ),
        (replace(JUDGED, status="unjudged"), ["-m", "rows"], "report dumps"),
        (JUDGED, ["rows.py", "--", "-n", "2"], "verify -t all -- rows.py -n 2"),
    ],
)
def test_the_last_line_is_the_next_command(
    outcome: Outcome, words: Sequence[str], command: str
) -> None:
    verdict = Verdict(name="gather", kernels=("rows",), outcomes=(outcome,))
    assert next_of(verdict, *words) == f"pallas-debug {command}"


def test_the_next_command_of_a_finding_steps_to_it() -> None:
    finding = Finding(kind=Fault.DATA_RACE, kernel="rows", message="", engines=("machine",))
    verdict = Verdict(name="gather", outcomes=(JUDGED,), findings=(finding,))
    assert next_of(verdict, *FUNCTION) == (
        "pallas-debug step -x -k rows rows:gather --arg 'f32[16,128]'"
    )
