"""Typed options as the only interface between click and the commands."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import typing
from pathlib import Path

import pytest

from pallas_debug.cli.group import COMMANDS

CLI = Path(__file__).parents[2] / "pallas_debug" / "cli"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_a_function_of_its_options(name: str) -> None:
    module = importlib.import_module(f"pallas_debug.cli.{name}")
    (parameter,) = inspect.signature(module.run).parameters
    kind = typing.get_type_hints(module.run)[parameter]
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert {f.name for f in dataclasses.fields(kind)} == {p.name for p in module.command.params}
    assert "Any" not in {str(f.type) for f in dataclasses.fields(kind)}


def test_only_one_place_sees_what_click_parsed() -> None:
    untyped = re.compile(r"Namespace|\*\*options|\*\*given|click\.command|ctx\.params|options\[")
    found = [path.name for path in CLI.glob("*.py") if untyped.search(path.read_text())]
    assert found == ["options.py"]
