"""`pallas_debug.dump`: compile the kernels that a function would call, without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug._api.debug import say_problem
from pallas_debug.bridge.lowering import trace
from pallas_debug.bridge.walk import prefetch
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.errors import InternalError, PallasDebugError, PluginError, UsageError
from pallas_debug.guards import check_function
from pallas_debug.model import Dump
from pallas_debug.session import Options, Session
from pallas_debug.session.mapping import map_prefetched
from pallas_debug.store.remote.paths import place
from pallas_debug.tracebacks import WithoutOurFrames


def dump(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] = defaults.TARGETS,
    to: str | Path = defaults.DIRECTORY,
    timeout: float = defaults.COMPILE_TIMEOUT,
    jobs: int = 0,
    switches: str | Iterable[str] = (),
    stages: str | Iterable[str] = (),
    tick: Callable[[Session], None] | None = None,
    **kwargs: Any,
) -> tuple[Dump, ...]:
    """Compile the kernels that a function would call, without running it.

        dumps = pallas_debug.dump(attention, q, k, v, targets="v5e,v6e", causal=True)
        dumps[0].compilation("v5e").status

    The function is traced with abstract arguments; once per target if it queries its chip during
    tracing.

    Args:
      function: that calls kernels, jitted or not.
      *args: arrays or `jax.ShapeDtypeStruct`s; anything else is passed unchanged.
      targets: names, as a list or joined by commas.
      to: the dump directory; a URL such as `s3://bucket/dumps` for one in an object store.
      timeout: seconds for one compilation.
      jobs: maximum number of compiler processes; 0 is one per core, up to four.
      switches: names of compilation switches, such as `log_recorder`, as a list or joined by
        commas.
      stages: stages of each compilation to keep besides `mosaic`, as a list or joined by commas:
        `bundles` for the VLIW schedule, `estimate` for libtpu's cycle estimate too, `llo` for all
        LLO passes, `llo:post-ra` for single ones.
      tick: called about ten times a second while compilations run.
      **kwargs: for the function, like `args`.

    Returns:
      The kernels in the order of their first lowering, each with its compilations; if a kernel
      failed to compile, its compilation's `failure` says why.

    Raises:
      UnknownTargetError: an unknown target.
      UsageError: the function calls no kernel, or a switch or stage is unknown.
      DumpDirectoryError: `to` cannot be written to.
      LibtpuError: the TPU compiler is not available here.
      InternalError: a bug in pallas-debug prevented a kernel from being captured or compiled.
    """
    check_function("pallas_debug.dump", function)
    options = Options(
        dumps=place(to),
        targets=targets_by_name(targets),
        interpret="off",
        timeout=timeout,
        jobs=jobs,
        switches=switch_names.parse(switches),
        stages=stage_names.parse(stages).names,
    )
    with WithoutOurFrames(), Session(options) as session:
        session.start_compiler()
        for target in session.targets:
            with session.collecting() as captures:
                asked = trace.lower_for_kernels(function, args, kwargs, target)
            # Tracing for another chip may produce other kernels.
            session.request(captures, (target,) if asked else session.targets)
            tables = partial(prefetch.tables, function, args, kwargs, target)
            map_prefetched(session.store, captures, tables, session.report)
            if not asked:
                break
        name = getattr(function, "__qualname__", repr(function))
        session.record_run(f"{getattr(function, '__module__', 'function')}.{name}")
        session.wait(None if tick is None else lambda: tick(session))
    for problem in session.problems:
        if session.uncaptured or not _is_spared(session, problem):
            raise problem
        say_problem(problem)  # every kernel was compiled nevertheless
    if not session.dumps:
        raise UsageError(
            f"{name} calls no Pallas kernel with these arguments: nothing to dump. "
            "Does it take another path for them, or off a TPU?"
        )
    return tuple(session.dumps)


def _is_spared(session: Session, problem: PallasDebugError) -> bool:
    """Return whether a problem is a bug, ours or a plugin's, that affected no kernel's files."""
    if isinstance(problem, InternalError):
        lost = {str(known) for known in session.lost.values()}
        return problem.boundary != "store" and str(problem) not in lost
    return isinstance(problem, PluginError)
