"""Shared data model: small frozen dataclasses, and nothing else.

Floor 0. Every class here can be written as JSON and read back (`store/schema.py` does both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind

_STATUS = re.compile(
    r"^[A-Z_]+: (?:Mosaic failed to compile TPU kernel[^:]*: )?(?:E\d{4}: \w+: ?)?"
)
"""Status before the first line of a compiler's message."""

OperandKind = Literal["dynamic_grid", "scalar_prefetch", "input", "output", "scratch"]
Status = Literal["ok", "failed"]
Stage = Literal["jaxpr", "source", "stablehlo", "mosaic", "ttir"]

STAGES: tuple[Stage, ...] = ("source", "jaxpr", "stablehlo", "mosaic", "ttir")
"""Stages of a kernel before the compiler's own passes, in order."""


@dataclass(frozen=True, kw_only=True)
class SourceLine:
    """A line of Python source, with its text at the time the kernel was traced."""

    file: str
    line: int
    function: str | None = None
    text: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def place(self) -> tuple[str, int]:
        """File and line, without the text at that time."""
        return self.file, self.line


@dataclass(frozen=True, kw_only=True)
class Operand:
    """An operand of a kernel; operands are in the order of the kernel function's parameters.

    Attributes:
      name: the parameter's name in the Python kernel, or jax's path (`args[0]`) for `*refs`.
      shape: shape of the whole array; for scratch, of the buffer.
      block_shape: shape of a block, with None for a squeezed dimension; None if there is no block.
      index_map: jaxpr of the index map as text; None if there is no block.
      memory_space: as requested by the kernel; `default` if it left the choice to Pallas.
      pipeline: buffering requested by the kernel, as text; None for jax's default.
      block_source: line of the index map, or of the block spec in the call; None if not found.
    """

    name: str
    kind: OperandKind
    shape: tuple[int, ...]
    dtype: str
    memory_space: str
    block_shape: tuple[int | None, ...] | None = None
    index_map: str | None = None
    pipeline: str | None = None
    block_source: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """Cost estimate declared by the kernel's author: operations, transcendentals, bytes."""

    flops: int
    transcendentals: int
    bytes_accessed: int


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A kernel as jax lowered it: its final form, after vmap, grad and the like.

    Attributes:
      name: jax's name for the kernel (`name=` of the call, or the Python function's name).
      digest: 64 hex digits over the kernel itself, without its line numbers; the same in each run.
      source: first line of the kernel function.
      grid: None for a dimension whose size is known only at run time.
      aliases: pairs of input and output position that share a buffer.
      mesh: axis sizes of the mesh under which it runs (`shard_map`); empty for a single device.
      chip: device kind that the code queried during tracing, and on which the kernel may depend.
    """

    name: str
    digest: str
    primitive: str
    source: SourceLine | None = None
    grid: tuple[int | None, ...] = ()
    grid_names: tuple[str, ...] = ()
    dimension_semantics: tuple[str, ...] = ()
    operands: tuple[Operand, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    compiler_params: Mapping[str, str] = field(default_factory=dict)
    cost_estimate: CostEstimate | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    chip: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def of_kind(self, kind: OperandKind) -> tuple[Operand, ...]:
        """Operands of one kind, in order."""
        return tuple(operand for operand in self.operands if operand.kind == kind)


@dataclass(frozen=True, kw_only=True)
class Target:
    """A chip to compile for.

    Attributes:
      name: the name that users write, and the folder's name: `v5e`, `v5e:2x4`, `tpu`.
      topology: libtpu's name for the chip, or ptxas's; None for the device of this host.
      device_kind: jax's name for the chip, `TPU v5 lite`; None if only the device knows it.
      num_cores: TensorCores of one jax device (2 for megacore), or multiprocessors of a GPU.
      platform: jax's name of the compiler's platform.
    """

    name: str
    topology: str | None
    device_kind: str | None
    num_cores: int = 1
    summary: str = ""
    platform: Literal["tpu", "cuda"] = "tpu"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pass of the Mosaic compiler, with its result.

    Attributes:
      number: the compiler's own number, counted from 0.
      size: bytes of the text after the pass.
      seconds: from the end of the previous pass to the end of this one, by file times.
      changed: whether the text differs from that of the previous pass.
      failed: whether the compiler stopped in this pass.
      file: path below the target's folder; None if nothing changed, in which case no text is kept.
    """

    number: int
    name: str
    size: int
    seconds: float | None
    changed: bool
    failed: bool = False
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of a failure: an entry of the catalogue, or that entry applied to one failure.

    The fields from `pattern` on recognise failures; an explanation of a failure leaves them empty.

    Attributes:
      id: short identifier, stable across releases: `scoped-vmem-overflow`.
      cause, advice: a sentence each, without a full stop.
      code: XLA's error code, such as `E1001`, if it has one.
      details: facts about this particular failure: such as an allocation table.
      versions: a sentence on the releases of jax or libtpu affected; empty for all.
      targets: the chips affected; empty for all.
      kind: kind of finding to report for this failure.
      kinds: kinds of findings that this entry explains.
      pattern: regular expression for the message; empty for entries that only findings refer to.
      marks: literal texts; every matching line contains at least one. A log is searched for these
        first.
      ambiguous: whether other programs print it too; then a TPU must be mentioned nearby.
      general: whether the entry applies only if no other does.
    """

    id: str
    cause: str
    advice: str
    title: str = ""
    code: str | None = None
    details: tuple[str, ...] = ()
    versions: str = ""
    targets: tuple[str, ...] = ()
    kind: str = ""
    kinds: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    pattern: str = ""
    marks: tuple[str, ...] = ()
    ambiguous: bool = False
    general: bool = False

    @property
    def name(self) -> str:
        """Id and code: `scoped-vmem-overflow (E1001)`."""
        return f"{self.id} ({self.code})" if self.code else self.id

    def brief(self) -> list[str]:
        """Two or three lines to print below a failure: the cause, the first detail, the advice."""
        return [f"{self.name}: {self.cause}", *self.details[:1], f"try: {self.advice}"]

    def text(self) -> str:
        """The full explanation, on several lines."""
        head = f"{self.name}: {self.title}" if self.title else self.name
        lines = [head, f"cause: {self.cause}", *self.details, f"try: {self.advice}"]
        lines += [f"versions: {self.versions}"] if self.versions else []
        lines += [f"targets: {', '.join(self.targets)}"] if self.targets else []
        return "\n  ".join([*lines, *(f"see: {link}" for link in self.links)])


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a kernel has no executable.

    Attributes:
      stage: `lowering` (jax refused), `compile` (libtpu refused), `crash` (the compiler's process
        died), `timeout` (it was stopped), `setup` (no compiler was available).
      type: the exception's class, or what ended the process (`SIGABRT`).
      message: the compiler's full message, verbatim.
      last_pass: name of the last pass that left a file.
      explanation: cause and advice; None if the catalogue does not know the failure.
    """

    stage: Literal["lowering", "compile", "crash", "timeout", "setup"]
    type: str
    message: str
    last_pass: str | None = None
    source: SourceLine | None = None
    explanation: Explanation | None = None

    @property
    def is_undecided(self) -> bool:
        """True if the kernel was not judged: no compiler, one that was killed, too little time."""
        was_killed = self.stage == "crash" and self.type in ("SIGKILL", "SIGTERM")
        return was_killed or self.stage in ("setup", "timeout")

    @property
    def headline(self) -> str:
        """What is wrong in one line: the first detail known of it, or the message's first line."""
        if self.explanation is not None and self.explanation.details:
            return self.explanation.details[0]
        line = next(filter(None, map(str.strip, self.message.splitlines())), self.type)
        return _STATUS.sub("", line) or line


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes that the executable needs, according to the compiler."""

    generated_code: int
    arguments: int
    outputs: int
    temporaries: int


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """Size in bytes and SHA-256 of a file of a dump when it was written."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class MissingFile:
    """A file of a requested stage that a compilation does not have.

    Attributes:
      cause: the compiler died with the flag, does not know it, took too long, or did not write it.
      flag: the libtpu flag that was left out; `message` is the compiler's message about it.
    """

    file: str
    cause: Literal["aborted", "refused", "timeout", "unwritten"]
    flag: str | None = None
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """A kernel compiled for one target.

    Attributes:
      key: 64 hex digits over kernel, source lines, target, versions and flags; a cache key.
      flags: libtpu flags, in its own syntax.
      switches: names of the options it was compiled with, such as `log_recorder`.
      stages: stages that were kept besides Mosaic's, as users write them: `llo:post-ra`, `bundles`.
      missing: files of these stages that do not exist, and why.
      notes: sentences for users of the executable.
      seconds: wall time of the compilation in the compiler's process.
      versions: versions of jax, jaxlib and libtpu, and the compiler's build.
      files: files of the target's folder except the manifest, by path.
    """

    kernel: str
    target: str
    status: Status
    key: str
    passes: tuple[Pass, ...] = ()
    failure: Failure | None = None
    memory: Memory | None = None
    flags: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    missing: tuple[MissingFile, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float | None = None
    device_kind: str | None = None
    num_devices: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    cached: bool = False

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def changed_passes(self) -> tuple[Pass, ...]:
        return tuple(p for p in self.passes if p.changed)


@dataclass(frozen=True, kw_only=True)
class Witness:
    """Facts about the place at which a fault appears.

    Attributes:
      loop: iterations of the loops around the line, outermost first.
      index: the slice in source form: `x_ref[12:20, 0:128]`.
      shape: shape of the operand, with its memory space: `float32[16, 128] in VMEM`.
      values: values at that place, by name.
      other: the other line, for a fault with two sides.
    """

    source: SourceLine | None = None
    grid_point: tuple[int, ...] | None = None
    loop: tuple[int, ...] = ()
    operand: str | None = None
    index: str | None = None
    shape: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    other: SourceLine | None = None

    @property
    def line(self) -> tuple[str, int] | None:
        """File and number of the line."""
        return None if self.source is None else self.source.place


@dataclass(frozen=True, kw_only=True)
class Link:
    """A step on the way to a wrong element: writes to a buffer by one line, or a read of it.

    Attributes:
      buffer: name of the operand or scratch.
      action: what the line does: `sets out_ref from acc_ref`.
      sources: names of the buffers from which the value is computed.
      grid_point, loop: of the last time; None and () if there is none.
      since: first grid point, if the line did it at several.
    """

    buffer: str
    action: str
    sources: tuple[str, ...] = ()
    source: SourceLine | None = None
    grid_point: tuple[int, ...] | None = None
    loop: tuple[int, ...] = ()
    since: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a kernel; built by `findings/` from what an engine witnessed.

    Attributes:
      kind: the fault: `OutOfBoundsRead`, `DataRace`.
      message: what happened, with the operand, the index and the values.
      digest: digest of the kernel; empty if it is unknown.
      witness: facts about the first time it was seen.
      engines: engines that found it, most certain first: `machine`, `static`.
      targets: chips affected, if the fault is not on all of them.
      count: number of times it was seen.
      consequences: findings that follow from this one, such as a compiler crash.
      comes_of: kinds of faults that cause this one, if such a fault was found before it.
      made_up: arguments whose values were made up and that decide whether it happens, such as
        `lengths (int32[2], zeros)`; with real values it may not happen.
      only_if: an undetermined condition under which this is a fault: `the caller uses result 1`.
      chain: for a wrong value, the writers behind its first element, newest first.
    """

    kind: Fault
    kernel: str
    message: str
    digest: str = ""
    cause: str | None = None
    advice: str | None = None
    witness: Witness = field(default_factory=Witness)
    engines: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    count: int = 1
    consequences: tuple[Finding, ...] = ()
    comes_of: tuple[Fault, ...] = ()
    made_up: tuple[str, ...] = ()
    only_if: str | None = None
    chain: tuple[Link, ...] = ()

    @property
    def counts(self) -> bool:
        """True if this is certainly a fault; otherwise it is shown, but fails nothing."""
        return not self.made_up and self.only_if is None

    @property
    def source(self) -> SourceLine | None:
        return self.witness.source

    @property
    def grid_point(self) -> tuple[int, ...] | None:
        return self.witness.grid_point

    @property
    def loop(self) -> tuple[int, ...]:
        return self.witness.loop

    @property
    def operand(self) -> str | None:
        return self.witness.operand

    @property
    def index(self) -> str | None:
        return self.witness.index

    @property
    def values(self) -> Mapping[str, str]:
        return self.witness.values

    @property
    def other(self) -> SourceLine | None:
        return self.witness.other


@dataclass(frozen=True, kw_only=True)
class Hint:
    """Something that looks unintended in a kernel; it fails nothing.

    Attributes:
      kind: what kind of observation it is: `carried`, `unread write`.
      message: what was observed, in one clause that names the operand.
      digest: digest of the kernel; empty if it is unknown.
      source: the line: of the read that is carried, of the write that is unread, of the call for an
        input that is not read.
      other: the other line, if there is one: of the write whose value is read, or that replaces it.
      operand: name of the operand or buffer.
      grid_point: grid point at which it was first observed; None if it belongs to none.
    """

    kind: HintKind
    kernel: str
    message: str
    digest: str = ""
    source: SourceLine | None = None
    other: SourceLine | None = None
    operand: str | None = None
    grid_point: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A judgement that was not made, or made only in part.

    Attributes:
      kernel: its name; empty for a whole run.
      engine: engine that should have judged it: a target, `checks`, `static`.
      digest: digest of the kernel; empty if it is unknown.
      reason: why it was not judged; if it was judged in part, what was left out and why.
      is_limit: whether the engine does not support such kernels, as opposed to having failed.
      is_partial: whether the engine judged the rest.
    """

    kernel: str
    engine: str
    reason: str
    digest: str = ""
    is_limit: bool = False
    is_partial: bool = False


@dataclass(frozen=True, kw_only=True)
class PrintRecord:
    """One line that a kernel printed, in an iteration of the loops around it, outermost first.

    Each value is stored as text; large arrays show only their edges.
    """

    kernel: str
    text: str
    source: SourceLine | None = None
    grid_point: tuple[int, ...] | None = None
    loop: tuple[int, ...] = ()
    values: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """Kernels, prints, findings, gaps of one test or script, written to `runs/<run id>/`.

    Attributes:
      name: the test's node id or the command.
      kernels: folder names of the kernels that the test or script lowered or ran.
      judged: by folder name of a kernel, the engines that judged it, whatever they found.
    """

    run: str
    name: str
    kernels: tuple[str, ...] = ()
    judged: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prints: tuple[PrintRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    hints: tuple[Hint, ...] = ()
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Dump:
    """A kernel with its compilations, and the folder that holds both."""

    kernel: Kernel
    folder: Path
    compilations: tuple[Compilation, ...] = ()

    def __repr__(self) -> str:
        targets = ", ".join(f"{c.target} {c.status}" for c in self.compilations)
        return f"<Dump {self.name}: {targets}>"

    def _repr_html_(self) -> str:
        from pallas_debug.report.notebook import dump_html

        return dump_html(self)

    @property
    def name(self) -> str:
        """The folder's name: `<kernel name>-<8 hex>`."""
        return self.folder.name

    @property
    def ok(self) -> bool:
        return all(compilation.ok for compilation in self.compilations)

    def compilation(self, target: str) -> Compilation:
        """Return the compilation for `target`.

        Raises:
          KeyError: there is no such compilation; the message lists the existing ones.
        """
        found = {compilation.target: compilation for compilation in self.compilations}
        if target in found:
            return found[target]
        known = ", ".join(found) or "none"
        raise KeyError(f"{self.name} was not compiled for {target!r}; it was for: {known}")
