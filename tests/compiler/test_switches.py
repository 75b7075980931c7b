"""Switches by name: their syntax, the resulting flags, and their effect in the installed libtpu."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pallas_debug.compiler import switches, targets
from pallas_debug.compiler.pool import Pool
from pallas_debug.errors import UsageError
from pallas_debug.model import Failure

Module = Callable[[str], bytes]

V5E = targets.resolve("v5e")
OF_LIBTPU = [s.name for s in switches.SWITCHES.values() if s.where == "compile"]
ALL = (
    "log_recorder", "bounds_checks", "poison_vmem", "transpose_trace", "poison_buffers",
    "assertions",
)  # fmt: skip


@pytest.mark.parametrize(
    "text,names",
    [
        ("", ()),
        (" , ", ()),
        ((), ()),
        ("log_recorder", ("log_recorder",)),
        ("assertions, log_recorder", ("log_recorder", "assertions")),
        (["assertions", "log_recorder,poison_vmem"], ("log_recorder", "poison_vmem", "assertions")),
        (["log_recorder", "log_recorder"], ("log_recorder",)),
    ],
)
def test_a_choice_of_them(text: str | list[str], names: tuple[str, ...]) -> None:
    assert switches.parse(text) == names


@pytest.mark.parametrize("name", ["nope", "LOG_RECORDER", "log-recorder", "xla_dump_to", "é"])
def test_an_unknown_one_is_refused_with_the_list(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        switches.parse(["log_recorder", name])
    near = " (did you mean 'log_recorder'?)" if name == "log-recorder" else ""
    assert str(caught.value) == f"unknown switch {name!r}{near}; there are {', '.join(ALL)}"


def test_the_guide_lists_them() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "dumping.md").read_text()
    section = guide.partition("\n## Switches\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(ALL)


def test_what_they_become() -> None:
    assert switches.compile_options(ALL) == {
        "xla_tpu_enable_log_recorder": "true",
        "xla_mosaic_on_device_checks": "bounds",
        "xla_jf_poison_vmem_allocations": "true",
        "xla_enable_transpose_trace": "true",
    }
    assert switches.lowering_settings(ALL) == (
        "jax_pallas_poison_buffers",
        "jax_pallas_enable_debug_checks",
    )
    assert switches.compile_options(()) == {}
    assert switches.lowering_settings(["log_recorder"]) == ()


@pytest.mark.parametrize(
    "names,flags,recorded",
    [
        ((), (), False),
        (("log_recorder",), (), True),
        (("assertions",), ("--xla_foo=true",), False),
        ((), ("--xla_tpu_enable_log_recorder=true",), True),
        ((), ("--xla_tpu_enable_log_recorder",), True),
        ((), ("-xla_tpu_enable_log_recorder=TRUE",), True),
        ((), ("--xla_tpu_enable_log_recorder=false",), False),
    ],
)
def test_whether_prints_are_recorded(
    names: tuple[str, ...], flags: tuple[str, ...], recorded: bool
) -> None:
    assert switches.is_recorded(names, flags) is recorded


@pytest.mark.parametrize(
    "message, sentence",
    [
        (
            "INVALID_ARGUMENT: No such compile option: 'xla_enable_transpose_trace'",
            "the switch 'transpose_trace' is not supported: libtpu 1.2.3 does not know "
            "xla_enable_transpose_trace. Remove the switch, or use another libtpu.",
        ),
        (
            "jax 9.9 has no setting jax_pallas_poison_buffers",
            "the switch 'poison_buffers' is not supported: jax 9.9 does not know "
            "jax_pallas_poison_buffers. Remove the switch, or use another jax.",
        ),
        ("No such compile option: 'xla_of_somebody_else'", None),
    ],
)
def test_a_refusal_names_the_switch(message: str, sentence: str | None) -> None:
    failure = Failure(stage="compile", type="JaxRuntimeError", message=message)
    explained = switches.explained(failure, {"libtpu": "1.2.3", "jax": "9.9"})
    if sentence is None:
        assert explained is failure
        return
    assert (explained.type, explained.headline) == ("SwitchRefused", sentence)
    assert explained.message.endswith(message)


@pytest.mark.parametrize("name", OF_LIBTPU)
def test_the_installed_libtpu_takes_it(
    name: str, shared: Pool, module: Module, libtpu_version: tuple[int, ...]
) -> None:
    options = switches.compile_options([name])
    with shared.compile(module("add"), topology=V5E.topology, options=options) as outcome:
        assert outcome.reply is not None, outcome.log
        assert outcome.reply.error is None
        assert outcome.reply.memory is not None
        with shared.compile(module("add"), topology=V5E.topology) as without:
            assert without.reply is not None
            assert without.reply.memory is not None
            more = outcome.reply.memory.generated_code - without.reply.memory.generated_code
    if name == "log_recorder":
        assert more > 1_000_000 or libtpu_version >= (0, 0, 52)  # which always has one
    elif name == "poison_vmem":
        assert 1_000 < more < 10_000
    else:  # `add` copies nothing of its own and transposes nothing
        assert 0 <= more <= 1024
