"""`explain`: a code, an id, a message, logs, standard input and dumps."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pallas_debug.explain.catalogue import CATALOGUE
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Dump, Kernel
from pallas_debug.store import Store

STORE = "ValueError: Cannot store scalars to VMEM"
UNKNOWN = "JaxRuntimeError: INTERNAL: Mosaic failed to compile TPU kernel: flux capacitor"


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel that compiles for v6e alone."""
    import jax
    from pallas_debug_kernels.broken import broken

    import pallas_debug

    kernel = broken("blocks_over_the_limit")
    root = tmp_path_factory.mktemp("explain") / "dumps"
    assert all(isinstance(arg, jax.ShapeDtypeStruct) for arg in kernel.args)
    pallas_debug.dump(kernel.function, *kernel.args, targets="v5e,v5p,v6e", to=root)
    return root


@pytest.mark.parametrize("name", ["E1001", "e1001", "scoped-vmem-overflow"])
def test_a_code_or_an_id(real_command: Any, name: str) -> None:
    done = real_command("explain", name)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "scoped-vmem-overflow (E1001): the kernel needs more VMEM than one kernel may use"
    )
    assert lines[1].startswith("  cause: blocks (doubled if pipelined)")
    assert lines[2].startswith("  try: make the blocks smaller")
    assert "  see: https://openxla.org/xla/errors/error_1001" in lines


def test_every_id_and_every_kind_of_finding(command: Any) -> None:
    ids = [entry.id for entry in CATALOGUE]
    done = command("explain", *ids)
    assert done.returncode == 0
    assert [re.split(r" \(|: ", part)[0] for part in done.stdout.split("\n\n")] == ids
    done = command("explain", *Fault)
    assert done.returncode == 0
    general = (
        "CompileError: libtpu failed to compile the kernel\n  its cause depends on the message"
    )
    assert f"\n\n{general}: pass the message in quotes\n" in done.stdout
    # Of a kind with several entries, all are shown.
    layouts = command("explain", "UnsupportedLayout").stdout
    assert [part.partition(":")[0] for part in layouts.split("\n\n")] == [
        entry.id for entry in CATALOGUE if entry.kind == "UnsupportedLayout"
    ]


def test_a_message(command: Any) -> None:
    done = command("explain", STORE)
    assert done.returncode == 0
    assert done.stdout.startswith("scalar-to-vmem: a single number is stored to VMEM\n")


def test_a_message_without_the_words_around_it(command: Any) -> None:
    """As `dump` prints it: nothing in it speaks of a TPU, but who asks has a kernel."""
    done = command("explain", "split.py:6: Not Implemented: Stride on last dim is not 1")
    assert done.returncode == 0
    assert done.stdout.startswith("lane-stride: ")


def test_what_the_catalogue_does_not_know(command: Any) -> None:
    done = command("explain", UNKNOWN)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[:2] == [
        f"unknown: {UNKNOWN}",
        "  no entry of the catalogue recognises this; the nearest are",
    ]
    near = [line.split()[0] for line in lines[2:5]]
    assert set(near) < {entry.id for entry in CATALOGUE}
    assert lines[5] == "  to report it, attach:"
    assert any("versions of jax, jaxlib and libtpu" in line for line in lines)
    assert done.stderr == f"next: pallas-debug explain {near[0]}\n"
    assert command(*done.stderr.split()[2:]).stdout.startswith(near[0])


@pytest.mark.parametrize(
    "words, best, others",
    [
        ("vmem", "scoped-vmem-overflow", ["vmem-capacity", "scalar-to-vmem"]),
        ("scoped-vmem", "scoped-vmem-overflow", []),
        ("store scalars", "scalar-to-vmem", ["vector-from-smem"]),
        ("Stride on last dim", "lane-stride", []),
    ],
)
def test_words_find_the_entries_that_have_them_all(
    command: Any, words: str, best: str, others: list[str]
) -> None:
    done = command("explain", words)
    assert done.returncode == 0
    whole, _, rest = done.stdout.partition("\n\n")
    assert re.split(r" \(|: ", whole)[0] == best
    assert [line.split()[0] for line in rest.splitlines()[1:]][: len(others)] == others
    assert bool(rest) == bool(others)
    answer = json.loads(command("explain", words, "--json").stdout)["answers"][0]
    assert [error["explanation"]["id"] for error in answer["errors"]][: 1 + len(others)] == [
        best,
        *others,
    ]


@pytest.mark.parametrize(
    "typo, entry", [("scoped-vmem-overfow", "scoped-vmem-overflow"), ("simaphore", "semaphore-")]
)
def test_a_mistyped_name_is_near_the_entry_that_was_meant(
    command: Any, typo: str, entry: str
) -> None:
    done = command("explain", typo)
    assert done.returncode == 1
    assert done.stdout.splitlines()[2].strip().startswith(entry)


def test_kinds_of_findings(command: Any) -> None:
    done = command("explain", "UninitializedRead")
    assert done.returncode == 0
    assert done.stdout.startswith("uninitialized: memory is read before it is written\n")
    wrong = command("explain", "UninitialisedRead")
    assert wrong.returncode == 1
    assert wrong.stdout.startswith(
        "unknown: UninitialisedRead (did you mean 'UninitializedRead'?)\n"
    )


