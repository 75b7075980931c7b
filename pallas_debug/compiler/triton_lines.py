"""The Python lines of Triton's LLVM IR, which XLA strips before it compiles.

XLA prints the module as it was before it strips the locations, in the order of the LLVM IR that it
makes of it. They are put back as debug information, and XLA compiles that LLVM IR instead
(`xla_gpu_llvm_ir_file`): the instructions are the same, and the PTX has lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from pallas_debug.ir.operations import Module

_STRIPPING = "IR Dump Before StripDebugInfoPass"
_OPERATION = re.compile(r"\s+(?:%[\w:, %]+ = )?\"(?P<dialect>llvm|nvvm)\.(?P<name>[\w.]+)\"")
_INSTRUCTION = re.compile(r"  (?:%[\w.]+ = )?(?:tail |musttail |notail )?(?P<name>[a-z]\w+)")
_METADATA = re.compile(r"^!(\d+) = ", re.MULTILINE)
_NAMES = {"return": "ret", "cond_br": "br", "br": "br"}
_DIRECT = """add sub mul udiv sdiv urem srem shl lshr ashr and or xor fadd fsub fmul fdiv frem fneg
icmp fcmp select load store getelementptr bitcast ptrtoint inttoptr addrspacecast trunc zext sext
fptrunc fpext fptosi fptoui sitofp uitofp extractelement insertelement extractvalue insertvalue
shufflevector atomicrmw cmpxchg fence freeze unreachable switch alloca"""
"""Operations with an instruction of the same name; the others are calls."""

_FOLDED = 40
"""Maximum operations in a row that have no instruction."""

Place = tuple[str, int]


def with_lines(llvm: str, passes: str) -> str | None:
    """Return LLVM IR with debug locations; None if its operations cannot be found.

    Args:
      passes: XLA's dump of the passes of Triton.
    """
    at = passes.rfind(_STRIPPING)
    if at < 0:
        return None
    operations = list(_operations(pretty_as_mlir(passes[at:])))
    lines = llvm.split("\n")
    instructions = list(_instructions(lines))
    places: dict[int, Place | None] = {}
    at = 0
    for number, name in instructions:  # LLVM folds a few operations while it is made
        ahead = (
            k for k in range(at, min(at + _FOLDED, len(operations))) if operations[k][0] == name
        )
        found = next(ahead, None)
        places[number] = operations[found][1] if found is not None else None
        at = at if found is None else found + 1
    known: Place | None = None
    for number in reversed(places):  # what has no line is mostly the address of what follows
        known = places[number] = places[number] or known
    distinct = list(dict.fromkeys(place for place in places.values() if place is not None))
    if not distinct:
        return None
    return "\n".join(_annotated(lines, places, distinct, _free(llvm))) + "\n"


def pretty_as_mlir(text: str) -> str:
    """Turn MLIR's pretty locations into those that can be parsed."""
    text = re.sub(
        r"^(#loc\d*) = (.+)$", lambda m: f"{m[1]} = loc({_location(m[2])})", text, flags=re.M
    )
    return _PRETTY.sub(lambda m: f" loc({_location(m[1])})", text)


_ALIAS = re.compile(r"^(#loc\d*) = (.+)$", re.MULTILINE)
_PRETTY = re.compile(
    r"(?<=[)>}\w]) ((?:\[unknown\]|\"(?:[^\"\\]|\\.)*\"\(#loc\d*\)|\[?#loc\d*\]?"
    r"|/[^\s:]+:\d+:\d+(?: to (?:\d+)?:\d+)?|callsite\([^\n]*\)))(?=$|,|\))",
    re.MULTILINE,
)
_FILE = re.compile(r"^(?P<file>[^\"#\[][^:\n]*):(?P<rest>\d+:\d+(?: to (?:\d+)?:\d+)?)$")


def _location(body: str) -> str:
    body = body.strip()
    if body == "[unknown]":
        return "unknown"
    place = _FILE.match(body)
    return f'"{place["file"]}":{place["rest"]}' if place else body.strip("[]")


def _operations(text: str) -> Iterator[tuple[str, Place | None]]:
    """Instructions that operations become, each with its innermost Python line."""
    module = Module.of(text, "mlir")
    for number, line in enumerate(module.lines):
        found = _OPERATION.match(line)
        if found is None or found["name"].startswith("mlir.") or found["name"] == "func":
            continue
        name = _NAMES.get(found["name"], found["name"])
        if found["dialect"] == "nvvm" or (name not in (*_DIRECT.split(), "ret", "br")):
            name = "call"
        sources = module.source(number)
        yield name, sources[0].place if sources else None


def _instructions(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Numbers and names of the lines with an instruction, except phi nodes."""
    is_inside = False
    for number, line in enumerate(lines):
        if line.startswith("define "):
            is_inside = True
        elif line.startswith("}"):
            is_inside = False
        elif is_inside and (found := _INSTRUCTION.match(line)) and found["name"] != "phi":
            yield number, found["name"]


def _free(llvm: str) -> int:
    """First number of metadata that the module does not use."""
    return max((int(n) for n in _METADATA.findall(llvm)), default=-1) + 1


def _annotated(
    lines: Sequence[str], places: dict[int, Place | None], found: Sequence[Place], free: int
) -> Iterator[str]:
    files = list(dict.fromkeys(file for file, _ in found))
    unit, types, function = free, free + 1, free + 2
    file_of = {file: free + 3 + at for at, file in enumerate(files)}
    scope_of = {file: free + 3 + len(files) + at for at, file in enumerate(files)}
    base = free + 3 + 2 * len(files)
    number_of: dict[Place | None, int] = {place: base + at for at, place in enumerate(found)}
    number_of[None] = base + len(found)
    for number, line in enumerate(lines):
        if number in places:
            yield f"{line}, !dbg !{number_of[places[number]]}"
        elif line.startswith("define "):
            yield f"{line.removesuffix(' {')} !dbg !{function} {{"
        else:
            yield line
    yield f"!llvm.dbg.cu = !{{!{unit}}}"
    first = file_of[files[0]]
    yield (
        f"!{unit} = distinct !DICompileUnit(language: DW_LANG_C, file: !{first}, "
        "isOptimized: true, runtimeVersion: 0, emissionKind: DebugDirectivesOnly)"
    )
    yield f"!{types} = !DISubroutineType(types: !{{null}})"
    yield (
        f'!{function} = distinct !DISubprogram(name: "kernel", scope: !{first}, file: !{first}, '
        f"line: {found[0][1]}, scopeLine: {found[0][1]}, type: !{types}, "
        f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{unit})"
    )
    for file, number in file_of.items():
        name, folder = map(_quoted, (PurePath(file).name, str(PurePath(file).parent)))
        yield f'!{number} = !DIFile(filename: "{name}", directory: "{folder}")'
        yield (
            f"!{scope_of[file]} = !DILexicalBlockFile(scope: !{function}, file: !{number}, "
            "discriminator: 0)"
        )
    for place in found:
        yield f"!{number_of[place]} = !DILocation(line: {place[1]}, scope: !{scope_of[place[0]]})"
    yield f"!{number_of[None]} = !DILocation(line: 0, scope: !{function})"


def _quoted(text: str) -> str:
    """Escape a string for LLVM IR."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:02X}"
        for byte in text.encode(errors="surrogateescape")
    )
