"""`sweep`: compile every setting of a grid, and compare them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pallas_debug import defaults
from pallas_debug.compiler import stages as stage_names
from pallas_debug.compiler import switches as switch_names
from pallas_debug.compiler import targets as target_names
from pallas_debug.compiler.pool import default_jobs
from pallas_debug.errors import CannotRunError, DumpDirectoryError, UsageError
from pallas_debug.guards import check_arguments, check_function
from pallas_debug.store.writer import open_store
from pallas_debug.sweeps import predict as predicting
from pallas_debug.sweeps import task as tasks
from pallas_debug.sweeps.grid import Setting, settings
from pallas_debug.sweeps.predict import Prediction
from pallas_debug.sweeps.result import SettingResult, SweepResult, ranked
from pallas_debug.sweeps.task import SweepTask
from pallas_debug.sweeps.workers import START, LocalWorkers

_TICK = 0.1

_DROPPED = "the executor cancelled settings that it had accepted: it was shut down meanwhile"

Progress = Callable[[int, int], None]
"""Called with the numbers of finished and of all settings, several times a second."""


def sweep(
    function: Callable[..., Any],
    /,
    *,
    over: Mapping[str, Sequence[Any]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    targets: str | Sequence[str] | None = defaults.TARGET,
    to: str | Path = defaults.DIRECTORY,
    executor: Executor | None = None,
    jobs: int = 0,
    timeout: float = defaults.COMPILE_TIMEOUT,
    switches: str | Sequence[str] = (),
    stages: str | Sequence[str] = (),
    predict: int | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Compile a function's kernels for every combination of settings, and rank them.

        found = pallas_debug.sweep(attention, over={"block_q": [128, 256]}, args=(q, k, v))
        print(found)
        found.best().setting

    Each setting is traced and compiled by a worker; none is run. Kernels are stored in the dump
    directory: a sweep that was stopped can be continued, and a repeated sweep compiles only what
    has changed. Ctrl+c ends a sweep and returns the results so far: settings without a result are
    then in `unfinished`, and `is_stopped` is set.

    Args:
      function: a function that calls kernels, jitted or not.
      over: values of keyword arguments, by name.
      args: other positional arguments: arrays or `jax.ShapeDtypeStruct`s; anything else is passed
        unchanged.
      kwargs: other keyword arguments.
      targets: names of targets, as a list or joined by commas.
      to: the dump directory; a URL such as `s3://bucket/dumps` for an object store, to which it is
        uploaded at the end.
      executor: runs the settings: any `concurrent.futures.Executor`; by default `jobs` processes
        on this machine. On a machine where the dump directory does not exist, workers return their
        figures and keep no files.
      jobs: number of processes; 0 is one per core, up to four.
      timeout: maximum seconds for one setting.
      switches: names of compilation switches, as for `dump`.
      stages: more of each compilation to keep, as for `dump`.
      predict: compile only as many settings for each target, those that a simulation ranks best;
        `predictions` has the simulated cycles of all.
      progress: called with the numbers of finished and of all settings.

    Raises:
      UsageError: there are no settings or too many, or a switch or stage is unknown.
      UnknownTargetError: a target is unknown.
      DumpDirectoryError: `to` is not writable.
      CannotRunError: nothing can be compiled here, or the executor accepts no tasks.
    """
    check_function("pallas_debug.sweep", function)
    wanted = settings(over)
    check_arguments("pallas_debug.sweep", function, args, {**(kwargs or {}), **wanted[0].values})
    names = _targets(targets)
    kept = stage_names.parse([*_listed(stages), stage_names.BUNDLES])
    chosen = switch_names.parse(switches)
    store = open_store(to)
    predictions: tuple[Prediction, ...] = ()
    if predict is not None:
        predictions = predicting.predict(function, wanted, args, kwargs or {}, names, timeout)
        wanted = predicting.best(wanted, predictions, predict)
    reference = tasks.named(function)
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
    began = time.monotonic()
    run = _Run(wanted=wanted, targets=names, timeout=timeout)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(store))
        todo = [
            SweepTask(
                number=number,
                function=reference,
                setting=setting,
                args=tuple(args),
                kwargs=dict(kwargs or {}),
                targets=names,
                where=str(store.root),
                timeout=timeout,
                switches=chosen,
                stages=kept,
            )
            for number, setting in enumerate(wanted)
        ]
        if executor is None:
            executor = workers = LocalWorkers(min(jobs or default_jobs(), len(todo)))
            stack.callback(workers.kill)
        run.follow(executor, todo, progress)
    found = replace(run.result(name, time.monotonic() - began), predictions=predictions)
    run.check(found)
    return found


