"""Kernels that take too long in TPU interpret mode, stopped with what they reached."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tpu_interpreted import PLAIN, ROWS, Seen, X, launch

from pallas_debug.bridge.interpret import tpu_run
from pallas_debug.bridge.interpret.tpu_findings import Place
from pallas_debug.findings.wording import unsupported
from pallas_debug.render import finding_text


def double(x_ref: Any, out_ref: Any) -> None:
    out_ref[...] = x_ref[...] * 2


CALL = launch(double, grid=(2,), in_specs=[ROWS], out_specs=ROWS)


def test_a_run_beyond_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(10**6))  # a second passes at each look
    monkeypatch.setattr(tpu_run.time, "process_time", lambda: float(next(times)))
    monkeypatch.setattr(tpu_run.time, "monotonic", lambda: float(next(times)))
    seen = Seen(lambda: CALL(X), PLAIN, None, stop_after=1.0)
    assert seen.error is not None
    first, line, message, *_ = re.sub(
        r"\S*/(\w+\.py):\d+ ", r"\1 ", finding_text(seen.only)
    ).splitlines()
    assert first.startswith("InterpretError in kernel `double`")
    assert line.startswith("  test_tpu_slow.py")
    assert re.fullmatch(
        r"  stopped after [\d,]+ s in TPU interpret mode(, at grid point . of 2.*)?; [\d,]+ calls of "
        r"the interpreter, [\d,]+ per second",
        message,
    )


def test_cpu_time_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_run.time, "process_time", lambda: 0.0)
    seen = Seen(lambda: CALL(X), stop_after=1e-6)
    assert (seen.findings, seen.error) == ([], None)


@pytest.mark.parametrize(
    "grid, point, reached",
    [
        ((4, 8), (1, 2), ", at grid point 11 of 32 (3 s each: the rest takes about 66 s)"),
        ((4, 8), (0, 0), ", at grid point 1 of 32"),
        ((4, None), (1, 2), ", at grid point (1, 2); the grid size is set by the call"),
        ((), None, ""),
    ],
)
def test_how_far_it_got(
    grid: tuple[int | None, ...], point: tuple[int, ...] | None, reached: str
) -> None:
    place = Place(kernel="slow", source=None, grid_point=point)
    seen = place.sighting()
    found = unsupported.too_slow(seen, "tpu", grid=grid, seconds=30.0, calls=4500)
    *_, message, cause, advice = finding_text(found).splitlines()
    assert message == (
        f"  stopped after 30 s in TPU interpret mode{reached}; 4,500 calls of the interpreter, 150 "
        "per second"
    )
    assert cause == (
        "  cause: each load, store, copy and wait of the kernel calls back from XLA to Python"
    )
    assert advice == (
        "  try: use smaller arguments, try the kernel machine (interpret mode `machine`), or "
        "raise the limit (--pallas-stop-after)"
    )
