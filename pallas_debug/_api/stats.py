"""`pallas_debug.stats`: statistics of a kernel, from the schedule that libtpu makes for it."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_debug import defaults
from pallas_debug._api.dump import dump
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.findings.sighting import with_text
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.model import Dump
from pallas_debug.render import headline
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile
from pallas_debug.tracebacks import WithoutOurFrames

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile, Stats


def stats(
    function: Callable[..., Any],
    /,
    *args: Any,
    target: str | None = defaults.TARGETS,
    kernel: str | None = None,
    estimate: bool = True,
    assume: Mapping[str, object] | None = None,
    timeout: float = defaults.COMPILE_TIMEOUT,
    **kwargs: Any,
) -> Stats:
    """Compile the kernel that a function calls, and return statistics of its schedule.

        stats = pallas_debug.stats(attention, q, k, v, target="v5e", causal=True)
        stats.cycles.total.value, stats.spills.value

    Nothing is run or saved: to save the schedule, use `dump` with `stages="bundles"`.

    Args:
      function: a function that calls kernels, jitted or not.
      *args: arrays or `jax.ShapeDtypeStruct`s; anything else is passed unchanged.
      target: the chip to compile for.
      kernel: name of the kernel, if the function calls several.
      estimate: whether to also get libtpu's own estimate of cycles, which takes time for each grid
        point.
      assume: values of counts that are known only at run time, by name, such as `{"n1": 12}`; the
        formula of the cycles lists the names, and so does the error about an unknown one.
      timeout: maximum seconds for one compilation.
      **kwargs: keyword arguments for the function, treated like `args`.

    Raises:
      UsageError: the function calls no kernel, or several and `kernel` does not select one; or
        `assume` names no unknown count.
      UnknownTargetError: an unknown target.
      CannotRunError: the kernel does not compile, or there is no compiler.
    """
    with WithoutOurFrames():
        check_function("pallas_debug.stats", function)
        own = inspect.signature(stats).parameters
        check_arguments("pallas_debug.stats", function, args, kwargs, own)
        found = profile_of(
            function, args, kwargs, target=target, kernel=kernel, estimate=estimate, timeout=timeout
        )
        # The folder is gone, and with it the source; a notebook shows the lines.
        counted = replace(found, assume=assume or {}).stats
        costs = (replace(c, source=with_text(c.source) or c.source) for c in counted.lines)
        return replace(counted, lines=tuple(costs))


def profile_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    target: str | None = defaults.TARGETS,
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
    target: str | None = defaults.TARGETS,
    estimate: bool = False,
    timeout: float = defaults.COMPILE_TIMEOUT,
) -> tuple[Profile, ...]:
    """Compile the kernels that a function calls, and return their profiles, in order.

    Raises:
      UsageError, UnknownTargetError, CannotRunError: as `stats`.
    """
    with WithoutOurFrames(), tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
        names = targets_by_name(target, defaults.TARGETS)
        if len(names) != 1 or names == ("all",):
            count = "several" if names else "none"
            raise UsageError(f"stats are for a single target, but {target!r} lists {count}")
        dumps = dump(
            function,
            *args,
            targets=names,
            to=Path(folder),
            timeout=timeout,
            stages="estimate" if estimate else "bundles",
            **kwargs,
        )
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
