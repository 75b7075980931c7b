"""Profiles of stored kernels, from what the compiler wrote about their schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug.chips import gpu_of
from pallas_debug.errors import CannotRunError, DumpFormatError
from pallas_debug.render import one_line
from pallas_debug.store import layout
from pallas_debug.store.files import is_there
from pallas_debug.store.stored import StoredCompilation, StoredKernel

if TYPE_CHECKING:
    from pallas_debug.profile.gpu import GpuStats
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


_OF_GPU = {
    "ptx": layout.PTX,
    "ptxas": layout.PTXAS,
    "sass": layout.SASS,
    "resources": layout.RESOURCES,
    "shared": layout.MOSAIC,
}
"""Texts from which `gpu_stats` counts, and their files."""

_ALLOCATES = "allocate-shared-memory-nv"
"""Pass of Triton after which its module states the size of shared memory."""


@dataclass(frozen=True, kw_only=True)
class StoredProfile:
    """A profile, with problems in reading it.

    Attributes:
      problems: a sentence for each file that is damaged or refused, and so counts as missing.
    """

    profile: Profile
    problems: tuple[str, ...] = ()


def is_for_gpu(target: str) -> bool:
    """Return whether a target is a GPU, whose compilations have no schedule."""
    return gpu_of(target) is not None


def read_gpu_stats(kernel: StoredKernel, stored: StoredCompilation) -> GpuStats:
    """Read the statistics of a kernel that was compiled for a GPU.

    Raises:
      CannotRunError: it did not compile.
      DumpFormatError: a text is damaged or refused.
    """
    from pallas_debug.profile.gpu import gpu_stats

    made = stored.compilation
    if made is None or not made.ok:
        raise CannotRunError(
            f"{one_line(kernel.name)} did not compile for {one_line(stored.target)}: there is "
            "nothing to count"
        )
    files = {stage: stored.named(name) for stage, name in _OF_GPU.items()}
    texts = {stage: file.text() for stage, file in files.items() if is_there(file.path)}
    sized = next((p for p in made.passes if p.name == _ALLOCATES), None)
    if sized is not None:
        texts["shared"] = stored.text(sized)
    name = kernel.kernel.name if kernel.kernel is not None else kernel.name
    return gpu_stats(name, made.target, made.versions, texts)


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
