"""Named options of a compilation, besides its target.

A switch is an option that libtpu accepts per compilation, or a setting of jax during lowering.
Costs and rejections were determined with libtpu 0.0.42 (jax 0.10.2) and 0.0.50 (jax 0.12.0).
Imports no jax.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pallas_debug.errors import UsageError, meant
from pallas_debug.model import Failure

LOG_RECORDER = "log_recorder"

NOT_RECORDED = (
    f"it prints, but a TPU shows no output: it was compiled without the switch {LOG_RECORDER}"
)
"""Note on a compilation whose prints a TPU would not show."""

_REFUSED = (
    re.compile(r"No such compile option: '(?P<option>\w+)'"),
    re.compile(r"jax \S+ has no setting (?P<option>\w+)"),
)


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A named option.

    Attributes:
      option: compile option of libtpu, or setting of jax.
      value: value of the option.
      where: whether libtpu applies it when compiling, or jax when lowering.
      summary: effect on a TPU.
      cost: effect on the code.
      since: first versions with which it was tested.
    """

    name: str
    option: str
    value: str
    where: Literal["compile", "lowering"]
    summary: str
    cost: str
    since: str


SWITCHES: Mapping[str, Switch] = {
    switch.name: switch
    for switch in (
        Switch(
            name=LOG_RECORDER,
            option="xla_tpu_enable_log_recorder",
            value="true",
            where="compile",
            summary="the recorder that shows what `pl.debug_print` prints",
            cost="about 1 MiB of generated code for each program, which libtpu 0.0.52 generates "
            "even without it",
            since="libtpu 0.0.42",
        ),
        Switch(
            name="bounds_checks",
            option="xla_mosaic_on_device_checks",
            value="bounds",
            where="compile",
            summary="a slice, load or store that leaves its buffer halts the device; the assertion "
            "names the line",
            cost="a comparison and a branch for each access with an index that is not constant",
            since="libtpu 0.0.42",
        ),
        Switch(
            name="poison_vmem",
            option="xla_jf_poison_vmem_allocations",
            value="true",
            where="compile",
            summary="fresh VMEM is filled with a pattern, which exposes reads of unwritten memory",
            cost="about 3 KiB of generated code, and a store to all of it at the start",
            since="libtpu 0.0.42",
        ),
        Switch(
            name="transpose_trace",
            option="xla_enable_transpose_trace",
            value="true",
            where="compile",
            summary="transposes are traced for the profiler",
            cost="none visible in the generated code",
            since="libtpu 0.0.42",
        ),
        Switch(
            name="poison_buffers",
            option="jax_pallas_poison_buffers",
            value="true",
            where="lowering",
            summary="buffers of `pl.run_scoped` are initialised to NaN, or the smallest integer",
            cost="a store to each such buffer, each time it is allocated",
            since="jax 0.10.2",
        ),
        Switch(
            name="assertions",
            option="jax_pallas_enable_debug_checks",
            value="true",
            where="lowering",
            summary="a `pl.debug_check` that fails halts the device; without it they are left out",
            cost="a branch for each check",
            since="jax 0.10.2",
        ),
    )
}


def parse(text: str | Iterable[str]) -> tuple[str, ...]:
    """Parse `"log_recorder,assertions"`, or names, into the order of `SWITCHES`.

    Raises:
      UsageError: an unknown switch.
    """
    texts = [text] if isinstance(text, str) else list(text)
    names = [name.strip() for given in texts for name in given.split(",") if name.strip()]
    unknown = [name for name in names if name not in SWITCHES]
    if unknown:
        hint = meant(unknown[0], SWITCHES)
        raise UsageError(f"unknown switch {unknown[0]!r}{hint}; there are {', '.join(SWITCHES)}")
    return tuple(name for name in SWITCHES if name in names)


def compile_options(names: Iterable[str]) -> dict[str, str]:
    """Options for libtpu, in the format of `jax.stages.Lowered.compile`."""
    chosen = (SWITCHES[name] for name in names)
    return {s.option: s.value for s in chosen if s.where == "compile"}


def lowering_settings(names: Iterable[str]) -> tuple[str, ...]:
    """Names of the jax settings to enable during lowering."""
    chosen = (SWITCHES[name] for name in names)
    return tuple(s.option for s in chosen if s.where == "lowering")


def is_recorded(names: Iterable[str], flags: Iterable[str]) -> bool:
    """Return whether a TPU would show what kernels print, by a switch or by a libtpu flag.

    Args:
      flags: libtpu flags for all compilations.
    """
    option = SWITCHES[LOG_RECORDER].option
    given = (flag.lstrip("-").partition("=") for flag in flags)
    set_by_flag = any(n == option and v.lower() in ("", "true", "1") for n, _, v in given)
    return LOG_RECORDER in names or set_by_flag


def refusal(message: str, versions: Mapping[str, str]) -> str | None:
    """Explain a message by which libtpu or jax rejects one of our options; None for others."""
    found = next(filter(None, (pattern.search(message) for pattern in _REFUSED)), None)
    switch = next((s for s in SWITCHES.values() if found and s.option == found["option"]), None)
    if switch is None:
        return None
    who = "libtpu" if switch.where == "compile" else "jax"
    return (
        f"the switch {switch.name!r} is not supported: {who} {versions.get(who, '(unknown)')} "
        f"does not know {switch.option}. Remove the switch, or use another {who}."
    )


def explained(failure: Failure, versions: Mapping[str, str]) -> Failure:
    """Return the failure, prefixed with an explanation if a switch was rejected."""
    sentence = refusal(failure.message, versions)
    if sentence is None:
        return failure
    return replace(failure, type="SwitchRefused", message=f"{sentence}\n\n{failure.message}")
