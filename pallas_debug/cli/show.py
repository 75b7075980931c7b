"""`pallas-debug show`: a stage or pass of a dumped kernel, on standard output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pallas_debug import defaults, followup, render
from pallas_debug.cli import options as shared
from pallas_debug.cli import output, where
from pallas_debug.cli.exits import Exit
from pallas_debug.errors import DumpFormatError, UsageError
from pallas_debug.model import Compilation, Kernel, Operand
from pallas_debug.render import OWN_ADVICE, one_line
from pallas_debug.store.texts import find_text

if TYPE_CHECKING:
    from pallas_debug.store import StoredCompilation, StoredKernel


@dataclass(frozen=True, kw_only=True)
class ShowOptions(shared.StoredOptions):
    stage: str = shared.argument(default="summary")
    as_json: bool = shared.as_json()


def run(options: ShowOptions) -> int:
    """Print a stage of a kernel to standard output.

    \b
    STAGE is one of
      summary     the kernel: source, grid, operands, targets (the default)
      source      the Python file of the kernel
      program     the kernel as a program that needs only jax
      jaxpr       its jaxpr, with source lines
      stablehlo   the module that jax hands to the compiler
      mosaic      the kernel's own module, before any pass
      log, error  what the compiler printed; why it failed
      a pass      by number or name: 13, infer-vector-layout

    \b
    and of its schedule,
      bundles     the final VLIW bundles
      utilization, analysis, critical-path, profile, registers, gaps
                  the compiler's tables of them
      sparsecore  the bundles of a kernel on the SparseCore
      vmem, hlo   the memory map of VMEM (HTML); the HLO around the kernel

    \b
    and, if it was dumped with `--stages estimate` or `llo`,
      estimate    libtpu's estimate of cycles
      llo:PASS    an LLO pass by number or name: llo:54, llo:post-ra

    WHERE is the start of a kernel's name in `dumps`, a dump directory, a kernel's or a target's
    folder in it, or a directory of raw dumps; if it contains several kernels, append the start of a
    name, as in old/rmsnorm.
    """
    place = where.place_at(options.where, options.kernel, options.target)
    found, target, stage = place.only(), place.target, options.stage
    problems: list[str] = []
    if stage == "summary":
        compilations = place.compilations(found)
        text = _summary(found, compilations)
        problems += [c.problem for c in compilations if c.problem]
    elif stage == "error":
        stored = found.target(target)
        text, target = _error(found, stored), stored.target
    else:
        of_stage = find_text(found, target, stage)
        text, target, stage = of_stage.text, of_stage.target or target, of_stage.stage
    if options.as_json:
        shown = {"kernel": found.name, "target": target, "stage": options.stage, "text": text}
        output.print_json("show", shown)
    else:
        output.echo(text, newline=not text.endswith("\n"))
    for problem in problems:
        output.message(problem)
    output.follow(_next(place, found, target, stage), as_json=options.as_json)
    return Exit.CANNOT_RUN if problems else Exit.OK


command = shared.make("show", ShowOptions, run)


def _next(place: where.Place, kernel: StoredKernel, target: str | None, stage: str) -> str:
    """Command about a failure, about what a pass changed, or the list of stages."""
    at, number = place.path(kernel.name), stage.partition("-")[0]
    if stage == "error":
        return followup.command("explain", at)
    if number.isdecimal() and int(number) > 0 and target is not None:
        return followup.command("diff", at, number, "-t", target)
    return place.first_failure([kernel]) or followup.command("ls", at)


def _error(kernel: StoredKernel, stored: StoredCompilation) -> str:
    if stored.problem:
        raise DumpFormatError(stored.problem)
    failure = stored.compilation.failure if stored.compilation else None
    if failure is None:
        raise UsageError(
            f"{one_line(kernel.name)} compiled for {one_line(stored.target)}: "
            "there is no error to show"
        )
    lines = [f"{failure.type} in {kernel.name} for {stored.target}, at {failure.stage}"]
    if failure.source is not None:
        text = failure.source.text or (kernel.line_text(failure.source) or "").strip()
        lines.append(f"  {failure.source}" + (f"   {text}" if text else ""))
    if failure.last_pass:
        lines.append(f"  last pass: {failure.last_pass}")
    lines += ["", failure.message, ""]
    if failure.explanation is not None and failure.stage not in OWN_ADVICE:
        lines += [failure.explanation.text(), ""]
    return "\n".join(lines)


def _summary(stored: StoredKernel, compilations: Sequence[StoredCompilation]) -> str:
    kernel = stored.kernel
    if kernel is None:
        raise DumpFormatError(f"{one_line(stored.folder)} cannot be read")
    lines = [stored.name]
    if kernel.source is not None:
        lines.append(f"  source     {kernel.source}   {kernel.source.text or ''}".rstrip())
    if kernel.grid:
        lines.append(f"  grid       {_grid(kernel)}")
    if kernel.mesh:
        lines.append(f"  mesh       {', '.join(f'{n}={s}' for n, s in kernel.mesh.items())}")
    for name, value in kernel.compiler_params.items():
        if name != "dimension_semantics":
            lines.append(f"  parameter  {name}={value}")
    if kernel.cost_estimate is not None:
        cost = kernel.cost_estimate
        lines.append(
            f"  cost       {cost.flops:,} flops, {cost.transcendentals:,} transcendentals, "
            f"{cost.bytes_accessed:,} bytes"
        )
    if kernel.chip is not None:
        lines.append(f"  chip       the code queried its chip, and got {kernel.chip}")
    width = max((len(o.name) for o in kernel.operands), default=0)
    for operand in kernel.operands:
        lines.append(f"  {operand.kind:15} {operand.name:{width}}  {_operand(operand)}")
        if operand.index_map:
            lines.append(
                f"  {'':15} {'':{width}}    index map {' '.join(operand.index_map.split())}"
            )
    aliases = ", ".join(f"input {i} is output {o}" for i, o in kernel.aliases)
    if aliases:
        lines.append(f"  {'aliases':15} {aliases}")
    for compilation in compilations:
        status = render.status(compilation.compilation) if compilation.compilation else "unreadable"
        lines.append(f"  {compilation.target:15} {status}")
        if compilation.compilation is not None:
            lines += [f"  {'':15} {line}" for line in _compiled(compilation.compilation)]
    return "\n".join(lines) + "\n"


def _compiled(compilation: Compilation) -> list[str]:
    lines = []
    if compilation.switches:
        lines.append(f"switches: {', '.join(compilation.switches)}")
    if compilation.stages not in ((), (defaults.STAGES[2],)):
        lines.append(f"stages: {', '.join(compilation.stages)}")
    lines += render.missing_lines(compilation)
    if compilation.memory is not None:
        lines.append(f"{compilation.memory.generated_code:,} bytes of generated code")
    return [*lines, *compilation.notes]


def _grid(kernel: Kernel) -> str:
    names = kernel.grid_names or ("",) * len(kernel.grid)
    semantics = kernel.dimension_semantics or ("",) * len(kernel.grid)
    sizes = ["dynamic" if size is None else str(size) for size in kernel.grid]
    described = [
        " ".join(filter(None, (name, size, kind)))
        for name, size, kind in zip(names, sizes, semantics, strict=False)
    ]
    return ", ".join(described)


def _operand(operand: Operand) -> str:
    shape = ",".join(map(str, operand.shape))
    text = f"{operand.dtype}[{shape}] in {operand.memory_space}"
    if operand.block_shape is not None:
        text += f", block ({', '.join('·' if b is None else str(b) for b in operand.block_shape)})"
    if operand.pipeline:
        text += f", {operand.pipeline}"
    return text
