"""Ranking of settings before they are compiled: one is compiled, the others are simulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.dumping import traced_blocks
from pallas_debug.errors import CannotRunError, PallasDebugError, UsageError
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.profile.stats import Profile
from pallas_debug.profiling import profiles_of
from pallas_debug.sweeps.grid import Setting


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Simulated cycles of a setting on a target.

    Attributes:
      setting: values of the swept arguments, as texts.
      cycles: sum over the kernels; without a value, `note` says why.
    """

    setting: Mapping[str, str]
    target: str
    cycles: Figure


def predict(
    function: Callable[..., Any],
    settings: Sequence[Setting],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    targets: Sequence[str],
    timeout: float,
) -> tuple[Prediction, ...]:
    """Rank settings by target, best first; those that cannot be simulated come last.

    The first setting that compiles is the base of the simulations.

    Raises:
      CannotRunError: no setting compiles for a target.
    """
    found: list[Prediction] = []
    for target in targets:
        base = _base(function, settings, args, kwargs, target, timeout)
        of_target = [
            Prediction(
                setting=setting.texts,
                target=target,
                cycles=_simulated(function, args, {**kwargs, **setting.values}, base, str(setting)),
            )
            for setting in settings
        ]
        found += sorted(of_target, key=lambda p: (p.cycles.value is None, p.cycles.value or 0))
    return tuple(found)


def best(
    settings: Sequence[Setting], predictions: Sequence[Prediction], count: int
) -> list[Setting]:
    """Return the settings that are among the best `count` for a target, in their order."""
    chosen: list[Mapping[str, str]] = []
    for target in dict.fromkeys(p.target for p in predictions):
        chosen += [p.setting for p in predictions if p.target == target][:count]
    return [setting for setting in settings if setting.texts in chosen]


def _base(
    function: Callable[..., Any],
    settings: Sequence[Setting],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: str,
    timeout: float,
) -> tuple[Profile, ...]:
    problem: Exception | None = None
    for setting in settings:
        try:
            return profiles_of(
                function, args, {**kwargs, **setting.values}, target=target, timeout=timeout
            )
        except Exception as error:  # noqa: BLE001 - whatever the function raises
            problem = error
    raise CannotRunError(f"no setting compiles for {target}; the last one: {problem}")


def _simulated(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    base: Sequence[Profile],
    change: str,
) -> Figure:
    try:
        traced = traced_blocks(function, args, kwargs, base[0].target)
        if [name for name, _ in traced] != [profile.name for profile in base]:
            raise UsageError("it calls other kernels than the setting that was compiled")
        pairs = zip(base, traced, strict=True)
        made = [profile.simulator.simulated(blocks, change) for profile, (_, blocks) in pairs]
    except PallasDebugError as error:
        return missing(str(error), unit="cycles")
    except Exception as error:  # noqa: BLE001 - whatever the function raises
        return missing(f"{type(error).__name__}: {error}", unit="cycles")
    total = sum(found.cycles.value or 0 for found in made)
    return Figure(value=total, origin="assumed", unit="cycles", note="simulated")
