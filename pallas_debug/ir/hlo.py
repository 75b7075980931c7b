"""Parser of XLA's program around a kernel, as printed by the compiler."""

from __future__ import annotations

import re
from dataclasses import dataclass

_KERNEL_CALL = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[^\s=%]+) = .*\btpu_custom_call\b", re.MULTILINE
)

LABEL = "pallas_debug"
"""Key of a kernel's label in the metadata of its call."""

_DEFINITION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>\S+) = (?P<type>\(.*?\)|\S+) [\w-]+\((?P<passed>[^\n]*)", re.MULTILINE
)
_ARRAY = re.compile(r"\w+\[[^\]]*\](?:\{[^}]*?(?:S\((?P<space>\d+)\))?\})?")
_LABEL = re.compile(rf'kernel_metadata=\{{[^}}]*?"{LABEL}":"(?P<label>\w+)"')


@dataclass(frozen=True, kw_only=True)
class PlacedCall:
    """The call of a labelled kernel.

    Attributes:
      operands, results: XLA's number of the memory space of each; 0 is HBM.
    """

    label: str
    operands: tuple[int, ...]
    results: tuple[int, ...]


def kernel_calls(hlo: str) -> frozenset[str]:
    """Return the names of the operations that call a kernel; others are copies and fusions."""
    return frozenset(match["name"] for match in _KERNEL_CALL.finditer(hlo))


def labelled_calls(hlo: str) -> tuple[PlacedCall, ...]:
    """Return the calls of kernels with a label, with the memory spaces that XLA chose."""
    spaces: dict[str, tuple[int, ...]] = {}
    calls = []
    for match in _DEFINITION.finditer(hlo):
        spaces[match["name"]] = tuple(
            int(array["space"] or 0) for array in _ARRAY.finditer(match["type"])
        )
        passed, is_kernel, _ = match["passed"].partition(', custom_call_target="tpu_custom_call"')
        label = None
        if is_kernel:  # what follows on the next lines, up to the kernel itself
            start = match.start("passed")
            label = _LABEL.search(hlo, start, hlo.find("backend_config=", start))
        if label is not None:
            operands = re.findall(r"%([^\s,)]+)", passed)
            calls.append((label["label"], operands, spaces[match["name"]]))
    return tuple(
        PlacedCall(
            label=label,
            operands=tuple(space for name in operands for space in spaces.get(name, ())),
            results=results,
        )
        for label, operands, results in calls
    )
