"""Who runs a kernel: the device, or one of jax's interpreters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

from jax._src import config
from jax.experimental.pallas import tpu as pltpu

Mode = Literal["hlo", "tpu"]

MODES: tuple[Mode, ...] = ("hlo", "tpu")


def mode_value(mode: Mode) -> Any:
    """What jax takes for a mode: `True` is HLO interpret mode, `InterpretParams` the TPU's."""
    return True if mode == "hlo" else pltpu.InterpretParams()


@contextlib.contextmanager
def interpreting(mode: Mode) -> Iterator[None]:
    """Every kernel that is traced meanwhile, in any thread, runs in this mode.

    jax offers a context manager for the thread at hand, and the state behind it is part of the
    key of its jit caches; it is the state's global value that is set here. What TPU interpret
    mode keeps of a program is forgotten after an exception alone: after a normal end the program
    may still be running, as jax dispatches it and goes on.
    """
    state = config.pallas_tpu_interpret_mode_context_manager
    before = state.get_global()
    state.set_global(mode_value(mode))
    try:
        yield
    except BaseException:
        if mode == "tpu":
            reset()
        raise
    finally:
        state.set_global(before)


def reset() -> None:
    """Forget the state of TPU interpret mode; needed after an exception in a kernel."""
    pltpu.reset_tpu_interpret_mode_state()
