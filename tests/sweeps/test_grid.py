"""Settings of a sweep, and their order in the result."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pallas_debug import defaults
from pallas_debug.errors import UsageError
from pallas_debug.profile.figures import Figure, missing
from pallas_debug.sweeps.grid import settings, text_of
from pallas_debug.sweeps.result import (
    SettingFailure,
    SettingResult,
    SweepResult,
    ranked,
    reasons_of,
    table,
)


def test_every_combination() -> None:
    found = settings({"q": [1, 2], "k": [(8, 128), None]})
    assert [str(s) for s in found] == [
        *("q=1, k=(8, 128)", "q=1, k=None"),
        *("q=2, k=(8, 128)", "q=2, k=None"),
    ]
    assert found[1].values == {"q": 1, "k": None}


def test_texts_of_values() -> None:
    import jax.numpy as jnp
    import numpy as np

    assert text_of(np.dtype("float32")) == text_of(np.float32) == "float32"
    assert text_of(jnp.dtype("bfloat16")) == "bfloat16"
    assert [text_of(v) for v in (1, True, "a b", 1.5)] == ["1", "True", "'a b'", "1.5"]


@pytest.mark.parametrize(
    "over, message",
    [
        ({}, "a sweep needs an argument to vary: --over block_q=128,256"),
        ({"q": []}, "q has no values to sweep over"),
        ({"q": [1, 2, 1]}, "q has the value 1 twice"),
        (["q"], "over=['q'] is not a dict of arguments and their values: over={'block_q': …}"),
        ({"q": "12"}, "over['q'] is '12', not a list of values"),
        ({"q": 5}, "over['q'] is 5, not a list of values"),
        (
            {"q": range(100), "k": range(100)},
            f"100 x 100 is 10,000 settings, more than {defaults.MAX_SETTINGS:,}. Sweep over fewer",
        ),
    ],
)
def test_settings_that_are_refused(over: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(over)
    assert message in str(caught.value)


def _result(q: int, cycles: int | None, target: str = "v5e", **more: Any) -> SettingResult:
    made = missing("unknown") if cycles is None else Figure(value=cycles, unit="cycles")
    return SettingResult(setting={"q": str(q)}, target=target, cycles=made, **more)


FAILED = SettingFailure(
    stage="compile", type="E", message="no room", kernel="k", cause="too large", advice="halve it"
)


def test_best_first() -> None:
    results = [
        _result(1, 500),
        _result(2, None, failure=FAILED),
        _result(3, None),
        _result(4, 90),
        _result(5, 70, target="v6e"),
        _result(6, 90, bundles=Figure(value=10)),
    ]
    order = ranked(results, ["v6e", "v5e"])
    assert [r.setting["q"] for r in order] == ["5", "6", "4", "1", "3", "2"]
    found = SweepResult(name="f", targets=("v6e", "v5e"), results=order)
    best, of_v5e = found.best(), found.best("v5e")
    assert (best, of_v5e) == (order[0], order[1])
    assert found.ok
    assert repr(found) == "<SweepResult f: 5 of 6 compiled, best q=5: 70 cycles>"


def test_cycles_that_depend_on_run_time_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pallas_debug.cli import sweep as command

    monkeypatch.setattr(command.output, "echo_wrapped", lambda *_: None)
    unknown = Figure(value=None, unit="cycles", formula="1,886 + 921 n")
    results = (*(_result(q, None, bundles=Figure(value=q)) for q in (2, 4)), _result(8, 90, "v6e"))
    results = (*(replace(r, cycles=unknown) for r in results[:2]), *results)
    mixed = replace(results[0], target="v6e")
    found = SweepResult(
        name="f", targets=("v5e", "v6e"), results=ranked((*results, mixed), ["v5e", "v6e"])
    )
    assert found.best() is None
    assert found.ok
    assert repr(found) == "<SweepResult f: 6 of 6 compiled>"
    options = SimpleNamespace(directory="dumps")
    command._print(found, options)  # type: ignore[arg-type]
    text = " ".join(capsys.readouterr().err.split())
    assert (
        "no best for v5e: the cycles of all settings depend on numbers that are known only at run "
        "time, such as the size of a dynamic grid; pass arguments with values: --arg "
        "'i32[2]=[512,100]', or --inputs package.module:function" in text
    )
    assert (
        "best for v6e: q=8: 90 cycles; without 1 whose cycles depend on numbers that are known "
        "only at run time" in text
    )
    assert command._exit_code(found) is command.Exit.OK


def test_settings_that_do_less_work_come_after_the_others() -> None:
    results = [
        _result(1, 500, left_out={"x": 0, "y": 64}),
        _result(2, 100, left_out={"x": 8, "y": 64}),
        _result(3, 900, left_out={"x": 0, "y": 64}),
        _result(4, 50, left_out={"x": 8}, target="v6e"),
        _result(5, None, failure=FAILED),
    ]
    order = ranked(results, ["v5e", "v6e"])
    assert [r.setting["q"] for r in order] == ["1", "3", "2", "5", "4"]
    assert [r.partial for r in order] == [(), (), ("x",), (), ()]
    statuses = [row[-1] for row in table(order, reasons_of(order))[1]]
    assert statuses == ["ok", "ok", "partial (1)", "failed at compile (2)", "ok"]


def test_table_says_why_there_are_no_figures() -> None:
    known = _result(2, 12345, vmem=Figure(value=2 << 20), spills=Figure(value=0))
    titles, rows = table([known, _result(3, None, failure=FAILED)])
    assert titles == ["target", "q", "cycles", "bundles", "spills", "VMEM", "status"]
    assert rows == [
        ["v5e", "2", "12,345", "-", "0", "2 MiB", "ok"],
        ["v5e", "3", "-", "-", "-", "-", "failed: k: no room (too large; halve it)"],
    ]
    assert table([])[1] == []


def test_text_says_each_reason_once() -> None:
    failed = [_result(n, None, failure=FAILED) for n in (3, 4)]
    found = SweepResult(name="f", targets=("v5e",), results=(_result(2, 5), *failed))
    assert str(found).splitlines() == [
        "target  q  cycles  bundles  spills  VMEM  status",
        "v5e     2  5       -        -       -     ok",
        "v5e     3  -       -        -       -     failed at compile (1)",
        "v5e     4  -       -        -       -     failed at compile (1)",
        "(1) k: no room (too large; halve it)",
    ]


def test_sweep_without_all_results_is_not_ok() -> None:
    whole = SweepResult(name="f", targets=("v5e",), results=(_result(1, 1),))
    assert whole.ok
    for changed in (
        {"unfinished": ({"q": "2"},)},
        {"problems": ("gone",)},
        {"targets": ("v5e", "v6e")},
        {"results": (_result(1, 1), _result(2, None, failure=_died()))},
    ):
        assert not SweepResult(**{**vars(whole), **changed}).ok  # type: ignore[arg-type]


def _died() -> SettingFailure:
    return SettingFailure(stage="worker", type="WorkerDied", message="it died")


def test_reasons_are_wrapped_at_words_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pallas_debug.cli import output
    from pallas_debug.cli import sweep as command

    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(command, "sys", SimpleNamespace(stdout=terminal))
    monkeypatch.setattr(output, "terminal_width", lambda: 80)
    failure = SettingFailure(stage="lowering", type="ValueError", message="a block of rows " * 20)
    result = SettingResult(setting={"q": "300"}, target="v5e", failure=failure)
    found = SweepResult(name="f", targets=("v5e",), results=(result,))
    command._print(found, SimpleNamespace(directory="dumps"))
    lines = capsys.readouterr().out.splitlines()
    reason = lines[next(n for n, line in enumerate(lines) if line.startswith("(1) ")) :]
    assert len(reason) > 3
    assert max(map(len, reason)) <= 80
    assert " ".join(line.strip() for line in reason).count("a block of rows") == 20
    assert all(line.startswith("    ") for line in reason[1:])
