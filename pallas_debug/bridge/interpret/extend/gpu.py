"""GPU interpret mode: for kernels of Mosaic GPU, in mode `auto` and in `verify`."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jax._src import callback as callback_lib
from jax._src import source_info_util

from pallas_debug import defaults
from pallas_debug.bridge.interpret.params import Mode
from pallas_debug.bridge.jaxprs.params import gpu_backend, name_of
from pallas_debug.errors import InterpretModeError, PallasDebugError, UsageError
from pallas_debug.findings.sighting import Sighting
from pallas_debug.findings.wording import bounds, order, semaphores
from pallas_debug.model import Finding, SourceLine, Witness


def value_for(params: Mapping[str, Any]) -> Any:
    """Value for jax that runs a kernel of Mosaic GPU in GPU interpret mode.

    Returns None for other kernels, and if the installed jax has no such mode.
    """
    if gpu_backend(params) != "Mosaic GPU":
        return None
    try:
        return Mode("gpu").value()
    except UsageError:
        return None


def is_value(value: Any) -> bool:
    """Return whether a kernel's parameter `interpret` means GPU interpret mode."""
    return type(value).__name__ == "InterpretGPUParams"


def naming_mode(
    rule: Callable[..., Any], params: Mapping[str, Any], ran: Callable[[], None]
) -> Callable[..., Any]:
    """Lowering rule that names GPU interpret mode if that fails to trace a kernel.

    Args:
      rule: rule of that mode.
      ran: called when the kernel has run to its end.
    """

    def lower(context: Any, *nodes: Any) -> Any:
        try:
            results = rule(context, *nodes)
        except PallasDebugError:
            raise
        except Exception as error:
            message = ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
            raise InterpretModeError(
                f"kernel `{name_of(params)}` cannot be interpreted: GPU interpret mode fails to "
                f"trace it ({message}). Run it on a GPU"
            ) from error
        _notify(context, results[:1], ran)
        return results

    return lower


def _notify(context: Any, results: Sequence[Any], ran: Callable[[], None]) -> None:
    """Add a callback that runs once a result of a kernel is there."""
    avals = list(context.avals_out[: len(results)])
    called = context.replace(avals_in=avals, avals_out=[], tokens_in=None, tokens_out=None)

    def call(*arrays: Any) -> tuple[()]:
        ran()
        return ()

    callback_lib.emit_python_callback(
        called, call, None, list(results), avals, [], has_side_effect=True, returns_token=False
    )


# Faults that the mode detects: it names them only in the text of an exception.

_SIDE = re.compile(
    r"^ +(?P<action>read|write) of HostAllocationKey\(memory_space_id=(?P<space>\d+).*?\)"
    r"\[\(?(?P<range>.*?)\)?\] from (?P<thread>.+?\)), (?P<file>.+?):(?P<line>\d+):\d+ "
    r"\((?P<function>.+?)\)$",
    re.MULTILINE,
)
_OUTSIDE = re.compile(
    r"Out-of-bounds (?P<action>\w+) of HostAllocationKey\(memory_space_id=(?P<space>\d+).*?"
    r"\[Access\(range=\((?P<range>.*?),?\), .*? has shape \((?P<shape>[\d, ]*)\)",
    re.DOTALL,
)
_DEADLOCK = "DEADLOCK: "
_PLACE = re.compile(r" at (?P<file>[^;]+?):(?P<line>\d+):\d+ \((?P<function>.+?)\)")
_SLICE = re.compile(r"slice\((\d+), (\d+), \d+\)|(\d+)")
_SPACES = {"0": "GMEM", "1": "SMEM", "2": "TMEM"}


_lines: dict[str, SourceLine] = {}


@contextlib.contextmanager
def noting_lines() -> Iterator[None]:
    """Keep the lines of accesses out of bounds, which the program's exception does not have."""
    try:
        yield
    except (IndexError, ValueError) as error:
        infos = [f.f_locals.get("source_info") for f, _ in traceback.walk_tb(error.__traceback__)]
        known = [info for info in infos if info is not None]
        if known and (found := _OUTSIDE.search(str(error))) is not None:
            place = _PLACE.search(f" at {source_info_util.summarize(known[-1])}")
            if place is not None:
                _lines[found[0]] = _line(place)
        raise


def fault_in(error: BaseException | None, kernels: Sequence[str]) -> Finding | None:
    """Finding for an exception of the mode; None if it is no fault that the mode detects.

    Args:
      kernels: names of the kernels that may have raised it.
    """
    text = "" if error is None else str(error)
    if "RACE DETECTED" in text and len(sides := list(_SIDE.finditer(text))) > 1:
        return _race(sides[0], sides[1], kernels)
    if (outside := _OUTSIDE.search(text)) is not None:
        return _outside(outside, kernels)
    if _DEADLOCK in text:
        waits = text.rpartition(_DEADLOCK)[2].partition("\n")[0]
        place = _PLACE.search(waits)
        witness = Witness(source=None if place is None else _line(place))
        seen = Sighting(kernel=kernels[-1], engine="gpu interpret", witness=witness)
        return semaphores.barrier_deadlock(seen, waits)
    return None


