"""Recordings of a kernel's run as JSON and `.npy`, for stepping without jax and the kernel.

    recording.json    places, what has which value there, the source
    arrays/NAME.npy   each array once, by a digest of its content

numpy's own dtypes are stored as they are, and narrower floats (bfloat16, float8) as float32.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pallas_debug.errors import DumpFormatError
from pallas_debug.quantities import size_text
from pallas_debug.stepping.conditions import ConditionFailed
from pallas_debug.stepping.track import (
    ElementWriter,
    FlyingCopy,
    NamedValue,
    StepPlace,
    WatchedElements,
    WatchHit,
    names_of,
    same_bits,
)

FILE = "recording.json"
ARRAYS = "arrays"
KIND = "kernel-recording"
SCHEMA = 1
"""Schema version, incremented when an earlier version's reader would misread a recording."""

MAX_DOCUMENT = 1 << 30
"""Maximum size in bytes of a document that is read."""

_DIGEST = re.compile(r"[0-9a-f]{32}")
_CALL = re.compile(r"(program_id|num_programs|whole)\((.+)\)")
_AXES = "ijklmnop"

Array = np.ndarray[Any, Any]


class RecordingError(DumpFormatError):
    """A recording that cannot be read: truncated, foreign, too new."""


@dataclass(frozen=True, kw_only=True)
class RecordedValue:
    """A value at a place.

    Attributes:
      array: digest of its content.
    """

    value: NamedValue
    array: str


