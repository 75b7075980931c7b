"""Silent bugs in specific libtpu releases.

Each has the affected versions and a matcher for kernels that may be affected, though a matching
kernel need not be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pallas_debug.installed import numbers
from pallas_debug.model import Kernel


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """A bug in some releases of libtpu.

    Attributes:
      since, before: first version with the bug and first without it; None if it is in all later
        ones.
      matches: whether a kernel, with its jaxpr, may be affected.
    """

    id: str
    title: str
    advice: str
    since: str
    before: str | None = None
    matches: Callable[[Kernel, str], bool]

    def is_in(self, versions: Mapping[str, str]) -> bool:
        """Return whether the installed libtpu has it."""
        if "libtpu" not in versions:
            return False
        at = numbers(versions["libtpu"])
        return at >= numbers(self.since) and (self.before is None or at < numbers(self.before))


_REFERENCE = re.compile(r"\b([a-z]+):Ref<")


def _copies_beside_an_unused_input(kernel: Kernel, jaxpr: str) -> bool:
    head, _, code = jaxpr.partition(". let")
    inputs = [
        letter
        for operand, letter in zip(kernel.operands, _REFERENCE.findall(head), strict=False)
        if operand.kind == "input"
    ]
    unused = any(re.search(rf"\b{letter}\[", code) is None for letter in inputs)
    return unused and re.search(r"^\s*dma_start\b", code, re.MULTILINE) is not None


def _has_column_of_booleans(kernel: Kernel, jaxpr: str) -> bool:
    """Return whether a one-dimensional mask is given a last dimension of 1."""
    return re.search(r"bool\[\d+,1\] = (?:broadcast_in_dim|reshape)\b", jaxpr) is not None


MISPLACED = KnownIssue(
    id="dma-zeros-with-unused-operand",
    title="a copy may deliver zeros if the kernel has an operand that it never uses",
    # Unused or not, XLA may put it elsewhere than the kernel reads it (jax#39744, jax#39811).
    advice="keep the operands that are copied in HBM: "
    "pltpu.with_memory_space_constraint(x, pltpu.HBM)",
    since="0.0.43",
    before="0.0.46",
    matches=_copies_beside_an_unused_input,
)

KNOWN_ISSUES = (
    MISPLACED,
    KnownIssue(
        id="boolean-column-abort",  # jax#37370
        title="the compiler may crash on a one-dimensional mask that becomes a column",
        advice="build the mask in two dimensions with jax.lax.broadcasted_iota",
        since="0.0.50",
        matches=_has_column_of_booleans,
    ),
)


def known_issues(
    kernel: Kernel, jaxpr_text: str, versions: Mapping[str, str]
) -> tuple[KnownIssue, ...]:
    """List known bugs of the installed libtpu that may affect a kernel.

    Args:
      kernel: the kernel.
      jaxpr_text: its jaxpr, as in `jaxpr.txt` of a dump.
      versions: as in `Kernel.versions` and `Compilation.versions`.
    """
    return tuple(
        issue
        for issue in KNOWN_ISSUES
        if issue.is_in(versions) and issue.matches(kernel, jaxpr_text)
    )
