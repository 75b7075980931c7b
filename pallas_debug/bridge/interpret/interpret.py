"""Choice of how kernels run: on the device, or in one of jax's interpreters.

jax reads its interpret mode when `pallas_call` is called, and stores it with the call. Here the
mode is chosen when the kernel is bound, so that it also applies to calls made before, and `auto`
can inspect the kernel first. Lowering would be too late: TPU interpret mode has effects, which jax
must know about during tracing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import jax
from jax._src import config, core, dispatch, source_info_util, xla_bridge
from jax._src.interpreters import mlir
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import interrupts
from pallas_debug.bridge import contexts, patches, platform
from pallas_debug.bridge import undo as undoing
from pallas_debug.bridge.active import ActiveStack
from pallas_debug.bridge.hosted import lowering as hosted
from pallas_debug.bridge.interpret import endless, launched, lengths, tpu_run
from pallas_debug.bridge.interpret import limits as interpret_limits
from pallas_debug.bridge.interpret import vmap as interpret_vmap
from pallas_debug.bridge.interpret.extend import gpu
from pallas_debug.bridge.interpret.params import (
    Kind,
    Mode,
    is_hlo,
    is_substitute,
    require_platform,
    substitute,
    way_out,
)
from pallas_debug.bridge.interpret.params import ModeChoice as ModeChoice
from pallas_debug.bridge.jaxprs.params import gpu_backend, name_of
from pallas_debug.errors import DebugNansError, InterpretModeError, PallasDebugError
from pallas_debug.guards import guarded

Chosen = Callable[[ModeChoice], None]

Report = Callable[[PallasDebugError], object]


@dataclass(frozen=True, eq=False)
class _Asked:
    mode: Mode
    value: Any
    chosen: Chosen | None
    report: Report


# Kernels are bound through this file; keep it out of their source locations.
source_info_util.register_exclusion(__file__)

_context = contexts.make()
"""Makes the mode part of jax's cache keys: jax does not know about `auto` and `off`."""

_asked: ActiveStack[_Asked] = ActiveStack()
_local = threading.local()


@contextlib.contextmanager
def interpreting(
    mode: Mode | str,
    *,
    chosen: Chosen | None = None,
    report: Report = lambda problem: None,
) -> Iterator[None]:
    """Run every kernel traced in this context, in any thread, in this mode.

    The innermost of nested contexts applies. After an exception the state of TPU interpret mode is
    reset, because it would otherwise persist; after a normal exit it is kept, because programs in
    other threads may still be running.

    Args:
      mode: a `Mode`, or its text form.
      chosen: called for each kernel that `auto` does not run in HLO interpret mode: at lowering, or
        at tracing if there is no kernel machine.
      report: called with errors in choosing the mode; HLO interpret mode is then used.

    Raises:
      UsageError: unknown mode.
    """
    parsed = Mode.parse(mode)
    asked = _Asked(parsed, substitute(parsed.value()), chosen, report)
    state = config.pallas_tpu_interpret_mode_context_manager
    before, begun = (_context.get_global(), state.get_global()), interrupts.count()
    _push(asked)
    _context.set_global(asked.mode)
    state.set_global(asked.value)
    try:
        with interrupts.listening():
            yield
            if asked.mode.kind != "off":
                wait_for_runs()
    except BaseException as error:
        reset(wait=isinstance(error, Exception))
        if interrupts.is_cause(error, begun):
            raise KeyboardInterrupt from error
        raise
    finally:
        _context.set_global(before[0])
        state.set_global(before[1])
        _remove(asked)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Bind kernels in this thread unchanged, while we lower them for a TPU ourselves."""
    before, _local.suspended = getattr(_local, "suspended", False), True
    try:
        yield
    finally:
        _local.suspended = before


def lowering(rule: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Return jax's lowering rule for a kernel, adapted to the limits of its interpreter.

    A kernel that was traced before a mode was requested runs in HLO interpret mode or on the kernel
    machine if the mode permits; for TPU interpret mode it is too late.

    Args:
      rule: jax's rule for this primitive.
      params: parameters of the kernel.

    Returns:
      A function of the lowering context and the operands.
    """
    interpret = params.get("interpret")
    kind = None if (asked := _current()) is None else asked.mode.kind
    if asked is not None and kind == "machine" and not interpret:
        return _on_the_machine(rule, params, asked.mode)
    if asked is not None and kind == "auto" and hosted.has_host():
        why = None
        if not interpret:
            why = interpret_limits.why_machine(params) or interpret_limits.why_not_hlo(params)
        if why is not None:
            return _instead(rule, params, asked, why)
        if not interpret or is_substitute(interpret):
            return _or_on_the_machine(_interpreted(rule, params, kind), rule, params, asked)
    interpreted = _interpreted(rule, params, kind)
    if kind in ("auto", "gpu") and gpu.is_value(interpret):
        ran = functools.partial(launched.notify, launched.current())
        return gpu.naming_mode(interpreted, params, ran)
    return interpreted


