"""Every entry of the catalogue, with a real message that only this entry recognises."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from pallas_debug import explain
from pallas_debug.chips import CHIPS, Chip
from pallas_debug.errors import UsageError
from pallas_debug.explain import recognise
from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.explain.details import kernel_name
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Explanation, Failure, Finding, Kernel
from pallas_debug.quantities import size_text

MESSAGES = Path(__file__).parent / "messages"
"""A file for each entry; a line `=== from: source` stands before each message.

A source names the versions and the kernel that gave the message, or the thread, document or source
file that quotes it, with the versions that it states.
"""


class Message(NamedTuple):
    entry: str
    source: str
    text: str


def messages() -> list[Message]:
    found = []
    for path in sorted(MESSAGES.glob("*.txt")):
        parts = re.split(r"^=== from: (.*)\n", path.read_text(), flags=re.MULTILINE)
        assert parts[0] == "", path
        pairs = zip(parts[1::2], parts[2::2], strict=True)
        found += [Message(path.stem, source, text) for source, text in pairs]
    return found


ALL = messages()


def row(message: Message) -> str:
    """The row as an assertion names it."""
    return f"{message.entry}.txt, from {message.source}"


def assert_each(rows: Iterable[tuple[str, object]], expected: object = True) -> None:
    """Every row is as expected; an assertion names each one that is not.

    Args:
      rows: a name and what was found.
      expected: what should have been found in every row.
    """
    wrong = [f"{name}: {found!r}" for name, found in rows if found != expected]
    assert not wrong, "\n".join(wrong)


def core(text: str) -> str:
    """A message without what changes from release to release: exception classes and prefixes."""
    text = re.sub(r"^\w+(?:Error|Exception): ", "some.module.OtherError: ", text)
    text = re.sub(
        r"(?:INTERNAL|INVALID_ARGUMENT): Mosaic failed to compile TPU kernel[^:]*: ",
        "UNKNOWN: Mosaic says: ",
        text,
    )
    return re.sub(r"\bE\d{4}: CompileTime\w+: ", "", text)


@pytest.mark.parametrize("part", [str, core], ids=["whole", "core"])
def test_every_message_is_recognised_by_its_entry_alone(part: Callable[[str], str]) -> None:
    """Whatever stands before its core."""

    def recognised(message: Message) -> object:
        found = [entry.id for entry in recognise.matches(part(message.text), in_context=True)]
        return found == [message.entry] or found

    assert_each((row(message), recognised(message)) for message in ALL)


def test_every_entry_has_a_message_and_is_written_whole() -> None:
    assert_each((entry.id, entry.id in {m.entry for m in ALL}) for entry in CATALOGUE)
    for entry in CATALOGUE:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.id), entry.id
        for text in (entry.title, entry.cause, entry.advice):
            assert text, entry.id
            assert not text.endswith("."), entry.id
            assert text == text.strip(), entry.id
        assert all(link.startswith("https://") for link in entry.links), entry.id
        assert re.compile(entry.pattern)
        assert entry.marks, entry.id


def test_ids_codes_and_kinds_are_unique() -> None:
    ids = [entry.id for entry in CATALOGUE]
    codes = [entry.code for entry in CATALOGUE if entry.code]
    kinds = [kind for entry in CATALOGUE for kind in entry.kinds]
    for names in (ids, codes, kinds):
        assert len(set(names)) == len(names)


def test_every_code_of_xlas_list_has_an_entry() -> None:
    named = {
        "E0100", "E0101", "E0102", "E0200", "E1000", "E1001", "E1200", "E2001", "E2002", "E2003",
        "E3000", "E3001",
    }  # fmt: skip
    assert {entry.code for entry in CATALOGUE if entry.code} == named
    for code in named:
        assert explain.entry(code.lower()).code == code
    for number in range(16):
        assert explain.entry(f"E{number:04}").id == "xla-status"


def test_every_class_of_fault_is_explained() -> None:
    unclassified = {Fault.TRACE_ERROR, Fault.LOWERING_ERROR, Fault.COMPILE_ERROR}
    explained = {kind for entry in CATALOGUE for kind in (*entry.kinds, entry.kind)}
    assert set(Fault) - unclassified <= explained


def test_a_finding_is_completed_where_its_engine_gave_no_reason() -> None:
    bare = Finding(kind="Deadlock", kernel="k", message="sem is never signalled")
    found = explain.completed(bare)
    assert (found.cause or "").startswith("the semaphore is never signalled, or no copy is left")
    assert (found.advice or "").startswith("start a copy for every wait")
    assert explain.completed(replace(bare, advice="signal it")).advice == "signal it"
    unheard = Finding(kind="Unheard", kernel="k", message="sem is never signalled")
    assert explain.completed(unheard) is unheard


OTHERS = (
    "ModuleNotFoundError: No module named 'numpy'",
    "TypeError: f() takes 1 positional argument but 2 were given",
    "TypeError: <lambda>() takes 1 positional argument but 2 were given",
    "AssertionError: ",
    "kernel.c:12:5: error: 'x' undeclared (first use in this function)",
    "src/a.py:1:0: E1001: Use of super on an old style class (super-on-old-class)",
    "src/a.py:3:0: E0001: Parsing failed: 'invalid syntax'",
    "E2003 undefined name",
    "RuntimeError: CUDA error: device-side assert triggered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
    "triton.compiler.errors.CompilationError: at 5:8: failed to legalize operation 'tt.dot'",
    "error: failed to legalize operation 'arith.addf'",
    "F0101 12:00:00.000000 17 main.cc:12] Check failed: x > 0 (0 vs. 0)",
    "error: 'vector.load' op vector types must have positive constant sizes but got 0",
    "NotImplementedError: 64-bit types are not supported by this driver",
    "Segmentation fault (core dumped)",
    "",
)


def test_errors_of_others_are_not_claimed() -> None:
    assert_each(((text, explain.explain(text)) for text in OTHERS), None)


def test_what_others_say_too_is_recognised_near_a_word_of_pallas_or_where_a_kernel_is_given() -> (
    None
):
    text = "TypeError: <lambda>() takes 1 positional argument but 2 were given"
    near = f'File "jax/_src/pallas/core.py", line 1, in f\n{text}'
    for found in (
        explain.explain(near),
        explain.explain(text, kernel=Kernel(name="k", digest="", primitive="pallas_call")),
        explain.of_failure(Failure(stage="lowering", type="TypeError", message=text)),
    ):
        assert found.id == "index-map-arguments"


def test_of_two_errors_the_last_is_meant_and_a_general_entry_comes_after_all_others() -> None:
    first = "Cannot store scalars to VMEM"
    second = "Only take_along_axis-like gathers supported"
    general = "Pallas encountered an internal verification error"
    for text, id in (
        (f"{first}\n{second}\n{general}", "gather"),
        (f"{second}\n{first}", "scalar-to-vmem"),
        (general, "verification-error"),
    ):
        found = explain.explain(text)
        assert found.id == id


NAMED = (
    (
        "TPU kernel with MLIR module name `rows` HLO name `k.1`: Invalid vector type for load",
        "rows",
    ),
    ("The kernel function in the pallas_call scale at a.py:19 captures constants", "scale"),
    ("args[0] in pallas_call double at a.py:91: requires that rank 1 block shapes", "double"),
    ("exceeded scoped vmem limit by 1M, allocating on stack for %tpu_custom_call.1 = f32", None),
    ("exceeded scoped vmem limit by 1M, allocating on stack for %softmax.3 = f32", "softmax"),
    (
        'Invalid vector type for load\nat location: loc("get:"(callsite("f.<locals>.double"("a.py"',
        "double",
    ),
    ("RACE DETECTED", None),
)


def test_the_kernel_that_a_message_names() -> None:
    for text, kernel in NAMED:
        assert explain.explain(text) is not None, text
        assert kernel_name(text) == kernel, text


def test_an_unknown_name() -> None:
    for name, message in (
        ("E9999", "unknown code E9999; the known ones are E0100, E0101,"),
        ("scoped-vmem", "there is no entry 'scoped-vmem' (did you mean 'scoped-vmem-overflow'?)"),
        ("zzzzzz", "there is no entry 'zzzzzz'; `pallas-debug explain --list` lists all of them"),
    ):
        with pytest.raises(UsageError, match=re.escape(message)):
            explain.entry(name)


def test_an_explanation_that_was_recorded_is_kept() -> None:
    recorded = Explanation(id="recorded", cause="a", advice="b")
    failure = Failure(
        stage="compile", type="E", message="Cannot store scalars to VMEM", explanation=recorded
    )
    assert explain.of_failure(failure) is recorded
    assert explain.explained(failure) == failure


@pytest.mark.parametrize(
    "entry, size_of",
    [("scoped-vmem-overflow", lambda c: c.vmem_limit), ("vmem-capacity", lambda c: c.vmem)],
)
def test_sizes_of_memory_are_those_of_the_table_of_chips(
    entry: str, size_of: Callable[[Chip], int]
) -> None:
    by_size = defaultdict(list)
    for chip in CHIPS.values():
        if chip.vmem_limit < chip.vmem or entry == "vmem-capacity":
            by_size[size_of(chip)].append(chip.name)
    cause = explain.entry(entry).cause.replace("\n", " ")
    for size, names in by_size.items():
        assert f"{size_text(size)} on {' and '.join(names)}" in cause
