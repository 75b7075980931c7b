"""Host that runs a program's kernels on the machine: interpret mode `machine`."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.instrument import printing
from pallas_debug.bridge.jaxprs.outputs import current_uses
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import Launch, launch, typed, untyped
from pallas_debug.errors import MachineError
from pallas_debug.findings import stops
from pallas_debug.findings.outputs import OutputUses
from pallas_debug.machine import run as machine_run
from pallas_debug.machine.observer import MachineObserver
from pallas_debug.machine.pace import Pace
from pallas_debug.machine.sanitizer import areas
from pallas_debug.machine.sanitizer.areas import IdleLoops
from pallas_debug.machine.shadow.memory import require_room
from pallas_debug.machine.threads import Thread
from pallas_debug.model import Finding, Hint, PrintRecord, SourceLine
from pallas_debug.render import finding_text

Array = np.ndarray[Any, Any]

KernelArrays = tuple[list[list[Array]], int]
"""Arrays of a kernel's call, for each device, and the number of the first of these devices."""

MAX_LAUNCHES = 64
"""Maximum number of decoded kernels cached for later programs."""

_lock = threading.Lock()
_launches: OrderedDict[Any, Launch] = OrderedDict()


@dataclass(frozen=True, eq=False)
class PreparedKernel:
    """A decoded kernel.

    Attributes:
      digest: digest of the kernel.
      communicates: whether its devices have to run it together.
      is_sanitized: whether its runs are sanitized.
      uses: which outputs the program uses.
    """

    launch: Launch
    digest: str
    communicates: bool
    is_sanitized: bool
    uses: OutputUses


class HostObserver(Protocol):
    """Receiver of the results of a host's runs.

    Attributes:
      prints: whether to pass prints on; otherwise they are dropped.
      infinities: whether infinities in the results are findings, as NaNs are.
    """

    prints: bool

    @property
    def infinities(self) -> bool: ...

    def printed(self, record: PrintRecord) -> None:
        """Handle a print of a kernel."""

    def found(self, *findings: Finding, uses: OutputUses | None = None, digest: str = "") -> None:
        """Handle the findings of a run of the kernel with this digest.

        Args:
          uses: which of the kernel's outputs the program uses, if known.
        """

    def hinted(self, *hints: Hint) -> None:
        """Handle the hints of a run of a kernel."""

    def refused(self, kernel: str, reason: str, *, runs: str | None) -> None:
        """Handle a kernel that cannot be sanitized; `runs` says how it runs instead, if at all."""

    def looped(
        self, digest: str, *, skipped: AbstractSet[SourceLine], ran: AbstractSet[SourceLine]
    ) -> None:
        """Handle the loops of a sanitized kernel: those that ran, and those that never ran."""


class Unobserved:
    """Receiver that discards the results of runs which do not belong to a program."""

    prints = infinities = False

    def _discard(self, *_: object, **__: object) -> None:
        pass

    printed = found = hinted = refused = looped = _discard


class KeptCalls:
    """Arrays of a call of each kernel, by digest.

    Args:
      number: number of the call, from 1.
    """

    def __init__(self, number: int) -> None:
        self.arrays: dict[str, KernelArrays] = {}
        self.counts: Counter[str] = Counter()
        self.number = number

    def keep(self, prepared: PreparedKernel, arrays: Sequence[Sequence[Array]], first: int) -> None:
        """Keep copies of a call's arrays, before it runs."""
        digest = prepared.digest
        self.counts[digest] += 1
        if self.counts[digest] == self.number:
            self.arrays[digest] = [[np.array(array) for array in given] for given in arrays], first


