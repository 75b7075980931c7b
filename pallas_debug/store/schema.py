"""JSON documents of a dump directory: dataclasses of `model.py` with a version around them.

A document carries the tool's name, its kind and the schema's version, and is checked against the
dataclass as it is read. What does not fit is a `DumpFormatError` that says which file and why.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pallas_debug.errors import DumpFormatError
from pallas_debug.model import Compilation, Kernel, RunRecord

TOOL = "pallas-debug"
VERSION = 1
"""Raised when a reader of the version before would misread what is written."""

KINDS: dict[type, str] = {Kernel: "kernel", Compilation: "compilation", RunRecord: "run"}

T = TypeVar("T", Kernel, Compilation, RunRecord)


def encode(document: Kernel | Compilation | RunRecord) -> bytes:
    """The document as JSON that a person can read."""
    import json  # not where dumps are only read

    head = {"tool": TOOL, "kind": KINDS[type(document)], "schema": VERSION}
    # Not msgspec.json: it refuses the lone surrogates of a path that is no UTF-8.
    text = json.dumps(head | msgspec.to_builtins(document), ensure_ascii=False, indent=1)
    return text.encode(errors="replace")


def decode(data: bytes, kind: type[T], path: Path) -> T:
    """The document in `data`, which was read from `path`.

    Raises:
      DumpFormatError: not JSON, cut short, another tool's, of a newer schema, or with a field
        missing or of the wrong type.
    """
    if not data.strip():
        raise DumpFormatError(
            f"{path} is empty: whoever wrote it was stopped. Delete its folder and dump again."
        )
    try:
        document: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DumpFormatError(
            f"{path} is cut short or is no JSON: {error}. Delete its folder and dump again."
        ) from error
    expected = KINDS[kind]
    if not isinstance(document, dict) or document.get("tool") != TOOL:
        found = document.get("tool") if isinstance(document, dict) else None
        raise DumpFormatError(
            f"{path} was not written by {TOOL} (its `tool` is {found!r}). "
            "Point at a directory that pallas-debug or --xla_mosaic_dump_to wrote."
        )
    if document.get("kind") != expected:
        raise DumpFormatError(
            f"{path} holds a document of kind {document.get('kind')!r} where {expected!r} belongs: "
            "it was copied or renamed. Delete its folder and dump again."
        )
    version = document.get("schema")
    if type(version) is not int:
        raise DumpFormatError(
            f"{path} has no schema number (its `schema` is {version!r}): it was edited. "
            "Delete its folder and dump again."
        )
    if version > VERSION:
        raise DumpFormatError(
            f"{path} has schema {version!r}, newer than the {VERSION} that this pallas-debug "
            "reads. Upgrade pallas-debug."
        )
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise DumpFormatError(
            f"{path} is not a valid {expected} document: {error}. Delete its folder and dump again."
        ) from error
