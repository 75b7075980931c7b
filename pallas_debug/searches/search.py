"""The search for the smallest input for which a function's kernels fail."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import platformdirs
from hypothesis import HealthCheck, Phase
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import NoSuchExample, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from pallas_debug import defaults, render
from pallas_debug import inputs as arguments
from pallas_debug.comparison.reference import name_of
from pallas_debug.errors import InvalidReference, UsageError
from pallas_debug.findings.faults import Fault
from pallas_debug.model import Finding
from pallas_debug.searches import templates
from pallas_debug.searches.templates import Choices, Input, Range, Template
from pallas_debug.verdict import Request, Verdict, Verifier

EXAMPLES = 200
"""Maximum number of inputs that are drawn before one fails."""

INTERRUPTED = "interrupted"
"""Why a search ended at ctrl+c."""


class Failing(NamedTuple):
    """An input for which a kernel fails, and the first finding for it."""

    input: Input
    finding: Finding


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found.

    Attributes:
      function, reference: names, as `module:function` if they can be imported.
      settings: those of `verify` that decide what fails: `rtol`, `atol`, `grad`.
      failing: the smallest input that fails; None if none was found.
      tried: number of inputs for which the function ran.
      failed: how many of them fail.
      refused: number of inputs that the function or jax refuses with an exception.
      refusal: the first of these, with its exception.
      unsettled: first reason why an input could not be judged.
      stopped: why the search ended early: out of time, or an interrupt.
    """

    function: str
    reference: str | None
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    failing: Failing | None = None
    tried: int = 0
    failed: int = 0
    refused: int = 0
    refusal: str = ""
    unsettled: str = ""
    stopped: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True if inputs were judged and none fails."""
        return self.failing is None and self.tried > 0

    def __str__(self) -> str:
        lines = [self.summary]
        if self.failing is not None:
            lines += ["", render.finding_text(self.failing.finding), ""]
            lines += ["a test:", "", *self.test().splitlines()]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One sentence on the outcome, and one on what was tried."""
        name = self.function.rpartition(":")[2]
        if self.failing is not None:
            found = f"{name} fails first at {self.failing.input}"
        elif self.tried:
            found = f"{name} fails for none of {render.plural(self.tried, 'input')}"
        else:
            found = f"{name} was judged for no input"
        tried = f"{render.plural(self.tried, 'input')} tried, {self.failed:,} of them fail"
        parts = [tried if self.failing is not None else "", f"seed {self.seed}"]
        parts.append(f"{self.seconds:.1f} s")
        if self.refused:
            parts.append(f"{self.refused:,} refused, first {self.refusal}")
        if self.unsettled:
            parts.append(f"not judged: {self.unsettled}")
        parts.append(self.stopped)
        return f"{found} ({'; '.join(filter(None, parts))})"

    def test(self) -> str:
        """Source of a test file that fails as long as the smallest failing input does."""
        assert self.failing is not None
        modules = dict.fromkeys(filter(None, (self.function, self.reference)))
        imports = [f"from {m} import {n}" for m, _, n in (one.partition(":") for one in modules)]
        name = self.function.rpartition(":")[2]
        reference = "" if self.reference is None else self.reference.rpartition(":")[2]
        texts = "\n".join(f"        {text!r}," for text in self.failing.input.texts)
        more = f", reference={reference}" if reference else ""
        more += "".join(f", {setting}={value!r}" for setting, value in self.settings.items())
        return (
            "\n".join(["import pallas_debug", "from pallas_debug.inputs import parse", *imports])
            + f"\n\n\ndef test_{name.replace('.', '_')}() -> None:\n"
            f"    # {self.failing.input}\n"
            f"    args, kwargs = parse([\n{texts}\n    ])\n"
            f'    pallas_debug.verify({name}, *args, engines="machine"{more}, **kwargs)'
            ".throw()\n"
        )


def search(
    function: Callable[..., Any],
    texts: Iterable[str],
    *,
    reference: Callable[..., Any] | None = None,
    let: Iterable[str] | Mapping[str, Any] = (),
    budget: float = defaults.SEARCH_BUDGET,
    seed: int | None = None,
    examples: int = EXAMPLES,
    tick: Callable[[SearchResult], None] = lambda so_far: None,
    **how: Any,
) -> SearchResult:
    """Search for the smallest input for which the kernels of a function fail.

        pallas_debug.search(rows, ["f32[n*8,128]"], let={"n": "1..8"}, reference=rows_reference)

    Inputs are drawn by hypothesis. For each, the kernels run on the kernel machine with the
    sanitizer, and the results are compared with the reference's. An input for which the function
    raises an exception as it is called, or for which the reference does, is not a failure: it is
    refused.

    Args:
      texts: the arguments, as for `--arg`, with variables for sizes (`f32[n*8,128]`) and for values
        (`block=b`), and ranges for integers (`i32[4] in 0..512`, `… sorted`, `… sum n`).
      reference: function of the same arguments that returns the correct results.
      let: the variables: `n=1..8`, `b=64,128`; or by name. Those named first are kept small first.
      budget: seconds after which no further input is tried.
      seed: of the random choices; by default a new one. Failing inputs of earlier searches are
        tried first, whatever the seed.
      examples: maximum number of inputs that are drawn before one fails.
      tick: called after every input.
      **how: settings of `verify`: `targets`, `rtol`, `atol`, `grad`.

    Returns:
      The result, with the smallest failing input.

    Raises:
      UsageError: a text is invalid, or no input meets all constraints.
    """
    texts = list(texts)
    parsed, lets = templates.parse(texts, let)
    result = SearchResult(
        function=_importable(function),
        reference=None if reference is None else _importable(reference),
        seed=random.SystemRandom().randrange(1 << 31) if seed is None else seed,
        settings={k: how[k] for k in ("rtol", "atol", "grad") if how.get(k) not in (None, False)},
    )
    how = {"targets": defaults.TARGET, "reference": reference, **how}
    return _Search(function, texts, parsed, budget, tick, how, result).run(lets, examples)


