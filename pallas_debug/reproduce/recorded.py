"""Kernel for a target, as recorded in a dump."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pallas_debug.bridge.unparse import NO_PROGRAM
from pallas_debug.compiler import targets
from pallas_debug.compiler.switches import SWITCHES
from pallas_debug.errors import CannotRunError, DumpFormatError, UnknownTargetError, UsageError
from pallas_debug.model import Compilation, Failure, Kernel, Target
from pallas_debug.render import one_line
from pallas_debug.reproduce.template import MAX_DEVICES
from pallas_debug.store import StoredKernel, StoredText, texts
from pallas_debug.store.layout import KERNEL, PROGRAM

_MAX_REASON = 400


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A kernel for a target, read from a dump.

    Attributes:
      topology: name of a topology that is large enough for the kernel.
      program: the kernel as a Python module; None if the dump has none.
      why_no_program: reason for a missing program, as a phrase.
      stablehlo: the module that jax handed to the compiler; None if lowering failed.
      compilation: the compilation; None if the dump has none for the target.
    """

    kernel: Kernel
    target: Target
    topology: str
    num_devices: int
    program: str | None
    why_no_program: str
    stablehlo: str | None
    compilation: Compilation | None

    @property
    def failure(self) -> Failure | None:
        return self.compilation.failure if self.compilation else None


def read(stored: StoredKernel, name: str | None) -> Recorded:
    """Read a kernel from a dump.

    Args:
      name: name of the target; None for the only one, or the first that failed.

    Raises:
      UsageError: the target is unknown, or was not given and the choice is ambiguous.
      CannotRunError: the dump contains neither a program nor the StableHLO of the kernel.
      DumpFormatError: none of its compilations can be read.
    """
    shown = one_line(stored.name)
    if stored.kernel is None:
        raise CannotRunError(stored.problem or f"{stored.folder} cannot be read")
    if not (stored.folder / KERNEL).is_file():
        raise CannotRunError(
            f"{shown} is a raw libtpu dump: it contains passes, but neither the kernel's jaxpr "
            "nor the module that jax handed to the compiler. Dump it with `pallas-debug dump`"
        )
    compilation = _compilation(stored, name)
    wanted = name or (compilation.target if compilation else "")
    if not wanted:
        raise UsageError(f"{shown} was compiled for no target: name one with --target")
    target = _target(wanted, compilation, is_named=name is not None)
    size = math.prod(stored.kernel.mesh.values())
    num_devices = compilation.num_devices if compilation else min(size, MAX_DEVICES + 1)
    if not 0 < num_devices <= MAX_DEVICES:
        raise CannotRunError(
            f"{shown} is recorded as compiled for {num_devices} devices, but only 1 to "
            f"{MAX_DEVICES} are possible: the dump was changed. Dump the kernel again"
        )
    _check_switches(shown, compilation)
    program, why = _program(stored)
    module = _found(stored, wanted, "stablehlo") if compilation is not None else None
    if program is None and module is None:
        raise CannotRunError(
            f"{shown} cannot be reproduced: {why}, and the dump has no StableHLO for {wanted}. "
            "Dump it again with this version of pallas-debug"
        )
    return Recorded(
        kernel=stored.kernel,
        target=target,
        topology=targets.for_devices(target, num_devices) or wanted,
        num_devices=num_devices,
        program=program.text if program is not None else None,
        why_no_program=why,
        stablehlo=module.text if module is not None else None,
        compilation=compilation,
    )


def _found(stored: StoredKernel, target: str | None, name: str) -> StoredText | None:
    """Return a text of the kernel, or None if the dump does not have it."""
    try:
        return texts.find_text(stored, target, name)
    except UsageError:
        return None


def _compilation(stored: StoredKernel, name: str | None) -> Compilation | None:
    found = [c.compilation for c in stored.compilations if c.compilation is not None]
    problem = next((c.problem for c in stored.compilations if c.problem), None)
    if problem is not None and not found:
        raise DumpFormatError(problem)
    if name is not None:
        return next((c for c in found if c.target == name), None)
    failed = [c for c in found if not c.ok]
    if len(found) > 1 and failed:
        return failed[0]
    return stored.target(None).compilation if found else None


def _target(name: str, compilation: Compilation | None, *, is_named: bool) -> Target:
    """Find a target by name.

    Raises:
      UnknownTargetError: the user gave an unknown target.
      CannotRunError: the dump contains an unknown target.
    """
    if name == targets.DEVICE.name and compilation and compilation.device_kind:
        found = targets.of_device(compilation.device_kind)
        if found is not None:
            return replace(found, name=name)
    try:
        target = targets.resolve(name)
    except UnknownTargetError as error:
        if is_named:
            raise
        raise CannotRunError(
            f"the dump is for the {error}. Name one of these with --target, or install the plugin "
            "that provides it"
        ) from error
    if target.topology is None:
        raise UsageError(f"the target {name!r} is a device, not a topology: name a generation")
    return target


def _check_switches(name: str, compilation: Compilation | None) -> None:
    unknown = [s for s in (compilation.switches if compilation else ()) if s not in SWITCHES]
    if unknown:
        raise CannotRunError(
            f"{name} was compiled with the switch {unknown[0][:80]!r}, which this version of "
            f"pallas-debug does not have; it has {', '.join(SWITCHES)}. Upgrade pallas-debug, or "
            "dump the kernel again"
        )


def _program(stored: StoredKernel) -> tuple[StoredText | None, str]:
    """Return a kernel's program, or the reason why it has none: a file with only a comment line."""
    found = _found(stored, None, texts.PROGRAM)
    if found is None:
        missing = stored.named(PROGRAM).path
        return None, f"there is no {missing}, which this version writes with each kernel"
    text = found.text
    if text.startswith(NO_PROGRAM) and len(text.strip().splitlines()) == 1:
        reason = text.removeprefix(NO_PROGRAM).strip()[:_MAX_REASON]
        return None, f"it cannot be written as a program: {reason}"
    return found, ""
