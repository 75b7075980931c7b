"""Handlers around jax's functions at each callback of TPU interpret mode.

There is one handler per interpreter function, in the order in which a kernel calls them, plus a
replacement for jax's race detection. They update the state in `tpu_run.py` and report findings made
by `tpu_findings.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import vector_clock

from pallas_debug.bridge.interpret import launched, tpu_flights, tpu_hangs
from pallas_debug.bridge.interpret import tpu_findings as words
from pallas_debug.bridge.interpret.extend.memory import concrete, is_empty
from pallas_debug.bridge.interpret.extend.semaphores import CopyCounter
from pallas_debug.bridge.interpret.extend.views import OutOfView, size_of
from pallas_debug.bridge.interpret.tpu_findings import Buffer, Place, Range, Touch
from pallas_debug.bridge.interpret.tpu_run import (
    MARK,
    SENT_BEFORE,
    CallbackSite,
    Copy,
    KernelRun,
    current_place,
    current_run,
    here,
    point,
    range_of,
    report,
    running,
    stop,
)
from pallas_debug.errors import KernelFault
from pallas_debug.model import Finding

Call = Callable[[], Any]
Arguments = Mapping[str, Any]
Handler = Callable[[KernelRun, CallbackSite, Place, Call, Arguments], Any]


def initialize(site: CallbackSite, call: Call, arguments: Arguments) -> Any:
    """Create our state along with the memory, which the first device of a run allocates."""
    device = int(arguments["device_id"])
    stale = current_run()
    if stale is not None and device in stale.devices:
        # The previous run ended without cleaning up.
        interpreter.reset_tpu_interpret_mode_state()
    result = call()
    memory = interpreter._get_shared_memory()
    with interpreter._shared_memory_init_lock:
        run = getattr(memory, MARK, None) or KernelRun(memory=memory, kernel=site.kernel)
        setattr(memory, MARK, run)
        run.devices.add(device)
    return result


def allocate(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    token, identity = call()
    assert site.allocation is not None
    for core in _cores(run, arguments):
        run.buffers[place.thread[0], core, int(identity)] = site.allocation
    return token, identity


def deallocate(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    token = call()
    run.buffers.pop((*place.thread, int(arguments["buffer_id"])), None)
    return token


def allocate_semaphores(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    token, identities = call()
    assert site.allocation is not None
    for index, identity in np.ndenumerate(np.asarray(identities)):
        for core in _cores(run, arguments):
            at = int(identity), run.core(place.thread[0], core)
            run.semaphores[at] = (site.allocation, index)
    return token, identities


def _cores(run: KernelRun, arguments: Arguments) -> range:
    """Cores that allocate: without a core argument, every core of the device."""
    core = arguments.get("local_core_id")
    if core is None:
        return range(run.memory.num_cores_per_device)
    return range(int(core), int(core) + 1)


def meet(run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments) -> Any:
    """Start all devices together; if one has failed, the others fail with its error."""
    try:
        return tpu_hangs.start_together(run, place, call)
    except threading.BrokenBarrierError:
        run.memory.check_failed()
        raise


def read(run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments) -> Any:
    return _access(run, site, place, call, arguments, writes=False)


def write(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    return _access(run, site, place, call, arguments, writes=True)


def _access(
    run: KernelRun,
    site: CallbackSite,
    place: Place,
    call: Call,
    arguments: Arguments,
    *,
    writes: bool,
) -> Any:
    operand = arguments.get("input_name") or arguments.get("output_name")
    index_map = site.kernel.maps.get(operand) if operand else None
    if index_map is not None:
        place = replace(
            place,
            source=index_map.source or place.source,
            grid_point=point(arguments["grid_loop_idx"]),
        )
    elif run.flights:
        tpu_flights.accessed(run, place, arguments, writes=writes)
    with running(place):
        try:
            return call()
        except KernelFault:
            raise
        except Exception as error:
            touch = _touch(run, place, arguments, writes, error)
            if touch is not None and index_map is not None and not touch.buffer.holds(touch.range):
                block = point(arguments["block_indices"]) or ()
                touch = replace(touch, buffer=index_map.array)
                found = words.block_out_of_bounds(
                    touch, block, index_map.block_shape, from_tables=index_map.from_tables
                )
            else:
                found = _explain(touch, place, error)
            raise stop(found) from error


def _touch(
    run: KernelRun, place: Place, arguments: Arguments, writes: bool, error: Exception
) -> Touch | None:
    device, core = place.thread
    buffer = run.buffer(device, core, int(arguments["buffer_id"]))
    return _touch_of(place, buffer, arguments["transforms"], writes, error)


def _touch_of(
    place: Place, buffer: Buffer | None, transforms: Any, writes: bool, error: Exception
) -> Touch | None:
    range_ = range_of(transforms)
    if buffer is not None and isinstance(error, OutOfView):
        range_ = error.range
        name = buffer.name + error.chain
        buffer = replace(buffer, name=name, shape=error.shape, dtype=str(np.dtype(error.dtype)))
    if buffer is None or range_ is None:
        return None
    return Touch(place=place, buffer=buffer, range=range_, writes=writes)


def _explain(touch: Touch | None, place: Place, error: Exception) -> Finding:
    if touch is not None and not touch.buffer.holds(touch.range):
        return words.out_of_bounds(touch)
    return words.not_interpreted(place, f"{type(error).__name__}: {error}")


def start_copy(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    if is_empty(arguments["src_transforms"]):
        return arguments["token"]  # it signals nothing, so no wait depends on it
    device, core = place.thread
    to_device = arguments.get("dst_device_id")
    to_device = device if to_device is None else int(to_device)
    to_core = arguments.get("dst_local_core_id")
    to_core = core if to_core is None else int(to_core)
    read = device, core, int(arguments["src_id"])
    written = to_device, to_core, int(arguments["dst_id"])
    source, destination = run.buffer(*read), run.buffer(*written)
    if not _exists(run, to_device):
        # This device knows the destination buffer by the same number.
        own_buffer = run.buffer(device, core, written[2])
        target = own_buffer.name if own_buffer else "?"
        place = replace(place, copy=(source.name if source else "?", target))
        raise stop(words.no_such_device(place, target, to_device, run.memory.num_devices))
    at = int(arguments["dst_sem_id"]), run.core(to_device, to_core)
    place = replace(
        place,
        copy=(source.name if source else "?", destination.name if destination else "?"),
        semaphore=run.semaphore(*at),
    )
    size = _size(source, arguments["src_transforms"])
    own = run.core(device, core)  # the other device may not have allocated its semaphores yet
    arriving = Copy(place, size, counts_bytes=run.counts_bytes(at[0], own))
    leaving = Copy(place, size)
    run.start(*at, arriving)
    if arguments.get("src_sem_id") is not None:
        at = int(arguments["src_sem_id"]), own
        leaving.counts_bytes = run.counts_bytes(*at)
        run.start(*at, leaving)
    reading, writing = tpu_flights.sides(run, place, arguments, read, written)
    before, here.copy, here.leaving = here.copy, arriving, leaving
    try:
        with running(place):
            return call()
    finally:
        here.copy = before
        leaving.dma = arriving.dma
        is_sent = arguments.get("src_sem_id") is not None
        tpu_flights.start(run, reading, leaving if is_sent else arriving)
        tpu_flights.start(run, writing, arriving)


def _size(buffer: Buffer | None, transforms: Any) -> int:
    """Size of the copy in bytes; 0 if unknown, and then the copy is not tracked."""
    if buffer is None:
        return 0
    try:
        return size_of(buffer.shape, np.dtype(buffer.dtype), concrete(transforms))
    except (TypeError, ValueError):
        return 0


def adopt(dma: Any) -> Any:
    """Attach our state to the DMA object that jax creates within `start_copy`."""
    if here.copy is not None:
        here.copy.dma = dma
        setattr(dma, MARK, here.copy.place)
        if (run := current_run()) is not None:
            setattr(dma, SENT_BEFORE, run.sent_before(dma))
        if not here.copy.counts_bytes:
            dma.dst_sem = CopyCounter(dma.dst_sem)
        if dma.src_sem is not None and here.leaving and not here.leaving.counts_bytes:
            dma.src_sem = CopyCounter(dma.src_sem)
    return dma


def execute(dma: Any, call: Call, *, writes: bool) -> None:
    """Run half of a DMA, in whichever thread waits, but attributed to the line that started it."""
    place: Place | None = getattr(dma, MARK, None)
    run = current_run()
    if place is None or run is None:
        call()
        return
    if writes:
        for earlier in getattr(dma, SENT_BEFORE, ()):
            earlier.execute_write()  # a no-op if it has already been executed
            _follow(dma.clock, earlier.clock)
        setattr(dma, SENT_BEFORE, ())
    with running(place):
        try:
            call()
        except KernelFault:
            raise
        except Exception as error:
            touch = _copy_touch(run, dma, place, writes, error)
            raise stop(_explain(touch, place, error)) from error


def _copy_touch(
    run: KernelRun, dma: Any, place: Place, writes: bool, error: Exception
) -> Touch | None:
    side = "dst" if writes else "src"
    device, core, identity, transforms = (
        getattr(dma, f"{side}_{part}")
        for part in ("device_id", "local_core_id", "buffer_id", "transforms")
    )
    return _touch_of(place, run.buffer(device, core, identity), transforms, writes, error)


def wait_copy(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    return _wait(run, replace(place, copy=("", "")), call, arguments, int(arguments["size"]))


def wait(run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments) -> Any:
    return _wait(run, place, call, arguments, int(arguments["value"]))


def _wait(run: KernelRun, place: Place, call: Call, arguments: Arguments, size: int) -> Any:
    with running(place):
        token = call()
    at = int(arguments["sem_id"]), run.core(*place.thread)
    if arguments.get("decrement", True):
        run.awaited(*at, size)
    else:
        run.polled(*at)
    run.waits[at] = place
    return token


def signal(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    device, core = (arguments.get(f"target_{part}") for part in ("device_id", "local_core_id"))
    device = place.thread[0] if device is None else int(device)
    if not _exists(run, device):
        named = run.semaphore(int(arguments["sem_id"]), run.core(*place.thread))
        raise stop(words.no_such_device(place, named, device, run.memory.num_devices))
    at = int(arguments["sem_id"]), run.core(device, 0 if core is None else int(core))
    run.signals[at] = place
    with running(place):
        return call()


def _exists(run: KernelRun, device: int) -> bool:
    return 0 <= device < int(run.memory.num_devices)


def check_revisit(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    at = place.grid_point or point(arguments["loop_idx"]) or ()
    blocks = arguments["output_blocks"]
    ranges = [None if block is None else range_of(block) for block in blocks]
    try:
        result = call()
    except Exception as error:
        found = _revisited(run, site, replace(place, grid_point=at), ranges)
        if found is None:
            found = words.not_interpreted(place, f"{type(error).__name__}: {error}")
        raise stop(found) from error
    for output, range_ in enumerate(ranges):
        if range_ is not None:
            block = (place.thread, output, words.key(range_))
            run.visits[block] = (run.visits.get(block, (at, at))[0], at)
            run.last_block[place.thread, output] = block
    return result


def _revisited(
    run: KernelRun, site: CallbackSite, place: Place, ranges: list[Range | None]
) -> Finding | None:
    for output, range_ in enumerate(ranges):
        block = (place.thread, output, range_ and words.key(range_))
        is_new = run.last_block.get((place.thread, output)) != block
        if range_ is not None and is_new and block in run.visits:
            index_map = site.kernel.maps[site.kernel.outputs[output]]
            place = replace(place, source=index_map.source or place.source)
            touch = Touch(place=place, buffer=index_map.array, range=range_, writes=True)
            return words.output_revisited(touch, *run.visits[block])
    return None


def validate(
    run: KernelRun, site: CallbackSite, place: Place, call: Call, arguments: Arguments
) -> Any:
    """Replacement for jax's check, which prints only the first semaphore and ignores copies."""
    memory = run.memory
    with memory.lock:
        semaphores = [*memory.sem.items(), *memory.fixed_id_sem.items()]
    for identity, semaphore in semaphores:
        for core in memory.get_global_core_ids(place.thread[0]):
            _validate(run, place, int(identity), int(core), int(semaphore.count_by_core[core]))
    launched.notify(site.kernel.tokens)  # last callback of a kernel: it ran to completion
    return arguments["token"]


