"""Options of a session, and resolution of the targets and interpret mode that they name."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.bridge import chip, platform
from pallas_debug.bridge.interpret.params import Mode as Mode
from pallas_debug.bridge.platform import has_accelerator as has_accelerator
from pallas_debug.bridge.platform import leave_out_absent_tpu as leave_out_absent_tpu
from pallas_debug.compiler import targets
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.hooks import extra_targets, plugin_manager
from pallas_debug.model import Target

Interpret = Mode | str | None
"""Interpret mode, as text or `Mode`. None means `auto` without an accelerator, else `off`."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a session.

    Attributes:
      dumps: directory to dump into; None to only capture.
      targets: names to compile for; empty for none.
      chip: target whose chip is presented to code that queries it; defaults to the first target, or
        to v5e without targets.
      pretend: whether jax's devices answer as that chip too; a name is that of another target,
        which is then the chip.
      interpret: mode in which kernels run, such as `hlo`, `tpu,detect_races`, `auto` or `off`; None
        means `auto` without an accelerator, else `off`.
      timeout: seconds per compilation.
      jobs: maximum number of compiler processes.
      epoch: sessions with an equal epoch share jax's caches; by default each has its own.
      checks: names of checks for running kernels (`checks/names.py`); empty for none.
      prints: record prints of interpreted kernels, and pass them to the plugins.
      switches: options of compilations by name (`compiler/switches.py`), such as `log_recorder`.
      stages: of compilations that are kept (`compiler/stages.py`), such as `bundles`.
      stops_unfit: stop the program at a kernel that has no room in a chip's memory: on any of the
        targets, on the chip, or, without either, on any TPU.
      hang_after: seconds without progress after which a kernel in TPU interpret mode is stopped.
      stop_after: seconds, of time and of CPU time, after which a kernel in TPU interpret mode is
        stopped although it makes progress; None sets no limit.
    """

    dumps: Path | None = None
    targets: tuple[str, ...] = ()
    chip: str | None = None
    pretend: bool | str = False
    interpret: Interpret = None
    timeout: float = defaults.COMPILE_TIMEOUT
    jobs: int = 0
    epoch: object | None = None
    checks: tuple[str, ...] = ()
    prints: bool = False
    switches: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    stops_unfit: bool = False
    hang_after: float = defaults.HANG_AFTER
    stop_after: float | None = None


def mode_of(asked: Interpret) -> Mode:
    """Return the requested interpret mode, which defaults to `auto` without an accelerator.

    Raises:
      UsageError: unknown mode.
    """
    if asked is None:
        platform.leave_out_absent_tpu()
        return Mode("off" if platform.has_accelerator() else "auto")
    return Mode.parse(asked)


def sanitizing(asked: Interpret, watch: str | None = None) -> Mode:
    """Return the interpret mode of the sanitizer.

    Args:
      watch: grid points to watch, such as `0:4,*,7`; None for all.

    Raises:
      UsageError: another mode was asked for, or `watch` is not understood.
    """
    if asked is not None and Mode.parse(asked).kind not in ("auto", "machine"):
        raise UsageError(
            f"sanitize=True runs kernels on the kernel machine, and interpret={str(asked)!r} in "
            "another mode: pass one of them"
        )
    mode = Mode.parse(defaults.SANITIZE_MODE)
    return mode if watch is None else Mode(mode.kind, {**mode.params, "watch": watch})


def judging(asked: Interpret, *, sanitize: bool, watch: str | None) -> Interpret:
    """Return the interpret mode, which is that of the sanitizer if that is asked for.

    Raises:
      UsageError: another mode was asked for, or grid points to watch without the sanitizer.
    """
    if sanitize:
        return sanitizing(asked, watch)
    if watch is not None:
        raise UsageError(
            f"watch={watch!r} chooses grid points for the sanitizer: pass sanitize=True as well"
        )
    return asked


def resolve_targets(names: tuple[str, ...], plugins: Any) -> tuple[Target, ...]:
    """Return the targets with these names; `tpu` becomes that of this host's device.

    Raises:
      UnknownTargetError: an unknown name.
      CannotRunError: `tpu` on a host without one.
    """
    if not names:
        return ()
    found = targets.resolve_all(names, extra_targets(plugins))
    return tuple(_of_this_host() if t.name == targets.DEVICE.name else t for t in found)


def another_path() -> str:
    """Question to a user whose function called no kernel."""
    if chip.pretended() is not None:
        return "Does it take another path for them?"
    return "Does it take another path for them, or off a TPU (--pretend)?"


def only_defines(program: str, option: str) -> str:
    """Question to a user whose script or module called no kernel.

    Args:
      option: of the plugin that does for tests what was to be done.
    """
    if re.fullmatch(r"(test_.*|.*_test)\.py", Path(program).name):
        return f"A file of tests is run by pytest: pytest {option} {program}"
    return "Does it take another path off a TPU, or only define its kernels?"


@contextlib.contextmanager
def pretending(names: tuple[str, ...]) -> Iterator[None]:
    """Let jax's devices answer as the first of these targets; a no-op with an accelerator.

    Sessions within it do so too, with the target that they trace for.

    Raises:
      UnknownTargetError: an unknown name.
    """
    (target, *_) = resolve_targets(names, plugin_manager())
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
