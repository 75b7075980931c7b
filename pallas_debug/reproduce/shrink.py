"""Search for a smaller kernel that fails the same way: delta debugging on the captured jaxpr.

Sources: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pallas_debug.bridge import unparse
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import lower, smaller
from pallas_debug.compiler import targets
from pallas_debug.compiler.pool import Pool, PoolSettings
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.model import Target
from pallas_debug.reproduce.same import Signature, signature, signature_of

_MAX_SECONDS = 60.0
"""Maximum seconds to compile a candidate."""


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The smallest kernel found.

    Attributes:
      note: what was done, in lines of text.
    """

    captured: Capture
    note: str

    @property
    def program(self) -> str:
        """The kernel as a module."""
        return unparse.program_of(self.captured)


def shrink(
    captured: Capture, target: Target, *, seconds: float,
    report: Callable[[str], None] = lambda _: None,
) -> Shrunk:  # fmt: skip
    """Return a smaller kernel that fails for a target as this one does.

    Args:
      seconds: limit of the search, after which the best result so far is returned.
      report: called with a sentence for each step.

    Raises:
      UsageError: the kernel compiles.
      CannotRunError: it is not a `pallas_call`, or there is no compiler.
    """
    if "grid_mapping" not in captured.params or "jaxpr" not in captured.params:
        raise CannotRunError(f"{captured.kernel.name} is not a pallas_call: it cannot be shrunk")
    with Pool(PoolSettings(jobs=1, timeout=min(seconds, _MAX_SECONDS))) as pool:
        search = _Search(target, pool, time.monotonic() + seconds, report)
        return search.run(captured)


class _Search:
    def __init__(
        self, target: Target, pool: Pool, ends: float,
        report: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._target = target
        self._pool = pool
        self._ends = ends
        self._report = report
        self._tried = 0

    def run(self, captured: Capture) -> Shrunk:
        wanted = self._failure(captured)
        if wanted is None:
            raise UsageError(
                f"{captured.kernel.name} compiles for {self._target.name}: there is nothing to "
                "shrink"
            )
        before, steps = smaller.size(captured), list[str]()
        self._report(f"{before} equations, {wanted}")
        while (found := self._step(captured, wanted)) is not None:
            what, captured = found
            steps.append(what)
            self._report(f"{what}: {smaller.size(captured)} equations")
        ended = "" if time.monotonic() < self._ends else "; the time limit ended the search"
        note = (
            f"Shrunk by pallas-debug from {before} equations to {smaller.size(captured)}, in "
            f"{len(steps)} successful steps of {self._tried} tried{ended}."
        )
        self._report(note)
        lines = [note, *(f"  {step}" for step in dict.fromkeys(steps))]
        return Shrunk(
            captured=captured,
            note="\n".join([*lines, f"It fails in the same way: {wanted}."]),
        )

    def _step(self, captured: Capture, wanted: Signature) -> smaller.Version | None:
        """Return the first smaller version that fails the same way."""
        for what, version in smaller.versions(captured):
            if time.monotonic() >= self._ends:
                return None
            self._tried += 1
            if self._failure(version) == wanted:
                return what, version
        return None

    def _failure(self, captured: Capture) -> Signature | None:
        try:
            lowered = lower.lower(captured, self._target)
        except lower.LoweringFailed as error:
            return signature(error.failure)
        with self._pool.compile(
            lowered.module,
            topology=targets.for_devices(self._target, lowered.num_devices) or self._target.name,
            num_devices=lowered.num_devices,
            options={},
        ) as outcome:
            reply = outcome.reply
            if reply is None:
                stage = "timeout" if outcome.ended == "timeout" else "crash"
                return signature_of(stage, outcome.log.decode(errors="replace"))
            return signature_of("compile", reply.error) if reply.error is not None else None
