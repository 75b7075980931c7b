"""The debugger on real kernels: stepping in both directions, stops, values, who wrote what."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stepped
from called import called
from jax.experimental import pallas as pl

import pallas_debug
from pallas_debug import defaults, stepper
from pallas_debug.errors import UsageError
from pallas_debug.machine.debugger import live
from pallas_debug.stepping import describe, plain, unwritten
from pallas_debug.stepping.conditions import ConditionFailed
from pallas_debug.stepping.prompt import CommandPrompt, summary, written
from pallas_debug.stepping.session import SteppingError, StepSession

SOURCE = Path(stepped.__file__).read_text()


def line(comment: str) -> int:
    """Number of the line that ends with a comment."""
    return 1 + next(i for i, t in enumerate(SOURCE.splitlines()) if t.endswith(f"# {comment}"))


X = jnp.arange(24 * 128, dtype=jnp.float32).reshape(24, 128) % 7


@pytest.fixture
def session() -> StepSession:
    return stepper.capture(lambda: stepped.sums_kernel(X)).session


def at(session: StepSession) -> tuple[Any, ...]:
    place = session.place
    return place.point, place.iterations, None if place.line is None else place.line.line


def run_of(session: StepSession) -> live.LiveRun:
    assert isinstance(session.track, live.LiveRun)
    return session.track


@pytest.mark.parametrize(
    "start, blocks, message",
    [
        (12, 2, "x_ref[12:20, 0:128] is out of bounds for float32[16, 128] in VMEM"),
        (0, 3, "the index map of o_ref returns block (2, 0), which is outside its array, "
         "float32[16, 128]"),
    ],
)  # fmt: skip
def test_a_place_out_of_bounds_is_shown_as_in_a_finding(
    start: int, blocks: int, message: str
) -> None:
    @called(
        grid=(blocks,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i: (i, 0)),
    )
    def kernel(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
        o_ref[...] = x_ref[pl.ds(start + 0 * pl.program_id(0), 8), :]

    session = stepper.capture(lambda: kernel(jnp.ones((16, 128)))).session
    assert session.run() == f"the run stops here: {message}"


@pytest.mark.slow
def test_every_line_backwards_is_that_of_forwards(
    session: StepSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SNAPSHOT_AFTER", 0.0005)  # many, and at any step
    run = run_of(session)
    run.snapshots.max_bytes = 100_000  # so that they are thinned
    seen = [(at(session), run.place.tick, np.array(run.value("acc_ref")))]
    while session.step() is None:
        seen.append((at(session), run.place.tick, np.array(run.value("acc_ref"))))
    assert session.place.ended
    assert len(seen) > 90
    # x_ref has 4 rows, and 6 grid points see them all once.
    want = np.asarray(X).reshape(2, 12, 128).sum(1) * 2 + 1
    np.testing.assert_array_equal(run.machine.results()[0][0], want)
    assert run.snapshots.nbytes < 300_000
    assert len(run.snapshots) > 3
    for where, tick, acc in reversed(seen):
        assert session.step(back=True) is None
        assert (at(session), run.place.tick) == (where, tick)
        np.testing.assert_array_equal(run.value("acc_ref"), acc)
    assert session.step(back=True) == "the beginning of the run"
    assert session.run() == "the end of the run"
    np.testing.assert_array_equal(run.machine.results()[0][0], want)
    assert session.step() == "the run has ended; every command works backwards as well"


@pytest.mark.slow
def test_memory_that_nothing_has_written_is_called_so(session: StepSession) -> None:
    def shown(name: str) -> str:
        value = next(value for value in run_of(session).values() if value.name == name)
        return summary(value, run_of(session).value(name))

    assert shown("acc_ref") == "scratch, f32[1,128]: 128 unwritten"
    assert shown("o_ref").endswith("128 unwritten")
    assert "unwritten" not in shown("x_ref")
    (message,) = [text for text in CommandPrompt(session).execute("print acc_ref") if "f32" in text]
    assert message == "f32[1,128]: 128 unwritten"
    session.to_line(line("scale"))
    assert "unwritten" not in shown("acc_ref")


def test_nan_that_is_computed_from_unwritten_memory_is_one() -> None:
    mark = unwritten.filled((2,), np.dtype("float32"))
    assert mark is not None
    assert describe.statistics(mark, is_memory=True) == "2 unwritten"
    assert describe.statistics(mark) == "2 NaN"
    stored = unwritten.written(mark + np.float32(1))
    assert describe.statistics(stored, is_memory=True) == "2 NaN"
    assert unwritten.filled((2,), np.dtype("int32")) is None


def test_back_reports_only_a_stop_at_its_own_place(session: StepSession) -> None:
    session.add_breakpoint(line("keep"), "nothing > 1")
    session.add_breakpoint(line("scale"))
    session.to_point((0, 1))
    assert session.step() is None
    before = at(session)
    assert session.step() is None
    assert session.step(back=True) is None  # it replays (0, 0), which has both stops
    assert at(session) == before
    assert session.run(back=True) == f"breakpoint 2, stepped.py:{line('scale')}"
    assert at(session)[::2] == ((0, 0), line("scale"))
    assert session.run(back=True) == (
        "the condition of breakpoint 1 failed: `nothing` has no value here"
    )
    assert at(session)[::2] == ((0, 0), line("keep"))


def test_over_out_points_and_iterations(session: StepSession) -> None:
    first = at(session)
    assert session.to_line(line("scale")) is None
    assert at(session) == ((0, 0), (), line("scale"))
    session.step()  # into scaled, of which doubled, which is jitted, is the first operation
    assert [call.function for call in session.place.calls] == ["sums_kernel"]
    session.step()
    assert session.place.line.function == "doubled"
    assert [call.function for call in session.place.calls] == ["sums_kernel", "scaled"]
    session.out()
    assert session.place.line.function == "scaled"
    session.out(back=True)
    assert at(session)[2] == line("scale")
    session.over()
    assert at(session)[2] == line("out")
    session.over(back=True)
    assert at(session)[2] == line("scale")
    session.next_point()
    assert at(session) == ((0, 1), (), first[2])
    session.next_point(back=True)
    assert at(session) == first
    session.to_line(line("add"))
    session.next_iteration()
    assert at(session)[:2] == ((0, 0), (1,))
    session.next_iteration()
    assert at(session)[:2] == ((0, 0), (2,))
    session.to_point((1, 2))
    assert at(session) == ((1, 2), (), first[2])
    session.to_point((0, 2))
    assert at(session) == ((0, 2), (), first[2])
    with pytest.raises(SteppingError, match=r"no grid point \(2, 0\): the grid is \(2, 3\)"):
        session.to_point((2, 0))
    with pytest.raises(SteppingError, match="this line is not in a loop"):
        session.next_iteration()


def test_variables_have_the_names_of_the_source(session: StepSession) -> None:
    session.to_line(line("out"))
    names = {value.name: value.kind for value in session.track.values()}
    assert names["x_ref"] == "input"
    assert names["o_ref"] == "output"
    assert names["acc_ref"] == "scratch"
    assert names["total"] == names["last"] == names["result"] == "variable"
    assert "inner" not in names
    assert "twice" not in names
    rows = np.asarray(X)[:4]
    np.testing.assert_array_equal(session.evaluate("total"), rows.sum(0))
    np.testing.assert_array_equal(session.evaluate("last"), rows[3])
    np.testing.assert_array_equal(session.evaluate("result"), rows.sum(0) * 2 + 1)
    assert session.evaluate("program_id(1) + num_programs(1)") == 3
    assert session.evaluate("shape(whole(x_ref))") == (24, 128)
    session.to_line(line("add"), back=True)
    assert session.evaluate("iteration") == 3
    np.testing.assert_array_equal(session.evaluate("total"), rows[:3].sum(0))
    with pytest.raises(ConditionFailed, match=r"`totl` has no value here \(did you mean 'total'"):
        session.evaluate("totl")


def test_breakpoints_with_conditions(session: StepSession) -> None:
    number = session.add_breakpoint(line("add"), "i == 1 and iteration == 2").number
    assert session.run() == f"breakpoint 1, stepped.py:{line('add')} if i == 1 and iteration == 2"
    assert at(session) == ((1, 0), (2,), line("add"))
    assert session.run() is not None
    assert at(session)[:2] == ((1, 1), (2,))
    assert session.run(back=True) is not None
    assert at(session)[:2] == ((1, 0), (2,))
    session.delete(number)
    session.add_breakpoint(line("keep"), "total")
    message = session.run()
    assert message.startswith(
        "the condition of breakpoint 2 failed: `total` cannot be evaluated: an "
    )
    assert at(session)[2] == line("keep")
    with pytest.raises(SteppingError, match="there is no breakpoint or watched value 9: 2"):
        session.delete(9)
    with pytest.raises(SteppingError, match=r"stepped\.py has no line 999"):
        session.add_breakpoint(999)


def test_watched_values_in_both_directions(session: StepSession) -> None:
    session.watch("acc_ref[0, 3]")
    # Row r has (128 r + 3) % 7 there: 3, 5, 0, 2, …; the reset writes 0 over what was never written.
    assert session.run() == f"after line {line('reset')}: acc_ref[0, 3] nan → 0.0"
    assert session.run() == f"after line {line('keep')}: acc_ref[0, 3] 0.0 → 10.0"
    here = at(session)
    assert session.run(back=True) == f"before line {line('keep')}: acc_ref[0, 3] 0.0 → 10.0"
    assert session.evaluate("acc_ref[0, 3]") == 0
    assert session.run() is not None
    assert at(session) == here
    session.delete(1)
    session.watch("o_ref[0, :2]")
    message = session.run()
    assert message.startswith(f"after line {line('out')}: o_ref[0, :2] ")
    with pytest.raises(SteppingError, match="there is no value 'acc' here"):
        session.watch("acc[0]")


def test_who_wrote_an_element(session: StepSession) -> None:
    session.run()
    (back, stored) = session.who("whole(o_ref)[1, 5]")
    assert (back.how, stored.how) == ("written back", "stored")
    assert back.place.point == (1, 2)
    assert (stored.place.point, stored.place.line.line) == ((1, 2), line("out"))
    assert session.place.ended  # who asks stays where it is
    session.to_line(line("add"), back=True)
    fetched, given = session.who("x_ref[3, 7]")
    assert (fetched.how, given.how, given.element) == ("fetched", "given", "x_ref[23, 7]")
    assert fetched.place.point == (1, 1)
    session.to_point((0, 0))
    (never,) = session.who("acc_ref[0, 0]")
    assert (never.how, never.value) == ("never", "nan")
    assert written(never) == "acc_ref[0, 0] was never written"
    with pytest.raises(ConditionFailed, match=r"`x_ref\[0\]` has 128 elements: name one"):
        session.who("x_ref[0]")


@pytest.mark.slow
def test_dmas_in_flight_and_calls_by_number() -> None:
    captured = stepper.capture(lambda: stepped.both(X), kernel="copies_kernel")
    session = captured.session
    session.to_line(line("wait"))
    (copy,) = session.track.copies()
    assert (copy.source, copy.destination, copy.nbytes) == ("x_ref[1:2, 0:128]", "buffer", 512)
    assert copy.line.line == line("start")
    assert session.evaluate("done") == 0
    prompt = CommandPrompt(session)
    assert prompt.execute("info")[-1:] == [
        f"DMA 0 in flight: x_ref[1:2, 0:128] → buffer, 512 bytes, started at line {line('start')}, "
        "grid point ()"
    ]
    session.over()
    assert not session.track.copies()
    copied, given = session.who("buffer[0, 9]")
    assert (copied.how, given.how, given.element) == ("copied by a DMA", "given", "x_ref[1, 9]")
    session.over(back=True)
    assert len(session.track.copies()) == 1
    assert np.isnan(session.evaluate("buffer[0, 9]"))

    second = stepper.capture(lambda: stepped.both(X), kernel="sums_kernel", call=2).session
    np.testing.assert_array_equal(second.evaluate("whole(x_ref)"), np.asarray(X) * 2)
    with pytest.raises(UsageError, match=r"`sums_kernel` was called 2 times: there is no call 3"):
        stepper.capture(lambda: stepped.both(X), kernel="sums_kernel", call=3)
    with pytest.raises(UsageError, match=r"no kernel named 'sum_kernel' was called.*'sums_kernel'"):
        stepper.capture(lambda: stepped.both(X), kernel="sum_kernel")
    with pytest.raises(UsageError, match="no Pallas kernel was called"):
        stepper.capture(lambda: X + 1)


def test_a_fault_stops_the_run_and_can_be_left_backwards() -> None:
    session = stepper.capture(lambda: stepped.waits_kernel(X)).session
    message = session.run()
    assert message == (
        "the run stops here: deadlock: nothing can run. the kernel waits until `never` is 2, but "
        "it is 0"
    )
    assert at(session)[2] == line("deadlock")
    assert session.step() == message
    assert session.step(back=True) is None
    assert session.track.fault is None
    assert session.step() is None
    assert session.step() == message


def test_a_loop_stops_at_the_limit_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "MAX_SIMULATED_STEPS", 50)  # it counts to a bound
    session = stepper.capture(lambda: stepped.endless_kernel(X)).session
    message = session.run()
    assert message == (
        f"the run stops here: endless loop: the `while_loop` at line {line('endless')} has not "
        "ended after 50 iterations"
    )
    assert session.step() == message
    assert session.step(back=True) is None
    assert session.track.fault is None
    assert session.run() == message


def test_a_breakpoint_in_the_prompt_and_its_errors() -> None:
    commands = f"""
