"""Statistics of a kernel for a GPU, from ptxas's messages and the disassembled machine code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pallas_debug.chips import REGISTERS, Gpu, gpu_of
from pallas_debug.ir.operations import Module
from pallas_debug.model import SourceLine

WARP = 32

OCCUPANCY = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#hardware-multithreading"
"""NVIDIA's description of what limits the blocks that reside on a multiprocessor."""

_REGISTER_UNIT, _WARP_UNIT, _SHARED_UNIT, _RESERVED = 256, 4, 128, 1024
"""Units in which registers of a warp, warps and shared memory are allocated, and the bytes that the
system takes for each block, as in NVIDIA's occupancy calculator for compute capability 8.0 on."""

_CLASSES: Mapping[str, tuple[str, ...]] = {
    "tensor core": ("HMMA", "IMMA", "BMMA", "DMMA", "QMMA", "OMMA", "HGMMA", "IGMMA", "BGMMA",
                    "QGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA", "UTCCP"),
    "tensor memory": ("LDT", "STT", "LDTM", "STTM", "UTCATOMSWS", "UTCBAR", "UTCSHIFT"),
    "bulk copy": ("UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UTMACMDFLUSH", "UTMACCTL",
                  "UBLKCP", "UBLKRED", "UBLKPF", "LDGSTS", "LDGDEPBAR"),
    "global memory": ("LDG", "STG", "LD", "ST", "ATOM", "ATOMG", "RED", "REDG", "CCTL", "CCTLL",
                      "QSPC", "LDGMC"),
    "shared memory": ("LDS", "STS", "LDSM", "STSM", "ATOMS", "STAS", "REDAS"),
    "local memory": ("LDL", "STL"),
    "constants": ("LDC", "LDCU", "ULDC"),
    "synchronisation": ("BAR", "SYNCS", "DEPBAR", "WARPSYNC", "WARPGROUP", "WARPGROUPSET",
                        "MEMBAR", "FENCE", "ERRBAR", "NANOSLEEP", "ELECT", "ACQBULK", "UCGABAR",
                        "USETMAXREG", "B2R", "UMEMSETS", "PREEXIT"),
    "control": ("BRA", "BRX", "JMP", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "YIELD",
                "UBRA", "NOP", "BPT", "KILL", "LEPC"),
    "shuffle": ("SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "CREDUX"),
    "special function": ("MUFU",),
    "conversion": ("F2F", "F2I", "I2F", "F2FP", "I2I", "I2IP", "FRND", "I2FP", "F2IP"),
    "floating point": ("FADD", "FMUL", "FFMA", "FMNMX", "FSETP", "FSET", "FSEL", "FCHK", "FSWZADD",
                       "HADD2", "HMUL2", "HFMA2", "HMNMX2", "HSETP2", "DADD", "DMUL", "DFMA",
                       "DSETP", "FADD2", "FMUL2", "FFMA2", "FMNMX3"),
}  # fmt: skip
"""Classes of instructions, by the names up to the first dot; all others move or are of integers.
From NVIDIA's instruction set reference
(https://docs.nvidia.com/cuda/cuda-binary-utilities/#instruction-set-reference)."""

_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names}
INTEGER = "integer and moves"

_USED = re.compile(r"Used (?P<registers>\d+) registers(?:, used (?P<barriers>\d+) barriers)?")
_STATIC = re.compile(r", (?P<bytes>\d+) bytes smem")
_SPILLED = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_THREADS = re.compile(r"\.(?:maxntid|reqntid) (?P<x>\d+)(?:, (?P<y>\d+))?(?:, (?P<z>\d+))?")
_SCRATCH = re.compile(r"smem_scratch_bytes=(?P<bytes>\d+)")
_COLUMNS = re.compile(r"tmem_(?:collective_)?scratch_cols=(?P<columns>\d+)")
_OF_TRITON = re.compile(r"ttg\.shared = (?P<bytes>\d+)")
_COLUMNS_OF_TRITON = re.compile(r"ttg\.tensor_memory_size = (?P<columns>\d+)")
_DYNAMIC = re.compile(r"dynamic_shared_memory_size (?P<value>%[\w$.-]+)")
_NOTICE = re.compile(r"^(?:ptxas )?.*?(?P<level>warning|info) +: (?P<text>.+)$")
_PLAIN = ("Compiling entry", "Function properties", "Used ", "Compile time", "0 bytes gmem",
          "Potential out of bound access while accessing symbol")  # fmt: skip
