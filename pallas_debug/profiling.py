"""Profiles of the kernels that a function would call, compiled in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pallas_debug import defaults
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.dumping import dump_function
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Compilation, Dump
from pallas_debug.profile.gpu import GpuStats
from pallas_debug.profile.stats import Profile
from pallas_debug.render import headline
from pallas_debug.session.options import Options
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_gpu_stats, read_profile
from pallas_debug.tracebacks import WithoutOurFrames

_T = TypeVar("_T")


def profile_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | None = defaults.TARGET,
    kernel: str | None = None,
    estimate: bool = True,
    timeout: float = defaults.COMPILE_TIMEOUT,
) -> Profile:
    """Compile the kernel that a function calls, and return its profile; see `stats`."""
    if len(names := targets_by_name(target, defaults.TARGET)) > 1 or names == ("all",):
        raise UsageError(f"stats are for a single target, but {target!r} lists several")
    found = profiles_of(
        function, args, kwargs, target=target, kernel=kernel, estimate=estimate, timeout=timeout
    )
    if len(found) > 1:
        name = getattr(function, "__qualname__", repr(function))
        kernels = ", ".join(profile.name for profile in found)
        raise UsageError(f"{name} calls the kernels {kernels}: select one with kernel=")
    return found[0]


def profiles_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | None = defaults.TARGET,
    kernel: str | None = None,
    estimate: bool = False,
    timeout: float = defaults.COMPILE_TIMEOUT,
) -> tuple[Profile, ...]:
    """Compile the kernels that a function calls, and return their profiles, in order.

    Args:
      target: names of targets, joined by commas.
      kernel: name of the kernels to return; by default all.

    Raises:
      UsageError, UnknownTargetError, CannotRunError: as `stats`.
    """
    stages = stage_names.Stages(bundles=True, estimate=estimate)
    options = Options(targets=_names(target), interpret="off", timeout=timeout, stages=stages)
    return _read(function, args, kwargs, options, kernel, _profile)


def gpu_stats_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | None,
    kernel: str | None = None,
    timeout: float = defaults.COMPILE_TIMEOUT,
) -> tuple[GpuStats, ...]:
    """Compile the kernels that a function calls for GPUs, and return their statistics, in order.

    Raises:
      UsageError, UnknownTargetError, CannotRunError: as `stats`.
    """
    options = Options(targets=_names(target), interpret="off", timeout=timeout)
    return _read(function, args, kwargs, options, kernel, _gpu_stats)


def _names(target: str | None) -> tuple[str, ...]:
    names = targets_by_name(target, defaults.TARGET)
    if not names:
        raise UsageError(f"stats are for a target, but {target!r} lists none")
    return names


def _read(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    kernel: str | None,
    read: Callable[[Path, Dump, Compilation], _T],
) -> tuple[_T, ...]:
    """Dump the kernels of a function to a temporary directory, and read each compilation."""
    with WithoutOurFrames(), tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        dumps = dump_function(function, args, kwargs, replace(options, dumps=Path(folder))).dumps
        chosen = [dump for dump in dumps if kernel in (None, dump.kernel.name)]
        if not chosen:
            name = getattr(function, "__qualname__", repr(function))
            kernels = ", ".join(dump.kernel.name for dump in dumps)
            raise UsageError(f"{name} calls the kernels {kernels}: but not {kernel!r}")
        return tuple(read(Path(folder), d, made) for d in chosen for made in d.compilations)


def _gpu_stats(folder: Path, dump: Dump, compilation: Compilation) -> GpuStats:
    _require_compiled(dump, compilation)
    stored = open_dumps(folder).find(dump.name)
    return read_gpu_stats(stored, stored.target(compilation.target))


def _require_compiled(dump: Dump, compilation: Compilation) -> None:
    if compilation.failure is not None:
        raise CannotRunError(
            f"{dump.kernel.name} does not compile for {compilation.target}: "
            f"{headline(compilation.failure)}"
        )


def _profile(folder: Path, dump: Dump, compilation: Compilation) -> Profile:
    _require_compiled(dump, compilation)
    stored = open_dumps(folder).find(dump.name)
    found = read_profile(stored, stored.target(compilation.target))
    if found is None:
        raise CannotRunError(
            f"libtpu wrote no schedule of {dump.kernel.name} for {compilation.target}"
        )
    return found.profile
