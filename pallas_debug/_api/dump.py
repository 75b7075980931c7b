"""`pallas_debug.dump`: compile the kernels that a function would call, without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug._api.debug import print_problem
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler.targets import split as targets_by_name
from pallas_debug.dumping import dump_function
from pallas_debug.errors import UsageError
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.model import Dump
from pallas_debug.session import Options, Session
from pallas_debug.tracebacks import WithoutOurFrames


def dump(
    function: Callable[..., Any],
    /,
    *args: Any,
    targets: str | Iterable[str] | None = defaults.TARGET,
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

    The function is traced with abstract arguments, once per target if it queries the chip during
    tracing.

    Args:
      function: a function that calls kernels, jitted or not.
      *args: arrays or `jax.ShapeDtypeStruct`s; anything else is passed unchanged.
      targets: names of targets, as a list or joined by commas.
      to: the dump directory; a URL such as `s3://bucket/dumps` for an object store.
      timeout: maximum seconds for one compilation.
      jobs: maximum number of compiler processes; 0 is one per core, up to four.
      switches: names of compilation switches, such as `log_recorder`, as a list or joined by
        commas.
      stages: more of each compilation to keep, as a list or joined by commas: `estimate` for
        libtpu's cycle estimate, `llo` for all LLO passes, `llo:post-ra` for a single one; `mosaic`
        leaves out the VLIW schedule.
      tick: called about ten times a second while compilations run.
      **kwargs: keyword arguments for the function, treated like `args`.

    Returns:
      The kernels in the order of their first lowering, each with its compilations. If a kernel
      failed to compile, `failure` of its compilation says why.

    Raises:
      UnknownTargetError: an unknown target.
      UsageError: the function calls no kernel, there is no target, or a switch or stage is unknown.
      DumpDirectoryError: `to` is not writable.
      LibtpuError: the TPU compiler is not available here.
      InternalError: a bug in pallas-debug prevented a kernel from being captured or compiled.
    """
    with WithoutOurFrames():
        check_function("pallas_debug.dump", function)
        own = inspect.signature(dump).parameters
        check_arguments("pallas_debug.dump", function, args, kwargs, own)
        names = targets_by_name(targets, defaults.TARGET)
        if not names:
            raise UsageError(
                "dump needs a target to compile for: pass one, such as "
                f"targets={defaults.TARGET!r}, or omit the argument; "
                'pallas_debug.debug(targets="") captures without compiling'
            )
        options = Options(
            dumps=to,
            targets=names,
            interpret="off",
            timeout=timeout,
            jobs=jobs,
            switches=switch_names.parse(switches),
            stages=stage_names.parse(stages),
        )
        dumped = dump_function(function, args, kwargs, options, tick=tick)
    for problem in dumped.spared:  # every kernel was compiled anyway
        print_problem(problem)
    return dumped.dumps