@dataclass(kw_only=True)
class _Run:
    """State of a running sweep: settings with results, and problems."""

    wanted: list[Setting]
    targets: tuple[str, ...]
    timeout: float
    results: dict[int, tuple[SettingResult, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    is_stopped: bool = False

    def follow(self, executor: Executor, todo: list[SweepTask], progress: Progress | None) -> None:
        """Submit tasks, and collect their outcomes until all have arrived or are lost."""
        futures: dict[Future[tuple[SettingResult, ...]], SweepTask] = {}
        patience = self.timeout + defaults.SETTING_MARGIN
        try:
            for task in todo:
                futures[executor.submit(tasks.run, task)] = task
            pending = set(futures)
            workers = executor if isinstance(executor, LocalWorkers) else None
            latest = time.monotonic() + (START if workers is not None else 0)
            while pending:
                done, pending = concurrent.futures.wait(
                    pending, timeout=_TICK, return_when=concurrent.futures.FIRST_COMPLETED
                )
                for future in done:
                    latest = time.monotonic()
                    if future.cancelled():  # not by us: the setting is unfinished
                        self._has_problem(_DROPPED)
                    elif isinstance(future.exception(), BrokenProcessPool) and workers is not None:
                        self._has_problem(self._died(todo, workers.jobs))
                    else:
                        self._take(futures[future], future)
                if progress is not None:
                    progress(len(self.results), len(todo))
                quiet = time.monotonic() - latest
                if quiet > patience:
                    self.problems.append(
                        f"no setting was finished for {quiet:.0f} s, which is longer than one may "
                        "take: workers hang, or none is left"
                    )
                    break
        except KeyboardInterrupt:
            self.is_stopped = True
        except RuntimeError as error:  # of `submit`: the executor was shut down, or is broken
            self.problems.append(
                f"the executor no longer accepts tasks: {type(error).__name__}: {error}"
            )
        finally:
            for future in futures:
                future.cancel()

    def _take(self, task: SweepTask, future: Future[tuple[SettingResult, ...]]) -> None:
        error = future.exception()
        if isinstance(error, DumpDirectoryError):
            raise error
        if isinstance(error, concurrent.futures.BrokenExecutor):
            self._has_problem(f"the executor broke: {type(error).__name__}: {error}")
            return
        if error is not None:
            failure = replace(tasks.raised(error), stage="worker")
            self.results[task.number] = tuple(tasks.failed(task, failure))
            return
        self.results[task.number] = future.result()

    def _died(self, todo: Sequence[SweepTask], jobs: int) -> str:
        unfinished = [str(task.setting) for task in todo if task.number not in self.results]
        return (
            f"a worker process died, whose output is above. Running were "
            f"{'; '.join(unfinished[:jobs])}. If the script that starts the sweep does its own "
            "work when it is imported, put that under `if __name__ == '__main__':`"
        )

    def _has_problem(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)

    def result(self, name: str, seconds: float) -> SweepResult:
        """Return the results so far, best first."""
        found = [result for n in sorted(self.results) for result in self.results[n]]
        missing = [s.texts for n, s in enumerate(self.wanted) if n not in self.results]
        return SweepResult(
            name=name,
            targets=self.targets,
            results=ranked(found, self.targets),
            unfinished=tuple(missing),
            problems=tuple(self.problems),
            seconds=round(seconds, 3),
            is_stopped=self.is_stopped,
        )

    def check(self, found: SweepResult) -> None:
        """Check that the failures are not caused by the machine.

        Raises:
          CannotRunError: every setting failed for the same reason, unrelated to the settings.
        """
        failures = [r.failure for r in found.results]
        outcomes = {(f.stage, f.message) for f in failures if f is not None}
        if found.unfinished or len(outcomes) != 1 or None in failures:
            return
        ((stage, message),) = outcomes
        if stage == "setup":
            raise CannotRunError(message)
        if stage == "worker":
            raise CannotRunError(
                f"no worker finished a setting: {message}. Can the workers import the function, "
                "and do they have the same pallas-debug, jax and libtpu as this process?"
            )
        if stage == "tracing" and "calls no Pallas kernel" in message:
            raise UsageError(message)


def _targets(given: str | Sequence[str] | None) -> tuple[str, ...]:
    names = target_names.split(given, defaults.TARGET)
    if not names:
        raise UsageError("a sweep needs a target, such as v5e")
    return tuple(t.name for t in target_names.resolve_all(names))


def _listed(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
