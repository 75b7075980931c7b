"""Sweeps that really compile: figures, failures, resumption, and executors of any kind."""

from __future__ import annotations

import concurrent.futures
import json
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest

import pallas_debug
from pallas_debug.errors import CannotRunError, UsageError
from pallas_debug.sweeps import task as tasks
from pallas_debug.sweeps.result import SweepResult, table
from pallas_debug.sweeps.task import FunctionName, SweepTask

X = jax.ShapeDtypeStruct((64, 128), "float32")
OVER = {"block": [8, 12, 64], "mode": ["ok", "raise"]}


class Here(Executor):
    """Runs each task when it is submitted, and notes it."""

    def __init__(self, change: Callable[[SweepTask], SweepTask] = lambda task: task) -> None:
        self.tasks: list[SweepTask] = []
        self._change = change

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        (task,) = args
        self.tasks.append(task)
        future: Future[Any] = Future()
        try:
            future.set_result(fn(self._change(task)))
        except Exception as error:  # noqa: BLE001
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweep") / "dumps"


@pytest.fixture(scope="module")
def found(swept_module: Any, dumps: Path) -> SweepResult:
    with ThreadPoolExecutor(2) as executor:
        return pallas_debug.sweep(
            swept_module.scale, over=OVER, args=(X,), to=dumps, executor=executor
        )


@pytest.mark.slow
def test_only_the_settings_that_a_simulation_ranks_best_are_compiled(
    swept_module: Any, tmp_path: Path
) -> None:
    here = Here()
    x = jax.ShapeDtypeStruct((4096, 128), "float32")
    found = pallas_debug.sweep(
        swept_module.scale, over={"block": [8, 12, 64, 1024, 8192], "mode": ["ok"]}, args=(x,),
        to=tmp_path, executor=here, predict=2,
    )  # fmt: skip
    assert [p.setting["block"] for p in found.predictions][-1] == "8192"
    assert "its grid has no points" in found.predictions[-1].cycles.note
    assert [r.setting["block"] for r in found.results] == ["1024", "64"]
    assert len(here.tasks) == 2
    for result, predicted in zip(found.results, found.predictions, strict=False):
        assert result.setting == predicted.setting
        assert predicted.cycles.value == pytest.approx(result.cycles.value, rel=0.25)


@pytest.mark.slow
def test_blocks_that_leave_out_rows_are_not_best(swept_module: Any, tmp_path: Path) -> None:
    """Two blocks of 24 rows take less time than eight of 8, and 16 rows are not computed."""
    found = pallas_debug.sweep(
        swept_module.scale,
        over={"block": [24, 8]},
        args=(X,),
        to=tmp_path,
        executor=ThreadPoolExecutor(1),
    )
    whole, partial = found.results
    assert (whole.setting["block"], partial.setting["block"]) == ("8", "24")
    assert whole.cycles.value is not None
    assert partial.cycles.value is not None
    assert partial.cycles.value < whole.cycles.value
    assert partial.partial == ("x_ref", "o_ref")
    assert partial.left_out["o_ref"] == 16 * 128
    assert found.best() == whole
    assert "partial: its blocks leave out 2,048 elements of x_ref" in str(table(found.results))


@pytest.mark.slow
def test_figures_come_from_the_compiler(found: SweepResult, dumps: Path) -> None:
    best, second, *failed = found.results
    assert [best.setting, second.setting] == [
        {"block": "64", "mode": "'ok'"},
        {"block": "8", "mode": "'ok'"},
    ]
    stored = pallas_debug.open_dumps(dumps).find(best.kernels[0]).target("v5e")
    bundles = stored.named("schedule/bundles.txt").text()
    assert best.bundles.value is not None
    assert bundles.count("\n") >= best.bundles.value > 10
    assert best.cycles.value is not None
    assert second.cycles.value is not None
    assert best.cycles.value < second.cycles.value
    assert best.spills.value == 0
    assert best.vmem.value
    assert not best.is_cached
    assert len(failed) == 4


def test_settings_that_do_not_compile_say_why(found: SweepResult) -> None:
    failures = {r.label: r.failure for r in found.results if r.failure is not None}
    raised = failures["block=8, mode='raise'"]
    assert (raised.stage, raised.type) == ("tracing", "ValueError")
    assert str(raised) == "ValueError: the [block] must be even"
    odd = failures["block=12, mode='ok'"]
    assert (odd.stage, odd.kernel) == ("lowering", "double")
    assert "divisible by 8 and 128" in odd.message
    assert "\x1b" not in odd.message
    assert odd.cause
    assert odd.advice
    assert found.ok
    assert found.undecided == ()


