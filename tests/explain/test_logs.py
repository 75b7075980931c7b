"""Logs: large ones, interleaved workers, partial tracebacks, errors of other tools."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from pallas_debug.explain import logs
from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.explain.logs import Occurrence

STORE = "ValueError: Cannot store scalars to VMEM"
GATHER = "NotImplementedError: Only take_along_axis-like gathers supported"
LIMIT = """\
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom:
Ran out of memory in memory space vmem while allocating on stack for %softmax.1 = f32[1024,4096]
 custom-call(%args_0_.1). Scoped allocation with size 32.00M and limit 16.00M exceeded scoped vmem limit by 16.00M.
See https://openxla.org/xla/errors/error_1001 for more details."""


def found(text: str | Iterable[str]) -> list[Occurrence]:
    lines = text.splitlines() if isinstance(text, str) else text
    return list(logs.read(lines).occurrences)


def ids(occurrences: Iterable[Occurrence]) -> list[tuple[str | None, int, tuple[int, ...]]]:
    return [(o.explanation and o.explanation.id, o.count, o.lines) for o in occurrences]


def test_an_error_is_told_once_with_how_often_and_where() -> None:
    log = f"start\n{STORE}\nfine\n{GATHER}\n{STORE}\n"
    assert ids(found(log)) == [("scalar-to-vmem", 2, (2, 5)), ("gather", 1, (4,))]


def test_a_message_of_many_lines_is_one_error_and_names_its_kernel() -> None:
    (error,) = found(f"step 1\n{LIMIT}\nstep 2")
    assert ids([error]) == [("scoped-vmem-overflow", 1, (2,))]
    assert error.kernel == "softmax"
    assert error.text.splitlines()[0].endswith("E1001: CompileTimeScopedVmemOom:")
    assert error.explanation.details == ("needs 32 MiB of VMEM, the limit is 16 MiB",)


@pytest.mark.parametrize(
    "first, second",
    [
        ("[rank0]: ", "[rank1]: "),
        ("[gw0] ", "[gw1] "),
        ("[1] ", "[2] "),
        ("(w pid=17) ", "(w pid=18) "),
        ("a-0 | ", "a-1 | "),
    ],
)
def test_lines_of_several_workers_that_alternate_are_explained(first: str, second: str) -> None:
    mine, other = LIMIT.splitlines(), LIMIT.replace("softmax", "matmul").splitlines()
    lines = [f"{p}{line}" for pair in zip(mine, other, strict=True)
             for p, line in zip((first, second), pair, strict=True)]  # fmt: skip
    assert {o.explanation and o.explanation.id for o in found(lines)} == {"scoped-vmem-overflow"}


def test_pytests_margin_and_libtpus_head_are_no_part_of_a_message() -> None:
    log = f"""\
E   {STORE}

kernel.py:3: ValueError
=== short test summary info ===
FAILED test_kernel.py::test - {STORE}
E0101 12:00:00.000000   17 main.cc:1] {GATHER}
"""
    assert ids(found(log)) == [("scalar-to-vmem", 2, (1, 5)), ("gather", 1, (6,))]


def test_half_a_traceback() -> None:
    tail = '    o_ref[0, 0] = x\nValueError: Cannot store scalars to VMEM\n  File "a.py", line'
    assert ids(found(tail)) == [("scalar-to-vmem", 1, (2,))]


def test_errors_of_others_are_counted_and_left_alone() -> None:
    log = f"ModuleNotFoundError: No module named 'x'\nRuntimeError: CUDA error: bad\n{STORE}\n"
    scan = logs.read(log.splitlines())
    assert ids(scan.occurrences) == [("scalar-to-vmem", 1, (3,))]
    assert (scan.others, scan.lines, scan.dropped) == (2, 3, 0)


def test_an_error_of_pallas_without_an_entry_is_said_to_be_unknown() -> None:
    text = "JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel: flux capacitor"
    (error,) = found(f"{text}\n  more of it\n{text}\n")
    assert error.explanation is None
    assert (error.text.splitlines()[0], error.count, error.lines) == (text, 2, (1, 3))


def test_what_others_say_too_needs_a_word_of_pallas_before_it() -> None:
    text = "TypeError: <lambda>() takes 1 positional argument but 2 were given"
    frame = '  File "jax/_src/pallas/core.py", line 1, in f'
    assert ids(found(f"{frame}\n{text}")) == [("index-map-arguments", 1, (2,))]
    assert found([frame, *["step"] * logs.BEFORE, text]) == []


LARGE = """
import resource, sys
from pallas_debug.explain import logs

def lines():
    error = "NotImplementedError: Only take_along_axis-like gathers supported\\n"
    for n in range(60_000):
        yield f"2026-01-01 12:00:00 INFO step {n} loss 0.123456 tokens per second 12345 and so on, in all a hundred characters\\n"
        if n % 10_000 == 0:
            yield error
    yield "x" * 5_000_000 + "\\n"

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
scan = logs.read(lines())
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
print(scan.occurrences[0].count, scan.lines, grown)
assert "jax" not in sys.modules
"""


@pytest.mark.slow
def test_a_large_log_is_read_in_bounded_memory() -> None:
    """12 MB here; all that a longer one adds is more pieces."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    count, lines, grown = map(int, done.stdout.split())
    assert (count, lines) == (6, 60_007)
    assert grown < 60  # MB


def test_all_recorded_messages_in_one_log() -> None:
    """Each stands behind a line of jax's, as in a traceback."""

    def lines() -> Iterator[str]:
        for path in sorted((Path(__file__).parent / "messages").glob("*.txt")):
            for part in path.read_text().split("=== from: ")[1:]:
                yield '  File "jax/_src/pallas/pallas_call.py", line 1\n'
                yield from part.split("\n", 1)[1].splitlines(keepends=True)
                yield "Traceback (most recent call last):\n"

    known = {o.explanation.id for o in logs.read(lines()).occurrences if o.explanation}
    assert known == {entry.id for entry in CATALOGUE}
