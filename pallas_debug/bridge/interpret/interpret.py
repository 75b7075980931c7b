"""Choice of how kernels run: on the kernel machine, in one of jax's interpreters, or on the device.

The machine is chosen when a kernel is lowered. A mode of jax is set earlier, when the kernel is
bound: its effects must be known while the program is traced. jax alone reads it when `pallas_call`
is made, which may have been before the mode was requested. jax's interpreters run unmodified.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.pallas import tpu as pltpu

from pallas_debug import interrupts
from pallas_debug.bridge import patches, platform
from pallas_debug.bridge.active import ActiveStack, ThreadValue, user_context
from pallas_debug.bridge.hosted import launched
from pallas_debug.bridge.hosted import lowering as hosted
from pallas_debug.bridge.interpret.params import ChosenMode, Kind, Mode
from pallas_debug.bridge.jaxcompat import (
    config,
    dispatch,
    gpu_callbacks,
    source_info_util,
    xla_bridge,
)


@dataclass(frozen=True, eq=False)
class _Asked:
    mode: Mode
    value: Any


# Kernels are bound through this file; keep it out of their source locations.
source_info_util.register_exclusion(__file__)

_context = user_context()
"""Makes the mode part of jax's cache keys: jax does not know about `auto`, `machine` and `off`."""

_asked: ActiveStack[_Asked] = ActiveStack()
_suspended = ThreadValue(False)


@contextlib.contextmanager
def interpreting(mode: Mode | str) -> Iterator[None]:
    """Run every kernel traced in this context, in any thread, in this mode.

    The innermost of nested contexts applies. After an exception the state of jax's interpreters is
    reset, because it would otherwise persist; after a normal exit it is kept, because programs in
    other threads may still be running.

    Args:
      mode: a `Mode`, or its text form.

    Raises:
      UsageError: unknown mode.
    """
    parsed = Mode.parse(mode)
    asked = _Asked(parsed, parsed.value())
    state = config.pallas_tpu_interpret_mode_context_manager
    before, begun = (_context.get_global(), state.get_global()), interrupts.count()
    patches.install(patches.MODES)
    _asked.add(asked)
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
        _asked.remove(asked)
        patches.uninstall(patches.MODES)


def suspended() -> contextlib.AbstractContextManager[None]:
    """Bind kernels in this thread unchanged, while we lower them for a TPU ourselves."""
    return _suspended.setting(True)


def lowering(rule: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the lowering rule for a kernel in the current mode.

    A kernel that was traced before a mode was requested runs on the machine or in HLO interpret
    mode; for jax's other modes it is too late.

    Args:
      rule: jax's rule for this primitive.
      params: parameters of the kernel.

    Returns:
      A function of the lowering context and the operands.
    """
    asked, interpret = _current(), params.get("interpret")
    if asked is not None and not interpret:
        if asked.mode.kind in ("auto", "machine") and hosted.has_host():
            ran = functools.partial(launched.notify, launched.current())
            mode = asked.mode
            return hosted.lowering(rule, params, ran, is_sanitized=mode.sanitizes)
        if asked.mode.kind == "hlo":
            interpret = ChosenMode.HLO
    return functools.partial(rule, **{**params, "interpret": interpret})


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
    asked, interpret = _current(), params.get("interpret")
    if interpret is ChosenMode.MACHINE:
        return rule(context, *nodes, **{**params, "interpret": True})
    if asked is None or not interpret or interpret != asked.value:
        return rule(context, *nodes, **params)
    results = rule(context, *nodes, **{**params, "interpret": False})
    # Pass on the tokens of the effects that the kernel had when it was traced.
    if context.tokens_in.effects() and context.tokens_out is None:
        context.set_tokens_out(context.tokens_in)
    return results


def current_kind() -> Kind:
    """Return the kind of mode in which this thread's kernels run; `off` if none was requested."""
    asked = _current()
    return "off" if asked is None else asked.mode.kind


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
    if gpu_callbacks.loaded is not None:
        gpu_callbacks.reset_gpu_interpret_mode_state()


def _current() -> _Asked | None:
    return None if _suspended.value else _asked.innermost


def binding(bind: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for the `bind` of a Pallas primitive."""

    @functools.wraps(bind)
    def bind_in_mode(*args: Any, **params: Any) -> Any:
        asked = _current()
        if asked is not None:
            params["interpret"] = _value(asked, params)
        return bind(*args, **params)

    return bind_in_mode


def _value(asked: _Asked, params: Mapping[str, Any]) -> Any:
    """Value of `interpret` for a kernel; parameters of jax's in the user's code have precedence."""
    given = params.get("interpret")
    if asked.mode.kind == "off" or (given and given is not True and given is not ChosenMode.HLO):
        return given
    return asked.value or (ChosenMode.MACHINE if given is True else False)
