"""Command language of the debugger, similar to pdb: takes a line, returns text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pallas_debug.errors import PallasDebugError, meant
from pallas_debug.findings.facts import line_text
from pallas_debug.stepping import describe
from pallas_debug.stepping.session import SteppingError, StepSession, short
from pallas_debug.stepping.track import ElementWriter, NamedValue, StepPlace

CONTEXT = 5
"""Lines shown before and after the current one."""


Run = Callable[["CommandPrompt", str], Iterator[str]]
"""Runs a command with its arguments, and yields lines of output."""


@dataclass(frozen=True)
class PromptCommand:
    """A command.

    Attributes:
      names: the full name, then short names.
      usage: arguments of the command.
    """

    names: tuple[str, ...]
    usage: str
    summary: str
    run: Run
    moves: bool = False


class CommandPrompt:
    """Runs command lines on a session.

    Attributes:
      is_over: whether `quit` was given.
    """

    def __init__(self, session: StepSession) -> None:
        self.session = session
        self.is_over = False
        self._last = ""

    def execute(self, line: str) -> list[str]:
        """Run a command line, and return its output; an empty line repeats the last movement."""
        text = line.strip() or self._last
        if not text:
            return []
        name, _, rest = text.partition(" ")
        found = _BY_NAME.get(name)
        if found is None:
            return list(_unknown(self, text, name))
        self._last = text if found.moves else ""
        try:
            return list(found.run(self, rest.strip()))
        except PallasDebugError as error:
            return f"error: {error}".splitlines()

    def where(self) -> list[str]:
        """The current place and its line."""
        return list(place_lines(self.session.place, self.session.track.fault))


def place_lines(place: StepPlace, fault: str | None) -> Iterator[str]:
    """A place, its line, and why the run cannot continue there."""
    yield location(place)
    if place.line is not None:
        yield f"{place.line.line:>5}  {(place.line.text or '').strip()}"
    if fault is not None:
        yield f"the run stops here: {fault}"


def location(place: StepPlace) -> str:
    """Kernel, grid point, iteration, file and line, in one line."""
    parts = [place.kernel]
    if place.ended:
        return f"{place.kernel}: the run has ended"
    if place.devices > 1:
        parts.append(f"device {place.device} of {place.devices}")
    if place.grid:
        parts.append(f"grid point {place.point} of {place.grid}")
    if place.iterations:
        parts.append(f"iteration {', '.join(map(str, place.iterations))}")
    if place.device and place.devices == 1:
        parts.append(f"device {place.device}")
    if place.line is not None:
        function = f" in {place.line.function}" if place.line.function else ""
        parts.append(f"{line_text(place.line)}{function}")
    return " · ".join(parts)


# Commands

Moved = Callable[[StepSession, bool], str | None]


def _moving(move: Moved, back: bool) -> Run:
    def run(prompt: CommandPrompt, rest: str) -> Iterator[str]:
        count = _number(rest, "a number of times") if rest else 1
        message = None
        for _ in range(count):
            message = move(prompt.session, back)
            if message is not None:
                break
        yield from _moved(prompt, message)

    return run


def _moved(prompt: CommandPrompt, message: str | None) -> Iterator[str]:
    if message is not None and not message.startswith("the run stops here"):
        yield message
    yield from prompt.where()


def _number(text: str, what: str) -> int:
    if not text.isdigit():
        raise SteppingError(f"expected {what}, found {text!r}")
    return int(text)


def _until(back: bool) -> Run:
    def run(prompt: CommandPrompt, rest: str) -> Iterator[str]:
        yield from _moved(prompt, prompt.session.to_line(_number(rest, "a line number"), back))

    return run


def _goto(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    numbers = re.findall(r"\d+", rest)
    prompt.session.to_point(tuple(map(int, numbers)))
    yield from prompt.where()


def _break(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    session = prompt.session
    if not rest:
        for number, item in session.breakpoints.items():
            yield f"{number}  {item}"
        for number, watched in session.watched.items():
            yield f"{number}  {watched.expression.text}"
        if not session.breakpoints and not session.watched:
            yield "no breakpoints and no watched values"
        return
    match = re.fullmatch(r"(\d+)(?:\s+if\s+(.*))?", rest)
    if match is None:
        raise SteppingError(f"expected a line, also with `if CONDITION`, found {rest!r}")
    item = session.add_breakpoint(int(match[1]), match[2])
    yield f"breakpoint {item.number}: {item}"
    if item.line != int(match[1]):
        yield (
            f"(line {match[1]} has no operation of the kernel; the next one is in line {item.line})"
        )


def _watch(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    yield f"watching {rest}, number {prompt.session.watch(rest)}"


def _delete(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    prompt.session.delete(_number(rest, "the number of a breakpoint or watched value"))
    yield f"deleted {rest}"


def _print(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    value = prompt.session.evaluate(rest)
    if isinstance(value, tuple):
        yield str(value)
        return
    yield from describe.numbers(value).splitlines()
    if getattr(value, "size", 1) > 4:
        yield f"{prompt.session.type_of(rest, value)}: {_statistics(prompt, rest, value)}"


def _statistics(prompt: CommandPrompt, name: str, value: object) -> str:
    """Summary of an expression, which may be the name of memory."""
    return describe.statistics(value, is_memory=is_memory(prompt.session.track.values(), name))


def is_memory(values: Sequence[NamedValue], name: str) -> bool:
    """Return whether a name refers to memory, not to a variable."""
    return any(value.name == name and value.kind != "variable" for value in values)


def _info(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    track = prompt.session.track
    values = track.values()
    if rest:
        values = [value for value in values if value.name == rest]
        if not values:
            raise SteppingError(f"there is no value {rest!r} here")
    width = max((len(value.name) for value in values), default=0)
    for value in values:
        held = track.value(value.name)
        yield f"{value.name:<{width}}  {summary(value, held)}"
    yield from _copies(prompt) if not rest else ()


def summary(value: NamedValue, held: object) -> str:
    """Kind, type, block and contents of a value, in one line."""
    kind = f"{value.kind}, {describe.named_type(value.dtype, value.shape)}"
    if value.block is not None:
        whole = ", ".join(map(str, value.whole or ()))
        kind += f", block {value.block} of ({whole})"
    if held is None:
        return kind
    text = short(held, is_memory=value.kind != "variable")
    return f"{kind}: {text.partition(': ')[2] or text}"


def _device(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    track = prompt.session.track
    shown = [track.show_device(_number(rest, "the number of a device"))] if rest else None
    for item in shown or track.devices():
        mark = "->" if item.is_next else "* " if item.is_shown else "  "
        where = f"device {item.place.device} has ended"
        if not item.place.ended:
            where = location(item.place)
        yield f"{mark} {where}" + ("" if item.waits is None else f": {item.waits}")


def _copies(prompt: CommandPrompt) -> Iterator[str]:
    for copy in prompt.session.track.copies():
        started = "" if copy.line is None else f", started at line {copy.line.line}"
        yield (
            f"DMA {copy.number} in flight: {copy.source} → {copy.destination}, "
            f"{copy.nbytes:,} bytes{started}, grid point {copy.point}"
        )


def _who(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    for number, item in enumerate(prompt.session.who(rest)):
        yield ("  " if number else "") + written(item)


def written(item: ElementWriter) -> str:
    """Writer of an element, in one line."""
    if item.how == "given":
        return f"{item.element} is {item.value}: given by the caller"
    if item.how == "never":
        return f"{item.element} was never written"
    assert item.place is not None
    place = item.place
    if place.line is None:
        by = f"{item.how} by the pipeline" if item.how != "copied by a DMA" else item.how
        end = "after" if item.how == "written back" else "for"
        return f"{item.element} is {item.value}: {by} {end} grid point {place.point}"
    return f"{item.element} is {item.value}: {item.how} at {location(place)}"


def _list(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    session = prompt.session
    line = session.place.line
    if line is None:
        raise SteppingError("no line is being executed here")
    lines = session.track.lines(line.file)
    middle = _number(rest, "a line number") if rest else line.line
    stops = {b.line for b in session.breakpoints.values() if b.file == line.file}
    for number in range(max(middle - CONTEXT, 1), min(middle + CONTEXT, len(lines)) + 1):
        mark = "->" if number == line.line else "b " if number in stops else "  "
        yield f"{number:>5} {mark} {lines[number - 1]}".rstrip()


def _stack(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    place = prompt.session.place
    lines = [*place.calls, *([place.line] if place.line is not None else [])]
    for line in reversed(lines):
        yield f"{line_text(line)} in {line.function}  {line.text or ''}"


def _help(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    shown = [_BY_NAME[rest]] if rest in _BY_NAME else COMMANDS
    left = {c.names: f"{', '.join(c.names)} {c.usage}".rstrip() for c in shown}
    width = max(map(len, left.values()))
    for command in shown:
        yield f"{left[command.names]:<{width}}  {command.summary}"
    if len(shown) > 1:
        yield "An expression prints its value. An empty line repeats the last movement."


def _quit(prompt: CommandPrompt, rest: str) -> Iterator[str]:
    prompt.is_over = True
    return iter(())


def _unknown(prompt: CommandPrompt, text: str, name: str) -> Iterator[str]:
    """An expression is printed; anything else is an unknown command."""
    known = {value.name for value in prompt.session.track.values()}
    first = re.match(r"\w+", name)
    if first is not None and (first[0] in known or not re.fullmatch(r"[a-z-]+", name)):
        try:
            yield from _print(prompt, text)
        except PallasDebugError as error:
            yield from f"error: {error}".splitlines()
        return
    hint = meant(name, [*_BY_NAME])
    yield f"error: no command {name!r}{hint}; `help` lists them, `p {text}` prints a value"


_MOVES: Sequence[tuple[str, str, str, Moved]] = (
    ("step s", "back bs", "next line, into calls, branches and loops", StepSession.step),
    ("next n", "bn", "next line, over calls, branches and loops", StepSession.over),
    ("out o", "bo", "line of the caller", StepSession.out),
    ("iteration it", "bit", "next iteration of the loop", StepSession.next_iteration),
    ("point pt", "bpt", "next grid point", StepSession.next_point),
    ("continue c", "bc", "next breakpoint or watched change, or the end", StepSession.run),
)
"""Names forwards and backwards, summary, and the movement, which is repeated `[TIMES]`."""

_OTHERS: Sequence[tuple[str, str, str, Run]] = (
    ("until u", "LINE", "go to a line", _until(False)),
    ("bu", "LINE", "back to a line", _until(True)),
    ("goto g", "I,J,…", "go to a grid point, either way", _goto),
    (
        "break b",
        "[LINE [if CONDITION]]",
        "stop at a line; without one, list all stops",
        _break,
    ),
    ("watch w", "NAME[SLICE]", "stop where a value changes", _watch),
    ("delete d", "NUMBER", "delete a stop of `break`", _delete),
    ("print p", "EXPRESSION", "numbers and statistics", _print),
    ("info i", "[NAME]", "values by name, semaphores, DMAs in flight", _info),
    (
        "device dev",
        "[NUMBER]",
        "show a device's values until the next step, or list devices",
        _device,
    ),
    ("who", "NAME[I,J,…]", "what wrote this element", _who),
    ("list l", "[LINE]", "source around the line", _list),
    ("stack bt", "", "calls that lead here", _stack),
    ("help ?", "[COMMAND]", "this list", _help),
    ("quit q", "", "leave", _quit),
)
"""Names, usage, summary, and what runs."""


def _commands() -> Iterator[PromptCommand]:
    for ahead, back, summary, move in _MOVES:
        name = ahead.partition(" ")[0]
        for names, about, is_back in (
            (ahead, summary, False),
            (back, f"`{name}`, backwards", True),
        ):
            run = _moving(move, is_back)
            yield PromptCommand(tuple(names.split()), "[TIMES]", about, run, moves=True)
    for names, usage, summary, run in _OTHERS:
        yield PromptCommand(tuple(names.split()), usage, summary, run)


COMMANDS = tuple(_commands())

_BY_NAME = {name: command for command in COMMANDS for name in command.names}
