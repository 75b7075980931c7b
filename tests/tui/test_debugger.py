"""The debugger's screen in Textual's own driver, and in tmux, on the bundled flash attention."""

from __future__ import annotations

import inspect

import jax
import pytest
from pallas_debug_kernels import flash_attention
from pallas_debug_kernels.ops.flash_attention import kernel
from pilot import drive, screen_text
from textual.pilot import Pilot
from textual.widgets import Input

from pallas_debug import stepper
from pallas_debug.stepping.session import StepSession
from pallas_debug.tui.debugger import DebuggerApp, Pane
from pallas_debug.tui.widgets.cells import plain

STORE = next(
    number
    for number, text in enumerate(inspect.getsource(kernel).split("\n"), 1)
    if "m_ref[...] = m_next" in text
)
"""A line of the kernel."""

SIZES = {"160x48": (160, 48), "80x24": (80, 24), "40x12": (40, 12)}


@pytest.fixture
def session() -> StepSession:
    shape = (1, 1, 256, 64)
    q, k, v = (jax.random.normal(jax.random.key(i), shape) for i in range(3))
    return stepper.capture(lambda: flash_attention(q, k, v, block_q=128, block_k=128)).session


async def until_idle(app: DebuggerApp, pilot: Pilot[None]) -> None:
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def typed(app: DebuggerApp, pilot: Pilot[None], *keys: str) -> None:
    for key in keys:
        await pilot.press(key)
        await until_idle(app, pilot)


@pytest.mark.slow
@drive
async def test_stepping_stops_values_and_help(session: StepSession) -> None:
    app = DebuggerApp(session, notes=["a note"])
    async with app.run_test(size=(140, 40)) as pilot:
        await until_idle(app, pilot)
        screen = screen_text(app)
        assert "flash_attention · grid point (0, 0, 0, 0)" in screen
        assert "note: a note" in screen
        assert "▶" in screen
        first = session.place
        await typed(app, pilot, "n")
        assert session.place.line != first.line
        await typed(app, pilot, "N")
        assert session.place == first
        await typed(app, pilot, "p")
        assert session.place.point == (0, 0, 0, 1)
        await typed(app, pilot, "P", "s", "s", "s", "s")
        assert "m_ref scratch" in screen_text(app)
        assert "unwritten" in screen_text(app)
        assert "NaN" not in screen_text(app)
        await pilot.press("colon")
        app.query_one("#line", Input).value = f"break {STORE} if l == 1"
        await typed(app, pilot, "enter")
        await typed(app, pilot, "c")
        assert session.place.line is not None
        assert (session.place.point, session.place.line.line) == ((0, 0, 0, 1), STORE)
        screen = screen_text(app)
        assert "●▶" in screen
        assert "m_next variable" in screen
        await typed(app, pilot, "b")  # the cursor is on it
        assert not session.breakpoints
        await pilot.press("tab")
        await typed(app, pilot, "G")
        assert app.query_one("#numbers", Pane).border_title == "alpha"
        assert app.query_one("#numbers", Pane).count > 1
        await pilot.press("W")
        app.query_one("#line", Input).value = "who m_ref[0, 0, 0]"
        await typed(app, pilot, "enter")
        assert "stored at flash_attention · grid point (0, 0, 0, 0)" in screen_text(app)
        await pilot.press("question_mark")
        assert "next grid point; back" in screen_text(app)
        await pilot.press("escape")
        await pilot.press("colon")
        app.query_one("#line", Input).value = "p m_next["
        await typed(app, pilot, "enter")
        assert "column 7 of the expression: this is not Python: '[' was never" in screen_text(app)
        await pilot.press("q")
    assert app.return_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@drive
async def test_at_every_size(session: StepSession, size: str) -> None:
    app = DebuggerApp(session)
    async with app.run_test(size=SIZES[size]) as pilot:
        await until_idle(app, pilot)
        await typed(app, pilot, "s", "n", "S", "c", "C")
        assert isinstance(app.focused, Pane)
        assert "▶" in screen_text(app)
        assert "the beginning of the run" in screen_text(app)


@pytest.mark.slow
@drive
async def test_many_notes_are_shown_from_the_first(session: StepSession) -> None:
    app = DebuggerApp(session, notes=["the finding", *"abcdefgh"])
    async with app.run_test(size=(120, 36)) as pilot:
        await until_idle(app, pilot)
        assert "note: the finding" in screen_text(app)
        await typed(app, pilot, "n")
        assert "note: h" in screen_text(app)


@pytest.mark.slow
@drive
async def test_what_is_longer_than_a_small_screen(session: StepSession) -> None:
    app = DebuggerApp(session)
    async with app.run_test(size=(80, 24)) as pilot:
        await until_idle(app, pilot)
        assert app.query_one("#numbers", Pane).border_title == "q_ref"
        assert app.query_one("#numbers").display
        assert app.query_one("#values", Pane).lines[0][0] == ("q_ref", "bold")
        await pilot.press("colon")
        app.query_one("#line", Input).value = f"break {STORE} if max(abs(m_next - m_prev)) > 1e3"
        await typed(app, pilot, "enter")
        assert "m_prev)) > 1e3" in screen_text(app)
        await pilot.press("tab")
        start = plain(app.query_one("#values", Pane).lines[0])[9:20]
        await typed(app, pilot, "l")
        assert f"│‹{start}" in screen_text(app)
        await typed(app, pilot, "h")
        assert f"│‹{start}" not in screen_text(app)
