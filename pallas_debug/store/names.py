"""File and folder names from names that we do not control: kernels, targets, tests."""

from __future__ import annotations

import hashlib
import re

from pallas_debug.model import Kernel

KERNEL, COMPILATION = "kernel.json", "compilation.json"
"""What makes a folder a kernel's, or a target's."""

PROGRAM = "program.py"
"""A kernel written out as a program of its own; `reproduce` makes scripts of it."""

RUNS = "runs"
"""The folder of what tests and scripts used."""

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
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    head = encoded[: MAX_BYTES - len(digest) - 1].decode(errors="ignore")
    return f"{head}~{digest}"


def kernel_folder(kernel: Kernel) -> str:
    """`<kernel name>-<8 hex of content>`."""
    return f"{clean(kernel.name)}-{kernel.digest[:DIGITS]}"


def target_folder(target: str) -> str:
    """A topology's name as a folder: `v5e:2x4` becomes `v5e-2x4`."""
    return clean(target.replace(":", "-"))
