"""The search for the smallest failing input, on kernels that are right for the usual ones."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from searched_kernels import CASES, Case

import pallas_debug
from pallas_debug.errors import UsageError
from pallas_debug.searches.search import SearchResult

QUICK = ("row_sum", "causal_blocks", "groups", "ragged_mean")
"""Cases that are searched in every run; the others take longer."""


@pytest.fixture(scope="module", autouse=True)
def compile_quickly(quick_to_compile: None) -> None:
    """Compile without optimisation, as the arrays are small."""


@pytest.fixture(autouse=True)
def no_earlier_searches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def searched(case: Case, **how: Any) -> SearchResult:
    how = {"seed": 0, "budget": 600.0, **how}
    return pallas_debug.search(
        case.function, case.texts, let=case.let, reference=case.reference, **how
    )


def check_smallest(found: SearchResult, case: Case) -> None:
    assert found.failing is not None, found
    given = found.failing.input
    assert all(part in (str(given), *given.texts) for part in case.smallest), given


@pytest.mark.parametrize("name", QUICK)
def test_the_smallest_failing_input_is_found(name: str) -> None:
    case = CASES[name](True)
    check_smallest(searched(case), case)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", CASES)
def test_it_is_found_whatever_the_seed(name: str, seed: int) -> None:
    case = CASES[name](True)
    check_smallest(searched(case, seed=seed), case)


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_found_in_the_twin_without_the_fault(name: str) -> None:
    found = searched(CASES[name](False), examples=10)
    assert found.ok, found
    assert not found.unsettled


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_nothing_is_found_in_the_twin_in_200_inputs(name: str) -> None:
    found = searched(CASES[name](False))
    assert found.ok, found
    assert found.tried >= 9  # of as many as there are, up to 200


def test_a_padding_entry_that_overwrites_what_was_written_before() -> None:
    case = CASES["padded_slots"](True)
    found = searched(case)
    assert found.failing is not None
    slots = re.fullmatch(r"i32\[4\]=\[(.*)\]", found.failing.input.texts[0])[1].split(",")
    assert "-1" in slots
    assert found.failing.finding.kind == "ValueMismatch"


DOUBLED = """\
import jax
from jax.experimental import pallas as pl

def doubled(x):
    def kernel(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]
        if x.shape[0] > 8:
            o_ref[8, 0] = 0.0
    return pl.pallas_call(kernel, out_shape=x)(x)

def reference(x):
    return x + x

def refused(x):
    raise ValueError("only on Sundays")
"""


@pytest.fixture
def doubled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A module whose function fails for more than eight rows."""
    tmp_path.joinpath("doubled_rows.py").write_text(DOUBLED)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "doubled_rows", raising=False)
    return __import__("doubled_rows")


