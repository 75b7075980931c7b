"""Reading LLO passes and schedules: `ls`, `show`, `grep` and `diff`, and what they say is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import pallas_debug
from pallas_debug.model import Dump
from pallas_debug.store import layout


@pytest.fixture(scope="module")
def dumped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dump]:
    import jax
    import jax.numpy as jnp
    from pallas_debug_kernels import vector_add

    root = tmp_path_factory.mktemp("stages") / "dumps"
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    stages = "bundles,llo:post-ra,llo:original"
    (dump,) = pallas_debug.dump(vector_add, x, x, targets="v5e,v6e", to=root, stages=stages)
    return root, dump


@pytest.mark.slow
def test_ls_lists_them_after_the_passes(command: Any, dumped: tuple[Path, Dump]) -> None:
    listed = command("ls", dumped[0], "-k", "vector", "-t", "v5e").stdout.splitlines()
    rows = [row for row in (line.split("\t") for line in listed) if row[3] in ("LLO", "schedule")]
    names = [row[2] for row in rows]
    assert [name.partition("-")[2] for name in names[:2]] == ["original", "post-ra"]
    assert names[2:] == [Path(name).stem for name in layout.EXPECTED_FILES]
    assert all(row[4].endswith(" B") for row in rows)


@pytest.mark.parametrize(
    "stage, part",
    [
        ("bundles", "= control target key start"),
        ("utilization", "MXU"),
        ("critical-path", "New basic block"),
        ("vmem", "<html"),
        ("hlo", 'custom_call_target="tpu_custom_call"'),
        ("llo:post-ra", "$region0: #{"),
        ("llo:original", "$region0: #{"),
    ],
)
def test_show(command: Any, dumped: tuple[Path, Dump], stage: str, part: str) -> None:
    done = command("show", dumped[0], stage, "-t", "v6e")
    assert done.returncode == 0
    assert part in done.stdout


def test_an_llo_pass_is_found_by_number_and_part(command: Any, dumped: tuple[Path, Dump]) -> None:
    root, dump = dumped
    (path,) = (dump.folder / "v5e" / "llo").glob("*post-ra*")
    for name in (path.stem, path.stem.partition("-")[0], "ost-r"):
        assert command("show", root, f"llo:{name}", "-t", "v5e").stdout == path.read_text()


@pytest.mark.parametrize(
    "stage, message",
    [
        ("llo:post-raa", "no LLO pass 'post-raa' (did you mean 'post-ra'?) in vector_add"),
        ("llo", " for v5e; several match: "),
        ("llo:o", " for v5e; several match: "),
        ("estimate", "estimate.txt. Dump it again with --stages estimate"),
        ("registers", "registers.txt; the compiler writes it only for some kernels"),
    ],
)
def test_what_there_is_not(
    command: Any, dumped: tuple[Path, Dump], stage: str, message: str
) -> None:
    done = command("show", dumped[0], stage, "-t", "v5e")
    assert done.returncode == 2
    assert message in done.stderr


def test_grep(command: Any, dumped: tuple[Path, Dump]) -> None:
    found = command("grep", "vadd", dumped[0], "-t", "v5e").stdout
    files = [
        Path(line.split(":")[0]).relative_to(dumped[1].folder / "v5e").as_posix()
        for line in found.splitlines()
    ]
    assert "schedule/bundles.txt" in files
    assert any(file.startswith("llo/") for file in files)
    assert "schedule/hlo.txt" not in files


def test_diff_of_bundles(command: Any, dumped: tuple[Path, Dump]) -> None:
    root, dump = dumped
    done = command("diff", root, "v6e", "bundles", "-t", "v5e")
    labels = f"--- {dump.name}/v5e/bundles\n+++ {dump.name}/v6e/bundles\n"
    assert done.stdout.startswith(f"- v5e   + v6e\n{labels}")
    between = command("diff", root, "llo:post-ra", "-t", "v5e").stdout
    assert between.splitlines()[1].endswith("-original")
    assert between.splitlines()[2].endswith("-post-ra")
    alone = command("diff", root, "bundles", "-t", "v5e")
    assert "bundles is not a pass with another before it: also name the stage" in alone.stderr
    first = command("diff", root, "llo:original", "-t", "v5e")
    assert (
        "llo:00-original is not a pass with another before it: also name the stage" in first.stderr
    )
    other = command("diff", root, "v6e", "llo:post-ra", "-t", "v5e")
    assert other.returncode == 0


MISSING = {
    "aborted": "the compiler died with --xla_f, and compiled without it: Check failed: x",
    "refused": "this libtpu refuses --xla_f: Check failed: x",
    "timeout": "Check failed: x; it was compiled without --xla_f",
    "unwritten": "the compiler wrote no such file",
}


@pytest.mark.parametrize("cause", MISSING)
def test_why_a_file_is_missing(
    command: Any, dumped: tuple[Path, Dump], tmp_path: Path, cause: str
) -> None:
    folder = tmp_path / "dumps" / dumped[1].name
    shutil.copytree(dumped[1].folder, folder)
    manifest = folder / "v5e" / "compilation.json"
    document = json.loads(manifest.read_text())
    flag = {"flag": "--xla_f", "message": "Check failed: x"}
    document["missing"] = [{"file": "schedule/estimate.txt", "cause": cause, **flag}]
    manifest.write_text(json.dumps(document))
    line = f"no schedule/estimate.txt: {MISSING[cause]}"
    assert line in command("show", folder).stdout
    assert MISSING[cause] in command("show", folder, "estimate", "-t", "v5e").stderr
    listed = command("ls", folder.parent, "-k", "vector", "-t", "v5e").stdout
    assert f"v5e\t\tschedule/estimate.txt\tmissing ({cause})" in listed


@pytest.mark.slow
def test_a_dump_says_what_is_missing(command: Any, tmp_path: Path) -> None:
    """No estimate is possible for v4."""
    done = command(
        *("dump", "--stages=estimate", "-t", "v4", "-o", tmp_path / "dumps"),
        "pallas_debug_kernels:vector_add",
    )
    assert done.returncode == 0, done.stderr
    assert " v4: no schedule/estimate.txt: the compiler died with --xla_jf_dump_" in done.stderr


def test_an_unknown_stage(command: Any, tmp_path: Path) -> None:
    done = command(
        "dump", "--stages", "bundels", "-o", tmp_path / "x", "pallas_debug_kernels:vector_add"
    )
    assert done.returncode == 2
    assert "unknown stage 'bundels' (did you mean 'bundles'?)" in done.stderr
