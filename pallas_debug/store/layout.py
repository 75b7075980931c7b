"""Names of all files and folders of a dump directory, each defined once.

dumps/<kernel>-<8 hex>/               KERNEL, JAXPR, SOURCE, PROGRAM, BLOCKS
dumps/<kernel>-<8 hex>/<target>/      COMPILATION, STABLEHLO, MOSAIC, LOG
dumps/<kernel>-<8 hex>/<target>/      PASSES/NN-name.mlir, LLO/NN-name.txt, SCHEDULE/…
dumps/<kernel>-<8 hex>/<GPU>/         …, MOSAIC or TTIR, PASSES/NN-name.mlir.gz, OF_GPU
dumps/RUNS/<run>/<test or script>.json
dumps/TMP, dumps/LOCKS                what writers need while they run
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from pallas_debug.model import Kernel, Stage

KERNEL, JAXPR, SOURCE, PROGRAM = "kernel.json", "jaxpr.txt", "source.py", "program.py"
"""Files in a kernel's folder. `KERNEL` marks the folder as complete, and is written last."""

COMPILATION, STABLEHLO, MOSAIC = "compilation.json", "stablehlo.mlir", "mosaic.mlir"
"""Files in a target's folder. `COMPILATION` marks the folder as complete, and is written last."""

TTIR = "ttir.mlir"
"""File in a GPU's folder: the kernel as Triton gets it."""

CONSTRAINTS, RESOURCES, LLVM = "constraints.txt", "resources.txt", "llvm.ll"
PTX, PTXAS, SASS = "kernel.ptx", "ptxas.txt", "kernel.sass"

OF_GPU = (CONSTRAINTS, RESOURCES, LLVM, PTX, PTXAS, SASS)
"""Further files in a GPU's folder: of Mosaic GPU since jax 0.12, the constraints on layouts, and
the memory and barriers; of Triton, the optimised LLVM IR; of both, the PTX, ptxas's messages, and
the machine instructions."""

COMPRESSED = ".gz"
"""Suffix of files that are compressed by gzip."""

MANIFESTS = (KERNEL, COMPILATION)
"""Files that mark a folder as complete."""

BLOCKS = "blocks.json"
"""File in a kernel's folder: which block of each operand every grid point touches."""

LOG, PASSES, LLO, SCHEDULE = "compiler.log", "passes", "llo", "schedule"
"""Entries of a target's folder: the compiler's output, and the folders for Mosaic's passes, for
those of LLO, and for the schedule."""

BUNDLES, UTILIZATION = f"{SCHEDULE}/bundles.txt", f"{SCHEDULE}/utilization.txt"
DELAYS = f"{SCHEDULE}/delays.txt"
ANALYSIS, CRITICAL_PATH = f"{SCHEDULE}/analysis.txt", f"{SCHEDULE}/critical-path.txt"
REGISTERS, ESTIMATE = f"{SCHEDULE}/registers.txt", f"{SCHEDULE}/estimate.txt"
VMEM, HLO = f"{SCHEDULE}/vmem.html", f"{SCHEDULE}/hlo.txt"

EXPECTED_FILES = (BUNDLES, UTILIZATION, DELAYS, ANALYSIS, CRITICAL_PATH, VMEM, HLO)
"""Files that libtpu writes for every kernel, at the stage `bundles`: the final VLIW bundles, unit
counts per bundle, the same per cycle before idle cycles became delays of bundles, regions and loops
with their lengths, the longest chains of dependences, the memory map, and the HLO around it."""

SPARSECORE = f"{SCHEDULE}/sparsecore.txt"
"""Bundles of a kernel on the SparseCore, in another assembly language, and with no tables."""

SCHEDULE_FILES = (*EXPECTED_FILES, REGISTERS, ESTIMATE, SPARSECORE)
"""The expected files, and files that libtpu writes for some kernels: live ranges if registers are
short, the cycle estimate, which is a separate stage, and the SparseCore's files."""

RUNS = "runs"
"""Folder for records of the kernels that tests and scripts used."""

RAW_TARGET = "raw"
"""Target name for raw dumps, whose files do not say for which chip they were made."""

DOCUMENT = ".json"

STAGE_FILES: dict[Stage, str] = {
    "source": SOURCE,
    "jaxpr": JAXPR,
    "stablehlo": STABLEHLO,
    "mosaic": MOSAIC,
    "ttir": TTIR,
}

TMP, LOCKS = ".tmp", ".locks"
"""Folders for files being written, and for the locks for compiling."""

LOCK = ".lock"
"""Name of the lock in each temporary folder, and suffix of those in `LOCKS`."""

MAX_BYTES = 200
"""Maximum bytes of a name. Most file systems allow 255; the rest is for suffixes."""

DIGITS = 8
"""Hex digits of a kernel's digest in its folder's name."""

_UNSAFE = re.compile(r"[^\w.+=,@ -]")


def clean(name: str) -> str:
    """Return `name` as one path component: no separators or control characters, at most 200 bytes.

    A truncated name ends in a digest of the whole, so two long names remain distinct. Two short
    names may collide (`a/b`, `a_b`): callers that need unique names add a digest of their own.
    """
    safe = _UNSAFE.sub("_", name).strip(". ") or "unnamed"
    encoded = safe.encode()
    if len(encoded) <= MAX_BYTES:
        return safe
    head = encoded[: MAX_BYTES - 13].decode(errors="ignore")
    return f"{head}~{_digest(name)[:12]}"


def is_url(where: object) -> bool:
    """Return whether a dump directory is given by a URL, such as `s3://bucket/dumps`."""
    return isinstance(where, str) and "://" in where


def kernel_folder(kernel: Kernel) -> str:
    """`<kernel name>-<8 hex of content>`."""
    return f"{clean(kernel.name)}-{kernel.digest[:DIGITS]}"


def kernel_folders(names: Iterable[str]) -> list[str]:
    """Return those of a dump directory's folders that are kernels'."""
    return [name for name in names if name != RUNS and not name.startswith(".")]


def target_folder(target: str) -> str:
    """Return the folder name of a topology: `v5e:2x4` becomes `v5e-2x4`."""
    return clean(target.replace(":", "-"))


def by_generation(folder: str) -> tuple[int, str]:
    """Sort key for folders of targets: v4, v5e, v5p, v6e, tpu7x; other folders come first."""
    digits = re.search(r"\d+", folder)
    return (int(digits[0]) if digits else 0, folder)


def pass_name(number: int, name: str) -> str:
    """Return a pass as users write it: `13-infer-vector-layout`."""
    return f"{number:02d}-{name}"


def pass_file(number: int, name: str) -> str:
    """Return the path of a pass's file below its target's folder."""
    return f"{PASSES}/{pass_name(number, name)}.mlir"


def llo_file(number: int, name: str) -> str:
    """Return the path of an LLO pass's file below its target's folder."""
    return f"{LLO}/{pass_name(number, clean(name))}.txt"


def llo_pass(file: str) -> str:
    """Return the pass of a file of `llo_file`, given its path or name, with or without suffix."""
    return file.rpartition("/")[2].partition("-")[2].removesuffix(".txt")


def run_file(name: str) -> str:
    """Return the file name for a test or script; a digest keeps `t[a/b]` and `t[a b]` apart."""
    return f"{clean(name)}-{_digest(name)[:8]}{DOCUMENT}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
