"""How interpret modes and their parameters are written."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge.interpret import params as interpret_params
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.errors import UsageError

FIELDS = {f.name: f for f in dataclasses.fields(pltpu.InterpretParams)}


@pytest.mark.parametrize("kind", ["auto", "hlo", "tpu", "off"])
def test_a_mode_by_its_name(kind: str) -> None:
    mode = Mode.parse(kind)
    assert (mode.kind, dict(mode.params), str(mode)) == (kind, {}, kind)
    assert Mode.parse(mode) is mode


def test_what_jax_takes() -> None:
    assert Mode("hlo").value() is interpret_params.ChosenMode.HLO
    assert Mode("tpu").value() == pltpu.InterpretParams()
    assert Mode("auto").value() is Mode("machine").value() is Mode("off").value() is None
    assert Mode.parse("tpu,num_cores_or_threads=3").value().num_cores_or_threads == 3


VALUES: dict[str, tuple[str, object]] = {
    "detect_races": ("1", True),
    "on_race": ("warn", "warn"),
    "out_of_bounds_reads": ("uninitialized", "uninitialized"),
    "skip_floating_point_ops": ("true", True),
    "uninitialized_memory": ("zero", "zero"),
    "num_cores_or_threads": ("2", 2),
    "vector_clock_size": ("17", 17),
    "logging_mode": ("semaphore", None),
    "dma_execution_mode": ("eager", "eager"),
    "random_seed": ("16", 16),
    "allow_hbm_allocation_in_run_scoped": ("True", True),
    "buffer_bounds": ("padded", "padded"),
}
"""A value as text and as jax has it; a parameter of a later jax wants a line here."""


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "grid_point_recorder"])
def test_every_parameter_of_this_jax_is_reached_by_its_own_name(name: str) -> None:
    text, value = VALUES[name]
    mode = Mode.parse(f"tpu, {name} = {text}")
    assert list(mode.params) == [name]
    if value is not None:
        assert getattr(mode.value(), name) == value
    assert Mode.parse(str(mode)) == mode
    assert hash(Mode.parse(str(mode))) == hash(mode)


def test_a_function_is_given_from_python() -> None:
    def record(*_: Any) -> None: ...

    mode = Mode("tpu", {"grid_point_recorder": record})
    assert mode.value().grid_point_recorder is record
    assert str(mode) == "tpu,grid_point_recorder=record"
    with pytest.raises(UsageError, match="grid_point_recorder must be "):
        Mode.parse("tpu,grid_point_recorder=record")


def test_flags_are_joined() -> None:
    mode = Mode.parse("tpu,logging_mode=semaphore|shared_memory")
    assert str(mode) == "tpu,logging_mode=semaphore|shared_memory"
    assert Mode("tpu", {"logging_mode": "semaphore|shared_memory"}) == mode


def test_none_and_a_bare_name() -> None:
    mode = Mode.parse("tpu,detect_races,vector_clock_size=none,random_seed=7")
    assert dict(mode.params) == {"detect_races": True, "vector_clock_size": None, "random_seed": 7}
    assert mode.value().vector_clock_size is None


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "'' is not an interpret mode; there are: auto, hlo, tpu, gpu, machine, off"),
        ("fast", "'fast' is not an interpret mode; there are: auto, hlo, tpu, gpu, machine, off"),
        ("hlo,tpu", "the interpret mode 'hlo' has no parameter 'tpu'; it has none"),
        ("tpu,detect_race", "has no parameter 'detect_race' (did you mean 'detect_races'?); it "),
        ("machine,speed=1", "has no parameter 'speed'; it has sanitize"),
        ("tpu,detect_races=7", "detect_races must be bool, not '7'"),
        ("tpu,num_cores_or_threads", "num_cores_or_threads must be int, not True"),
        ("tpu,num_cores_or_threads=two", "num_cores_or_threads must be int, not 'two'"),
        ("tpu,num_cores_or_threads=0", "_threads=0: Number of cores or threads must be"),
        ("tpu,random_seed=1,random_seed=2", "random_seed is given twice"),
        ("tpu,random_seed=x", "random_seed must be int | None, not 'x'"),
        ("tpu,dma_execution_mode=now", "must be Literal['eager', 'on_wait'], not 'now'"),
        ("tpu,logging_mode=loud", "LoggingMode | None, not 'loud'"),
        ("tpu,", "the interpret mode 'tpu' has no parameter ''"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Mode.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "params,message",
    [
        ({"detect_races": 1}, "detect_races must be bool, not 1"),
        ({"num_cores_or_threads": True}, "must be int, not True"),
        ({"random_seed": [3]}, "random_seed must be int | None, not [3]"),
        ({"dma_execution_mode": None}, "must be Literal['eager', 'on_wait'], not None"),
        ({"grid_point_recorder": 3}, "grid_point_recorder must be "),
    ],
)
def test_values_of_a_wrong_type_are_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Mode("tpu", params)
    assert message in str(caught.value)
