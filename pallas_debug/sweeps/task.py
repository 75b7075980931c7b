"""A setting of a sweep, as run by a worker: trace, compile, read the figures.

A task and its outcome are plain data with a function, so that any executor can carry them: threads,
processes of this machine, or workers elsewhere.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pallas_debug.compiler.stages import DEFAULT, Stages
from pallas_debug.dumping import dump_function
from pallas_debug.errors import CannotRunError, DumpDirectoryError, PallasDebugError
from pallas_debug.explain import explain
from pallas_debug.model import Dump, Failure, Kernel
from pallas_debug.profile.figures import Figure, missing, total
from pallas_debug.profile.stats import Profile
from pallas_debug.session import Options
from pallas_debug.store import StoredCompilation, open_dumps
from pallas_debug.store.profiles import read_profile
from pallas_debug.sweeps.grid import Setting
from pallas_debug.sweeps.result import FailedAt, SettingFailure, SettingResult

_COLORS = re.compile(r"\x1b\[[0-9;]*m")

_ONE_AT_A_TIME = threading.Lock()
"""Lock for sessions: they share jax's hooks, but thread executors run tasks concurrently."""


@dataclass(frozen=True, kw_only=True)
class FunctionName:
    """Reference to a function by its module, for functions that cannot be sent to a worker.

    Attributes:
      folders: folders that must be on `sys.path`.
    """

    module: str
    name: str
    folders: tuple[str, ...] = ()

    def load(self) -> Callable[..., Any]:
        sys.path.extend(folder for folder in self.folders if folder not in sys.path)
        found: Any = importlib.import_module(self.module)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]


def named(function: Callable[..., Any]) -> FunctionName | Callable[..., Any]:
    """Return a function by name if other processes can import it, otherwise the function itself."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or ""
    if module in ("", "__main__") or "<" in name or not name:
        return function  # libraries such as cloudpickle send it whole
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not function:
        return function
    folders = tuple(str(Path(folder).resolve()) for folder in sys.path)
    return FunctionName(module=module, name=name, folders=folders)


@dataclass(frozen=True, kw_only=True)
class SweepTask:
    """A setting to run.

    Attributes:
      args, kwargs: arguments of the function, besides the setting.
      where: the dump directory; a worker that does not see it keeps no files.
    """

    number: int
    function: FunctionName | Callable[..., Any]
    setting: Setting
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    targets: tuple[str, ...]
    where: str
    timeout: float
    switches: tuple[str, ...] = ()
    stages: Stages = DEFAULT


def run(task: SweepTask) -> tuple[SettingResult, ...]:
    """Run a setting, and return a result for each target; errors become its failure."""
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        root = Path(task.where)
        if not root.is_dir():  # the directory of another machine
            folder = tempfile.TemporaryDirectory(prefix="pallas-debug-sweep-")
            root = Path(stack.enter_context(folder))
        return tuple(_results(task, root))


def _results(task: SweepTask, root: Path) -> list[SettingResult]:
    options = Options(
        dumps=root,
        targets=task.targets,
        interpret="off",
        timeout=task.timeout,
        jobs=1,
        switches=task.switches,
        stages=task.stages,
    )
    try:
        function = task.function
        loaded = function.load() if isinstance(function, FunctionName) else function
        kwargs = {**task.kwargs, **task.setting.values}
        dumps = dump_function(loaded, task.args, kwargs, options).dumps
    except DumpDirectoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's function raises
        return failed(task, raised(error))
    return [_of_target(task, root, dumps, target) for target in task.targets]


def raised(error: BaseException) -> SettingFailure:
    """Return the failure for an exception of ours, of the user's function, or of jax in it."""
    name = type(error).__name__
    if isinstance(error, PallasDebugError):
        stage: FailedAt = "setup" if isinstance(error, CannotRunError) else "tracing"
        return SettingFailure(stage=stage, type=name, message=str(error))
    lines = [line.strip() for line in _plain(str(error)).splitlines() if line.strip()]
    known = explain(str(error), in_context=True)
    return SettingFailure(
        stage="tracing",
        type=name,
        message=f"{name}: {lines[0]}" if lines else name,
        cause=known.cause if known is not None else "",
        advice=known.advice if known is not None else "",
    )


