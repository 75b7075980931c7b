"""`ls`, `show`, `doctor`: human-readable output, as installed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import records
from tmux import Tmux

import pallas_debug
from pallas_debug.model import Dump


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dump]:
    import jax
    import jax.numpy as jnp
    from pallas_debug_kernels import matmul

    root = tmp_path_factory.mktemp("read") / "dumps"
    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    (dump,) = pallas_debug.dump(matmul, x, x, activation="relu", targets="v5e,v6e", to=root)
    return root, dump


def test_ls_of_a_kernel_lists_its_passes(command: Any, dumped: tuple[Path, Dump]) -> None:
    root, dump = dumped
    shown = command("ls", root, "-k", "matmul", "-t", "v5e").stdout.splitlines()
    every = command("ls", dump.folder / "v5e", "--all").stdout.splitlines()
    compilation = dump.compilation("v5e")
    schedule = [line for line in every if line.split("\t")[3] == "schedule"]
    assert shown[-len(schedule) :] == every[-len(schedule) :] == schedule
    assert len(shown) - len(schedule) == len(compilation.changed_passes)
    assert len(every) - len(schedule) == len(compilation.passes)
    last = len(compilation.passes) - 1
    assert every[last].split("\t")[:3] == ["v5e", f"{last:02d}", "finalize-llo"]


def test_a_kernel_is_named_by_the_start_of_its_name(
    commands: Any, dumped: tuple[Path, Dump], tmp_path: Path
) -> None:
    root, dump = dumped
    folder, start, by_option = commands(
        ("ls", dump.folder), ("ls", root / "mat"), ("ls", root, "-k", "matmul")
    )
    assert folder.stdout == start.stdout == by_option.stdout
    assert {line.split("\t")[0] for line in folder.stdout.splitlines()} == {"v5e", "v6e"}
    for words in (["ls", "mat"], ["show", "nowhere"]):  # without dumps, a name is a directory's
        (done,) = commands(words)
        assert "no such directory: " in done.stderr
        assert "`pallas-debug dump SCRIPT.py` creates one" in done.stderr
    (tmp_path / "dumps").symlink_to(root)
    named = commands(*((name, "mat") for name in ("ls", "show", "report")))
    assert [done.returncode for done in named] == [0, 0, 0]
    assert named[0].stdout == folder.stdout
    for name in ("ls", "show", "diff", "source", "stats", "timeline", "report", "reproduce"):
        (done,) = commands((name, "matnul"))
        assert done.returncode == 2
        assert f"no kernel 'matnul' (did you mean 'matmul'?) in dumps; there are: {dump.name}" in (
            done.stderr
        )
    everything = commands(("ls",), ("show",), ("report",), ("grep", "vector"))
    assert [done.returncode for done in everything] == [0, 0, 0, 0]


STAGES = {
    "source": "def matmul_kernel(",
    "jaxpr": "dot_general",
    "stablehlo": "stablehlo.custom_call @tpu_custom_call",
    "mosaic": "func.func @",
    "log": "TPU",
    "infer-vector-layout": "layout",
    "finalize-llo": "llo.",
    "0": "func.func",
    "summary": "scratch",
}


@pytest.mark.parametrize("stage", STAGES)
def test_show_prints_every_stage(command: Any, dumped: tuple[Path, Dump], stage: str) -> None:
    root, _ = dumped
    done = command("show", root, stage, "-t", "v5e")
    assert done.returncode == 0, done.stderr
    assert STAGES[stage] in done.stdout


def test_show_of_a_kernels_and_of_a_targets_folder(command: Any, dumped: tuple[Path, Dump]) -> None:
    root, dump = dumped
    whole = command("show", root, "mosaic", "-t", "v6e").stdout
    assert command("show", root / dump.name, "mosaic", "-t", "v6e").stdout == whole
    assert command("show", root / dump.name / "v6e", "mosaic").stdout == whole


def test_a_targets_folder_is_listed_reported_and_explained(
    commands: Any, dumped: tuple[Path, Dump], tmp_path: Path
) -> None:
    _, dump = dumped
    folder = dump.folder / "v5e"
    listed, passes, explained, reported = commands(
        ("ls", dump.folder.parent, "-t", "v5e"),
        ("ls", folder),
        ("explain", folder),
        ("report", folder, "-o", tmp_path / "page.html"),
    )
    assert [line.split("\t")[2] for line in listed.stdout.splitlines()] == ["v5e"]
    assert {line.split("\t")[0] for line in passes.stdout.splitlines()} == {"v5e"}
    assert explained.stdout == f"{folder}: every kernel compiled\n"
    assert "page.html: 1 kernel, " in reported.stdout + reported.stderr
    assert [done.returncode for done in (listed, passes, explained, reported)] == [0, 0, 0, 0]


def test_a_pass_that_changed_nothing_shows_the_text_before_it(
    command: Any, dumped: tuple[Path, Dump]
) -> None:
    root, dump = dumped
    passes = dump.compilation("v5e").passes
    unchanged = next(p for p in passes if not p.changed)
    before = passes[unchanged.number - 1]
    texts = {command("show", root, str(p.number), "-t", "v5e").stdout for p in (unchanged, before)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    "arguments,code,message",
    [
        (["ls", "nowhere"], 2, "no such directory: nowhere. `pallas-debug dump SCRIPT.py` creates one."),
        (["stats", "{root}/.."], 2, "no kernels in {root}/..; there are dumps in {root}/../"),
        (["stats", "{root}/../nowhere"], 2, "no such directory: {root}/../nowhere. "),
        (["diff", "--stats", "{root}", "{root}-new"], 2, "no such directory: {root}-new. "),
        (["report", "{root}", "-o", "/dev/full"], 3, "/dev/full cannot be written: No space left on device."),
        (["ls", "{root}/{name}/kernel.json"], 2, "is a file, or lies below one; name the directory that holds the dumps."),
        (["show", "{root}", "wat", "-t", "v5e"], 2, "no pass 'wat' for v5e: 00 deserialization, 01"),
        (["show", "{root}", "canon", "-t", "v5e"], 2, "no pass 'canon' for v5e; several match: "),
        (["show", "{root}", "mosaci", "-t", "v5e"], 2, "no pass 'mosaci' (did you mean 'mosaic'?) for v5e: 00"),
        (["show", "{root}", "mosaic"], 2, "select a target; there are: v5e, v6e"),
        (["show", "{root}", "mosaci"], 2, "select a target; there are: v5e, v6e"),
        (["show", "{root}", "canonicalize-mosaic"], 2, "select a target; there are: v5e, v6e"),
        (["show", "{root}", "mosaic", "-t", "v4"], 2, "no kernel here was compiled for 'v4'; there are: v5e, v6e"),
        (["show", "{root}", "-k", "flash"], 2, "no kernel 'flash' in"),
        (["show", "{root}", "-k", "matnul"], 2, "no kernel 'matnul' (did you mean 'matmul'?) in"),
        (["show", "{root}/matnul"], 2, "no kernel 'matnul' (did you mean 'matmul'?) in"),
        (["ls", "{root}", "-t", "v6"], 2, "no kernel here was compiled for 'v6' (did you mean 'v6e'?); there are: v5e, v6e"),
        (["show", "{root}", "finalise-llo", "-t", "v5e"], 2, "no pass 'finalise-llo' (did you mean 'finalize-llo'?) for v5e: 00"),
        (["show", "{root}", "mosaic", "-t", "v5"], 2, "no kernel here was compiled for 'v5' (did you mean 'v5e'?); there are: v5e, v6e"),
        (["show", "{root}", "error", "-t", "v5e"], 2, "compiled for v5e: there is no error to show"),
    ],
)  # fmt: skip
def test_what_cannot_be_shown(
    command: Any, dumped: tuple[Path, Dump], arguments: list[str], code: int, message: str
) -> None:
    root, dump = dumped
    done = command(*(a.format(root=root, name=dump.name) for a in arguments))
    assert done.returncode == code
    assert message.format(root=root) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_kernel_does_not_hide_the_others(
    command: Any, dumped: tuple[Path, Dump], tmp_path: Path
) -> None:
    root, dump = dumped
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    shutil.copytree(copy / dump.name, copy / "damaged-00000000")
    (copy / "damaged-00000000" / "kernel.json").write_bytes(b'{"tool": "pall')
    done = command("ls", copy)
    assert done.returncode == 3
    assert dump.name in done.stdout
    assert "damaged-00000000\t\t\tfailed: cannot be read" in done.stdout
    assert "kernel.json is truncated or not valid JSON" in done.stderr
    assert "Delete its folder and dump again." in done.stderr


def test_targets_are_listed(command: Any) -> None:
    rows = [line.split("\t") for line in command("doctor", "--targets").stdout.splitlines()]
    assert [row[0] for row in rows][:6] == ["v4", "v5e", "v5p", "v6e", "tpu7x", "tpu"]
    listed = json.loads(command("doctor", "--targets", "--json").stdout)["targets"]
    assert listed[1]["topology"] == "v5e:2x2"


@pytest.mark.slow
def test_doctor_finds_this_machine_well(real_command: Any) -> None:
    done = real_command("doctor", JAX_PLATFORMS="")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert len(lines) < 8
    assert done.stderr == "next: pallas-debug verify pallas_debug_kernels:matmul\n"
    for message in (
        "jax: ",
        "which this jax was built for",
        "compiles for v4, v5e, v5p, v6e, tpu7x",
    ):
        assert message in done.stdout
    assert not [line for line in lines if line.startswith("failed")]
    every = real_command("doctor", "-v", JAX_PLATFORMS="").stdout
    for message in ("capture: lowering rules: as expected", "target v4: ", "target tpu7x: "):
        assert message in every
    (more,) = re.findall(r"(\d+) more checks; -v prints them", done.stdout)
    assert len(every.splitlines()) == len(lines) - 2 + 5 + int(more)


@pytest.mark.slow
def test_doctor_as_json(command: Any) -> None:
    done = command("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert checks["target v5e"]["state"] == "ok"


@pytest.mark.parametrize(
    "words, heavy",
    [
        ("--help", {"jax", "jaxlib", "numpy", "textual", "rich", "msgspec", "pallas_debug.model"}),
        ("explain E1001", {"jax", "numpy", "textual"}),
        ("show DUMPS mosaic -t v5e", {"jax", "jaxlib", "textual"}),
        ("ls DUMPS", {"jax", "jaxlib", "textual"}),
        ("diff DUMPS -t v5e", {"jax", "numpy", "textual"}),
        ("grep llo DUMPS", {"jax", "numpy", "textual"}),
        ("source DUMPS -t v5e", {"jax", "numpy", "textual"}),
    ],
)
def test_what_a_command_does_not_import(
    run_python: Any, dumped: tuple[Path, Dump], words: str, heavy: set[str]
) -> None:
    code = """
