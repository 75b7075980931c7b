"""Profiles of the kernels that a function would call, compiled in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.dumping import dump_function
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.profile.gpu import GpuStats
from pallas_debug.profile.stats import Profile
from pallas_debug.render import headline
from pallas_debug.session.options import Options
from pallas_debug.store import StoredCompilation, StoredKernel, open_dumps
from pallas_debug.store.profiles import read_gpu_stats, read_profile
from pallas_debug.tracebacks import WithoutOurFrames


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
    profiles = []
    for stored, compilation in _compiled(function, args, kwargs, options, kernel):
        found = read_profile(stored, compilation)
        if found is None:
            raise CannotRunError(
                f"libtpu wrote no schedule of {stored.own_name} for {compilation.target}"
            )
        profiles.append(found.profile)
    return tuple(profiles)


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
    compiled = _compiled(function, args, kwargs, options, kernel)
    return tuple(read_gpu_stats(*found) for found in compiled)


def _names(target: str | None) -> tuple[str, ...]:
    names = targets_by_name(target, defaults.TARGET)
    if not names:
        raise UsageError(f"stats are for a target, but {target!r} lists none")
    return names


def _compiled(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    kernel: str | None,
) -> Iterator[tuple[StoredKernel, StoredCompilation]]:
    """Dump the kernels of a function to a temporary directory, and yield each compilation."""
    with WithoutOurFrames(), tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        dumps = dump_function(function, args, kwargs, replace(options, dumps=Path(folder))).dumps
        chosen = [dump for dump in dumps if kernel in (None, dump.kernel.name)]
        if not chosen:
            name = getattr(function, "__qualname__", repr(function))
            kernels = ", ".join(dump.kernel.name for dump in dumps)
            raise UsageError(f"{name} calls the kernels {kernels}: but not {kernel!r}")
        for dump in chosen:
            stored = open_dumps(folder).find(dump.name)
            for made in dump.compilations:
                if made.failure is not None:
                    raise CannotRunError(
                        f"{dump.kernel.name} does not compile for {made.target}: "
                        f"{headline(made.failure)}"
                    )
                yield stored, stored.target(made.target)