def failed(task: SweepTask, failure: SettingFailure) -> list[SettingResult]:
    """Return the results of a setting that failed for all targets."""
    return [
        SettingResult(setting=task.setting.texts, target=target, failure=failure)
        for target in task.targets
    ]


def _of_target(task: SweepTask, root: Path, dumps: tuple[Dump, ...], target: str) -> SettingResult:
    made = [(dump, c) for dump in dumps for c in dump.compilations if c.target == target]
    result = SettingResult(
        setting=task.setting.texts,
        target=target,
        kernels=tuple(dump.folder.name for dump, _ in made),
        is_cached=bool(made) and all(c.cached for _, c in made),
    )
    failed = next(((d.kernel, c.failure) for d, c in made if c.failure is not None), None)
    if failed is not None:
        return replace(result, failure=_of_kernel(*failed))
    if not made:
        lost = SettingFailure(
            stage="setup",
            type="NotCompiled",
            message=f"its kernels were not compiled for {target}: the code queried another chip",
        )
        return replace(result, failure=lost)
    profiled = [_profiled(root / dump.folder.name, c.target) for dump, c in made]
    figures = _figures([one for one, _ in profiled])
    left_out: dict[str, int] = {}
    for (dump, _), (_, untouched) in zip(made, profiled, strict=True):
        kernel = f"{dump.name}: " if len(made) > 1 else ""
        left_out |= {f"{kernel}{name}": count for name, count in untouched.items()}
    return replace(result, left_out=left_out, **figures)


def _plain(text: str) -> str:
    """Return text without the colours that jax prints jaxprs in."""
    return _COLORS.sub("", text)


def _of_kernel(kernel: Kernel, failure: Failure) -> SettingFailure:
    explanation = failure.explanation
    return SettingFailure(
        stage=failure.stage,
        type=failure.type,
        message=_plain(failure.headline),
        kernel=kernel.name,
        cause=explanation.cause if explanation is not None else "",
        advice=explanation.advice if explanation is not None else "",
    )


def _profiled(folder: Path, target: str) -> tuple[dict[str, Figure], dict[str, int]]:
    """Return the figures of one kernel, and what its blocks leave out, read from the dump."""
    (kernel,) = open_dumps(folder).kernels()
    stored: StoredCompilation = kernel.target(target)
    if kernel.problem:
        raise DumpDirectoryError(kernel.problem)
    found = read_profile(kernel, stored)
    if found is None:
        gone = missing(_missing(stored) or "the compiler wrote no schedule")
        return dict.fromkeys((*_SUMS, "vmem"), gone), {}
    profile = found.profile  # not its `stats`: lines, units and advice take longer than the rest
    figures = {
        "cycles": profile.cycles.total,
        "bundles": profile.counts.bundles,
        "spills": profile.counts.spills,
        "vmem": profile.memory.vmem,
    }
    return figures, _left_out(profile)


def _left_out(profile: Profile) -> dict[str, int]:
    """Elements of each operand in no block.

    Of a buffer that an input and an output share, and of blocks that a table selects, not all need
    to be in a block.
    """
    if profile.blocks is None or profile.kernel is None or profile.kernel.aliases:
        return {}
    return {
        operand.name: operand.untouched
        for operand in profile.blocks.pipelined
        if operand.untouched is not None and not operand.tables
    }


def _missing(stored: StoredCompilation) -> str:
    made = stored.compilation
    absent = [m for m in made.missing if m.message] if made is not None else []
    return "; ".join(f"{m.file}: {m.message}" for m in absent)


_SUMS = ("cycles", "bundles", "spills")


def _figures(kernels: list[dict[str, Figure]]) -> dict[str, Any]:
    """Return the figures of a setting: sums over its kernels, and the largest VMEM size."""
    if len(kernels) == 1:
        return dict(kernels[0])
    sums = {n: total(*(k[n] for k in kernels), note=f"sum over {len(kernels)}") for n in _SUMS}
    vmem = [kernel["vmem"] for kernel in kernels]
    return sums | {"vmem": max(vmem, key=lambda f: math.inf if f.value is None else f.value)}
