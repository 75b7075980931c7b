"""Place that the user asks for on the command line: a kernel, a target, a pass, a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pallas_debug.errors import UsageError
from pallas_debug.tui.model.browser import Browser, Entry, KernelStep, kernel_name

MAX_NAMES = 20
"""Maximum number of names in a message."""


@dataclass(frozen=True, kw_only=True)
class Spot:
    """Place to open; `line` counts from 1."""

    entry: Entry
    target: str | None = None
    step: KernelStep | None = None
    line: int | None = None


def find_spot(
    browser: Browser,
    *,
    kernel: str | None = None,
    target: str | None = None,
    step: str | None = None,
    line: int | None = None,
) -> Spot | None:
    """Return the place to open; None if the user asks for none.

    Raises:
      UsageError: there is no such kernel, target or pass.
    """
    if (kernel, target, step, line) == (None, None, None, None):
        return None
    if not browser.entries:
        raise UsageError(f"no kernels in {' and '.join(map(str, browser.roots))}")
    entry = browser.entries[0] if kernel is None else find_kernel(browser, kernel)
    known = [c.target for c in browser.stored(entry).compilations]
    if target is not None and target not in known:
        listed = ", ".join(known) or "none"
        raise UsageError(f"{entry.name} has no target {target!r}; there are: {listed}")
    found = None if step is None else find_step(browser.steps(entry, target), step)
    return Spot(entry=entry, target=target, step=found, line=line)


def find_kernel(browser: Browser, wanted: str) -> Entry:
    """Find a kernel by folder name, kernel name, or a unique start of either.

    Raises:
      UsageError: none or several match; the message lists them.
    """
    entries = browser.entries
    tests: list[Callable[[str], bool]] = [
        lambda name: name == wanted,
        lambda name: kernel_name(name) == wanted,
        lambda name: name.startswith(wanted),
    ]
    where = " and ".join(map(str, browser.roots))
    for test in tests:
        found = [e for e in entries if test(e.name)]
        first = [e for e in found if e.dump == found[0].dump]
        if len(first) == 1:  # the same kernel in both directories counts once
            return first[0]
        if found:
            listed = _listed(e.name for e in first)
            raise UsageError(
                f"{wanted!r} names several kernels in {where}: {listed}. Add more of the name."
            )
    names = dict.fromkeys(e.name for e in entries)
    raise UsageError(f"no kernel {wanted!r} in {where}; there are: {_listed(names)}")


def find_step(steps: Sequence[KernelStep], wanted: str) -> KernelStep:
    """Find one step by label, name, number of the pass, or part of the label.

    Raises:
      UsageError: none or several match; the message lists them.
    """
    wanted = wanted.strip()
    number = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None
    found = [s for s in steps if wanted in (s.label, s.name)]
    found = found or [s for s in steps if s.pass_ is not None and s.pass_.number == number]
    found = found or [s for s in steps if wanted and wanted in s.label]
    if len(found) == 1:
        return found[0]
    several = "; several match" if found else ""
    listed = _listed(s.label for s in found or steps)
    raise UsageError(f"no stage or pass {wanted!r}{several}: {listed}")


def _listed(names: Iterable[str]) -> str:
    listed = list(names)
    more = f", and {len(listed) - MAX_NAMES} more" if len(listed) > MAX_NAMES else ""
    return (", ".join(listed[:MAX_NAMES]) or "none") + more
