"""Profiles of the kernels that a function would call, compiled in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.dumping import dump_function
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Dump
from pallas_debug.profile.stats import Profile
from pallas_debug.render import headline
from pallas_debug.session.options import Options
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile
from pallas_debug.tracebacks import WithoutOurFrames


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
    found = profiles_of(function, args, kwargs, target=target, estimate=estimate, timeout=timeout)
    chosen = [profile for profile in found if kernel is None or profile.name == kernel]
    if len(chosen) != 1:
        name = getattr(function, "__qualname__", repr(function))
        wanted = "select one with kernel=" if kernel is None else f"but not {kernel!r}"
        kernels = ", ".join(profile.name for profile in found)
        raise UsageError(f"{name} calls the kernels {kernels}: {wanted}")
    return chosen[0]


def profiles_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | None = defaults.TARGET,
    estimate: bool = False,
    timeout: float = defaults.COMPILE_TIMEOUT,
) -> tuple[Profile, ...]:
    """Compile the kernels that a function calls, and return their profiles, in order.

    Raises:
      UsageError, UnknownTargetError, CannotRunError: as `stats`.
    """
    with WithoutOurFrames(), tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        names = targets_by_name(target, defaults.TARGET)
        if len(names) != 1 or names == ("all",):
            count = "several" if names else "none"
            raise UsageError(f"stats are for a single target, but {target!r} lists {count}")
        options = Options(
            dumps=Path(folder),
            targets=names,
            interpret="off",
            timeout=timeout,
            stages=stage_names.Stages(bundles=True, estimate=estimate),
        )
        dumps = dump_function(function, args, kwargs, options).dumps
        return tuple(_profile(Path(folder), made) for made in dumps)


def _profile(folder: Path, made: Dump) -> Profile:
    compilation = made.compilations[0]
    if compilation.failure is not None:
        raise CannotRunError(
            f"{made.kernel.name} does not compile for {compilation.target}: "
            f"{headline(compilation.failure)}"
        )
    stored = open_dumps(folder).find(made.name)
    found = read_profile(stored, stored.target(compilation.target))
    if found is None:
        raise CannotRunError(
            f"libtpu wrote no schedule of {made.kernel.name} for {compilation.target}"
        )
    return found.profile
