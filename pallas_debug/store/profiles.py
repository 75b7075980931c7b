"""Profiles of stored kernels, from what the compiler wrote about their schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.errors import DumpFormatError
from pallas_debug.store import layout
from pallas_debug.store.files import is_there
from pallas_debug.store.stored import StoredCompilation, StoredKernel

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile

_FILES = {
    "bundles": layout.BUNDLES,
    "utilization": layout.UTILIZATION,
    "delays": layout.DELAYS,
    "vmem": layout.VMEM,
    "hlo": layout.HLO,
    "estimate": layout.ESTIMATE,
    "mosaic": layout.MOSAIC,
    "sparsecore": layout.SPARSECORE,
}
"""Fields of `ScheduleTexts`, and the files from which they are read."""


@dataclass(frozen=True, kw_only=True)
class StoredProfile:
    """A profile, with problems in reading it.

    Attributes:
      problems: a sentence for each file that is damaged or refused, and so counts as missing.
    """

    profile: Profile
    problems: tuple[str, ...] = ()


def read_profile(kernel: StoredKernel, stored: StoredCompilation) -> StoredProfile | None:
    """Read the schedule of a compilation; None if it was dumped without the stage `bundles`."""
    from pallas_debug.profile.stats import Profile, ScheduleTexts

    if not any(is_there(stored.named(name).path) for name in layout.SCHEDULE_FILES):
        return None
    texts: dict[str, str] = {}
    problems = []
    for field, name in _FILES.items():
        file = stored.named(name)
        if is_there(file.path):
            try:
                texts[field] = file.text()
            except DumpFormatError as error:
                problems.append(str(error))
    blocks = None
    try:
        blocks = kernel.blocks()
    except DumpFormatError as error:
        problems.append(str(error))
    profile = Profile(
        texts=ScheduleTexts(**texts),
        kernel=kernel.kernel,
        compilation=stored.compilation,
        blocks=blocks,
    )
    return StoredProfile(profile=profile, problems=tuple(problems))
