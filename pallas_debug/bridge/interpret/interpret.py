"""Who runs a kernel: the device, or one of jax's interpreters.

jax reads its interpret mode when `pallas_call` is made, and keeps it with the call. Here the mode
is settled when a kernel is bound: those too are interpreted whose call was made before, and `auto`
can look at the kernel before it chooses. It cannot wait for the lowering, as TPU interpret mode has
effects, which jax must know of when it traces.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax._src import config, dispatch, source_info_util
from jax._src.interpreters import mlir
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import patches
from pallas_debug.bridge.interpret import limits as interpret_limits
from pallas_debug.bridge.interpret import vmap as interpret_vmap
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.jaxprs.params import name_of
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import guarded

Chosen = Callable[[str, str], None]
"""Told of a kernel that `auto` has run in TPU interpret mode: its name, and why."""

Report = Callable[[PallasDebugError], object]


@dataclass(frozen=True, eq=False)
class _Asked:
    mode: Mode
    value: Any
    chosen: Chosen | None
    report: Report


# Every kernel is bound through a function of this file, and is not of this file.
source_info_util.register_exclusion(__file__)

_context = jax.make_user_context(None)
"""The mode is part of the key of jax's caches: `auto` and `off` are nothing that jax knows of."""

_lock = threading.RLock()
_asked: tuple[_Asked, ...] = ()
_local = threading.local()


@contextlib.contextmanager
def interpreting(
    mode: Mode | str,
    *,
    chosen: Chosen | None = None,
    report: Report = lambda problem: None,
) -> Iterator[None]:
    """Every kernel that is traced meanwhile, in any thread, runs in this mode.

    The innermost of several holds. What TPU interpret mode keeps of a program is forgotten after an
    exception, with which it would keep it for ever; after a normal end another thread's program may
    still be running.

    Args:
      mode: as a `Mode`, or as it is written.
      chosen: told of each kernel that `auto` has run in TPU interpret mode, as it is traced.
      report: given what goes wrong with the choice; HLO interpret mode is then taken.

    Raises:
      UsageError: no such mode.
    """
    parsed = Mode.parse(mode)
    asked = _Asked(parsed, parsed.value(), chosen, report)
    state = config.pallas_tpu_interpret_mode_context_manager
    before = (_context.get_global(), state.get_global())
    _push(asked)
    _context.set_global(asked.mode)
    state.set_global(asked.value)
    try:
        yield
        if asked.mode.kind != "off":
            settle()
    except BaseException as error:
        reset(wait=isinstance(error, Exception))
        raise
    finally:
        _context.set_global(before[0])
        state.set_global(before[1])
        _remove(asked)


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """In this thread, kernels are bound as they are: we lower them for a TPU ourselves."""
    before, _local.suspended = getattr(_local, "suspended", False), True
    try:
        yield
    finally:
        _local.suspended = before


def lowering(rule: Callable[..., Any], params: Mapping[str, Any]) -> Callable[..., Any]:
    """The lowering rule for a kernel: jax's own, with what its interpreter can take.

    A kernel that was traced before anybody asked for a mode runs in HLO interpret mode, as far as
    this mode will do: for any other it is too late.

    Args:
      rule: jax's own for this primitive.
      params: of the kernel.

    Returns:
      A function of the lowering context and the operands.
    """
    interpret = params.get("interpret")
    kind = None if (asked := _current()) is None else asked.mode.kind
    if not interpret and kind in ("auto", "hlo"):
        return functools.partial(rule, **{**params, "interpret": True})
    if not isinstance(interpret, pltpu.InterpretParams):
        return functools.partial(rule, **params)
    run = interpret_vmap.one_by_one(params)
    if run is not None:
        return cast(Callable[..., Any], mlir.lower_fun(run, multiple_results=True))
    return functools.partial(rule, **interpret_vmap.with_semantics(params))


def settle() -> None:
    """Wait for interpreted kernels that are still running, and raise what went wrong with them.

    jax returns before a kernel has run. Its exception would be raised where the result is
    used, and the interpreter's state would not be reset.
    """
    try:
        jax.effects_barrier()
    except BaseException:
        dispatch.runtime_tokens.clear()  # the next program would wait for the one that failed
        raise


def is_of_a_kernel(error: BaseException) -> bool:
    """Whether an exception came up while `settle` waited for kernels: it is not ours."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is settle.__code__ for frame, _ in frames)


def reset(*, wait: bool = True) -> None:
    """Forget what the interpreters keep of a program; needed after an exception in a kernel.

    Args:
      wait: until what is still running has ended, which would find its memory gone. Not after
        ctrl+c: it may be a kernel that waits for ever.
    """
    if wait:
        with contextlib.suppress(Exception):
            settle()
    pltpu.reset_tpu_interpret_mode_state()
    gpu = sys.modules.get("jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks")
    if gpu is not None:
        gpu.reset_gpu_interpret_mode_state()


def _push(asked: _Asked) -> None:
    global _asked
    patches.install(patches.MODES)
    with _lock:
        _asked = (*_asked, asked)


def _remove(asked: _Asked) -> None:
    global _asked
    with _lock:
        _asked = tuple(other for other in _asked if other is not asked)
    patches.uninstall(patches.MODES)


def _current() -> _Asked | None:
    asked = _asked  # another thread may take the last one away
    return asked[-1] if asked and not getattr(_local, "suspended", False) else None


def binding(bind: Callable[..., Any]) -> Callable[..., Any]:
    """In place of a Pallas primitive's `bind`."""

    @functools.wraps(bind)
    def bind_in_mode(*args: Any, **params: Any) -> Any:
        asked = _current()
        if asked is not None:
            params["interpret"] = _chosen_value(asked, params)
        return bind(*args, **params)

    return bind_in_mode


def _chosen_value(asked: _Asked, params: Mapping[str, Any]) -> Any:
    """What the kernel is interpreted by; the code's own word holds where it is more than True."""
    given = params.get("interpret")
    if asked.mode.kind != "auto":
        return given or asked.value or False
    if given and given is not True:
        return given
    why = None
    with guarded("hook", "choosing an interpret mode for a kernel", asked.report):
        why = interpret_limits.why_not_hlo(params)
    if why is None:
        return True
    if asked.chosen is not None:
        asked.chosen(name_of(params), why)
    return pltpu.InterpretParams()