def _validate(run: KernelRun, place: Place, identity: int, core: int, count: int) -> None:
    at, name = (identity, core), run.semaphore(identity, core)
    pending = [copy for copy in run.copies.get(at, ()) if count or _is_pending(copy.dma)]
    for copy in pending:
        report(words.copy_not_awaited(copy.place, name, copy.bytes_left or None))
    if count and not pending:
        last_signal, last_wait = run.signals.get(at), run.waits.get(at)
        report(words.semaphore_not_zero(place, name, count, signal=last_signal, wait=last_wait))


def _is_pending(dma: Any) -> bool:
    return dma is not None and dma.state is not interpreter.DmaState.COMPLETED


HANDLERS: dict[str, Handler] = {
    "_allocate_buffer": allocate,
    "_deallocate_buffer": deallocate,
    "_allocate_semaphores": allocate_semaphores,
    "_barrier": meet,
    "get": read,
    "store": write,
    "swap": write,
    "dma_start": start_copy,
    "dma_wait": wait_copy,
    "semaphore_signal": signal,
    "semaphore_wait": wait,
    "_check_for_revisiting": check_revisit,
    "_validate": validate,
}


# Races.


def check_race(state: Any, arguments: Arguments, *, writes: bool) -> None:
    """Replacement for jax's check, which has no operands or grid points and may only print."""
    run, place = current_run(), current_place()
    assert run is not None
    assert place is not None
    where = arguments["buffer_key"]
    _, identity, device, core = where
    buffer = run.buffer(device, core, identity)
    if buffer is None:
        return
    touch = Touch(place=place, buffer=buffer, range=arguments["rnge"], writes=writes)
    clock = arguments["clock"]
    with run.lock:
        history = run.touches.setdefault(where, {})
        before = list(history.values())
        # Keep only the last of equal accesses by the same line, so that loops do not fill memory.
        who = "copy" if place.copy else place.thread
        line = place.source and place.source.place
        history[who, writes, words.key(touch.range), line] = (touch, clock)
    for earlier, then in before:
        if (writes or earlier.writes) and _races(touch, clock, earlier, then):
            # If jax continues after a race, the next iteration repeats it with the sides swapped.
            pair = buffer.name, frozenset({touch.place.source, earlier.place.source})
            if pair in run.races:
                return
            run.races.add(pair)
            _race(
                state, touch, earlier, was_filled=_was_filled(touch, clock, earlier, then, before)
            )
            return