_LABEL = re.compile(r"^(?P<label>\.L_x_\d+):")
_BRANCH = re.compile(r"\bU?BRA\b[^`]*`\((?P<label>\.L_x_\d+)\)")


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """Blocks that reside on a multiprocessor, derived from what each of them takes.

    Attributes:
      limits: the number that each resource permits.
      formula: how the least of them follows.
    """

    blocks: int
    warps: int
    maximum: int
    limits: Mapping[str, int]
    formula: str

    @property
    def limited_by(self) -> str:
        """Names of the resources that permit least."""
        return " and ".join(name for name, most in self.limits.items() if most == self.blocks)


@dataclass(frozen=True, kw_only=True)
class LineOfCode:
    """Machine instructions of a Python line, by class."""

    source: SourceLine
    count: int
    classes: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class InnerLoop:
    """The innermost loop with tensor-core instructions, or the one with most of them.

    Attributes:
      tensor: number of tensor-core instructions.
      count: number of all instructions.
      source: line of most of its tensor-core instructions.
    """

    tensor: int
    count: int
    source: SourceLine | None = None


@dataclass(frozen=True, kw_only=True)
class GpuStats:
    """Statistics of one kernel on one GPU; None for a figure that is not known.

    Attributes:
      registers: of a thread, as it is launched.
      spill_stores, spill_loads: bytes.
      shared: bytes of shared memory of a block, static and dynamic.
      tensor_memory: columns of tensor memory of a block.
      threads: of a block.
      classes: number of instructions by class.
      lines: instructions by Python line, most first.
      notices: what ptxas warns of or states, besides these figures.
      problems: a sentence for each text that is missing.
    """

    kernel: str
    target: str
    versions: Mapping[str, str]
    registers: int | None = None
    barriers: int | None = None
    spill_stores: int | None = None
    spill_loads: int | None = None
    shared: int | None = None
    tensor_memory: int | None = None
    threads: int | None = None
    instructions: int | None = None
    classes: Mapping[str, int] = field(default_factory=dict)
    lines: tuple[LineOfCode, ...] = ()
    inner_loop: InnerLoop | None = None
    occupancy: Occupancy | None = None
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


def gpu_stats(
    kernel: str, target: str, versions: Mapping[str, str], texts: Mapping[str, str]
) -> GpuStats:
    """Return statistics of a kernel.

    Args:
      texts: those of the dump, by name: `ptx`, `ptxas`, `sass`, `resources`, and `shared`, in which
        a back end stated the size of shared memory.
    """
    messages, ptx = texts.get("ptxas", ""), texts.get("ptx", "")
    used, spilled = _USED.search(messages), _SPILLED.search(messages)
    registers = int(used["registers"]) if used else None
    threads = _threads(ptx)
    shared = _shared(texts)
    sass = Module.of(texts["sass"], "sass") if "sass" in texts else None
    named = [] if sass is None else [(n, name) for n, name in enumerate(sass.names) if name]
    gpu = gpu_of(target)
    return GpuStats(
        kernel=kernel,
        target=target,
        versions=dict(versions),
        registers=registers,
        barriers=int(used["barriers"] or 0) if used else None,
        spill_stores=int(spilled["stores"]) if spilled else None,
        spill_loads=int(spilled["loads"]) if spilled else None,
        shared=shared,
        tensor_memory=_tensor_memory(texts),
        threads=threads,
        instructions=len(named) if sass is not None else None,
        classes=dict(Counter(class_of(name) for _, name in named).most_common()),
        lines=_lines(sass, named) if sass is not None else (),
        inner_loop=_inner_loop(sass) if sass is not None else None,
        occupancy=(
            occupancy(gpu, registers=registers, threads=threads, shared=shared or 0)
            if gpu and registers and threads
            else None
        ),
        notices=tuple(_notices(messages)),
        problems=tuple(f"there is no {name}" for name in ("ptxas", "sass") if name not in texts),
    )


def class_of(instruction: str) -> str:
    """Class of a machine instruction, by its name: `LDG.E.128` reads global memory."""
    return _CLASS_OF.get(instruction.partition(".")[0], INTEGER)