@dataclass(eq=False)
class _Search:
    """One search.

    Attributes:
      result: what is known so far.
    """

    _function: Callable[..., Any]
    _texts: list[str]
    _templates: list[Template]
    _budget: float
    _tick: Callable[[SearchResult], None]
    _how: Mapping[str, Any]
    result: SearchResult
    _began: float = field(default_factory=time.monotonic)
    _judged: dict[tuple[str, ...], Verdict | None] = field(default_factory=dict)

    def run(self, lets: Mapping[str, Choices], examples: int) -> SearchResult:
        """Search until an input fails, or all of them were tried."""
        self._lets = lets
        try:
            self._find(lets, examples)
        except KeyboardInterrupt:
            self._note(stopped=INTERRUPTED)
        self._note()
        return self.result

    def _find(self, lets: Mapping[str, Choices], examples: int) -> None:
        """Search; hypothesis shrinks an input that fails."""
        settings = hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=DirectoryBasedExampleDatabase(_folder()),
            phases=(Phase.reuse, Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        )
        key = repr((self.result.function, self._texts)).encode()
        try:
            hypothesis.find(
                templates.inputs(lets, self._templates),
                self._fails,
                settings=settings,
                random=random.Random(self.result.seed),
                database_key=key,
            )
        except NoSuchExample:
            pass
        except Unsatisfiable as error:
            if not self._judged:
                raise UsageError(
                    "no input meets all constraints: check the ranges and sums of --let and --arg"
                ) from error

    def _fails(self, given: Input) -> bool:
        """Judge an input, unless it was judged before or there is no time left."""
        if given.texts not in self._judged:
            if self._is_over():
                return False
            self._judged[given.texts] = self._verdict(given)
            self._tick(self.result)
        verdict = self._judged[given.texts]
        if verdict is None or not verdict.counted:
            return False
        failing = self.result.failing
        if failing is None or self._size(given) < self._size(failing.input):
            self.result = replace(self.result, failing=Failing(given, verdict.counted[0]))
        return True

    def _size(self, given: Input) -> tuple[Any, ...]:
        """Order of inputs: by their variables, the first ones first, then by their texts."""
        sizes = (
            value if isinstance(choices := self._lets[name], Range) else choices.index(value)
            for name, value in given.values.items()
        )
        return *sizes, sum(map(len, given.texts)), given.texts

    def _is_over(self) -> bool:
        is_over = time.monotonic() - self._began > self._budget
        if is_over:
            self._note(stopped=f"stopped after {self._budget:g} s")
        return is_over

    def _note(self, **found: Any) -> None:
        self.result = replace(self.result, seconds=time.monotonic() - self._began, **found)

    def _verdict(self, given: Input) -> Verdict | None:
        """The verdict on an input; None if the function or its reference refuses it."""
        args, kwargs = arguments.parse(given.texts)
        request = Request(engines="machine", **self._how)
        result = self.result
        try:
            verdict = Verifier().of_function(self._function, args, kwargs, request)
        except InvalidReference as error:
            self._refused(given, str(error))
            return None
        if any(finding.kind is Fault.TRACE_ERROR for finding in verdict.findings):
            self._refused(given, verdict.findings[0].message)
            return None
        gaps = "; ".join(dict.fromkeys(gap.reason for gap in verdict.gaps))
        unsettled = result.unsettled or (f"{given}: {gaps}" if gaps else "")
        self._note(
            tried=result.tried + (bool(verdict.counted) or not verdict.unjudged),
            failed=result.failed + bool(verdict.counted),
            unsettled=unsettled,
        )
        return verdict

    def _refused(self, given: Input, why: str) -> None:
        refusal = self.result.refusal or f"{given}: {why}"
        self._note(refused=self.result.refused + 1, refusal=refusal)


def arguments_of(
    texts: Iterable[str], let: Iterable[str] | Mapping[str, Any] = ()
) -> SearchStrategy[tuple[list[Any], dict[str, Any]]]:
    """Return a strategy of hypothesis that draws arguments, for `@given`.

        @given(pallas_debug.arguments(["f32[n*8,128]"], let={"n": "1..8"}))
        def test_rows(drawn):
            args, kwargs = drawn
            pallas_debug.compare(rows, rows_reference, *args, **kwargs).throw()

    Args:
      texts, let: as for `search`.

    Raises:
      UsageError: a text is invalid.
    """
    parsed, lets = templates.parse(texts, let)
    return templates.inputs(lets, parsed).map(lambda drawn: arguments.parse(drawn.texts))


def _importable(function: Callable[..., Any]) -> str:
    """Name of a function as `module:function`."""
    module = getattr(function, "__module__", None) or "__main__"
    return f"{module}:{name_of(function)}"


def _folder() -> Path:
    """Folder of failing inputs of earlier searches, in the user's cache."""
    return platformdirs.user_cache_path("pallas-debug", appauthor=False) / "search"
