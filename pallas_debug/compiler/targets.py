"""Chips to compile for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pallas_debug.chips import CHIPS, GPUS, Chip, Gpu, gpu_of
from pallas_debug.errors import UnknownTargetError, UsageError
from pallas_debug.model import Target
from pallas_debug.quantities import size_text


def _summary(chip: Chip) -> str:
    parts = ["no int8 or fp8 matmul"] if chip.unmultiplied else []
    limit = f", {size_text(chip.vmem_limit)} for a kernel by default"
    parts.append(f"{size_text(chip.vmem)} of VMEM{limit if chip.vmem_limit < chip.vmem else ''}")
    parts += ["two cores per device"] if chip.cores == 2 else []
    return "; ".join(parts)


BUILTIN: tuple[Target, ...] = tuple(
    Target(
        name=chip.name,
        topology=chip.topology,
        device_kind=chip.device_kind,
        num_cores=chip.cores,
        summary=_summary(chip),
    )
    for chip in CHIPS.values()
)


def _of_gpu(gpu: Gpu, name: str) -> Target:
    parts = [
        f"{gpu.multiprocessors} multiprocessors",
        f"{size_text(gpu.shared_limit)} of shared memory for a block",
        *(["tensor memory"] if gpu.tensor_memory else []),
    ]
    return Target(
        name=name,
        topology=gpu.architecture,
        device_kind=gpu.device_kind,
        num_cores=gpu.multiprocessors,
        summary="; ".join(parts),
        platform="cuda",
    )


OF_GPUS: tuple[Target, ...] = tuple(_of_gpu(gpu, gpu.name) for gpu in GPUS.values())

DEVICE = Target(
    name="tpu", topology=None, device_kind=None, summary="the TPU of this host, if it has one"
)
"""Target of this host's device; `of_device` fills in the device kind."""

_SIDE = r"[1-9][0-9]{0,2}"  # libtpu crashes on a zero
_TOPOLOGY = re.compile(rf"(?P<chip>[a-z0-9]+):{_SIDE}(?:x{_SIDE}){{1,2}}")


def known() -> tuple[Target, ...]:
    """All named targets: TPUs, this host's device, and GPUs."""
    return (*BUILTIN, DEVICE, *OF_GPUS)


def resolve(name: str) -> Target:
    """Return the target with that name or full topology name.

    Raises:
      UnknownTargetError: unknown; the message lists the known ones.
      UsageError: not text.
    """
    named = {target.name: target for target in known()}
    wanted = _name(name)
    if wanted in named:
        return named[wanted]
    gpu = gpu_of(wanted)
    if gpu is not None:
        return _of_gpu(gpu, wanted)
    match = _TOPOLOGY.fullmatch(wanted)
    chip = named.get(match["chip"]) if match else None
    if chip is not None and (chip.topology or "").startswith(f"{chip.name}:"):
        return replace(chip, name=wanted, topology=wanted, summary=f"topology {wanted}")
    synonyms = {
        other.lower(): chip.name
        for chip in CHIPS.values()
        for other in (chip.device_kind, *chip.aliases)
    }
    synonyms |= {name.lower(): name for name in named}
    raise UnknownTargetError(wanted, list(named), synonyms.get(wanted.lower()))


def resolve_all(names: str | Iterable[str]) -> tuple[Target, ...]:
    """Return the targets in a list such as `v5e,v6e`; `all` is every generation of TPUs.

    Raises:
      UnknownTargetError: a target is unknown, or the list is empty.
    """
    found: dict[str, Target] = {}
    for name in split(names):
        if name == "all":
            found |= {t.name: t for t in BUILTIN}
        else:
            target = resolve(name)
            found[target.name] = target
    if not found:
        raise UnknownTargetError("", [t.name for t in known()])
    return tuple(found.values())


def of_device(device_kind: str) -> Target | None:
    """Return the target `tpu` for a host with jax devices of that kind; None if unknown.

    Compiling for it does not touch the device.
    """
    for target in BUILTIN:
        if target.device_kind == device_kind:
            return replace(target, name=DEVICE.name)
    return None


def for_devices(target: Target, num_devices: int) -> str | None:
    """Return a topology large enough for that many devices, the target's own if possible.

    A target named by its full topology keeps it.
    """
    if target.platform == "cuda" or target.topology in (None, target.name):
        return target.topology
    chip, _, shape = (target.topology or "").partition(":")
    sides = [int(side) for side in shape.split("x")]
    while math.prod(sides) < num_devices:  # in some generations a chip has two devices
        sides[sides.index(min(sides))] *= 2
    if len(sides) == 2:
        sides.sort()
    return f"{chip}:{'x'.join(map(str, sides))}"


def split(names: str | Iterable[str] | None, default: str = "") -> tuple[str, ...]:
    """Split `"v5e,v6e"` or a list into names; None stands for `default`.

    Raises:
      UsageError: a name is not text.
    """
    given: Any = default if names is None else names
    listed = given.split(",") if isinstance(given, str) else given
    found = list(map(_name, listed if isinstance(listed, Iterable) else [listed]))
    return tuple(filter(None, found))


def _name(given: object) -> str:
    """Return a target's name without white space around it.

    Raises:
      UsageError: it is not text.
    """
    if isinstance(given, str):
        return given.strip()
    raise UsageError(f"a target is given by its name, such as 'v5e', and {given!r} is not a name")
