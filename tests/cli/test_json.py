"""JSON output: every document has its schema, and exactly the fields of `documents.py`."""

from __future__ import annotations

import dataclasses
import importlib
import json
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from generator import documents

from pallas_debug.cli import output
from pallas_debug.cli.group import COMMANDS

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "ir" / "data"
NEW, OLD = DATA / "libtpu-0.0.50", DATA / "libtpu-0.0.42"
LOG = "ValueError: Cannot store scalars to VMEM\nno error\n"
CODE = """
import jax, jax.numpy as jnp
from jax.experimental import pallas as pl

def kernel(x_ref, o_ref):
    o_ref[...] = x_ref[pl.ds(pl.program_id(0) * 8 + 4, 8), :]

def shift(x):
    return pl.pallas_call(
        kernel, out_shape=x, grid=(2,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )(x)

def copied(x, *, rows=8):
    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...]
    spec = pl.BlockSpec((rows, 128), lambda i: (i, 0))
    grid = (x.shape[0] // rows,)
    return pl.pallas_call(copy, out_shape=x, grid=grid, in_specs=[spec], out_specs=spec)(x)
"""

LINES: dict[str, list[list[Any]]] = {
    "diff": [[NEW], [NEW, "--summary"]],
    "diff-stats": [["scheduled/kernel", "v6e"]],
    "dump": [["rows:shift", "--arg", "f32[16,128]"]],
    "explain": [["run.log", "E1001", "no such error", OLD], ["--list"], ["failed"]],
    "grep": [["vector_load", NEW]],
    "doctor-targets": [[]],
    "ls": [[NEW], [OLD, "-t", "v6e"], ["failed"]],
    "show": [[NEW], [NEW, "mosaic"], [NEW, "source"]],
    "source": [
        [NEW],
        [NEW, "--pass", "jaxpr"],
        ["scheduled", "--cost"],
    ],
    "stats": [["scheduled"]],
    "sweep": [["rows:copied", "--arg", "f32[16,128]", "--over", "rows=8,5", "--jobs", "1"]],
    "timeline": [["scheduled"]],
    "verify": [["rows:shift", "--arg", "f32[16,128]", "--target=v5e"]],
}
"""Command lines whose output has every list filled at least once, apart from `doctor`'s."""

RECORDED = Path(__file__).parent / "data" / "json.json"
"""Fields and types of all documents as released, with their version."""


def fields() -> dict[str, Any]:
    """The same as the code has it: classes by name, and their fields with types as text."""
    kinds: dict[str, dict[str, str]] = {}

    def visit(kind: Any) -> None:
        is_new = isinstance(kind, type) and kind.__name__ not in kinds
        if is_new and dataclasses.is_dataclass(kind):
            hints = typing.get_type_hints(kind)
            kinds[kind.__name__] = {f.name: str(f.type) for f in dataclasses.fields(kind)}
            for f in dataclasses.fields(kind):
                visit(hints[f.name])
        for inner in typing.get_args(kind):
            visit(inner)

    for document in documents.DOCUMENTS.values():
        visit(document)
    return {"version": output.SCHEMA, "kinds": kinds}


def check(document: dict[str, Any], command: str) -> None:
    assert next(iter(document)) == "schema"
    assert document.pop("schema") == f"pallas-debug/{command}/{output.SCHEMA}"
    kind = documents.DOCUMENTS[command]
    assert list(document) == [field.name for field in dataclasses.fields(kind)]
    decoded = msgspec.convert(document, type=kind, dec_hook=lambda kind, value: kind(value))
    again = json.loads(output.json_text(decoded))
    assert again == document, "a field that the schema does not have, or has with a default"


@pytest.mark.slow
@pytest.mark.parametrize("name", LINES)
def test_a_document_has_the_fields_of_its_schema(command: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(CODE)
    (tmp_path / "run.log").write_text(LOG)
    if name in ("explain", "ls"):
        wrong = "pl.program_id(0) * 8 + 4, 8), :]"
        (tmp_path / "rows.py").write_text(CODE.replace(wrong, "0, 16, 2), ::2]"))
        command("dump", "rows:shift", "--arg", "f32[16,128]", "--to", "failed")
    if name in ("timeline", "diff-stats", "source", "stats"):
        given = ("--to", "scheduled")
        targets = ("--target", "v5e,v6e") if name == "diff-stats" else ()
        command("dump", "rows:shift", "--arg", "f32[16,128]", *given, *targets)
    for line in LINES[name]:
        words = name.replace("-", " --").split()
        done = command(*words, *line, "--json")
        assert done.returncode in (0, 1), done.stderr
        check(json.loads(done.stdout), name)


def test_the_doctor_s_document() -> None:
    from pallas_debug._api.doctor import Check

    names = [field.name for field in dataclasses.fields(documents.ListedCheck)]
    assert names == [field.name for field in dataclasses.fields(Check)]
    checks = [Check(name="jax", state="failed", detail="no", remedy="install", patches=("a", "b"))]
    text = output.json_text({"schema": "pallas-debug/doctor/1", "checks": checks})
    check(json.loads(text), "doctor")


def test_every_command_with_json_has_a_schema() -> None:
    takes = {
        name
        for name in COMMANDS
        for p in importlib.import_module(f"pallas_debug.cli.{name}").command.params
        if "--json" in p.opts
    }
    takes |= {"diff-stats", "doctor-targets"}  # of an option
    assert takes == set(documents.DOCUMENTS) == {*LINES, "doctor"}


def test_a_released_field_changes_only_with_the_version() -> None:
    recorded, now = json.loads(RECORDED.read_text()), fields()
    if recorded["version"] != now["version"]:
        pytest.fail(
            f"the version has changed: write {RECORDED.name} with `PYTHONPATH=docs python {__file__}`"
        )
    changed = {
        f"{kind}.{name}: {type_}"
        for kind, named in recorded["kinds"].items()
        for name, type_ in named.items()
        if now["kinds"].get(kind, {}).get(name) != type_
    }
    assert not changed, "raise output.SCHEMA"


if __name__ == "__main__":
    RECORDED.write_text(json.dumps(fields(), indent=1) + "\n")
