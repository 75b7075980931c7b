"""Search for a small program that fails in the same way: delta debugging.

Changes are tried kind by kind, and kept if the failure remains; the next change builds on the
result. Candidates pass through the closed grammar like the dump's program; they are lowered in one
confined process and compiled in another.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable

from pallas_debug.compiler import switches
from pallas_debug.compiler.pool import Pool, PoolSettings, RequestOutcome
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.reproduce import grammar
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.same import Signature, signature, signature_of
from pallas_debug.reproduce.script import script_of
from pallas_debug.reproduce.shrinking.changes import KINDS, Reduction
from pallas_debug.reproduce.shrinking.lines import Program, parse
from pallas_debug.reproduce.shrinking.lowering import Lowerer

_MAX_SECONDS = 60.0
"""Maximum seconds to lower or compile a candidate."""

_REMOVED = re.compile(r"removed or zeroed (?:a statement|(\d+) statements)")
"""Pattern of the steps that removed statements, or replaced them with zeros."""


def shrunk(
    recorded: Recorded, *, seconds: float, report: Callable[[str], None] = lambda _: None
) -> str:
    """Return a script with a smaller kernel that fails like the recorded one.

    Args:
      seconds: limit of the search, after which the best result so far is returned.
      report: called with a sentence for each step.

    Raises:
      CannotRunError: the dump has no program, or the program does not fail in the same way here.
    """
    if recorded.program is None or recorded.failure is None:
        raise CannotRunError(
            f"{recorded.kernel.name} cannot be made smaller: {recorded.why_no_program}"
        )
    program = parse(grammar.emitted(recorded.program))
    timeout = min(seconds, _MAX_SECONDS)
    with (
        Lowerer(seconds=2 * seconds + _MAX_SECONDS) as lowerer,
        Pool(PoolSettings(jobs=1, timeout=timeout)) as pool,
    ):
        search = _Search(recorded, lowerer, pool, time.monotonic() + seconds, report)
        return search.run(program)


class _Search:
    def __init__(
        self,
        recorded: Recorded,
        lowerer: Lowerer,
        pool: Pool,
        ends: float,
        report: Callable[[str], None],
    ) -> None:
        assert recorded.failure is not None
        self._recorded = recorded
        self._wanted = signature(recorded.failure)
        self._lowerer = lowerer
        self._pool = pool
        self._ends = ends
        self._report = report
        self._seen: set[str] = set()
        self._tried = 0
        self._kept: list[str] = []

    def run(self, program: Program) -> str:
        before = program
        found = self._failure(program)
        if found != self._wanted:
            raise CannotRunError(
                f"{self._recorded.kernel.name} does not fail here in the same way: the dump has "
                f"{self._wanted}, but here the result is {found or 'compiled'}. Are other versions "
                "of jax or libtpu installed?"
            )
        self._report(f"{program.size} statements, {self._wanted}")
        while smaller := self._step(program):
            program = smaller
        in_time = "" if time.monotonic() < self._ends else "; the time limit ended the search"
        note = (
            f"Shrunk by pallas-debug from {before.size} statements to {program.size}, in "
            f"{len(self._kept)} successful steps of {self._tried} tried{in_time}."
        )
        self._report(note)
        done = [f"  {step}" for step in _counted(self._kept)]
        note = "\n".join([note, *done, f"It fails in the same way: {self._wanted}."])
        return script_of(self._recorded, program=program.text, note=note)

    def _step(self, program: Program) -> Program | None:
        """Return the program after one round of all kinds, or None if nothing helped."""
        start = program
        for kind in KINDS:
            while time.monotonic() < self._ends:
                smaller = self._first(kind(program))
                if smaller is None:
                    break
                program = smaller
        return None if program is start else program

    def _first(self, changes: Iterable[Reduction]) -> Program | None:
        for change in changes:
            if time.monotonic() >= self._ends:
                return None
            text = change.program.text
            if text in self._seen:
                continue
            self._seen.add(text)
            self._tried += 1
            try:
                found = self._failure(change.program)
            except CannotRunError:  # the change resulted in an invalid program
                continue
            if found == self._wanted:
                self._kept.append(change.what)
                self._report(f"{change.what}: {change.program.size} statements")
                return change.program
        return None

    def _failure(self, program: Program) -> Signature | None:
        script = script_of(self._recorded, program=program.text)
        module = self._lowerer.lower(script, seconds=_MAX_SECONDS)
        if isinstance(module, Failure):
            return signature(module)
        if self._wanted.stage == "lowering":
            return None
        compilation = self._recorded.compilation
        with self._pool.compile(
            module,
            topology=self._recorded.topology,
            num_devices=self._recorded.num_devices,
            options=switches.compile_options(compilation.switches if compilation else ()),
        ) as outcome:
            return _of(outcome)


def _of(outcome: RequestOutcome) -> Signature | None:
    reply = outcome.reply
    if reply is None:
        stage = "timeout" if outcome.ended == "timeout" else "crash"
        return signature_of(stage, outcome.log.decode(errors="replace"))
    return signature_of("compile", reply.error) if reply.error is not None else None


def _counted(steps: list[str]) -> list[str]:
    """Summarise the steps, with all removals of statements as one."""
    matches = [match for step in steps if (match := _REMOVED.fullmatch(step))]
    total = sum(int(match[1] or 1) for match in matches)
    others = [step for step in dict.fromkeys(steps) if not _REMOVED.fullmatch(step)]
    return [*([f"removed or zeroed {total} statements"] if total else []), *others]
