"""`pallas_debug.stats`: statistics of a kernel, from the schedule that libtpu makes for it."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pallas_debug import defaults
from pallas_debug._api.dump import dump
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.findings.sighting import with_text
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.render import headline
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile
from pallas_debug.tracebacks import WithoutOurFrames

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Stats


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
        formula of the cycles, and a name that there is not, list the names.
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
        names = targets_by_name(target, defaults.TARGETS)
        if len(names) != 1 or names == ("all",):
            count = "several" if names else "none"
            raise UsageError(f"stats are for a single target, but {target!r} lists {count}")
        with tempfile.TemporaryDirectory(prefix="pallas-debug-") as folder:
            dumps = dump(
                function,
                *args,
                targets=names,
                to=Path(folder),
                timeout=timeout,
                stages="estimate" if estimate else "bundles",
                **kwargs,
            )
            kernels = [found.kernel.name for found in dumps]
            chosen = [d for d in dumps if kernel is None or kernel in (d.kernel.name, d.name)]
            if len(chosen) != 1:
                name = getattr(function, "__qualname__", repr(function))
                wanted = "select one with kernel=" if kernel is None else f"but not {kernel!r}"
                raise UsageError(f"{name} calls the kernels {', '.join(kernels)}: {wanted}")
            compilation = chosen[0].compilations[0]
            if compilation.failure is not None:
                raise CannotRunError(
                    f"{chosen[0].kernel.name} does not compile for {compilation.target}: "
                    f"{headline(compilation.failure)}"
                )
            stored = open_dumps(Path(folder)).find(chosen[0].name)
            found = read_profile(stored, stored.target(compilation.target))
            if found is None:
                raise CannotRunError(
                    f"libtpu wrote no schedule of {chosen[0].kernel.name} for {compilation.target}"
                )
            # The folder goes, and with it the source; a notebook shows the lines.
            counted = replace(found.profile, assume=assume or {}).stats
            costs = (replace(c, source=with_text(c.source) or c.source) for c in counted.lines)
            return replace(counted, lines=tuple(costs))