def _interpreted(
    rule: Callable[..., Any], params: Mapping[str, Any], kind: Kind | None
) -> Callable[..., Any]:
    """Lowering rule for a kernel in one of jax's interpreters, or on the device."""
    interpret = params.get("interpret")
    is_late = not interpret and kind in ("auto", "hlo")
    if is_late:
        interpret_limits.require_hlo(params)
    if is_hlo(interpret) or is_late:
        as_traced = params
        if not getattr(
            _local, "suspended", False
        ):  # the second run of a kernel that has already ended
            params = lengths.limited(endless.guarded(params, "checks"))
        plain = _on_plain_arrays(functools.partial(rule, **{**params, "interpret": True}))
        return _or_refused(plain, as_traced) if kind == "hlo" else plain
    if not isinstance(interpret, pltpu.InterpretParams):
        return functools.partial(rule, **params)
    run = interpret_vmap.one_by_one(params)
    if run is not None:
        return cast(Callable[..., Any], mlir.lower_fun(run, multiple_results=True))
    return functools.partial(rule, **interpret_vmap.with_semantics(params))


def _or_refused(interpreted: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Lowering rule that names what HLO interpret mode lacks if that fails to trace a kernel."""

    def lower(context: Any, *nodes: Any) -> Any:
        try:
            return interpreted(context, *nodes)
        except PallasDebugError:
            raise  # a fault of the kernel
        except Exception as error:
            why = interpret_limits.why_not_hlo(params)
            if why is None:
                raise
            raise InterpretModeError(
                f"kernel `{name_of(params)}` cannot be interpreted: {why}. "
                "Run it in TPU interpret mode; `auto` does"
            ) from error

    return lower


def is_for_another_platform(context: Any) -> bool:
    """Return whether a program is lowered for devices on which this process does not run it.

    This is the case for `jax.export` and `lower(lowering_platforms=…)`.

    Args:
      context: jax's context of a lowering rule.
    """
    module = context.module_context
    if len(module.platforms) != 1:
        return False
    backend = module.backend
    own = platform.default_backend() if backend is None else backend.platform
    return bool(xla_bridge.canonicalize_platform(own) != module.platforms[0])


def lower_as_written(
    rule: Callable[..., Any], context: Any, nodes: Sequence[Any], params: Mapping[str, Any]
) -> Any:
    """Lower a kernel with jax's rule as its code requests, whatever mode we have chosen for it."""
    if not is_substitute(params.get("interpret")):
        return rule(context, *nodes, **params)
    return _with_tokens(context, rule(context, *nodes, **{**params, "interpret": False}))


def current_kind() -> Kind:
    """Return the kind of mode in which this thread's kernels run; `off` if none was requested."""
    asked = _current()
    return "off" if asked is None else asked.mode.kind


def _on_the_machine(
    rule: Callable[..., Any], params: Mapping[str, Any], mode: Mode
) -> Callable[..., Any]:
    ran = functools.partial(launched.notify, launched.current())
    otherwise, instead = None, "in HLO interpret mode instead"
    if mode.sanitizes and interpret_limits.why_machine(params) is not None:
        otherwise = hosted.lowering(rule, params, ran)
        instead = "on the kernel machine without being judged"
    elif gpu_backend(params) == "Mosaic GPU":
        pass  # HLO interpret mode has none of its operations
    elif mode.sanitizes and interpret_limits.why_not_hlo(params) is None:
        otherwise = _on_plain_arrays(functools.partial(rule, **{**params, "interpret": True}))
    return hosted.lowering(
        rule,
        params,
        ran,
        is_sanitized=mode.sanitizes,
        watch=mode.watch,
        otherwise=otherwise,
        instead=instead,
    )


def _instead(
    rule: Callable[..., Any], params: Mapping[str, Any], asked: _Asked, why: str
) -> Callable[..., Any]:
    """Lowering rule for a kernel that `auto` runs on the machine, as nothing else can run it."""
    kernel = name_of(params)
    choice = ModeChoice(kernel=kernel, kind="machine", why=why)
    return hosted.lowering(
        rule,
        params,
        functools.partial(launched.notify, launched.current()),
        prepared=None if asked.chosen is None else functools.partial(asked.chosen, choice),
        refusal=lambda error: InterpretModeError(
            f"kernel `{kernel}` cannot be interpreted: {why}; on the kernel machine: {error}. "
            + way_out(params)
        ),
    )


def _or_on_the_machine(
    interpreted: Callable[..., Any],
    rule: Callable[..., Any],
    params: Mapping[str, Any],
    asked: _Asked,
) -> Callable[..., Any]:
    """Lowering rule that runs a kernel on the machine if jax's interpreter fails to trace it.

    `limits` lists kernels that the interpreters are known not to run; this rule handles other
    cases, such as operands in VMEM, or bugs in a single release of jax.
    """
    is_tpu = isinstance(params.get("interpret"), pltpu.InterpretParams)
    mode = "TPU interpret mode" if is_tpu else "HLO interpret mode"

    def lower(context: Any, *nodes: Any) -> Any:
        undo = undoing.mark(context)
        try:
            with tpu_run.without_refusals():
                results = interpreted(context, *nodes)
        except PallasDebugError:
            raise  # a fault of the kernel
        except Exception as error:  # noqa: BLE001 - what an interpreter raises is of any class
            undo()
            message = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
            why = f"{mode} fails to trace it ({message})"
            on_machine = _instead(rule, {**params, "interpret": False}, asked, why)
            try:
                return _with_tokens(context, on_machine(context, *nodes))
            except InterpretModeError as refused:
                raise refused from error
        if is_tpu:
            _notify_chosen(asked, params, interpret_limits.why_not_hlo(params))
        return results

    return lower


def _notify_chosen(
    asked: _Asked, params: Mapping[str, Any], why: str | None, kind: Literal["tpu", "gpu"] = "tpu"
) -> None:
    if why is not None and asked.chosen is not None:
        asked.chosen(ModeChoice(kernel=name_of(params), kind=kind, why=why))


def _with_tokens(context: Any, results: Any) -> Any:
    """Pass on the tokens of effects that a kernel had in TPU interpret mode when it was traced."""
    if context.tokens_in.effects() and context.tokens_out is None:
        context.set_tokens_out(context.tokens_in)
    return results


def _on_plain_arrays(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Lowering rule that hides memory spaces and varying mesh axes from the interpreter.

    HLO interpret mode runs a kernel as array code, in which neither is meaningful: its loop over
    the grid mixes the operands with its own zeros, which vary over no axis, and under
    `jax_enable_checks` jax compares the memory spaces with those of the kernel's references.
    """

    def lower(context: Any, *nodes: Any) -> Any:
        return rule(context.replace(avals_in=tuple(map(_plain, context.avals_in))), *nodes)

    return lower


def _plain(aval: Any) -> Any:
    if not isinstance(aval, core.ShapedArray):
        return aval
    return core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type)


def wait_for_runs() -> None:
    """Wait for interpreted kernels that are still running, and raise their exceptions.

    jax returns before a kernel has run. Without this, its exception would be raised where the
    result is used, and the interpreter's state would not be reset.
    """
    try:
        jax.effects_barrier()
    except BaseException:
        dispatch.runtime_tokens.clear()  # the next program would wait for the one that failed
        raise


def is_of_a_kernel(error: BaseException) -> bool:
    """Return whether a kernel, rather than pallas-debug, raised an exception in `wait_for_runs`."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is wait_for_runs.__code__ for frame, _ in frames)


def reset(*, wait: bool = True) -> None:
    """Reset the state that interpreters keep for a program; required after a kernel's exception.

    Args:
      wait: whether to wait for running kernels first, which would otherwise lose their memory. Do
        not wait after ctrl+c: the kernel may never end.
    """
    if wait:
        with contextlib.suppress(Exception):
            wait_for_runs()
    pltpu.reset_tpu_interpret_mode_state()
    of_gpu = sys.modules.get("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    if of_gpu is not None:
        of_gpu.reset_gpu_interpret_mode_state()


def _push(asked: _Asked) -> None:
    patches.install(patches.MODES)
    patches.install(patches.TPU_EXTENSIONS)
    _asked.add(asked)


def _remove(asked: _Asked) -> None:
    _asked.remove(asked)
    patches.uninstall(patches.TPU_EXTENSIONS)
    patches.uninstall(patches.MODES)


def _current() -> _Asked | None:
    return None if getattr(_local, "suspended", False) else _asked.innermost


class _Inline:
    """jax's settings for `emit_pipeline`, without a primitive that few interpreters know."""

    value = False


def inlining_pipelines(settings: Any) -> Any:
    """Replacement for the settings that `emit_pipeline` reads while it is traced."""

    class Inlining:
        def __getattr__(self, name: str) -> Any:
            asked = _current()
            if name == "use_emit_pipeline_primitive" and asked and asked.mode.kind != "off":
                return _Inline
            return getattr(settings, name)

    return Inlining()


def binding(bind: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for the `bind` of a Pallas primitive."""

    @functools.wraps(bind)
    def bind_in_mode(*args: Any, **params: Any) -> Any:
        asked = _current()
        if asked is not None:
            params["interpret"] = _chosen_value(asked, params)
        if asked is None or not _is_eager_under_debug_nans():
            return bind(*args, **params)
        # After a NaN, jax calls what it jitted without jit. For an eager pallas_call, that is this
        # primitive, which it jits again: without an end, and each time we instrument the kernel.
        if getattr(_eager, "is_inside", False):
            raise DebugNansError("Invalid value (nan or inf) encountered in pallas_call")
        _eager.is_inside = True
        try:
            return bind(*args, **params)
        finally:
            _eager.is_inside = False

    return bind_in_mode


_eager = threading.local()
"""Whether this thread is within an eager call of a kernel, under `jax_debug_nans`."""


def _is_eager_under_debug_nans() -> bool:
    is_debugged = jax.config.jax_debug_nans or jax.config.jax_debug_infs
    return bool(is_debugged) and core.trace_state_clean()


def _chosen_value(asked: _Asked, params: Mapping[str, Any]) -> Any:
    """Interpret value for a kernel; a value other than True in the user's code takes precedence."""
    given = params.get("interpret")
    if not given or is_hlo(given) or is_substitute(given) or given is asked.value:
        require_platform(params, asked.mode.kind)
    if given or asked.mode.kind != "off":
        lengths.require_short(params, asked.mode.kind)
    if asked.mode.kind == "gpu":
        gpu.watch()
    if asked.mode.kind == "auto" and (not given or is_hlo(given)):
        for_gpu = gpu.value_for(params)
        if for_gpu is not None:
            gpu.watch()
            _notify_chosen(asked, params, "it is for a GPU (Mosaic GPU)", "gpu")
            return for_gpu
    if asked.mode.kind == "machine":  # traced in the kernel's final form, as for a TPU
        return given if given and not is_hlo(given) else False
    if asked.mode.kind == "auto" and (not given or is_hlo(given)) and hosted.has_host():
        why = None
        with guarded("hook", "choosing an interpret mode for a kernel", asked.report):
            why = interpret_limits.why_machine(params)
        if why is not None:
            lengths.require_short(params, "machine")
            return False  # for `lowering`, which sees its final form
    elif given or asked.mode.kind != "off":
        interpret_limits.require_any(params)
    if asked.mode.kind == "hlo" and (not given or is_hlo(given)):
        interpret_limits.require_hlo(params)
    if isinstance(given or asked.value, pltpu.InterpretParams):
        with guarded("hook", "looking for padding that a kernel copies", asked.report):
            _notify_chosen(asked, params, interpret_limits.unjudged_padding(params))
    if asked.mode.kind != "auto":
        return given or asked.value or False
    if given and not is_hlo(given):
        return given
    why = None
    with guarded("hook", "choosing an interpret mode for a kernel", asked.report):
        why = interpret_limits.why_not_hlo(params)
    if why is not None:
        lengths.require_short(params, "tpu")
    if not hosted.has_host():  # otherwise, `lowering` knows whether the interpreter can trace it
        _notify_chosen(asked, params, why)
    value = True if why is None else pltpu.InterpretParams()
    return value if given is True else substitute(value)