import contextlib, sys
from pallas_debug.cli import main
with contextlib.suppress(SystemExit):
    main()
print(*sorted(sys.modules), file=sys.stderr)
"""
    done = run_python("-c", code, *words.replace("DUMPS", str(dumped[0])).split())
    assert done.stdout
    assert not heavy & {*done.stderr.splitlines()[-1].split()}


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_real_terminal_gets_a_table_and_no_escape_of_a_files(
    dumped: tuple[Path, Dump], tmp_path: Path
) -> None:
    root, dump = dumped
    copy = tmp_path / "dumps"
    shutil.copytree(root, copy)
    mosaic = copy / dump.name / "v5e" / "mosaic.mlir"
    mosaic.write_text("\x1b[2Jevil\n" + "tail\n")
    records.main([str(copy)])  # a hostile manifest agrees with its files
    tool = Path(sys.executable).with_name("pallas-debug")
    screen = _in_terminal(f"{tool} ls {copy}; {tool} show {copy} mosaic -t v5e; echo do''ne")
    assert "kernel" in screen
    assert "target" in screen
    assert "status" in screen
    assert "\\x1b[2Jevil" in screen


def _in_terminal(line: str) -> str:
    """What a terminal of 150 columns shows after a shell ran `line`; it prints `done` at last."""
    with Tmux(program="sh", columns=150, rows=50) as tmux:
        tmux.send(line, "Enter")
        return tmux.wait_for("\ndone")
