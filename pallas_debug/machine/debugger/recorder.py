"""Recorder of a run, for stepping through it later; `stepping/recording.py` defines the format."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.machine.debugger.driver import MemoryWrite
from pallas_debug.machine.debugger.live import LiveRun
from pallas_debug.machine.memory import MemoryBuffer, MemoryRegion
from pallas_debug.quantities import size_text
from pallas_debug.stepping import recording as form
from pallas_debug.stepping.track import StepPlace

MAX_BYTES = 256 << 20
"""Default limit of a recording, in bytes."""


def record(
    run: LiveRun,
    to: Path,
    *,
    lines: Collection[int] = (),
    points: Collection[tuple[int, ...]] = (),
    max_bytes: int = MAX_BYTES,
) -> form.Recording:
    """Run from the beginning to the end, and record values along the way.

    Args:
      to: folder to create.
      lines: lines of the kernel's files to record; all if empty.
      points: grid points to record; all if empty.

    Raises:
      UsageError: `to` exists, those lines have no operations, or the recording exceeds `max_bytes`.
      CannotRunError: `to` cannot be written.
    """
    if to.exists():
        raise UsageError(f"{to} exists: name a new folder")
    partial = to.with_name(f"{to.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        (partial / form.ARRAYS).mkdir(parents=True)
        found = _Recorder(run, partial, lines, points, max_bytes).run_all()
        (partial / form.FILE).write_bytes(form.encode(found))
        partial.rename(to)
    except OSError as error:
        raise CannotRunError(
            f"{to} cannot be written: {error.strerror}. Name another folder."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


class _Recorder:
    def __init__(
        self,
        run: LiveRun,
        folder: Path,
        lines: Collection[int],
        points: Collection[tuple[int, ...]],
        max_bytes: int,
    ) -> None:
        self.run = run
        self.folder = folder
        self.lines = lines
        self.points = points
        self.max_bytes = max_bytes
        self.nbytes = 0
        self.stops: list[form.RecordedStop] = []
        self.writers: dict[StepPlace, int] = {}
        self.shadows: dict[MemoryBuffer, np.ndarray[Any, Any]] = {}
        self._digests: dict[str, None] = {}
        self._sources: dict[str, tuple[str, ...]] = {}

    def run_all(self) -> form.Recording:
        run = self.run
        run.backward(lambda place: False)
        run.on_step = self._after
        try:
            self._stop(run.place)
            run.forward(self._stop)
        finally:
            run.on_step = None
        outputs = self._outputs()
        self._stop(run.place, always=True)
        if self.nbytes > self.max_bytes:
            raise UsageError(
                f"the recording would take {size_text(self.nbytes)}, but the limit is "
                f"{size_text(self.max_bytes)}: select lines or grid points, or raise the limit"
            )
        if len(self.stops) == 1 and (self.lines or self.points):
            raise UsageError("nothing was executed on these lines at these grid points")
        launch = run.machine.launch
        return form.Recording(
            kernel=launch.name,
            grid=run.machine.threads[0].grid,
            own_axes=launch.axes,
            stops=tuple(self.stops),
            sources=self._sources,
            fault=run.fault,
            writers=tuple(self.writers),
            outputs=tuple(outputs),
        )

    def _stop(self, place: StepPlace, always: bool = False) -> bool:
        """Record the values at a place if they are wanted; never stop there."""
        line = place.line
        if line is not None and line.file not in self._sources:
            self._sources[line.file] = tuple(self.run.lines(line.file))
        wanted = (not self.points or place.point in self.points) and (
            not self.lines or (line is not None and line.line in self.lines)
        )
        if not wanted and not always:
            return False
        values = []
        for value in self.run.values():
            held = self.run.value(value.name)
            if held is not None:
                values.append(form.RecordedValue(value=value, array=self._keep(held)))
        self.stops.append(
            form.RecordedStop(place=place, values=tuple(values), copies=tuple(self.run.copies()))
        )
        return False

    def _keep(self, value: Any) -> str:
        """Write an array unless it is already stored or there is no space; return its digest."""
        content = form.encode_array(value)
        digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        if digest not in self._digests:
            self._digests[digest] = None
            self.nbytes += len(content)
            if self.nbytes <= self.max_bytes:
                (self.folder / form.ARRAYS / f"{digest}.npy").write_bytes(content)
        return digest

    # Writers

    def _after(self, before: StepPlace) -> None:
        """Record the writers of a step that began at `before`."""
        for write in self.run.events.writes:
            if write.how != "count":
                self._shade(write, before)

    def _shade(self, write: MemoryWrite, place: StepPlace) -> None:
        """Record the writer of each element; a copy carries over the writers of its source."""
        shadow = self._shadow(write.buffer)
        if write.how == "new":
            shadow[...] = 0
        elif write.how == "store":
            assert write.region is not None
            number = self.writers.setdefault(place, len(self.writers) + 1)
            for index in write.region.ranges():
                if write.mask is not None and write.region.index is not None:
                    mask = np.broadcast_to(write.mask, shadow[index].shape)
                    shadow[index] = np.where(mask, number, shadow[index])
                else:
                    shadow[index] = number
        elif write.copy is not None:
            self._copy(write.copy.source, write.copy.destination, place)
        elif write.window is not None:
            outer, inner = write.window.bounds(write.block)
            if write.how == "write-back":
                assert write.slot is not None
                part = self._shadow(write.slot)[inner]
                shadow[outer] = part.reshape(shadow[outer].shape)
            else:
                part = self._shadow(write.window.array)[outer]
                shadow[inner] = part.reshape(shadow[inner].shape)

    def _copy(self, source: MemoryRegion, destination: MemoryRegion, place: StepPlace) -> None:
        shadow = self._shadow(destination.buffer)
        if source.index is not None and destination.index is not None:
            part = self._shadow(source.buffer)[source.index]
            target = shadow[destination.index]
            if part.size == target.size:
                shadow[destination.index] = part.reshape(target.shape)
                return
        number = self.writers.setdefault(place, len(self.writers) + 1)
        for index in destination.ranges():
            shadow[index] = number

    def _shadow(self, buffer: MemoryBuffer) -> np.ndarray[Any, Any]:
        known = self.shadows.get(buffer)
        if known is None:
            known = self.shadows[buffer] = np.zeros(buffer.content.shape, np.int32)
        return known

    def _outputs(self) -> list[form.RecordedOutput]:
        found = []
        launch = self.run.machine.launch
        names = [operand.name for operand in launch.operands if operand.kind == "output"]
        for name, buffer in zip(names, self.run.machine.devices[0].outputs, strict=True):
            array, writers = self._keep(buffer.content), self._keep(self._shadow(buffer))
            found.append(form.RecordedOutput(name=name, array=array, writers=writers))
        return found