def occupancy(gpu: Gpu, *, registers: int, threads: int, shared: int) -> Occupancy:
    """Return how many blocks reside on a multiprocessor at a time (`OCCUPANCY`).

    Args:
      registers: of a thread.
      threads: of a block.
      shared: bytes of a block.
    """
    warps = -(-threads // WARP)
    of_warp = _up(registers * WARP, _REGISTER_UNIT)
    warps_that_fit = REGISTERS // of_warp // _WARP_UNIT * _WARP_UNIT
    taken = _up(shared + _RESERVED, _SHARED_UNIT)
    limits = {
        "registers": warps_that_fit // warps,
        "shared memory": gpu.shared // taken,
        "threads": gpu.threads // (warps * WARP),
        "blocks": gpu.blocks,
    }
    blocks = min(limits.values())
    formula = (
        f"least of {REGISTERS:,} registers / ({of_warp:,} per warp · {warps} warps) = "
        f"{limits['registers']}, {gpu.shared:,} bytes of shared memory / {taken:,} = "
        f"{limits['shared memory']}, {gpu.threads:,} threads / {warps * WARP} = "
        f"{limits['threads']}, {gpu.blocks} blocks"
    )
    return Occupancy(
        blocks=blocks,
        warps=blocks * warps,
        maximum=gpu.threads // WARP,
        limits=limits,
        formula=formula,
    )


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _threads(ptx: str) -> int | None:
    found = _THREADS.search(ptx)
    return int(found["x"]) * int(found["y"] or 1) * int(found["z"] or 1) if found else None


def _shared(texts: Mapping[str, str]) -> int | None:
    """Bytes of shared memory: what ptxas counts is static, and back ends ask for more at launch."""
    static = _STATIC.search(texts.get("ptxas", ""))
    stated = texts.get("shared", "")
    dynamic = _launched(stated)
    if dynamic is None and (found := _OF_TRITON.search(stated)):
        dynamic = int(found["bytes"])
    if dynamic is None and (scratch := _SCRATCH.search(texts.get("resources", ""))):
        dynamic = int(scratch["bytes"])
    if dynamic is None and "ptxas" not in texts:
        return None
    return (int(static["bytes"]) if static else 0) + (dynamic or 0)


def _launched(text: str) -> int | None:
    """Bytes of dynamic shared memory in the launch of a module of Mosaic GPU."""
    found = _DYNAMIC.search(text)
    if found is None:
        return None
    constant = re.search(rf"^\s*{re.escape(found['value'])} = arith\.constant (\d+)", text, re.M)
    return int(constant[1]) if constant else None


def _tensor_memory(texts: Mapping[str, str]) -> int | None:
    found = _COLUMNS.findall(texts.get("resources", ""))
    if found:
        return sum(map(int, found))
    of_triton = _COLUMNS_OF_TRITON.search(texts.get("shared", ""))
    return int(of_triton["columns"]) if of_triton else None


def _lines(sass: Module, named: Sequence[tuple[int, str]]) -> tuple[LineOfCode, ...]:
    classes: dict[SourceLine, Counter[str]] = {}
    for number, name in named:
        for source in sass.source(number)[:1]:
            classes.setdefault(source, Counter())[class_of(name)] += 1
    lines = (
        LineOfCode(source=source, count=counted.total(), classes=dict(counted.most_common()))
        for source, counted in classes.items()
    )
    return tuple(sorted(lines, key=lambda line: (-line.count, str(line.source))))


def _inner_loop(sass: Module) -> InnerLoop | None:
    """The loop, without loops that it contains, that has most tensor-core instructions."""
    labels = {m["label"]: n for n, text in enumerate(sass.lines) if (m := _LABEL.match(text))}
    loops = sorted(
        (labels[m["label"]], n)
        for n, text in enumerate(sass.lines)
        if (m := _BRANCH.search(text)) and labels.get(m["label"], n) < n
    )
    inner = [
        (start, stop)
        for start, stop in loops
        if not any((a, b) != (start, stop) and start <= a and b <= stop for a, b in loops)
    ]
    best: InnerLoop | None = None
    for start, stop in inner:
        inside = [n for n in range(start, stop + 1) if sass.names[n] is not None]
        tensor = [n for n in inside if class_of(sass.names[n] or "") == "tensor core"]
        lines = Counter(source for n in tensor for source in sass.source(n)[:1])
        if tensor and (best is None or len(tensor) > best.tensor):
            source = lines.most_common(1)[0][0] if lines else None
            best = InnerLoop(tensor=len(tensor), count=len(inside), source=source)
    return best


def _notices(messages: str) -> Iterator[str]:
    for line in messages.splitlines():
        found = _NOTICE.match(line)
        if found is not None and not found["text"].startswith(_PLAIN):
            yield found["text"]
