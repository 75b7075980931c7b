"""Names of all files and folders of a dump directory, each defined once.

dumps/<kernel>-<8 hex>/               KERNEL, JAXPR, SOURCE, PROGRAM
dumps/<kernel>-<8 hex>/<target>/      COMPILATION, STABLEHLO, MOSAIC, LOG
dumps/<kernel>-<8 hex>/<target>/      PASSES/NN-name.mlir, LLO/…
dumps/RUNS/<run>/<test or script>.json
dumps/TMP, dumps/LOCKS                what writers need while they run
"""

from __future__ import annotations

import hashlib
import re

from pallas_debug.model import Kernel, Stage

KERNEL, JAXPR, SOURCE, PROGRAM = "kernel.json", "jaxpr.txt", "source.py", "program.py"
"""In a kernel's folder. `KERNEL` makes it one, and is written last."""

COMPILATION, STABLEHLO, MOSAIC = "compilation.json", "stablehlo.mlir", "mosaic.mlir"
"""In a target's folder. `COMPILATION` makes it one, and is written last."""

LOG, PASSES, LLO = "compiler.log", "passes", "llo"
"""In a target's folder: the compiler's output, and the folders of passes and of what follows."""

RUNS = "runs"
"""The folder that records what tests and scripts used."""

RAW_TARGET = "raw"
"""The target's name in raw dumps, whose files do not say which chip they were made for."""

DOCUMENT = ".json"
SIGNATURE = ".hmac"
"""Suffix of the file beside a signed one."""

STAGE_FILES: dict[Stage, str] = {
    "source": SOURCE,
    "jaxpr": JAXPR,
    "stablehlo": STABLEHLO,
    "mosaic": MOSAIC,
}

TMP, LOCKS = ".tmp", ".locks"
"""Folders of files that are being written, and of the locks for compiling and writing."""

LOCK = ".lock"
"""The lock inside each temporary folder, and the suffix of those in `LOCKS`."""

NEW, OLD, OWNER, FILE, INCOMPLETE = "new", "old", "belongs-to", "file", "incomplete"
"""In a folder under `TMP`: what is to be published, what it replaces, where that was, a single
file, and a folder that lost files while it was published."""

PENDING = "pending-"
"""Prefix under `TMP` of the files of a kernel that are about to replace those it has."""

MAX_BYTES = 200
"""Most file systems allow 255 bytes; the rest is for the suffixes that we append."""

DIGITS = 8
"""Hex digits of a kernel's digest in the name of its folder."""

_UNSAFE = re.compile(r"[^\w.+=,@ -]")


def clean(name: str) -> str:
    """`name` as one path component: no separators, no control characters, at most 200 bytes.

    A name that is cut ends in a digest of the whole, so two long names stay two. Two short ones
    may become one (`a/b`, `a_b`): what is named by them alone adds a digest of its own.
    """
    safe = _UNSAFE.sub("_", name).strip(". ") or "unnamed"
    encoded = safe.encode()
    if len(encoded) <= MAX_BYTES:
        return safe
    head = encoded[: MAX_BYTES - 13].decode(errors="ignore")
    return f"{head}~{_digest(name)[:12]}"


def kernel_folder(kernel: Kernel) -> str:
    """`<kernel name>-<8 hex of content>`."""
    return f"{clean(kernel.name)}-{kernel.digest[:DIGITS]}"


def target_folder(target: str) -> str:
    """A topology's name as a folder: `v5e:2x4` becomes `v5e-2x4`."""
    return clean(target.replace(":", "-"))


def pass_name(number: int, name: str) -> str:
    """A pass as users write it: `13-infer-vector-layout`."""
    return f"{number:02d}-{name}"


def pass_file(number: int, name: str) -> str:
    """The file of a pass, below its target's folder."""
    return f"{PASSES}/{pass_name(number, name)}.mlir"


def run_file(name: str) -> str:
    """The file of a test or script; a digest keeps `t[a/b]` and `t[a b]` apart."""
    return f"{clean(name)}-{_digest(name)[:8]}{DOCUMENT}"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
