"""Programs that were stopped at a finding, and the resulting exceptions.

jax's runtime turns an exception of a host callback into one of its own and keeps only the text. A
reference in that text identifies the finding; nothing is recognised by its wording.
"""

from __future__ import annotations

import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence

from pallas_debug.errors import KernelFault
from pallas_debug.findings.collector import key
from pallas_debug.model import Finding

MAX_STOPS = 1_000
"""Maximum number of findings kept; exceptions of older ones are no longer recognised."""

_REFERENCE = re.compile(r"\[finding ([0-9a-f]{12})\]")

_lock = threading.Lock()
_found: OrderedDict[str, Finding] = OrderedDict()


def stop(finding: Finding, text: str) -> KernelFault:
    """Return the exception with which a host callback stops its program at a finding.

    Args:
      text: text of the finding; the exception adds a line with a reference to it.
    """
    reference = uuid.uuid4().hex[:12]
    with _lock:
        _found[reference] = finding
        while len(_found) > MAX_STOPS:
            _found.popitem(last=False)
    return KernelFault(f"{text}\n  [finding {reference}]", finding)


def finding_of(error: BaseException | None) -> Finding | None:
    """Return the finding at which a program was stopped, given the exception that its caller got.

    None for any other exception, such as one that the user's code raised while handling it.
    """
    if isinstance(error, KernelFault):
        return error.finding
    if error is None:
        return None
    references = _REFERENCE.findall(str(error))
    with _lock:
        known = (_found.get(reference) for reference in references)
        return next((finding for finding in known if finding is not None), None)


def is_stop(finding: Finding, error: BaseException | None) -> bool:
    """Return whether a program was stopped at a finding, or at a consequence of it."""
    fault = finding_of(error)
    return fault is not None and key(fault) in map(key, (finding, *finding.consequences))


def led_to(error: BaseException | None, findings: Sequence[Finding]) -> list[Finding]:
    """Return the finding at which a program was stopped, after earlier ones of the same kernel.

    A race may be the reason for a deadlock. Empty if the exception is not about a finding.

    Args:
      findings: findings of the program, causes before consequences.
    """
    for number, finding in enumerate(findings):
        if is_stop(finding, error):
            return [f for f in findings[: number + 1] if f.kernel == finding.kernel]
    return []


def fault_of(
    error: BaseException, findings: Sequence[Finding], text: Callable[[Finding], str]
) -> KernelFault:
    """Return the exception for a program that was stopped, with the text of what led to the stop.

    Args:
      findings: at least one finding of the program, causes before consequences.
      text: renders a finding.
    """
    fault = finding_of(error) or findings[-1]
    led = led_to(error, findings) or [fault]
    return KernelFault("\n\n".join(map(text, led)), fault, findings)