def _races(touch: Touch, clock: Any, earlier: Touch, then: Any) -> bool:
    return not _ordered(clock, then) and words.overlap(
        touch.range, earlier.range, touch.buffer.shape
    )


def _ordered(clock: Any, other: Any) -> bool:
    # jax 0.12 replaced the array with a class.
    if hasattr(clock, "ordered"):
        return bool(clock.ordered(other))
    return bool(vector_clock.ordered(clock, other))


def _follow(clock: Any, other: Any) -> None:
    """Order one clock's owner after another's; without race detection, there are no clocks."""
    if clock is None or other is None:
        return
    if hasattr(clock, "update"):
        clock.update(other)
    else:
        vector_clock.update_vector_clock(clock, other)


def _was_filled(touch: Touch, clock: Any, earlier: Touch, then: Any, before: list[Any]) -> bool:
    """Return whether a write is ordered before the read of a race."""
    reader, at = (earlier, then) if touch.writes else (touch, clock)
    return not reader.writes and any(
        other.writes
        and other is not earlier
        and _ordered(when, at)
        and words.overlap(other.range, reader.range, reader.buffer.shape)
        for other, when in before
    )


def _race(state: Any, touch: Touch, earlier: Touch, *, was_filled: bool) -> None:
    with state.lock:
        state.races_found = True
    fault = stop(words.data_race(touch, earlier, was_filled=was_filled))
    # Before 0.12 jax continued after a race.
    if getattr(state, "on_race", "warn") == "raise":
        raise fault
