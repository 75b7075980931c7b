"""Compilation of the kernels that a function would call, without running it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import trace
from pallas_debug.bridge.walk import prefetch
from pallas_debug.bridge.walk.block_map import block_map
from pallas_debug.errors import InternalError, PallasDebugError, UsageError
from pallas_debug.guards import guarded
from pallas_debug.model import Dump, OperandKind
from pallas_debug.profile.blocks import BlockMap
from pallas_debug.session.options import Options, another_path
from pallas_debug.session.session import Session
from pallas_debug.tracebacks import WithoutOurFrames

Tables = Mapping[str, Sequence[prefetch.Tables]]
"""Values of scalar operands, per call, by the kernel's digest."""


@dataclass(frozen=True, kw_only=True)
class Dumped:
    """Result of dumping the kernels of a function.

    Attributes:
      dumps: in the order of their first lowering.
      captures: the kernels as they were lowered.
      spared: bugs of ours that affected no kernel's files.
    """

    dumps: tuple[Dump, ...]
    captures: tuple[Capture, ...]
    spared: tuple[PallasDebugError, ...]


def dump_function(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Options,
    tick: Callable[[Session], None] | None = None,
) -> Dumped:
    """Trace a function with abstract arguments and compile its kernels; see `pallas_debug.dump`.

    Args:
      tick: called about ten times a second while compilations run.
    """
    with WithoutOurFrames(), Session(options) as session:
        session.start_compiler()
        every: list[Capture] = []
        for target in session.targets:
            with session.collecting() as captures:
                asked = trace.lower_for_kernels(function, args, kwargs, target)
            every += captures
            # Tracing for another chip may produce different kernels.
            session.queue.request(captures, (target,) if asked else session.targets)
            with guarded("capture", "computing the scalar prefetch of kernels", session.report):
                tables = partial(prefetch.tables, function, args, kwargs, target)
                session.stored.wait()  # for less complete maps of the same blocks
                if (store := session.store) is not None:
                    for captured, blocks in _mapped(captures, tables):
                        store.put_blocks(captured.kernel, blocks)
            if not asked:
                break
        name = getattr(function, "__qualname__", repr(function))
        try:
            session.wait(None if tick is None else lambda: tick(session))
        finally:  # afterwards, because the record lists what was not compiled
            session.record_run(f"{getattr(function, '__module__', 'function')}.{name}")
    for problem in session.problems:
        if session.uncaptured or not _is_spared(session, problem):
            raise problem
    if not session.dumps:
        raise UsageError(
            f"{name} calls no Pallas kernel with these arguments: nothing to dump. "
            + another_path()
        )
    return Dumped(dumps=tuple(session.dumps), captures=tuple(every), spared=tuple(session.problems))


def traced_blocks(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], target: str
) -> tuple[tuple[str, BlockMap], ...]:
    """Trace a function, and return the name and the blocks of each kernel without compiling it.

    Raises:
      UsageError: the function calls no kernel.
    """
    options = Options(targets=(target,), interpret="off")
    with WithoutOurFrames(), Session(options) as session:
        with session.collecting() as captures:
            trace.lower_for_kernels(function, args, kwargs, session.targets[0])
        tables = partial(prefetch.tables, function, args, kwargs, session.targets[0])
        maps = {c.kernel.digest: block_map(c) for c in captures}
        maps |= {c.kernel.digest: found for c, found in _mapped(captures, tables)}
    if not maps:
        raise UsageError("the function calls no Pallas kernel with these arguments")
    return tuple((c.kernel.name, maps[c.kernel.digest]) for c in captures)


def _is_spared(session: Session, problem: PallasDebugError) -> bool:
    """Return whether a problem is a bug of ours that affected no kernel's files."""
    if isinstance(problem, InternalError):
        lost = {str(known) for known in session.queue.lost.values()}
        return problem.boundary != "store" and str(problem) not in lost
    return False


def _mapped(
    captures: Iterable[Capture], tables: Callable[[], Tables]
) -> Iterator[tuple[Capture, BlockMap]]:
    """Yield the blocks of kernels with scalar operands, with the values of the first call.

    Args:
      tables: computes the values.
    """
    kinds: tuple[OperandKind, ...] = ("scalar_prefetch", "dynamic_grid")
    kernels = [c for c in captures if any(map(c.kernel.of_kind, kinds))]
    known = tables() if kernels else {}
    for captured in kernels:
        for values in known.get(captured.kernel.digest, ())[:1]:
            sizes = len(captured.kernel.of_kind("dynamic_grid"))
            given = {i: table for i, table in enumerate(values[sizes:]) if table is not None}
            yield captured, block_map(captured, given, values[:sizes])