def test_repetition_compiles_nothing(found: SweepResult, swept_module: Any, dumps: Path) -> None:
    again = pallas_debug.sweep(swept_module.scale, over=OVER, args=(X,), to=dumps, executor=Here())
    assert [(r.label, r.cycles, r.failure) for r in again.results] == [
        (r.label, r.cycles, r.failure) for r in found.results
    ]
    assert {r.label for r in again.results if r.is_cached} == {
        *("block=8, mode='ok'", "block=64, mode='ok'", "block=12, mode='ok'")
    }


def test_changed_source_is_compiled_again(
    found: SweepResult, swept_module: Any, dumps: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jax.experimental import pallas as pl

    def triple(x: Any, *, block: int = 8, mode: str = "ok") -> Any:
        def kernel(x_ref: Any, o_ref: Any) -> None:
            o_ref[...] = x_ref[...] * x_ref[...] * 3.0 + x_ref[...]

        spec = pl.BlockSpec((block, 128), lambda i: (i, 0))
        grid = (x.shape[0] // block,)
        return pl.pallas_call(kernel, grid=grid, in_specs=[spec], out_specs=spec, out_shape=X)(x)

    triple.__module__, triple.__qualname__ = "swept_module", "scale"
    monkeypatch.setattr(swept_module, "scale", triple)
    over = {"block": [64], "mode": ["ok"]}
    changed = pallas_debug.sweep(triple, over=over, args=(X,), to=dumps, executor=Here())
    (result,) = changed.results
    assert not result.is_cached
    assert result.kernels != found.results[0].kernels


def test_ctrl_c_keeps_what_is_finished(swept_module: Any, dumps: Path, found: SweepResult) -> None:
    over = {"block": [8, 16, 64], "mode": ["ok"]}

    class Slow(Here):
        """Finishes the first task only."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return super().submit(fn, *args) if not self.tasks else Future()

    def stop(done: int, of: int) -> None:
        if done:
            raise KeyboardInterrupt

    stopped = pallas_debug.sweep(
        swept_module.scale, over=over, args=(X,), to=dumps, executor=Slow(), progress=stop
    )
    assert stopped.is_stopped
    assert not stopped.ok
    assert [r.label for r in stopped.results] == ["block=8, mode='ok'"]
    assert stopped.unfinished == (
        *({"block": "16", "mode": "'ok'"}, {"block": "64", "mode": "'ok'"}),
    )
    whole = pallas_debug.sweep(swept_module.scale, over=over, args=(X,), to=dumps, executor=Here())
    assert whole.ok
    assert len(whole.results) == 3


def test_worker_without_the_directory_returns_figures(
    swept_module: Any, found: SweepResult, tmp_path: Path
) -> None:
    over = {"block": [64], "mode": ["ok"]}
    elsewhere = Here(lambda task: replace(task, where=str(tmp_path / "none")))
    dumps = tmp_path / "dumps"
    (result,) = pallas_debug.sweep(
        swept_module.scale, over=over, args=(X,), to=dumps, executor=elsewhere
    ).results
    assert result.cycles == found.results[0].cycles
    assert pallas_debug.open_dumps(dumps).kernels() == []
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_sweep_into_an_object_store(
    swept_module: Any, found: SweepResult, in_memory: Callable[[], str]
) -> None:
    from click.testing import CliRunner

    from pallas_debug.cli.group import cli

    over = {"block": [12, 64], "mode": ["ok"]}
    url = in_memory()

    def run() -> SweepResult:
        return pallas_debug.sweep(swept_module.scale, over=over, args=(X,), to=url, executor=Here())

    first, again = run(), run()
    assert first.results[0].cycles == again.results[0].cycles == found.results[0].cycles
    assert [r.is_cached for r in again.results] == [True, True]
    names = [kernel.name for kernel in pallas_debug.open_dumps(url).kernels()]
    assert sorted(names) == sorted(k for r in again.results for k in r.kernels)

    (compiled,) = [r for r in again.results if r.ok]
    for words in (["stats"], ["timeline"], ["source", "--cost"]):
        arguments = [words[0], f"{url}/{compiled.kernels[0]}", *words[1:]]
        shown = CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout
        assert f"{compiled.cycles} " in shown, words


def test_executor_that_hangs(swept_module: Any, tmp_path: Path) -> None:
    class Hanging(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            return Future()

    from pallas_debug import defaults

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(defaults, "SETTING_MARGIN", 0.2)
        found = pallas_debug.sweep(
            swept_module.scale,
            over={"block": [8, 64]},
            args=(X,),
            to=tmp_path,
            executor=Hanging(),
            timeout=0.2,
        )
    assert len(found.unfinished) == 2
    (problem,) = found.problems
    assert problem.startswith("no setting was finished for ")
    assert "workers hang, or none is left" in problem


def test_executor_that_breaks(swept_module: Any, tmp_path: Path) -> None:
    class Broken(Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(concurrent.futures.BrokenExecutor("a process ended"))
            return future

    def run(executor: Executor) -> SweepResult:
        return pallas_debug.sweep(
            swept_module.scale, over={"block": [8, 64]}, args=(X,), to=tmp_path, executor=executor
        )

    assert run(Broken()).problems == ("the executor broke: BrokenExecutor: a process ended",)
    closed = ThreadPoolExecutor(1)
    closed.shutdown()
    (problem,) = run(closed).problems
    assert problem.startswith("the executor no longer accepts tasks: RuntimeError: cannot schedule")


def test_requests_that_are_refused(swept_module: Any, tmp_path: Path) -> None:
    def refusal(function: Any, **over: Any) -> str:
        with pytest.raises(UsageError) as caught:
            pallas_debug.sweep(function, over=over, args=(X,), to=tmp_path, executor=Here())
        return str(caught.value)

    unknown = refusal(swept_module.scale, blocks=[8])
    assert (
        "pallas_debug.sweep cannot call scale with these arguments: got an unexpected keyword"
        in unknown
    )
    assert "Its signature: scale(x, *, block=8, mode='ok')" in unknown
    assert "calls no Pallas kernel" in refusal(swept_module.nothing, block=[8, 16])
    assert "needs an argument to vary" in refusal(swept_module.scale)


def test_machine_that_cannot_compile(
    swept_module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise CannotRunError("libtpu is not installed, so nothing can be compiled")

    monkeypatch.setattr(tasks, "dump_function", fails)
    with pytest.raises(CannotRunError, match="libtpu is not installed"):
        pallas_debug.sweep(
            swept_module.scale, over={"block": [8, 64]}, args=(X,), to=tmp_path, executor=Here()
        )


def test_functions_are_sent_by_name(swept_module: Any) -> None:
    named = tasks.named(swept_module.scale)
    assert isinstance(named, FunctionName)
    assert (named.module, named.name) == ("swept_module", "scale")
    assert named.load() is swept_module.scale

    def local(x: Any) -> Any:
        return x

    assert tasks.named(local) is local


@pytest.mark.slow
def test_command(scale_file: Path, command: Any, tmp_path: Path) -> None:
    """Processes of this machine: one dies, after two have compiled; then the same without it."""
    words = [
        *("sweep", f"{scale_file}:scale", "--arg", "f32[64,128]", "--jobs", "1"),
        *("--over", "mode='ok','die'", "--over", "block=8,64"),
    ]
    first = command(*words)
    assert first.returncode == 3, first.stderr
    rows = [line.split("	") for line in first.stdout.splitlines()]
    assert [row[1:3] for row in rows] == [["'ok'", "64"], ["'ok'", "8"]]
    assert "best for v5e: mode='ok', block=64: " in first.stderr
    assert "a worker process died, whose output is above. Running were mode='die', block=8. " in (
        first.stderr
    )
    assert "put that under `if __name__ == '__main__':`" in first.stderr
    assert "2 of 4 settings have no result, or failed for reasons" in first.stderr
    words[-3] = "mode='ok'"
    again = command(*words, "--json")
    assert again.returncode == 0, again.stderr
    document = json.loads(again.stdout)
    assert document["schema"] == "pallas-debug/sweep/1"
    assert document["results"][0]["setting"] == {"mode": "'ok'", "block": "64"}


@pytest.mark.parametrize(
    "words, message",
    [
        (["script.py", "--over", "q=1"], "a sweep takes a function, as package.module:function"),
        (["swept_module.py:scale", "--over", "block"], "--over 'block' is not of the form NAME=V"),
        (["swept_module.py:scale", "--over", "block=1", "--over", "block=2"], "was given twice"),
        (["swept_module.py:scale", "--over", "block=]["], "--over 'block=][': "),
        (
            ["swept_module.py:scale", "--over", "size=1"],
            "got an unexpected keyword argument 'size'",
        ),
    ],
)
def test_command_lines_that_are_refused(
    scale_file: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from pallas_debug.cli.group import cli

    monkeypatch.chdir(scale_file.parent)
    arguments = ["--arg", "f32[64,128]"] if "scale" in words[0] else []
    ran = CliRunner().invoke(cli, ["sweep", *words, *arguments])
    assert isinstance(ran.exception, UsageError)
    assert message in str(ran.exception)