def _race(here: re.Match[str], there: re.Match[str], kernels: Sequence[str]) -> Finding:
    witness = Witness(source=_line(here), other=_line(there))
    functions = here["function"].split(".")
    kernel = next((name for name in reversed(functions) if name in kernels), kernels[-1])
    seen = Sighting(kernel=kernel, engine="gpu interpret", witness=witness)
    return order.race_on_gpu(
        seen,
        memory=_SPACES.get(here["space"], "memory"),
        region=_range(here["range"]),
        here=(here["action"], here["thread"]),
        there=(there["action"], there["thread"]),
    )


def _line(side: re.Match[str]) -> SourceLine:
    file, number = side["file"], int(side["line"])
    name = side["function"].rpartition(".")[2]
    text = linecache.getline(file, number).strip()
    return SourceLine(file=file, line=number, function=name, text=text)


def _outside(found: re.Match[str], kernels: Sequence[str]) -> Finding:
    shape = [int(n) for n in re.findall(r"\d+", found["shape"])]
    ranges = [(int(m[1] or m[3]), int(m[2] or m[3])) for m in _SLICE.finditer(found["range"])]
    pairs = enumerate(zip(ranges, shape, strict=False))
    dim = next((i for i, ((_, stop), n) in pairs if stop > n), 0)
    start, stop = ranges[dim]
    space = _SPACES.get(found["space"], "memory")
    name = f"a buffer in {space}"
    witness = Witness(
        source=_lines.get(found[0]),
        operand=name,
        index=f"[{_range(found['range'])}] of {name}",
        shape=str(shape),
    )
    return bounds.out_of_bounds(
        Sighting(kernel=kernels[-1], engine="gpu interpret", witness=witness),
        writes=found["action"] != "read",
        dim=dim,
        start=start,
        size=stop - start,
        bound=shape[dim] if shape else 0,
    )


def _range(text: str) -> str:
    parts = (f"{m[1]}:{m[2]}" if m[1] else m[3] for m in _SLICE.finditer(text))
    return ", ".join(parts)


# The mode itself waits for ever for a barrier that is never completed.


_patience = [defaults.HANG_AFTER]
_lock = threading.Lock()
_watchers: list[threading.Thread] = []


@contextlib.contextmanager
def stopping_deadlocks(seconds: float) -> Iterator[None]:
    """Set the time without progress after which a kernel that waits for barriers is stopped."""
    _patience.append(seconds)
    try:
        yield
    finally:
        _patience.remove(seconds)


def watch() -> None:
    """Stop kernels whose threads wait for barriers while the process does nothing else."""
    with _lock:
        if not _watchers or not _watchers[0].is_alive():
            _watchers[:] = [threading.Thread(target=_watch, daemon=True)]
            _watchers[0].start()


def _watch() -> None:
    before: frozenset[tuple[int, int]] = frozenset()
    since, used = time.monotonic(), time.process_time()
    while True:
        time.sleep(0.25)
        waits = _waits()
        at = frozenset((number, id(frame)) for number, frame in waits.items())
        is_idle = time.process_time() - used < _IDLE * max(time.monotonic() - since, 1)
        if not waits or at != before or not is_idle:
            before, since, used = at, time.monotonic(), time.process_time()
        elif time.monotonic() - since > _patience[-1]:
            _fail(list(waits.values()))
            before = frozenset()


_IDLE = 0.02
"""Share of a core that the process uses while nothing but the watch runs, at most."""


def _waits() -> dict[int, types.FrameType]:
    """Frames of threads that wait for a barrier, by thread."""
    found = {}
    for number, innermost in sys._current_frames().items():
        frame: types.FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name in _WAITS and "mosaic_gpu" in frame.f_code.co_filename:
                found[number] = frame
                break
            frame = frame.f_back
    return found


_WAITS = ("_barrier_wait", "barrier_wait")
"""Callbacks of jax's interpreter."""


def _fail(waits: Sequence[types.FrameType]) -> None:
    module = sys.modules["jax._src.pallas.mosaic_gpu.interpret.gpu_callbacks"]
    places = []
    for frame in waits:
        info, thread = (frame.f_locals.get(name) for name in ("source_info", "thread"))
        where = "an unknown line" if info is None else source_info_util.summarize(info)
        places.append(f"{thread} at {where}")
    error = RuntimeError(f"{_DEADLOCK}{'; '.join(places)}")
    module._get_shared_memory().set_failed(error, None, top_level=False)