def test_a_log(command: Any, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_bytes(
        f"\xff\x1b[31mstart\n[gw0] {STORE}\n[gw1] {STORE}\n{UNKNOWN}\nImportError: x\n".encode(
            "latin-1"
        )
    )
    done = command("explain", "run.log")
    assert done.returncode == 0
    first, second, counts = done.stdout.split("\n\n")
    assert first.startswith("lines 2, 3; 2 times\nscalar-to-vmem: ")
    assert second.startswith(f"line 4\nunknown: {UNKNOWN}\n")
    assert (
        counts == "run.log: 5 lines, 3 errors of kernels, 1 error unrelated to kernels, ignored\n"
    )


def test_a_log_without_errors_of_kernels(command: Any, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("ImportError: x\n")
    done = command("explain", "run.log")
    assert done.returncode == 1
    assert done.stdout == (
        "run.log: 1 line, 0 errors of kernels, 1 error unrelated to kernels, ignored\n"
    )


def test_standard_input_and_json() -> None:
    tool = Path(sys.executable).with_name("pallas-debug")
    done = subprocess.run(
        [tool, "explain", "--json"],
        input=f"a\n{STORE}\nb\n{STORE}\n{UNKNOWN}\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)["answers"]
    assert (report["what"], report["lines"], report["others"]) == ("-", 5, 0)
    known, unknown = report["errors"]
    assert (known["explanation"]["id"], known["count"], known["at"]) == (
        "scalar-to-vmem",
        2,
        [2, 4],
    )
    assert known["explanation"]["kinds"] == ["ScalarStoreToVmem"]
    assert known["explanation"]["advice"].startswith("store jnp.full((1, 1), value)")
    assert (unknown["explanation"], unknown["text"].strip()) == (None, UNKNOWN)


@pytest.mark.slow
def test_the_failed_compilations_of_a_dump(command: Any, dumps: Path) -> None:
    done = command("explain", dumps)
    assert done.returncode == 0, done.stderr
    (manifest,) = dumps.glob("*/kernel.json")
    assert done.stderr == f"next: pallas-debug show {manifest.parent} error -t v5e\n"
    (report,) = done.stdout.split("\n\n")
    lines = report.splitlines()
    assert lines[0].endswith(" v5e, v5p")  # said once for the two
    assert "  needs 32 MiB of VMEM, the limit is 16 MiB" in lines

    entries = json.loads(command("explain", dumps, "--json").stdout)["answers"][0]["errors"]
    assert [(e["target"], e["explanation"]["id"]) for e in entries] == [
        ("v5e", "scoped-vmem-overflow"),
        ("v5p", "scoped-vmem-overflow"),
    ]


@pytest.mark.slow
def test_show_and_the_summary_of_a_run_carry_the_explanation(command: Any, dumps: Path) -> None:
    from pallas_debug.render import summary
    from pallas_debug.store import open_dumps

    shown = command("show", dumps, "error", "-t", "v5e").stdout
    assert "\nscoped-vmem-overflow (E1001): the kernel needs more VMEM" in shown

    (stored,) = open_dumps(dumps).kernels()
    assert stored.kernel is not None
    compilations = [c.compilation for c in stored.compilations if c.compilation]
    dump = Dump(kernel=stored.kernel, folder=stored.folder, compilations=tuple(compilations))
    message = summary([dump], dumps)
    assert " v5e: failed (compile): " in message[0]
    assert " v5p: failed (compile): " in message[1]
    assert message[2].startswith("  scoped-vmem-overflow (E1001): blocks (doubled if pipelined)")
    assert message[3] == "  needs 32 MiB of VMEM, the limit is 16 MiB"
    assert message[4].startswith("  try: make the blocks smaller")
    assert message[5].startswith("1 kernel for v5e, v5p, v6e in ")


def test_a_kernel_that_is_not_compiled_is_not_said_to_be(command: Any, tmp_path: Path) -> None:
    """Such as one for a GPU, which a dump keeps without compiling it."""
    kernel = Kernel(name="add", digest="0" * 64, primitive="pallas_call")
    Store(tmp_path / "dumps").put_kernel(kernel, jaxpr="j", source=None)
    done = command("explain", tmp_path / "dumps")
    assert (done.returncode, done.stdout) == (
        1,
        f"{tmp_path / 'dumps'}: no kernel is compiled for any target\n",
    )


def test_a_dump_without_failures(command: Any) -> None:
    data = Path(__file__).parents[1] / "ir" / "data" / "libtpu-0.0.50"
    done = command("explain", data)
    assert (done.returncode, done.stdout) == (0, f"{data}: every kernel compiled\n")


def test_the_list(command: Any) -> None:
    from pallas_debug.explain.catalogue import CATALOGUE

    done = command("explain", "--list")
    assert done.returncode == 0
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == [entry.id for entry in CATALOGUE]
    assert ["scoped-vmem-overflow", "E1001", CATALOGUE[0].title] in rows
    entries = json.loads(command("explain", "--list", "--json").stdout)["entries"]
    assert [entry["id"] for entry in entries] == [row[0] for row in rows]


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        ([], 2, "say what to explain: a file, a directory of dumps, `-`, a code such as E1001"),
        (["E9999"], 2, "unknown code E9999; the known ones are E0100"),
        (["nowhere/run.log"], 2, "no such file or directory: nowhere/run.log"),
        (["run.log"], 2, "no such file or directory: run.log"),
    ],
)
def test_what_cannot_be_explained(
    command: Any, arguments: list[str], code: int, message: str
) -> None:
    done = command("explain", *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read(command: Any, tmp_path: Path) -> None:
    (tmp_path / "loop.log").symlink_to("loop.log")
    done = command("explain", "loop.log")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