b {line("keep")} if j == 1
c
p total[:3]
info acc_ref
p x_ref
stack

bogus
b x
p total[
q
never read
"""
    given, out = io.StringIO(commands.lstrip()), io.StringIO()
    plain.interact(stepper.capture(lambda: stepped.sums_kernel(X)).session, given, out)
    text = out.getvalue()
    assert f"breakpoint 1, stepped.py:{line('keep')} if j == 1" in text
    assert f"sums_kernel · grid point (0, 1) of (2, 3) · stepped.py:{line('keep')}" in text
    assert f"{line('keep'):>5}  acc_ref[0] = total  # keep" in text
    assert "acc_ref  scratch, f32[1,128]: min " in text
    assert "f32[4,128]: min 0, max 6, mean 2.99" in text
    assert "error: no command 'bogus'; `help` lists them, `p bogus` prints a value" in text
    assert "error: expected a line, also with `if CONDITION`, found 'x'" in text
    assert "column 6 of the expression: this is not Python: '[' was never closed" in text
    assert "never read" not in text


def test_step_as_a_function(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\nq\n"))
    result = pallas_debug.step(stepped.sums_kernel, plain=True)(X)
    np.testing.assert_array_equal(result, kernels_result(X))
    out = capsys.readouterr().out
    assert out.startswith("sums_kernel · grid point (0, 0) of (2, 3)")
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    pallas_debug.step(stepped.waits_kernel, plain=True, post_mortem=True)(X)
    shown = capsys.readouterr()
    assert shown.err.startswith("note: Deadlock in kernel `waits_kernel`")
    assert "# deadlock" in shown.out


@pytest.mark.slow
def test_post_mortem_opens_at_the_first_finding() -> None:
    captured = stepper.capture(lambda: stepped.stale(X), post_mortem=True)
    assert captured.notes[0].startswith("UninitializedRead in kernel `stale`, grid point (1, 0)")
    assert at(captured.session) == ((1, 0), (), line("stale"))
    without_grid = stepper.capture(lambda: stepped.divided_kernel(X), post_mortem=True)
    assert without_grid.notes[0] == "DivisionByZero in kernel `divided_kernel`"
    assert at(without_grid.session) == ((), (), line("divided"))
    whole = stepper.capture(lambda: stepped.sums_kernel(X), post_mortem=True)
    assert whole.notes == ("the run ends without a finding: opened at its end",)
    assert whole.session.place.ended


def test_lines_in_branches_and_loops_of_a_helper() -> None:
    session = stepper.capture(lambda: stepped.helped_kernel(X)).session
    session.add_breakpoint(line("in a helper's loop"), "max(refs[0]) > 1 and iteration == 3")
    assert str(session.run()).startswith("breakpoint 1, stepped.py:")
    assert at(session) == ((1,), (3,), line("in a helper's loop"))
    assert session.place.calls[0].line == line("call of the helper")
    session.step()
    (writer,) = session.who("refs[1][3, 5]")
    assert writer.place.line.line == line("in a helper's loop")
    np.testing.assert_array_equal(session.evaluate("refs[1][3]"), np.asarray(X)[11] * 2)


def test_breakpoint_at_a_line_without_an_operation(session: StepSession) -> None:
    prompt = CommandPrompt(session)
    wanted = line("add") - 1  # `total, _ = carry`
    assert prompt.execute(f"break {wanted}") == [
        f"breakpoint 1: stepped.py:{line('add')}",
        f"(line {wanted} has no operation of the kernel; the next one is in line {line('add')})",
    ]
    session.run()
    assert at(session) == ((0, 0), (0,), line("add"))
    with pytest.raises(SteppingError, match="has no operation at or after line"):
        session.add_breakpoint(len(SOURCE.splitlines()))


def kernels_result(x: jax.Array) -> np.ndarray[Any, Any]:
    return np.asarray(x).reshape(2, 12, 128).sum(1) * 2 + 1
