"""Open the debugger on a kernel: capture a call that a function makes, and step through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.lowering import trace
from pallas_debug.bridge.programs import units
from pallas_debug.bridge.programs.launch import launch
from pallas_debug.errors import ProgramFailed, UsageError, meant
from pallas_debug.findings import stops
from pallas_debug.guards import check_function
from pallas_debug.inputs.made_up import filled
from pallas_debug.machine import run as machine_run
from pallas_debug.machine.debugger.live import LiveRun
from pallas_debug.machine.machine import Machine
from pallas_debug.machine.sanitizer import areas
from pallas_debug.render import finding_text, titled
from pallas_debug.screen import open_session
from pallas_debug.session import Options, Session
from pallas_debug.stepping.session import StepSession


@dataclass(frozen=True, kw_only=True)
class CapturedCall:
    """A stepping session on a captured call of a kernel.

    Attributes:
      notes: sentences about how the call was captured.
      result: what the function returned; None if it raised.
    """

    session: StepSession
    notes: tuple[str, ...] = ()
    result: Any = None


def step(
    function: Callable[..., Any],
    /,
    *,
    kernel: str | None = None,
    call: int = 1,
    plain: bool | None = None,
    post_mortem: bool = False,
    chip: str | None = None,
) -> Callable[..., Any]:
    """Step through a kernel that a function calls, line by line, forwards and backwards.

        pallas_debug.step(flash_attention)(q, k, v)
        pallas_debug.step(layer, kernel="matmul", call=2)(x)

    The function is run once, to find the arrays with which it calls the kernel. The debugger then
    runs that call on the kernel machine, and opens at its first line: in the terminal, or without a
    terminal as a plain prompt that reads commands from standard input. `help` lists the commands.

    Args:
      function: any function that calls a kernel, jitted or not.
      kernel: name of the kernel; by default the first one that is called.
      call: number of the kernel's call, from 1.
      plain: whether to use the plain prompt; by default only without a terminal.
      post_mortem: whether to run to the end with the sanitizer first, and open at its first
        finding, or where the run could not continue.
      chip: target whose chip is reported to code that queries one; v5e by default.

    Returns:
      A function with the same arguments. It opens the debugger, and returns the result of the
      original function, or None if that raised an exception.

    Raises:
      UsageError: the function calls no kernel, no kernel of that name, or not that often.
      CannotRunError: the kernel machine cannot run the kernel; `MachineError` names the operation.
    """
    check_function("pallas_debug.step", function)

    def stepped(*args: Any, **kwargs: Any) -> Any:
        if trace.is_traced((args, kwargs)):
            raise UsageError(
                "pallas_debug.step(…) runs its function and cannot be traced by jit, vmap or "
                "grad. Put it outside of them, as in step(jax.jit(f))(x)."
            )
        called, made_up = call_of(function, args, kwargs)
        captured = capture(
            called,
            kernel=kernel,
            call=call,
            chip=chip,
            post_mortem=post_mortem,
        )
        open_session(captured.session, (*captured.notes, *made_up), plain=plain)
        return captured.result

    return stepped


def call_of(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[[], Any], tuple[str, ...]]:
    """Return a call of a function, and notes on arrays whose values are made up."""
    given = filled(function, args, kwargs)
    notes = [f"values were made up for {' and '.join(given.named.values())}"] if given.named else []
    return lambda: function(*given.args, **given.kwargs), tuple(notes)


def capture(
    run: Callable[[], Any],
    *,
    kernel: str | None = None,
    call: int = 1,
    chip: str | None = None,
    post_mortem: bool = False,
) -> CapturedCall:
    """Run something that calls a kernel, and open a session on one of its calls.

    Raises:
      UsageError, CannotRunError: as for `step`. An exception raised by `run` is propagated, unless
        the call was made before it.
    """
    if call < 1:
        raise UsageError(f"calls are counted from 1, but call={call} was given")
    error: Exception | None = None
    result = None
    options = Options(interpret="machine", chip=chip, keeps_call=call)
    with Session(options, runs=True) as session:
        try:
            result = trace.block_until_ready(run())
        except Exception as raised:  # noqa: BLE001 - of the user's function
            error = raised
    captures = session.captures
    if not captures:
        if error is not None:
            raise error
        raise UsageError(
            "no Pallas kernel was called. Does the program call kernels only on a TPU, or only "
            "define them?"
        )
    names = [captured.kernel.name for captured in captures]
    chosen = [c for c in captures if kernel is None or c.kernel.name == kernel]
    if not chosen:
        raise UsageError(
            f"no kernel named {kernel!r} was called{meant(str(kernel), names)}; called were "
            f"{', '.join(dict.fromkeys(names))}"
        ) from error
    assert session.calls is not None
    kept, counts = session.calls.arrays, session.calls.counts
    captured = next((c for c in chosen if c.kernel.digest in kept), None)
    if captured is None:
        name = chosen[0].kernel.name
        raise _not_called(name, counts[chosen[0].kernel.digest], call, error)
    arrays, first = kept[captured.kernel.digest]
    decoded = launch(captured, fuse=False)
    for program in decoded.programs():
        units.prepare(program)
    track = LiveRun(
        lambda events: Machine(decoded, arrays, observer=events, fill="mark", first=first)
    )
    notes = []
    if isinstance(error, ProgramFailed):
        notes.append(str(error))
    elif (fault := stops.finding_of(error)) is not None:
        if not post_mortem:  # which shows it in full
            notes.append(f"the function was stopped: {titled(fault)}")
    elif error is not None:
        notes.append(f"the function raised {type(error).__name__}: {str(error).splitlines()[0]}")
    stepping = StepSession(track)
    if post_mortem:
        notes += _open_at_finding(stepping, captured, arrays, first)
    return CapturedCall(session=stepping, notes=tuple(notes), result=result)


def _open_at_finding(
    session: StepSession, captured: Capture, arrays: Sequence[Sequence[Any]], first: int
) -> list[str]:
    """Run the kernel with the sanitizer, go to its first finding, and return that as notes."""
    decoded = launch(captured)
    observers = areas.observers(decoded, arrays, first)
    findings = machine_run.run(decoded, arrays, first=first, observers=observers).findings
    alone = None if captured.kernel.grid else ()  # findings omit a single grid point
    for finding in findings:
        point = alone if finding.grid_point is None else finding.grid_point
        if point is not None and finding.source is not None:
            session.to_finding(point, finding.source, finding.loop)
            return finding_text(finding).splitlines()
    session.run()
    if findings:
        return finding_text(findings[0]).splitlines()
    if session.track.fault is None:
        return ["the run ends without a finding: opened at its end"]
    return []


def _not_called(name: str, count: int, call: int, error: Exception | None) -> Exception:
    if count:
        times = "once" if count == 1 else f"{count} times"
        return UsageError(f"kernel `{name}` was called {times}: there is no call {call}")
    return error or UsageError(
        f"kernel `{name}` did not run on the kernel machine. Is it in a branch that was not taken, "
        "or does its code name an interpreter of jax?"
    )
