"""Every entry of the catalogue: a message that was printed, recognised by that entry alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from broken_kernels import BROKEN

from pallas_debug.errors import UsageError
from pallas_debug.findings import explain
from pallas_debug.findings.explain import CATALOGUE, recognise
from pallas_debug.findings.explain.catalogue.general import STATUSES
from pallas_debug.model import Explanation, Failure, Finding, Kernel

MESSAGES = Path(__file__).parent / "messages"
"""A file for each entry; a line `=== from: source` stands before each message.

A source names the versions and the kernel that gave the message, or the thread, document or source
file that quotes it, with the versions that it states.
"""

NO_VERSIONS = {
    "buffer-allocation": "only a TPU says it, and the threads that quote it name no versions",
    "halt-hardware": "only a TPU that breaks says it; no thread quotes it, XLA's page does",
    "halt-launch-group": "only several hosts with TPUs say it; the threads name no versions",
    "halt-user": "only a TPU says it, and the notes that quote it name no versions",
    "xla-status": "no release printed such a code here or in a thread; XLA's list names them",
}
"""Entries of which no message is known that was really printed by known versions, and why."""


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
each = pytest.mark.parametrize("message", ALL, ids=lambda m: f"{m.entry}: {m.source}"[:90])
each_entry = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)


@each
def test_a_message_is_recognised_by_its_entry_alone(message: Message) -> None:
    found = recognise.matches(message.text, in_context=True)
    assert [entry.id for entry in found] == [message.entry]


@each
def test_what_stands_before_the_core_does_not_matter(message: Message) -> None:
    """Exception classes and prefixes change from release to release."""
    text = re.sub(r"^\w+(?:Error|Exception): ", "some.module.OtherError: ", message.text)
    text = re.sub(
        r"(?:INTERNAL|INVALID_ARGUMENT): Mosaic failed to compile TPU kernel[^:]*: ",
        "UNKNOWN: Mosaic says: ",
        text,
    )
    text = re.sub(r"\bE\d{4}: CompileTime\w+: ", "", text)
    found = recognise.matches(text, in_context=True)
    assert [entry.id for entry in found] == [message.entry]


@each
def test_a_mark_stands_in_every_message(message: Message) -> None:
    assert any(mark in message.text for mark in explain.entry(message.entry).marks)


@each
def test_the_source_says_where_the_message_is_from(message: Message) -> None:
    known = ("jax 0.", "thread ", "thread, ", "documentation, ", "source of ")
    assert message.source.startswith(known)
    assert message.text.strip()


VERSIONS = re.compile(r"\b(jax|libtpu) 0\.\d+\.\d+")


def was_printed(message: Message) -> bool:
    """By versions that are known, and not just quoted from a document or from source."""
    quoted = message.source.startswith(("documentation, ", "source of "))
    return not quoted and VERSIONS.search(message.source) is not None


@each_entry
def test_an_entry_has_a_message_that_known_versions_printed(entry: Explanation) -> None:
    if entry.id not in NO_VERSIONS:
        assert any(was_printed(m) for m in ALL if m.entry == entry.id)


def test_the_exceptions_are_still_needed() -> None:
    assert set(NO_VERSIONS) <= {entry.id for entry in CATALOGUE}
    assert not {m.entry for m in ALL if was_printed(m)} & set(NO_VERSIONS)


@each_entry
def test_an_entry_has_a_message_and_is_written_whole(entry: Explanation) -> None:
    assert entry.id in {message.entry for message in ALL}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.id)
    for words in (entry.title, entry.cause, entry.advice):
        assert words
        assert not words.endswith(".")
        assert words == words.strip()
    assert all(link.startswith("https://") for link in entry.links)
    assert re.compile(entry.pattern)
    assert entry.marks


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
    for code, _ in STATUSES:
        assert explain.entry(code).id == "xla-status"


def test_every_class_of_fault_is_explained() -> None:
    faults = {kernel.fault for kernel in BROKEN}
    assert {fault for fault in faults if recognise.of_kind(fault) is None} == set()


FINDINGS = (
    "BlockOutOfBounds", "CheckFailed", "CheckNotSupported", "DataRace", "Deadlock",
    "DirectHbmAccess", "DivisionByZero", "DmaNotAwaited", "FalseHint", "InfinityProduced",
    "InterpretError", "NanProduced", "OutOfBoundsRead", "OutOfBoundsWrite", "OutputNotWritten",
    "OutputRevisited", "PaddingRead", "PrintNotSupported", "SemaphoreNotZero", "UninitializedRead",
)  # fmt: skip


@pytest.mark.parametrize("kind", FINDINGS)
def test_every_finding_is_explained(kind: str) -> None:
    found = explain.of_finding(Finding(kind=kind, kernel="rows", message="x_ref[0]"))
    assert found is not None
    assert kind in found.entry.kinds
    assert found.kernel == "rows"
    said = explain.explain(f"{kind} in kernel `rows`, grid point (1,)")
    assert said is not None
    assert (said.entry, said.kernel) == (found.entry, "rows")


def test_what_an_interpreter_refused_is_explained_by_its_own_words() -> None:
    finding = Finding(kind="InterpretError", kernel="k", message="masked load_p")
    found = explain.of_finding(finding)
    assert found is not None
    assert found.entry.id == "masked-store"


@pytest.mark.parametrize(
    "text",
    [
        "ModuleNotFoundError: No module named 'numpy'",
        "TypeError: f() takes 1 positional argument but 2 were given",
        "TypeError: <lambda>() takes 1 positional argument but 2 were given",
        "RecursionError: maximum recursion depth exceeded",
        "IndexError: list index out of range",
        "AssertionError: ",
        "MemoryError",
        "kernel.c:12:5: error: 'x' undeclared (first use in this function)",
        "collect2: error: ld returned 1 exit status",
        "src/a.py:1:0: E1001: Use of super on an old style class (super-on-old-class)",
        "src/a.py:3:0: E0102: function already defined line 1 (function-redefined)",
        "src/a.py:3:0: E0001: Parsing failed: 'invalid syntax'",
        "E2003 undefined name",
        "RuntimeError: CUDA error: device-side assert triggered",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "RuntimeError: Expected all tensors to be on the same device",
        "nvcc fatal   : Unsupported gpu architecture 'compute_12'",
        "triton.compiler.errors.CompilationError: at 5:8: failed to legalize operation 'tt.dot'",
        "error: failed to legalize operation 'arith.addf'",
        "F0101 12:00:00.000000 17 main.cc:12] Check failed: x > 0 (0 vs. 0)",
        "error: 'vector.load' op vector types must have positive constant sizes but got 0",
        "NotImplementedError: 64-bit types are not supported by this driver",
        "Segmentation fault (core dumped)",
        "",
    ],
)  # fmt: skip
def test_errors_of_others_are_not_claimed(text: str) -> None:
    assert explain.explain(text) is None


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
        assert found is not None
        assert found.entry.id == "index-map-arguments"


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
        assert found is not None
        assert found.entry.id == id


@pytest.mark.parametrize(
    "text, kernel",
    [
        ("Mosaic failed to compile TPU kernel with MLIR module name `rows` HLO name `kernel.1`: "
         "Invalid vector type for load", "rows"),
        ("The kernel function in the pallas_call scale at a.py:19 captures constants [f32[128]]. "
         "You should pass them as inputs.", "scale"),
        ("Block spec for args[0] in pallas_call double at a.py:91 has block shape (4, 128): "
         "requires that rank 1 block shapes", "double"),
        ("exceeded scoped vmem limit by 1M, allocating on stack for %tpu_custom_call.1 = f32", None),
        ("exceeded scoped vmem limit by 1M, allocating on stack for %softmax.3 = f32", "softmax"),
        ('Invalid vector type for load\nat location: loc("get:"(callsite("f.<locals>.double"("a.py"',
         "double"),
        ("RACE DETECTED", None),
    ],
)  # fmt: skip
def test_the_kernel_that_a_message_names(text: str, kernel: str | None) -> None:
    found = explain.explain(text)
    assert found is not None
    assert found.kernel == kernel


def test_an_entry_in_words() -> None:
    found = explain.explain(
        "E2003: CompileTimeMosaicUnprovenMemoryAccessAlignment: cannot statically prove that index "
        "in dimension 1 is a multiple of 128"
    )
    assert found is not None
    lines = found.text().splitlines()
    assert lines[0].startswith("unproven-alignment (E2003): a load or store starts at an index")
    assert lines[1].startswith("  cause: the start along a tiled dimension is computed")
    assert lines[2] == "  here: dimension 1, pl.multiple_of(start, 128)"
    assert lines[3].startswith("  try: where it is aligned, say so with pl.multiple_of")
    assert "  see: https://openxla.org/xla/errors/error_2003" in lines
    brief = found.brief()
    assert len(brief) == 3
    assert brief[0].startswith("unproven-alignment (E2003): the start along")
    assert (brief[1], brief[2][:5]) == (lines[2].strip(), "try: ")


def test_a_primitive_is_named_with_what_to_write_instead() -> None:
    found = explain.explain("Unimplemented primitive in Pallas TPU lowering for tc: cumsum. Please")
    assert found is not None
    assert found.details == (
        "for cumsum: multiply by a triangular matrix of ones: x @ jnp.triu(jnp.ones((n, n)))",
    )


def test_versions_and_targets_stand_below() -> None:
    text = explain.Explained(entry=explain.entry("sublane-gather")).text()
    assert "\n  targets: v4" in text
    text = explain.Explained(entry=explain.entry("E2002")).text()
    assert "\n  versions: libtpu 0.0.42 says so of int8 and float8 blocks" in text


@pytest.mark.parametrize(
    "name, said",
    [
        ("E9999", "unknown code E9999; the known ones are E0100, E0101,"),
        ("scoped-vmem", "there is no entry 'scoped-vmem'; did you mean scoped-vmem-overflow"),
        ("zzzzzz", "there is no entry 'zzzzzz'; `pallas-debug explain --list` lists all of them"),
    ],
)
def test_an_unknown_name(name: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        explain.entry(name)
    assert said in str(error.value)


def test_entries_of_plugins_come_first() -> None:
    ours = Explanation(id="lab", pattern="cumsum", cause="?", advice="?")
    text = "Unimplemented primitive in Pallas TPU lowering for tc: cumsum."
    found = explain.explain(text, extra=[ours])
    assert found is not None
    assert found.entry is ours
    failure = Failure(stage="lowering", type="NotImplementedError", message=text)
    of_failure = explain.of_failure(failure, extra=[ours])
    assert of_failure is not None
    assert of_failure.entry is ours
