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
from pallas_debug.reproduce.same import signature

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
    captured: Capture,
    target: Target,
    *,
    seconds: float,
    report: Callable[[str], None] = lambda _: None,
) -> Shrunk:
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
    ends, tried, steps = time.monotonic() + seconds, 0, list[str]()
    before = smaller.size(captured)
    with Pool(PoolSettings(jobs=1, timeout=min(seconds, _MAX_SECONDS))) as pool:
        wanted = _failure(pool, captured, target)
        if wanted is None:
            raise UsageError(
                f"{captured.kernel.name} compiles for {target.name}: there is nothing to shrink"
            )
        report(f"{before} equations, {wanted}")
        versions = smaller.versions(captured)
        while time.monotonic() < ends and (version := next(versions, None)) is not None:
            what, candidate = version
            tried += 1
            if _failure(pool, candidate, target) == wanted:
                captured, versions = candidate, smaller.versions(candidate)
                steps.append(what)
                report(f"{what}: {smaller.size(captured)} equations")
    ended = "" if time.monotonic() < ends else "; the time limit ended the search"
    note = (
        f"Shrunk by pallas-debug from {before} equations to {smaller.size(captured)}, in "
        f"{len(steps)} successful steps of {tried} tried{ended}."
    )
    report(note)
    lines = [note, *(f"  {step}" for step in dict.fromkeys(steps))]
    lines.append(f"It fails in the same way: {wanted}.")
    return Shrunk(captured=captured, note="\n".join(lines))


def _failure(pool: Pool, captured: Capture, target: Target) -> str | None:
    """Return the signature of a kernel's failure; None if it compiles."""
    try:
        lowered = lower.lower(captured, target)
    except lower.LoweringFailed as error:
        return signature(error.failure.stage, error.failure.message)
    with pool.compile(
        lowered.module,
        topology=targets.for_devices(target, lowered.num_devices) or target.name,
        num_devices=lowered.num_devices,
        options={},
    ) as outcome:
        reply = outcome.reply
        if reply is None:
            stage = "timeout" if outcome.ended == "timeout" else "crash"
            return signature(stage, outcome.log.decode(errors="replace"))
        return None if reply.error is None else signature("compile", reply.error)