def test_the_test_file_fails_until_the_kernel_is_repaired(doubled: Any, tmp_path: Path) -> None:
    found = pallas_debug.search(
        doubled.doubled, ["f32[n,128]"], let={"n": "1..64"}, reference=doubled.reference, seed=3
    )
    assert str(found).startswith("doubled fails first at n=9 (")
    (tmp_path / "test_doubled.py").write_text(found.test())

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
        return subprocess.run(
            [*command, "test_doubled.py"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    broken = run()
    assert broken.returncode == 1
    assert "ValueMismatch in kernel `kernel`" in broken.stdout
    (tmp_path / "doubled_rows.py").write_text(DOUBLED.replace("> 8", "> 80"))
    repaired = run()
    assert repaired.returncode == 0, repaired.stdout


def test_the_test_file_judges_as_the_search_did(doubled: Any) -> None:
    found = pallas_debug.search(
        doubled.doubled, ["f32[9,128]"], reference=doubled.reference, rtol=0.1, atol=None, seed=0
    )
    assert "reference=reference, rtol=0.1, **kwargs" in found.test()
    assert "grad=True" in replace(found, settings={"grad": True}).test()


def test_inputs_that_are_refused_are_no_failures(doubled: Any) -> None:
    found = pallas_debug.search(doubled.refused, ["f32[n,128]"], let={"n": "1..4"})
    assert not found.ok
    assert (found.tried, found.refused) == (0, 4)
    assert "was judged for no input" in found.summary
    assert "only on Sundays" in found.summary


def test_an_interrupt_leaves_the_smallest_that_was_found(doubled: Any) -> None:
    failed: set[int] = set()

    def interrupted(x: Any) -> Any:
        if len(failed) == 3 and len(x) not in failed:
            raise KeyboardInterrupt
        failed.update({len(x)} if len(x) > 8 else ())
        return doubled.doubled(x)

    found = pallas_debug.search(
        interrupted, ["f32[n,128]"], let={"n": "1..512"}, reference=doubled.reference, seed=0
    )
    assert found.stopped == "interrupted"
    assert found.failing is not None
    assert found.failing.input.values["n"] == min(failed)


WAITS = """
import time
from pathlib import Path
from doubled_rows import doubled, reference

failed = set()

def waits(x):
    if failed and len(x) not in failed:
        Path("waiting").touch()
        time.sleep(600)
    failed.update({len(x)} if len(x) > 8 else ())
    return doubled(x)
"""


def test_ctrl_c_prints_what_was_found(doubled: Any, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    command = [sys.executable, "-m", "pallas_debug", "verify", "--search", "waits:waits"]
    command += ["--arg", "f32[n,128]", "--let", "n=1..512", "--reference", "waits:reference"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as running:
        while not (tmp_path / "waiting").exists() and running.poll() is None:
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert out.startswith("waits fails first at n=")
    assert "interrupted)" in out.splitlines()[0]


def test_a_search_without_time_tries_nothing(doubled: Any) -> None:
    found = pallas_debug.search(doubled.doubled, ["f32[n,128]"], let={"n": "1..4"}, budget=-1)
    assert (found.tried, found.stopped) == (0, "stopped after -1 s")


@hypothesis.settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    pallas_debug.arguments(
        ["i32[n] in 0..k sorted", "i32[2,2] in 0..9 sum 12", "f32[n*2]", "block=b", "'n'"],
        let={"n": range(1, 5), "k": "1..n", "b": [64, 128]},
    )
)
def test_arguments_meet_their_constraints(drawn: Any) -> None:
    (ordered, summed, floats, word), named = drawn
    assert np.all(np.diff(ordered) >= 0)
    assert np.all((ordered >= 0) & (ordered <= ordered.size))
    assert summed.shape == (2, 2)
    assert int(summed.sum()) == 12
    assert summed.max() <= 9
    assert floats.shape == (2 * ordered.size,)
    assert floats.dtype == jnp.float32
    assert word == "n"
    assert named["block"] in (64, 128)


@pytest.mark.parametrize(
    "texts,let,message",
    [
        (["f32[n]"], {}, r"--arg 'f32\[n\]': nothing says what 'n' is; --let n=1..8 does"),
        (["f32[rows]"], {"row": "1..2"}, r"did you mean 'row'"),
        (["f32[n/2]"], {"n": "1..1"}, "'n/2' is no whole number, with n=1"),
        (["i32[4] in n"], {"n": "1..2"}, r"in n"),
        (["i32[4] sorted"], {}, r"say what the values are, as in i32\[4\] in 0..512"),
        (["f32[4] in 0..1"], {}, r"write floats as f32\[4\]=uniform\(0,1\)"),
        (["i32[4] in 0..1 sum 9"], {}, "no input meets all constraints"),
        (
            ["f32[8//n]"],
            {"n": "0..0"},
            "`8//n` cannot be evaluated: integer division or modulo by zero",
        ),
        (["f32[n]"], {"n": "'a','b'"}, "'n' is no whole number, with n='a'"),
        (["f32[n]"], {"n": "a,b"}, "values are a range such as 1..8"),
        (["f32[n]"], ["n"], r"write a variable as n=1..8"),
        (["f32[n]"], ["n=1..2", "n=3"], "n was given before"),
        (["f32[n]"], ["n=1..2", "m=1..2"], r"--let m: no --arg names m, as in f32\[m\*8,128\]"),
    ],
)
def test_constraints_that_cannot_be_met(texts: list[str], let: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pallas_debug.search(lambda *args: args[0], texts, let=let, budget=5)