@dataclass(frozen=True, kw_only=True)
class RecordedStop:
    """A place, with the values and the DMAs in flight there."""

    place: StepPlace
    values: tuple[RecordedValue, ...] = ()
    copies: tuple[FlyingCopy, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedOutput:
    """Writer of each element of an output.

    Attributes:
      name: of the operand.
      array: digest of its final content.
      writers: digest of an int32 array of its shape: positions in `Recording.writers`, from 1; 0
        for an element that nothing wrote.
    """

    name: str
    array: str
    writers: str


@dataclass(frozen=True, kw_only=True)
class Recording:
    """The recorded part of a run.

    Attributes:
      own_axes: axes of the grid that the kernel counts.
      sources: lines of each file.
      fault: why the run ended early.
      writers: places of the stores that wrote the outputs.
    """

    kernel: str
    grid: tuple[int, ...]
    own_axes: tuple[int, ...]
    stops: tuple[RecordedStop, ...]
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fault: str | None = None
    writers: tuple[StepPlace, ...] = ()
    outputs: tuple[RecordedOutput, ...] = ()


def encode(recording: Recording) -> bytes:
    """Return the document of a recording."""
    head = {"tool": "pallas-debug", "kind": KIND, "schema": SCHEMA}
    return msgspec.json.encode(head | msgspec.to_builtins(recording))


def encode_array(value: Any) -> bytes:
    """Return an array as the content of a `.npy` file."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc" or array.dtype.name.startswith(("bfloat", "float8")):
        array = array.astype(np.int32 if "int" in array.dtype.name else np.float32)
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)
    return file.getvalue()


def is_recording(path: Path) -> bool:
    """Return whether there is a recording, or the remains of one, at a path."""
    with contextlib.suppress(OSError):
        return (path / FILE).is_file() or path.name == FILE
    return False


def read(folder: Path) -> RecordedRun:
    """Open a recording.

    Raises:
      RecordingError: the file is truncated, not a recording, or of a newer version.
    """
    if folder.name == FILE:
        folder = folder.parent
    file = folder / FILE
    try:
        if file.exists() and not file.is_file():  # opening a FIFO would block for ever
            raise RecordingError(f"{file} is not a regular file")
        if file.stat().st_size > MAX_DOCUMENT:
            raise RecordingError(f"{file} is larger than {size_text(MAX_DOCUMENT)}")
        document: Any = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise RecordingError(f"{file} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            f"{file} is truncated or not JSON ({error}): record the run again"
        ) from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise RecordingError(f"{file} is not a recording of a kernel")
    schema = document.get("schema")
    if not isinstance(schema, int) or schema < 1:
        raise RecordingError(f"{file} is damaged: {schema!r} is not a schema of recordings")
    if schema > SCHEMA:
        raise RecordingError(
            f"{file} was written by a newer version (schema {schema}; this one reads {SCHEMA}): "
            "update pallas-debug"
        )
    known = {k: v for k, v in document.items() if k not in ("tool", "kind", "schema")}
    try:
        recording = msgspec.convert(known, Recording)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RecordingError(f"{file} is damaged: {error}") from error
    if not recording.stops:
        raise RecordingError(f"{file} contains no place: nothing was recorded")
    return RecordedRun(folder, recording)


class RecordedRun:
    """A recording, at one of its places. A `Track`."""

    def __init__(self, folder: Path, recording: Recording) -> None:
        self.folder = folder
        self.recording = recording
        self.interrupted = False
        self._at = 0
        self._read: dict[str, Array] = {}

    @property
    def _stop(self) -> RecordedStop:
        return self.recording.stops[self._at]

    @property
    def place(self) -> StepPlace:
        return self._stop.place

    @property
    def fault(self) -> str | None:
        is_last = self._at == len(self.recording.stops) - 1
        return self.recording.fault if is_last else None

    def forward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        return self._go(range(self._at + 1, len(self.recording.stops)), until, watched)

    def backward(
        self, until: Callable[[StepPlace], bool], watched: Sequence[WatchedElements] = ()
    ) -> bool | WatchHit:
        return self._go(range(self._at - 1, -1, -1), until, watched)

    def _go(
        self,
        there: range,
        until: Callable[[StepPlace], bool],
        watched: Sequence[WatchedElements],
    ) -> bool | WatchHit:
        before = [self._watched(item) for item in watched]
        for at in there:
            if self.interrupted:
                return False
            line = self.place.line if there.step > 0 else self.recording.stops[at].place.line
            self._at = at
            for number, item in enumerate(watched):
                old, now = before[number], self._watched(item)
                before[number] = now
                if old is not None and now is not None and not same_bits(old, now):
                    first, second = (old, now) if there.step > 0 else (now, old)
                    return WatchHit(watched=item, before=first, after=second, wrote=line)
            if until(self.place):
                return True
        return False

    def _watched(self, item: WatchedElements) -> Array | None:
        try:
            return np.asarray(item.expression.evaluate(names_of(self)))
        except ConditionFailed:
            return None

    def who(self, element: WatchedElements) -> Sequence[ElementWriter]:
        name = element.name.removeprefix("whole(").removesuffix(")")
        output = next((o for o in self.recording.outputs if o.name == name), None)
        if output is None or not element.name.startswith("whole("):
            known = ", ".join(f"whole({o.name})[…]" for o in self.recording.outputs) or "none"
            raise ConditionFailed(f"a recording only has the writers of outputs: {known}")
        writers = self.array(output.writers)
        found = element.expression.positions(writers.shape, names_of(self))
        if found.size != 1:
            raise ConditionFailed(
                f"`{element.expression.text}` has {found.size:,} elements: name one"
            )
        flat = int(found.reshape(()))
        number = int(writers.reshape(-1)[flat])
        value = self.array(output.array).reshape(-1)[flat]
        shown = f"{float(value):.6g}" if value.dtype.kind not in "biu" else str(value)
        index = ", ".join(map(str, map(int, np.unravel_index(flat, writers.shape))))
        text = f"{element.name}[{index}]"
        if number == 0:
            return [ElementWriter(element=text, how="never", place=None, value=shown)]
        place = self.recording.writers[number - 1]
        return [ElementWriter(element=text, how="stored", place=place, value=shown)]

    def values(self) -> Sequence[NamedValue]:
        return [item.value for item in self._stop.values]

    def value(self, name: str) -> Array | None:
        called = _CALL.fullmatch(name)
        place, own = self.place, self.recording.own_axes
        if called is not None and called[1] == "whole":
            return self._whole(called[2])
        if called is not None:
            numbers = place.point if called[1] == "program_id" else place.grid
            axis = int(called[2]) if called[2].isdigit() else -1
            return np.asarray(numbers[own[axis]]) if 0 <= axis < len(own) and numbers else None
        found = next((item for item in self._stop.values if item.value.name == name), None)
        if found is not None:
            return self.array(found.array)
        if name == "iteration":
            return np.asarray(place.iterations[-1]) if place.iterations else None
        axis = _AXES.find(name) if len(name) == 1 else -1
        return np.asarray(place.point[own[axis]]) if 0 <= axis < len(own) and place.point else None

    def _whole(self, name: str) -> Array | None:
        """The whole array of an output, at the end of the run; others are not recorded."""
        output = next((o for o in self.recording.outputs if o.name == name), None)
        if output is not None:
            return self.array(output.array)
        found = next((item for item in self._stop.values if item.value.name == name), None)
        return None if found is None or found.value.whole is not None else self.array(found.array)

    def copies(self) -> Sequence[FlyingCopy]:
        return self._stop.copies

    def lines(self, file: str) -> Sequence[str]:
        return self.recording.sources.get(file, ())

    def files(self) -> frozenset[str]:
        lines = (stop.place.line for stop in self.recording.stops)
        return frozenset(line.file for line in lines if line is not None)

    def executable(self, file: str) -> frozenset[int]:
        lines = (stop.place.line for stop in self.recording.stops)
        return frozenset(line.line for line in lines if line is not None and line.file == file)

    def array(self, digest: str) -> Array:
        """Return a recorded array.

        Raises:
          RecordingError: its file is missing or damaged, or the digest is invalid.
        """
        known = self._read.get(digest)
        if known is not None:
            return known
        if not _DIGEST.fullmatch(digest):
            raise RecordingError(f"{self.folder / FILE} names an array {digest!r}")
        file = self.folder / ARRAYS / f"{digest}.npy"
        if file.exists() and not file.is_file():
            raise RecordingError(f"{file} is not a regular file")
        try:
            array: Array = np.load(file, allow_pickle=False)
        except FileNotFoundError as error:
            raise RecordingError(
                f"{file} is missing: copy all of {self.folder}, or record the run again"
            ) from error
        except OSError as error:
            raise RecordingError(f"{file} cannot be read: {error.strerror or error}") from error
        except (ValueError, EOFError) as error:
            text = " ".join(str(error).split())
            # numpy takes whatever it does not know for pickled data, and recommends to load it.
            damage = "it does not hold an array of numbers" if "pickle" in text else text
            raise RecordingError(
                f"{file} is truncated or damaged ({damage}): copy it again, or record the run again"
            ) from error
        array.setflags(write=False)
        if len(self._read) > 256:
            self._read.clear()
        self._read[digest] = array
        return array
