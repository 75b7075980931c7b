"""Options of a session, and resolution of their targets and interpret mode."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from pallas_debug import defaults
from pallas_debug.bridge import chip, platform
from pallas_debug.bridge.interpret.params import Mode as Mode
from pallas_debug.bridge.platform import has_accelerator as has_accelerator
from pallas_debug.bridge.platform import leave_out_absent_tpu as leave_out_absent_tpu
from pallas_debug.bridge.platform import without_effect as without_effect
from pallas_debug.compiler import targets
from pallas_debug.compiler.stages import DEFAULT, Stages
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.machine.pace import Pace
from pallas_debug.model import Target

Interpret = Mode | str | None
"""Interpret mode, as text or `Mode`. None means `auto` without an accelerator, otherwise `off`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a session.

    Attributes:
      dumps: directory to dump into, or its URL in an object store; None to only capture.
      targets: names of targets to compile for; empty for none.
      chip: target whose chip is presented to code that queries it; defaults to the first target, or
        to v5e without targets.
      pretend: whether jax's devices answer as that chip too.
      interpret: mode in which kernels run, such as `hlo`, `tpu,detect_races`, `auto` or `off`; None
        means `auto` without an accelerator, otherwise `off`.
      timeout: maximum seconds per compilation.
      jobs: maximum number of compiler processes.
      epoch: sessions with an equal epoch share jax's caches; by default each has its own.
      checks: names of checks for running kernels (`checks/names.py`); empty for none.
      prints: whether to record prints of interpreted kernels, and pass them to the subscribers.
      switches: names of compilation switches (`compiler/switches.py`), such as `log_recorder`.
      stages: stages of compilations to keep besides Mosaic's, if there is a dump directory.
      refilled: digests of kernels for which the kernel machine gives unwritten memory other
        contents than usual, to see whether they matter.
      keeps_call: number of the call of each kernel on the machine whose arrays are kept, from 1.
      pace: is told of the progress of kernels on the kernel machine, and limits their time.
    """

    dumps: str | Path | None = None
    targets: tuple[str, ...] = ()
    chip: str | None = None
    pretend: bool = False
    interpret: Interpret = None
    timeout: float = defaults.COMPILE_TIMEOUT
    jobs: int = 0
    epoch: object | None = None
    checks: tuple[str, ...] = ()
    prints: bool = False
    switches: tuple[str, ...] = ()
    stages: Stages = DEFAULT
    refilled: frozenset[str] = frozenset()
    keeps_call: int | None = None
    pace: Pace | None = None


def mode_of(asked: Interpret) -> Mode:
    """Return the requested interpret mode, which defaults to `auto` without an accelerator.

    Raises:
      UsageError: unknown mode.
    """
    if asked is None:
        platform.leave_out_absent_tpu()
        return Mode("off" if platform.has_accelerator() else "auto")
    return Mode.parse(asked)


def checking(mode: Mode, checks: Collection[str]) -> Mode:
    """Return the mode in which kernels run with checks: the sanitizer's in place of the machine's.

    With `off`, the code decides how kernels run, and checks are inserted into them.
    """
    return sanitizing(mode) if checks and mode.kind in ("auto", "machine") else mode


def require_checkable(mode: Mode, checks: Collection[str]) -> None:
    """Reject checks of kernels in one of jax's interpreters, which nothing observes.

    Raises:
      UsageError: the mode and the checks contradict each other.
    """
    if checks and mode.kind != "off":
        sanitizing(mode, "checking")


def sanitizing(asked: Interpret, what: str = "sanitize=True") -> Mode:
    """Return the interpret mode of the sanitizer.

    Raises:
      UsageError: another mode was requested.
    """
    if asked is not None and Mode.parse(asked).kind not in ("auto", "machine"):
        raise UsageError(
            f"{what} runs kernels on the kernel machine, and interpret={str(asked)!r} in another "
            "mode: pass one of them"
        )
    return Mode.parse(defaults.SANITIZE_MODE)


def resolve_targets(names: tuple[str, ...]) -> tuple[Target, ...]:
    """Return the targets with these names; `tpu` becomes the target of this host's device.

    Raises:
      UnknownTargetError: an unknown name.
      CannotRunError: `tpu` on a host without a TPU.
    """
    if not names:
        return ()
    found = targets.resolve_all(names)
    return tuple(_of_this_host() if t.name == targets.DEVICE.name else t for t in found)


def another_path() -> str:
    """Hint, as a question, for a user whose function called no kernel."""
    if chip.pretended() is not None:
        return "Does it call one only with other arguments?"
    return "Does it call one only with other arguments, or only on a TPU (--pretend)?"


def only_defines(program: str, option: str) -> str:
    """Hint, as a question, for a user whose script or module called no kernel.

    Args:
      option: option of the pytest plugin that does the same for tests.
    """
    if re.fullmatch(r"(test_.*|.*_test)\.py", Path(program).name):
        return f"A file of tests is run by pytest: pytest {option} {program}"
    return "Does it call kernels only on a TPU, or only define them?"


@contextlib.contextmanager
def pretending(names: tuple[str, ...]) -> Iterator[None]:
    """Let jax's devices answer as the first of these targets; a no-op with an accelerator.

    Sessions within it do so too, with the target that they trace for.

    Raises:
      UnknownTargetError: an unknown name.
    """
    (target, *_) = resolve_targets(names)
    platform.leave_out_absent_tpu()
    if platform.has_accelerator():
        yield
        return
    with chip.answering_everywhere(target, pretend=True):
        yield


def _of_this_host() -> Target:
    kind = platform.device_kind()
    target = targets.of_device(kind)
    if target is None:
        raise CannotRunError(
            f"the target `tpu` is the TPU of this host, and jax's device here is {kind!r}. "
            "Name a generation instead, such as v5e."
        )
    return target
