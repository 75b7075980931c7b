"""Silent bugs in specific jax or libtpu releases.

Each has the affected versions and a matcher for kernels that may be affected, though a matching
kernel need not be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pallas_debug.explain.catalogue.record import JAX
from pallas_debug.model import Kernel

Matcher = Callable[[Kernel, str], bool]


@dataclass(frozen=True, kw_only=True)
class KnownIssue:
    """A bug in some releases.

    Attributes:
      package: `jax` or `libtpu`, whichever has the bug.
      since, before: first version with the bug and first without it; None if unknown.
      targets: targets affected; empty for all, and for a bug of an interpreter.
      engine: what computes wrong results: `tpu`, `tpu interpret` or `hlo interpret`.
      matches: whether a kernel, with its jaxpr, may be affected.
    """

    id: str
    title: str
    advice: str
    package: str
    engine: str
    matches: Matcher
    since: str | None = None
    before: str | None = None
    targets: tuple[str, ...] = ()
    links: tuple[str, ...] = ()

    def concerns(self, versions: Mapping[str, str], targets: Iterable[str]) -> bool:
        """Return whether these versions and targets have the bug; False for an unknown version."""
        version = versions.get(self.package)
        if version is None:
            return False
        at = numbers(version)
        return (
            (self.since is None or at >= numbers(self.since))
            and (self.before is None or at < numbers(self.before))
            and (not self.targets or any(t.partition(":")[0] in self.targets for t in targets))
        )


def numbers(version: str) -> tuple[int, ...]:
    """Parse a version such as `0.12.0.1` into a comparable tuple."""
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version)[:4])


def has(jaxpr: str, primitive: str) -> bool:
    """Return whether a jaxpr's text applies a primitive."""
    return re.search(rf"(?:^\s*|= ){primitive}\b", jaxpr, re.MULTILINE) is not None


_REFERENCE = re.compile(r"\b(?P<letter>[a-z]+):Ref<")


def references(kernel: Kernel, jaxpr: str) -> dict[str, str]:
    """Jaxpr variable of each operand, by operand name."""
    letters = _REFERENCE.findall(jaxpr.partition(". let")[0])
    return {o.name: letter for o, letter in zip(kernel.operands, letters, strict=False)}


def _copies_beside_an_unused_input(kernel: Kernel, jaxpr: str) -> bool:
    letters, code = references(kernel, jaxpr), jaxpr.partition(". let")[2]
    inputs = [letters[o.name] for o in kernel.of_kind("input") if o.name in letters]
    unused = any(re.search(rf"\b{letter}\[", code) is None for letter in inputs)
    return unused and has(jaxpr, "dma_start")


def _writes_prefetch_beside_a_single_buffer(kernel: Kernel, jaxpr: str) -> bool:
    letters = references(kernel, jaxpr)
    prefetched = [letters[o.name] for o in kernel.of_kind("scalar_prefetch") if o.name in letters]
    is_single = any("buffer_count=1" in (o.pipeline or "") for o in kernel.operands)
    return is_single and any(
        re.search(rf"^\s*{letter}\[[^\]]*\] <- ", jaxpr, re.MULTILINE) for letter in prefetched
    )


def _has_column_of_booleans(kernel: Kernel, jaxpr: str) -> bool:
    """Return whether a one-dimensional mask is given a last dimension of 1."""
    return re.search(r"bool\[\d+,1\] = (?:broadcast_in_dim|reshape)\b", jaxpr) is not None


KNOWN_ISSUES = (
    KnownIssue(
        id="dma-zeros-with-unused-operand",
        title="a copy may deliver zeros if the kernel has an operand that it never uses",
        advice="remove the unused operand, or use another libtpu",
        package="libtpu",
        engine="tpu",
        since="0.0.43",
        before="0.0.46",
        matches=_copies_beside_an_unused_input,
        links=(JAX + "39744",),
    ),
    KnownIssue(
        id="boolean-column-abort",
        title="the compiler may crash on a one-dimensional mask that becomes a column",
        advice="build the mask in two dimensions with jax.lax.broadcasted_iota",
        package="libtpu",
        engine="tpu",
        since="0.0.50",
        matches=_has_column_of_booleans,
        links=(JAX + "37370",),
    ),
    KnownIssue(
        id="prefetch-written",
        title="interpret mode reads scalar prefetch late if the kernel writes to it",
        advice="keep scalar prefetch read-only, and write to an SMEM scratch buffer",
        package="jax",
        engine="tpu interpret",
        matches=_writes_prefetch_beside_a_single_buffer,
        links=(JAX + "39179",),
    ),
    KnownIssue(
        id="debug-check-ignored",
        title="pl.debug_check does nothing in both interpret modes of jax",
        advice="call the kernel through pallas_debug.check, or with --pallas-check in pytest",
        package="jax",
        engine="tpu interpret",
        since="0.10.1",
        matches=lambda kernel, jaxpr: has(jaxpr, "check"),
        links=(
            "https://github.com/jax-ml/jax/blob/main/jax/experimental/pallas/g3doc/debugging.md",
        ),
    ),
)


def known_issues(
    kernel: Kernel, jaxpr_text: str, versions: Mapping[str, str], targets: Iterable[str] = ()
) -> tuple[KnownIssue, ...]:
    """List known bugs of these releases that may affect a kernel.

    Args:
      kernel: the kernel.
      jaxpr_text: its jaxpr, as in `jaxpr.txt` of a dump.
      versions: of `jax` and `libtpu`, as in `Kernel.versions` and `Compilation.versions`.
      targets: names of the targets it is compiled for.
    """
    targets = tuple(targets)
    return tuple(
        issue
        for issue in KNOWN_ISSUES
        if issue.concerns(versions, targets) and issue.matches(kernel, jaxpr_text)
    )
