"""`pallas_debug.stats`: statistics of a kernel, from the schedule that libtpu makes for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pallas_debug import defaults
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import UsageError
from pallas_debug.findings.sighting import with_text
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.profiling import gpu_stats_of, profiles_of
from pallas_debug.store.profiles import is_for_gpu
from pallas_debug.tracebacks import WithoutOurFrames

if TYPE_CHECKING:
    from pallas_debug.profile.gpu import GpuStats
    from pallas_debug.profile.stats import Stats

_T = TypeVar("_T")


def stats(
    function: Callable[..., Any],
    /,
    *args: Any,
    target: str | None = defaults.TARGET,
    kernel: str | None = None,
    estimate: bool = True,
    assume: Mapping[str, object] | None = None,
    timeout: float = defaults.COMPILE_TIMEOUT,
    **kwargs: Any,
) -> Stats | GpuStats:
    """Compile the kernel that a function calls, and return statistics of its schedule.

        stats = pallas_debug.stats(attention, q, k, v, target="v5e", causal=True)
        stats.cycles.total.value, stats.spills.value

    Nothing is run or saved; `dump` saves the schedule. For a GPU the statistics are of its machine
    instructions: registers, shared memory, occupancy, instructions by class and line.

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
        names = targets_by_name(target, defaults.TARGET)
        if len(names) > 1 or names == ("all",):
            raise UsageError(f"stats are for a single target, but {target!r} lists several")
        how: dict[str, Any] = {"target": target, "kernel": kernel, "timeout": timeout}
        if is_for_gpu(",".join(names)):
            counted = gpu_stats_of(function, args, kwargs, **how)
            return _only(function, counted, [stats.kernel for stats in counted])
        found = profiles_of(function, args, kwargs, estimate=estimate, **how)
        profile = _only(function, found, [profile.name for profile in found])
        # The folder is gone, and with it the source; a notebook shows the lines.
        made = replace(profile, assume=assume or {}).stats
        costs = (replace(c, source=with_text(c.source) or c.source) for c in made.lines)
        return replace(made, lines=tuple(costs))


def _only(function: Callable[..., Any], found: Sequence[_T], kernels: Sequence[str]) -> _T:
    if len(found) > 1:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(f"{name} calls the kernels {', '.join(kernels)}: select one with kernel=")
    return found[0]
