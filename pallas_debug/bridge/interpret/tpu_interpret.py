"""Reporting of faults that jax's TPU interpret mode detects, as findings in the user's terms.

jax's interpreter turns a kernel into a program of host callbacks. While `reporting` is open, we
hook in at two points. At tracing, each callback is annotated with information that jax later drops:
the kernel, the line, the operand, the grid point, the loops. At run time, the handlers of
`tpu_handlers.py` wrap jax's functions.

The interpreter still does all the work; without `reporting` it is unaffected.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax._src import core as jax_core
from jax._src import source_info_util
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter

from pallas_debug import defaults, interrupts
from pallas_debug.bridge import contexts, patches
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.interpret import (
    endless,
    interpret,
    launched,
    tpu_handlers,
    tpu_methods,
    tpu_run,
)
from pallas_debug.bridge.interpret import tpu_findings as words
from pallas_debug.bridge.interpret.extend import rules, threads
from pallas_debug.bridge.interpret.tpu_findings import Buffer, Place
from pallas_debug.bridge.interpret.tpu_run import (
    CallbackSite,
    IndexMap,
    TracedAllocation,
    TracedKernel,
)
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.errors import PallasDebugWarning
from pallas_debug.findings.wording import unsupported
from pallas_debug.model import Finding, Operand, SourceLine

_epoch = contexts.make()


@contextlib.contextmanager
def reporting(
    report: Callable[[Finding], None],
    *,
    hang_after: float | None = defaults.HANG_AFTER,
    copies: tpu_run.CopyObserver | None = None,
    stop_after: float | None = None,
) -> Iterator[None]:
    """Report faults that TPU interpret mode detects in this context, in any thread.

    If jax raises an exception for a fault, the program ends with a `KernelFault`, whose text is the
    finding's and part of jax's error. Faults that jax only prints (races before 0.12, semaphores)
    are reported instead. Programs jitted earlier are traced again.

    Args:
      report: called once per kind of fault, kernel, line and operand, in the thread in which XLA
        runs the callback.
      hang_after: seconds without progress in any thread after which a wait is a `Deadlock`; None
        waits forever. Increase it for kernels that compute for longer between two accesses. If
        all cores wait for each other, that is detected within a second.
      copies: notified of races between a copy in flight and another access, which are not reported
        unless the mode detects races; None does not look for them.
      stop_after: maximum seconds of both time and CPU time for a run of a kernel; None for no
        limit.
    """
    reporter = tpu_run.Reporter(report, hang_after, copies, stop_after)
    patches.install(patches.TPU_EXTENSIONS)
    patches.install(patches.TPU_MODE)
    tpu_run.reporters.add(reporter)
    before, stops = _epoch.get_global(), tpu_run.stops
    _epoch.set_global("reporting")
    try:
        yield
        tpu_methods.wait_for_runs(stops)
    except BaseException as error:
        interpret.reset(wait=isinstance(error, Exception))
        raise
    finally:
        _epoch.set_global(before)
        tpu_run.reporters.remove(reporter)
        patches.uninstall(patches.TPU_MODE)
        patches.uninstall(patches.TPU_EXTENSIONS)
        if not tpu_run.reporters:
            threads.forget()


@dataclass(eq=False)
class _Trace:
    """A kernel that the interpreter is tracing.

    Attributes:
      known: values that stand for buffers and semaphores, by identity; the references keep the
        identities unique.
      grid_point, loop: traced values at the current point of the trace.
      body_point: grid point of the kernel body traced last.
      scalars: values that the kernel captures, by the position of the operand. jax would pass the
        number of a buffer in their place.
    """

    kernel: TracedKernel
    jaxpr: Any
    operands: tuple[Operand, ...]
    index_maps: dict[int, str]
    num_axes: int
    known: dict[int, tuple[Any, TracedAllocation]] = field(default_factory=dict)
    grid_point: Any = None
    loop: tuple[Any, ...] = ()
    body_point: Any = None
    scalars: dict[int, Any] = field(default_factory=dict)


class _Tracing(threading.local):
    trace: _Trace | None = None


_tracing = _Tracing()
_traced_kernel_by_jax = interpreter.interpret_pallas_call
_traced_jaxpr_by_jax = interpreter._interpret_jaxpr
_extended = functools.partial(rules.evaluate, _traced_jaxpr_by_jax)


def tracing_kernels(by_jax: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for `interpret_pallas_call`."""
    return functools.wraps(by_jax)(lambda *args, **params: _traced_kernel(*args, **params))


