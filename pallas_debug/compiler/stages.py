"""Stages that a compilation keeps besides Mosaic's passes: LLO passes, and the VLIW schedule.

libtpu writes them if flags are set that it reads only once per process, so every combination of
flags needs its own child processes (`pool.py`). Imports no jax.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pallas_debug import defaults
from pallas_debug.errors import UsageError, meant
from pallas_debug.model import Compilation

MOSAIC, LLO, BUNDLES, ESTIMATE = defaults.STAGES
NAMES = tuple(defaults.STAGES)

LLO_FOLDER = "llo"
"""Subfolder of the child's folder to which libtpu dumps LLO."""

LLO_DUMP_TO = "xla_jf_dump_to"
ESTIMATE_TO = "xla_jf_dump_static_llo_profile_to"
SPARSE_BUNDLES_TO = "xla_sc_dump_bundles_to"
LLO_LOCATIONS = "xla_mosaic_enable_llo_source_annotations"

_LLO_TEXT = "xla_jf_dump_llo_text"
_ONLY = "xla_jf_dump_llo_pass_label_regex"

BUNDLE_PASSES = (
    "final_bundles",
    "final_hlo-static-per-bundle-utilization",
    "pre-delay_hlo-static-per-bundle-utilization",
    "schedule-analysis_final_bundles",
    "critical-path",
    "register-pressure",
    "vmem_report",
)
"""libtpu's labels of the texts that make up a schedule.

The labels are matched in full, because `DGO-post-critical-path-scheduler` alone is as long as the
bundles.
"""

_PATTERN = re.compile(r"[A-Za-z0-9_.*-]+")


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages to keep besides Mosaic's.

    Attributes:
      llo: patterns of LLO passes, in which `*` stands for any characters; `*` alone is all of them.
      bundles: whether to keep the schedule.
      estimate: whether to also keep libtpu's cycle estimate; only with `bundles`.
    """

    llo: tuple[str, ...] = ()
    bundles: bool = False
    estimate: bool = False

    def __bool__(self) -> bool:
        return self.bundles or bool(self.llo)

    @property
    def names(self) -> tuple[str, ...]:
        """The stages as users write them, except `mosaic`: `llo:post-ra`, `bundles`."""
        patterns = (LLO if pattern == "*" else f"{LLO}:{pattern}" for pattern in self.llo)
        others = {BUNDLES: self.bundles, ESTIMATE: self.estimate}
        return (*patterns, *(name for name, is_kept in others.items() if is_kept))

    def takes_pass(self, name: str) -> bool:
        """Return whether an LLO pass was requested."""
        return any(matches(pattern, name) for pattern in self.llo)

    def covers(self, other: Stages) -> bool:
        """Return whether a compilation with these stages also has those of `other`."""
        has_llo = "*" in self.llo or set(other.llo) <= set(self.llo)
        return has_llo and self.bundles >= other.bundles and self.estimate >= other.estimate

    def __or__(self, other: Stages) -> Stages:
        return _stages(
            [*self.llo, *other.llo],
            bundles=self.bundles or other.bundles,
            estimate=self.estimate or other.estimate,
        )


NONE = Stages()
DEFAULT = Stages(bundles=True)


@dataclass(frozen=True, kw_only=True)
class ChildFlags:
    """Flags with which a child is started, besides those of every child.

    Attributes:
      flags: by name, in libtpu's syntax.
      folders: flags whose value is a folder of the child, by its name there.
      gpu: architecture of the GPUs that the child compiles for, of which Mosaic GPU remembers the
        first; empty for TPUs.
    """

    gpu: str = ""
    flags: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.flags or self.folders)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return (
            *self.flags.items(),
            *self.folders.items(),
            *([("gpu", self.gpu)] if self.gpu else []),
        )

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.flags, *self.folders)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Flags with a fixed value, in libtpu's syntax."""
        return tuple(f"--{name}={value}" for name, value in self.flags.items())

    def without(self, names: Iterable[str]) -> ChildFlags:
        left_out = set(names)
        return replace(
            self,
            flags={n: v for n, v in self.flags.items() if n not in left_out},
            folders={n: v for n, v in self.folders.items() if n not in left_out},
        )


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Flags with which the compiler aborted, or that it rejected.

    Attributes:
      flags: names of the flags; several if it is unknown which of them was the cause.
      message: the compiler's message.
    """

    flags: tuple[str, ...]
    cause: Literal["aborted", "refused", "timeout"]
    message: str


def parse(text: str | Iterable[str]) -> Stages:
    """Parse `"llo:post-ra,estimate"`, or names. With `mosaic`, only what is named is kept.

    Raises:
      UsageError: a stage is unknown, or a pattern of passes cannot be passed to libtpu.
    """
    texts = [text] if isinstance(text, str) else list(text)
    names = [part.strip() for given in texts for part in given.split(",")]
    patterns: list[str] = []
    for name in names:
        stage, colon, pattern = name.partition(":")
        if name in ("", MOSAIC, BUNDLES, ESTIMATE):
            continue
        if stage == LLO and (not colon or _PATTERN.fullmatch(pattern)):
            patterns.append(pattern if colon else "*")
        elif stage == LLO:
            raise UsageError(
                f"{name!r} is not an LLO pass: {pattern!r} has characters other than letters, "
                "digits, `-`, `_`, `.` and `*`, which stands for any. Name a pass as it appears "
                "below llo/, such as llo:post-ra or llo:*bundles*."
            )
        else:
            hint = meant(name, NAMES)
            raise UsageError(
                f"unknown stage {name!r}{hint}; there are {', '.join(NAMES)}, and llo:PASS for "
                "single LLO passes"
            )
    estimate = ESTIMATE in names
    bundles = estimate or BUNDLES in names or MOSAIC not in names
    return _stages(patterns, bundles=bundles, estimate=estimate)


def of(compilation: Compilation) -> Stages:
    """Return the stages with which a compilation was made, without unknown ones."""
    known = []
    for name in compilation.stages:
        with contextlib.suppress(UsageError):
            parse(name)
            known.append(name)
    return parse([MOSAIC, *known])


def child_flags(stages: Stages) -> ChildFlags:
    """Return libtpu's flags for stages; none for `NONE`."""
    if not stages:
        return ChildFlags()
    flags = {_LLO_TEXT: "true", LLO_LOCATIONS: "true"}
    folders = {LLO_DUMP_TO: LLO_FOLDER}
    if "*" not in stages.llo:
        labels = [*stages.llo, *(BUNDLE_PASSES if stages.bundles else ())]
        flags[_ONLY] = "|".join(f"^{_regex(label)}$" for label in labels)
    if stages.bundles:
        folders[SPARSE_BUNDLES_TO] = LLO_FOLDER
    if stages.estimate:
        folders[ESTIMATE_TO] = LLO_FOLDER
    return ChildFlags(flags=flags, folders=folders)


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern of LLO passes matches this pass."""
    return re.fullmatch(_regex(pattern), name) is not None


def _stages(patterns: Iterable[str], *, bundles: bool, estimate: bool) -> Stages:
    kept = tuple(sorted(set(patterns)))
    return Stages(llo=("*",) if "*" in kept else kept, bundles=bundles, estimate=estimate)


def _regex(pattern: str) -> str:
    """Return a pattern in the syntax that RE2 and Python share."""
    return ".*".join(part.replace(".", "[.]") for part in pattern.split("*"))