class MachineHost:
    """Runs the kernels of a session on the machine.

    Args:
      observer: receives findings in the thread that runs a kernel, and kernels that were to be
        sanitized but cannot be.
      refilled: digests of kernels whose unwritten memory has other contents than usual.
      calls: receives the arrays of calls; None not to keep any.
      pace: is told of the progress, and limits the time of all kernels together; None for neither.
    """

    def __init__(
        self,
        observer: HostObserver,
        refilled: frozenset[str] = frozenset(),
        calls: KeptCalls | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace
        self._refilled = refilled
        self._observer = observer
        self._calls = calls

    def refused(self, kernel: str, error: MachineError, *, runs: str | None) -> None:
        """Record a kernel that cannot run as requested; `runs` says how it runs instead, if so."""
        self._observer.refused(kernel, str(error), runs=runs)

    def prepare(self, captured: Capture, *, is_sanitized: bool) -> PreparedKernel:
        """Decode a kernel, unless an equal one is cached.

        Args:
          is_sanitized: whether its runs are sanitized.

        Raises:
          MachineError: the machine cannot run it.
        """
        kernel = captured.kernel
        # The digest does not cover line numbers or the order of the mesh's axes.
        mesh = tuple(kernel.mesh.items())
        key = (kernel.digest, captured.jaxpr, mesh, captured.enable_x64, is_sanitized)
        with _lock:
            known = _launches.get(key)
        if known is None:
            try:
                known = launch(captured, opens=is_sanitized)
            except (NotImplementedError, AssertionError) as error:
                raise MachineError(
                    f"the kernel machine does not cover kernel `{kernel.name}`: "
                    f"{error or type(error).__name__}"
                ) from error
            with _lock:
                if not any(isinstance(step, ir.Callback) for step in known.all_steps()):
                    _launches[key] = known
                while len(_launches) > MAX_LAUNCHES:
                    _launches.popitem(last=False)
        if is_sanitized:
            areas.require_cores(known)
            require_room(known)
        uses = current_uses(operand.name for operand in kernel.of_kind("output"))
        return PreparedKernel(known, kernel.digest, _communicates(known), is_sanitized, uses)

    def communicates(self, prepared: PreparedKernel) -> bool:
        return prepared.communicates or self._calls is not None  # kept with all of its devices

    def run(
        self, prepared: PreparedKernel, arrays: Sequence[Sequence[Array]], first: int
    ) -> list[list[Array]]:
        """Run a kernel on one device or on all devices of its mesh.

        Raises:
          KernelFault: the kernel was stopped at a fault.
          MachineError: the machine has no rule for what the kernel does.
          OutOfBudget: the budget ended before the kernel did.
        """
        pace = self._pace or Pace()
        pace.begins(prepared.launch.name, prepared.digest)
        arrays = [typed(prepared.launch, given) for given in arrays]
        if self._calls is not None and not prepared.is_sanitized:
            self._calls.keep(prepared, arrays, first)
        with evaluating(enable_x64=prepared.launch.enable_x64):
            observers: list[MachineObserver] = []
            loops = IdleLoops()
            if self._observer.prints:
                observers.append(_Prints(prepared.launch.name, self._observer))
            if prepared.is_sanitized:
                infinities = self._observer.infinities
                given = areas.observers(prepared.launch, arrays, first, infinities=infinities)
                observers += [*given, loops]
            done = machine_run.run(
                prepared.launch,
                arrays,
                first=first,
                observers=observers,
                fill="number" if prepared.digest in self._refilled else "nan",
                pace=pace,
            )
            pace.ends()
            explained: list[Finding] = []
            if not prepared.is_sanitized and done.stopped is None and done.partial is None:
                explained = areas.padding_read(prepared.launch, arrays, done.results, first=first)
        self._observer.found(*done.findings, *explained, uses=prepared.uses, digest=prepared.digest)
        digest = prepared.digest
        self._observer.hinted(*(replace(hint, digest=digest) for hint in done.hints))
        self._observer.looped(prepared.digest, skipped=loops.skipped, ran=loops.ran)
        if done.partial is not None:
            raise pace.ended(replace(done.partial, digest=prepared.digest))
        if done.stopped is not None:
            raise stops.stop(done.stopped, finding_text(done.stopped))
        return [untyped(results) for results in done.results]


class _Prints(MachineObserver):
    """Forwards prints of a kernel."""

    follows_loops = False

    def __init__(self, kernel: str, observer: HostObserver) -> None:
        self._kernel = kernel
        self._observer = observer

    def prints(self, thread: Thread, step: ir.PrintStep, values: Sequence[Any]) -> None:
        self._observer.printed(
            PrintRecord(
                kernel=self._kernel,
                text=step.text(values),
                source=step.site.line,
                grid_point=thread.point,
                loop=thread.iterations,
                values=printing.shown([np.asarray(value) for value in values]),
            )
        )


def _communicates(known: Launch) -> bool:
    return any(
        isinstance(step, ir.BarrierSemaphore) or getattr(step, "device", None) is not None
        for step in known.all_steps()
    )