def tracing_jaxprs(by_jax: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for `_interpret_jaxpr`, which jax calls for the kernel and all nested jaxprs."""
    return functools.wraps(by_jax)(lambda *args, **kwargs: _traced_jaxpr(*args, **kwargs))


def observed_callbacks(module: Any) -> Any:
    """Replacement for the module from which the interpreter takes `io_callback`."""
    return _Callbacks(module)


def _traced_kernel(*args: Any, **params: Any) -> Any:
    try:
        params = endless.guarded(params, "tpu interpret")
        trace = _describe(params, args)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        warnings.warn(
            f"pallas-debug cannot follow kernel {params.get('name')} in TPU interpret mode "
            f"({type(error).__name__}: {error}); its faults come in jax's words. "
            "Please report this.",
            PallasDebugWarning,
            stacklevel=2,
        )
        return _traced_kernel_by_jax(*args, **params)
    before, _tracing.trace = _tracing.trace, trace
    try:
        return _traced_kernel_by_jax(*args, **params)
    except Exception as error:
        _report_refusal(trace, error)
        raise
    finally:
        _tracing.trace = before


def _describe(params: Mapping[str, Any], args: Any) -> _Trace:
    jaxpr, grid_mapping = params["jaxpr"], params["grid_mapping"]
    operands = tuple(
        operand
        for operand in capture._operands(params, jaxpr, [jax.typeof(arg) for arg in args])
        if operand.kind != "dynamic_grid"
    )
    blocked = [operand for operand in operands if operand.kind in ("input", "output")]
    blocks = dict(zip([o.name for o in blocked], grid_mapping.block_mappings, strict=True))
    kernel = TracedKernel(
        name=params.get("name") or jaxpr.debug_info.func_name,
        source=_line(source_info_util.current().traceback) or lines.of_function(jaxpr.debug_info),
        maps={o.name: _index_map(o, blocks[o.name].index_map_jaxpr) for o in blocked},
        outputs=tuple(o.name for o in blocked if o.kind == "output"),
        tokens=launched.current(),
        grid=tuple(size if isinstance(size, int) else None for size in grid_mapping.grid),
    )
    return _Trace(
        kernel=kernel,
        jaxpr=jaxpr,
        operands=operands,
        index_maps={id(nested.opened(b.index_map_jaxpr)[0]): name for name, b in blocks.items()},
        num_axes=len(grid_mapping.grid),
        scalars={
            i: arg
            for i, (var, arg) in enumerate(
                zip(jaxpr.invars, args[grid_mapping.num_dynamic_grid_bounds :], strict=False)
            )
            if isinstance(var.aval, jax_core.ShapedArray)
        },
    )


def _index_map(operand: Operand, jaxpr: Any) -> IndexMap:
    source = lines.of_function(jaxpr.debug_info)
    if source is not None and not source_info_util.is_user_filename(source.file):
        source = None  # jax's default map for an operand without a block specification
    array = Buffer(
        name=operand.name,
        shape=operand.shape,
        dtype=operand.dtype,
        space="HBM",
        kind=operand.kind,
    )
    return IndexMap(
        source=source,
        array=array,
        block_shape=operand.block_shape or (),
        from_tables=nested.results_of_refs(nested.opened(jaxpr)[0]),
    )


def _line(traceback: Any) -> SourceLine | None:
    """The innermost line outside jax."""
    frame = source_info_util.user_frame(traceback)
    if frame is None:
        return None
    return lines.line_of(frame.file_name, frame.start_line, frame.function_name)


def _traced_jaxpr(jaxpr: Any, *args: Any, ctx: Any, token: Any) -> Any:
    trace = _tracing.trace
    if trace is None:
        return _extended(jaxpr, *args, ctx=ctx, token=token)
    before = trace.grid_point, trace.loop
    _enter(trace, jaxpr, args, ctx)
    for variable, arg in zip(reversed(jaxpr.invars), reversed(args), strict=False):
        _, allocation = trace.known.get(id(arg), (None, None))
        if allocation is not None and allocation.dtype == "semaphore":
            allocation.counts_bytes = "dma_sem" in str(variable.aval.dtype)
    if jaxpr is trace.jaxpr:
        args = tuple(trace.scalars.get(i, arg) for i, arg in enumerate(args))
    _report_checks(trace, jaxpr)
    try:
        return _extended(jaxpr, *args, ctx=ctx, token=token)
    finally:
        trace.grid_point, trace.loop = before


def _enter(trace: _Trace, jaxpr: Any, args: tuple[Any, ...], ctx: Any) -> None:
    if jaxpr is trace.jaxpr:
        trace.grid_point = trace.body_point = ctx.grid_point
        for operand, arg in zip(trace.operands, args, strict=False):
            _name(trace, arg, operand.name, operand.kind, renames=True)
        return
    if id(jaxpr) in trace.index_maps:
        first = len(jaxpr.constvars)
        trace.grid_point, trace.loop = args[first : first + trace.num_axes], ()
        return
    names = jaxpr.debug_info.arg_names or ()
    for name, arg in zip(reversed(names), reversed(args), strict=False):
        _name(trace, arg, name, "scratch", renames=False)
    counter = _loop_counter(jaxpr, args)
    if counter is not None:
        trace.loop = (*trace.loop, counter)


def _name(trace: _Trace, value: Any, name: str, kind: str, *, renames: bool) -> None:
    _, allocation = trace.known.get(id(value), (None, None))
    if allocation is not None and name and (renames or not allocation.is_named):
        allocation.name, allocation.kind, allocation.is_named = name, kind, True


def _loop_counter(jaxpr: Any, args: tuple[Any, ...]) -> Any:
    """Counter of a loop body: the input whose increment is the first output; None if absent."""
    if not jaxpr.outvars or not jaxpr.invars:
        return None
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "add" and eqn.outvars[0] is jaxpr.outvars[0]:
            variable, step = eqn.invars
            is_one = getattr(step, "val", None) is not None and step.aval.shape == ()
            if is_one and int(step.val) == 1 and variable in jaxpr.invars:
                return args[len(args) - len(jaxpr.invars) + jaxpr.invars.index(variable)]
    return None


def _report_refusal(trace: _Trace, error: Exception) -> None:
    """Report a kernel that the interpreter rejects during tracing.

    Raises:
      KernelFault: the kernel is invalid on any TPU as well.
    """
    source, operand = trace.kernel.source, None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is _traced_jaxpr_by_jax.__code__:
            values = traceback.tb_frame.f_locals
            eqn = values.get("eqn")
            source = (eqn and _line(eqn.source_info.traceback)) or source
            operand = _operand(trace, values["jaxpr"], eqn) or operand
        traceback = traceback.tb_next
    place = Place(kernel=trace.kernel.name, source=source)
    message = str(error).partition("\n")[0]
    if "cannot be referenced directly" in message:
        raise tpu_run.stop(words.direct_access(place, operand)) from error
    tpu_run.report_refusal(words.not_interpreted(place, f"{type(error).__name__}: {message}"))


def _operand(trace: _Trace, jaxpr: Any, eqn: Any) -> Operand | None:
    """Return the equation's first input if it is an operand of the kernel."""
    if jaxpr is not trace.jaxpr or eqn is None or not eqn.invars:
        return None
    known = (o for v, o in zip(jaxpr.invars, trace.operands, strict=False) if v is eqn.invars[0])
    return next(known, None)


def _report_checks(trace: _Trace, jaxpr: Any) -> None:
    """Report checks, which jax rejects when lowering the interpreted program, without a line."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "check" and not eqn.params.get("debug"):
            place = Place(kernel=trace.kernel.name, source=_line(eqn.source_info.traceback))
            tpu_run.report(unsupported.unsupported_check(place.sighting()))


class _Callbacks:
    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def io_callback(self, function: Any, result: Any, *args: Any, **options: Any) -> Any:
        trace = _tracing.trace
        jax_function, keywords = _parts(function)
        name = getattr(jax_function, "__name__", "")
        if trace is None or (name not in tpu_handlers.HANDLERS and name != _INITIALIZE):
            function = tpu_methods.HostFunction(function)
            return self._module.io_callback(function, result, *args, **options)
        site = _site(trace, name, jax_function, keywords, args)
        where = trace.grid_point, trace.loop
        if name == "_check_for_revisiting":
            # It follows the body that was just traced, in the same loop over the grid.
            where = trace.body_point, ()
        callback = tpu_methods.HostFunction(_observed(name, site, jax_function, keywords))
        out = self._module.io_callback(callback, result, *args, where, **options)
        if site.allocation is not None:
            trace.known[id(out[1])] = (out[1], site.allocation)
        return out


_INITIALIZE = "_initialize_shared_memory"


def _parts(function: Any) -> tuple[Any, Mapping[str, Any]]:
    if isinstance(function, functools.partial):
        return function.func, function.keywords
    return function, {}


def _site(
    trace: _Trace, name: str, function: Any, keywords: Mapping[str, Any], args: tuple[Any, ...]
) -> CallbackSite:
    parameters = tuple(inspect.signature(function).parameters)
    arguments = dict(zip(parameters, args, strict=False))
    info = keywords.get("source_info") or source_info_util.current()
    operand = keywords.get("input_name") or keywords.get("output_name")
    if operand:
        kind = "input" if keywords.get("input_name") else "output"
        _name(trace, arguments["buffer_id"], operand, kind, renames=True)
    return CallbackSite(
        kernel=trace.kernel,
        parameters=parameters,
        source=_line(info.traceback) or trace.kernel.source,
        allocation=_allocation(name, arguments),
    )


def _allocation(name: str, arguments: Mapping[str, Any]) -> TracedAllocation | None:
    if name == "_allocate_semaphores":
        return TracedAllocation(tuple(arguments["shape"]), "semaphore", "semaphore")
    if name == "_allocate_buffer":
        value, space = arguments["val"], int(arguments["memory_space"])
        return TracedAllocation(
            tuple(value.shape), str(value.dtype), interpreter.TPU_MEMORY_SPACE_NAMES[space]
        )
    return None


def _observed(
    name: str, site: CallbackSite, function: Any, keywords: Mapping[str, Any]
) -> Callable[..., Any]:
    """Wrap jax's function in our handler.

    The handler is inside jax's own wrappers, so that jax records our fault and shows it to other
    devices.
    """
    inner = inspect.unwrap(function)

    @functools.wraps(inner)
    def observed(*args: Any) -> Any:
        *args_of_jax, (grid_point, loop) = args
        call = functools.partial(inner, *args_of_jax, **keywords)
        arguments = {**dict(zip(site.parameters, args_of_jax, strict=False)), **keywords}
        if tpu_run.reporters and name == _INITIALIZE:
            return tpu_handlers.initialize(site, call, arguments)
        run = tpu_run.current_run()
        if not tpu_run.reporters or run is None:
            return call()
        place = site.place(arguments, grid_point, loop)
        run.progress(changes=name != "get")
        interrupts.end_if_since(run.interrupts)
        try:
            tpu_run.check_slow(run, place)
            return tpu_handlers.HANDLERS[name](run, site, place, call, arguments)
        finally:
            run.progress()

    if inner is function:
        return observed
    return interpreter.fail_on_exception(observed)  # type: ignore[no-any-return]
