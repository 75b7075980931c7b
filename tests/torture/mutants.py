"""Damaged and hostile dumps, made from a real one; a seed and a number identify every mutant."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECRET = "CANARY-OUTSIDE-THE-DUMP"
"""Content of files beside the dump, which must not be read."""

EXECUTED = "CANARY_IN_THE_CODE"
"""Stands in all Python text of the dump, which must not be run."""

BIDI = "\u202e\u2066\u200f\u061c"
CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b2J\x85\x7f\r\x08"

NAMES: tuple[bytes, ...] = (
    b"+!touch X;echo ",
    b"-rf",
    b"--help",
    b"a\nb",
    b"pallas-debug: no error\nok",
    CONTROLS.encode(),
    b"\xff\xfe\x80",
    b"x" * 255,
    b"...",
    b".. ",
    b"[red]k[/red][/]",
    BIDI.encode() + b"fdp.exe",
    "\u200b\ufeff".encode(),
    b"$(touch X)`touch X`",
    b"'\";|&",
    b"%s%n{0}{name}",
    b"a:3:4",
)

STRINGS: tuple[str, ...] = (
    *(name.decode(errors="replace") for name in NAMES),
    "",
    "\x00",
    "a" * 100_000,
    " " * 50_000,
    "(" * 5_000,
    "[" * 5_000 + "]" * 5_000,
    "\n" * 20_000,
    "{ lambda ; " * 500,
    'loc("' * 1_000,
    'loc(callsite("x"("f.py":0:0) at "f.py":99999999999999999999:1))',
    "9" * 5_000,
    "Mosaic failed to compile: " + "\\" * 3_000,
)

NUMBERS: tuple[object, ...] = (
    *(-1, 0, -(10**6), 10**6, 1 << 31, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30),
    *(1e308, -0.0, 0.5),
)

ODD: tuple[object, ...] = (None, True, [], {}, [[]], {"": None}, [None] * 300, {"a": {"b": [1]}})


def paths(secret: Path) -> tuple[str, ...]:
    """Paths that a manifest must not lead to."""
    return (
        *("../../../secret/file", "passes/../../../../secret/file", str(secret / "file")),
        *("/dev/zero", "/dev/stdin", "/proc/self/environ", "/etc/passwd", "..", ".", "passes"),
        *("a\x00b", "~", "file:///etc/passwd", "\\\\host\\share", "compilation.json"),
        *("x" * 300, "x/" * 3_000),
    )


class Mutant:
    """A copy of a dump with a few things wrong.

    Args:
      original: the dump that is copied.
      where: a new folder, which gets `dumps` and, beside it, `secret`.
    """

    def __init__(self, original: Path, where: Path, seed: int, number: int) -> None:
        self.random = random.Random(f"{seed}:{number}")
        self.root = where / "dumps"
        self.secret = where / "secret"
        self.done: list[str] = []
        self.secret.mkdir(parents=True)
        (self.secret / "file").write_text(f"{SECRET}\n")
        (self.secret / "passes").mkdir()
        (self.secret / "passes" / "00-a.mlir").write_text(f"{SECRET}\n")
        (self.secret / "kernel.json").write_text(json.dumps({"tool": SECRET}))
        shutil.copytree(original, self.root, symlinks=True)
        for path in self.root.glob("*/source.py"):
            with path.open("a") as file:
                file.write(f"{EXECUTED} = 1\n")
        for _ in range(self.random.choice((1, 1, 1, 2, 2, 3, 4))):
            mutation = self.random.choice(_MUTATIONS)
            try:
                mutation(self)
            except OSError as error:  # the file system does not take such a name
                self.done.append(f"not {mutation.__name__}: {error.strerror}")

    def note(self, what: str, path: Path) -> None:
        self.done.append(f"{what} {os.fsencode(path.relative_to(self.root.parent))!r}")

    def files(self) -> list[Path]:
        return sorted(p for p in self.root.rglob("*") if p.is_file() and not p.is_symlink())

    def file(self) -> Path:
        found = self.files()
        return self.random.choice(found) if found else self.root / "none"

    def entry(self) -> Path:
        """A file or folder."""
        found = sorted(self.root.rglob("*"))
        return self.random.choice(found) if found else self.root / "none"

    def remove(self, path: Path) -> None:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def flip(m: Mutant) -> None:
    path = m.file()
    data = bytearray(path.read_bytes())
    for _ in range(m.random.randint(1, 20)):
        if data:
            data[m.random.randrange(len(data))] = m.random.randrange(256)
    path.write_bytes(data)
    m.note("flip", path)


def truncate(m: Mutant) -> None:
    path = m.file()
    os.truncate(path, m.random.randint(0, path.stat().st_size))
    m.note("truncate", path)


def replace_field(m: Mutant) -> None:
    manifests = [p for p in m.files() if p.suffix == ".json"]
    path = m.random.choice(manifests)
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return
    places = list(_places(document))
    if not places:
        return
    names, holder, key = m.random.choice(places)
    pools: list[tuple[object, ...]] = [STRINGS, NUMBERS, ODD, paths(m.secret)]
    if key == "file" or m.random.random() < 0.2:
        pools = [paths(m.secret)]
    value = m.random.choice(m.random.choice(pools))
    if m.random.random() < 0.5:  # of the same type, which gets further
        alike = [v for v in (*STRINGS, *NUMBERS, *ODD) if type(v) is type(holder[key])]
        value = m.random.choice(alike) if alike else value
    holder[key] = value
    text = json.dumps(document)
    if m.random.random() < 0.1:
        text = text[:-1] + f', "{next(iter(document))}": {json.dumps(value)}}}'
    path.write_text(text)
    m.note(f"set {'.'.join(map(str, names))} to {value!r:.60} in", path)


def _places(value: Any, names: tuple[object, ...] = ()) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    for key, inner in items:
        yield (*names, key), value, key
        yield from _places(inner, (*names, key))


def insert_text(m: Mutant) -> None:
    path = m.random.choice([p for p in m.files() if p.suffix != ".json"] or [m.file()])
    data = path.read_bytes()
    at = m.random.randint(0, len(data))
    what = m.random.choice(STRINGS).encode() * m.random.choice((1, 1, 3))
    path.write_bytes(data[:at] + what + data[at:])
    if m.random.random() < 0.7:
        _record(path)
    m.note(f"insert {what[:40]!r} at {at} into", path)


def _record(path: Path) -> None:
    """Have the manifest record a pass as it is, as the author of a dump could."""
    import hashlib

    for folder in path.parents[:2]:
        manifest = folder / "compilation.json"
        if manifest.is_file():
            try:
                document = json.loads(manifest.read_bytes())
                for this in document["passes"]:
                    if this["file"] == str(path.relative_to(folder)):
                        data = path.read_bytes()
                        this |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            except (ValueError, KeyError, TypeError, RecursionError):
                return
            manifest.write_text(json.dumps(document))


def rename(m: Mutant) -> None:
    path = m.entry()
    name = os.fsdecode(m.random.choice(NAMES))
    path.rename(path.parent / name)
    m.note(f"rename to {name!r:.50}", path)


def link(m: Mutant) -> None:
    path = m.entry()
    to: list[str | Path] = [m.secret, m.secret / "file", path, path.name, "/", m.root, "..", "."]
    to += ["/dev/zero", "/proc/self/environ", m.secret / "passes", m.entry(), "none"]
    target = m.random.choice(to)
    if m.random.random() < 0.7:
        m.remove(path)
    else:
        path = path.with_name("again")
    path.symlink_to(target)
    m.note(f"link to {str(target)[-30:]!r}", path)


def fifo(m: Mutant) -> None:
    path = m.entry()
    m.remove(path)
    os.mkfifo(path)
    m.note("fifo", path)


def device(m: Mutant) -> None:
    path = m.file()
    m.remove(path)
    try:
        os.mknod(path, 0o20666, os.makedev(1, 5))
    except PermissionError:  # only the superuser may
        path.symlink_to("/dev/zero")
    m.note("device", path)


def folder_for_file(m: Mutant) -> None:
    path = m.file()
    m.remove(path)
    path.mkdir()
    m.note("folder for", path)


def file_for_folder(m: Mutant) -> None:
    path = m.random.choice([p for p in m.root.rglob("*") if p.is_dir()] or [m.root / "none"])
    m.remove(path)
    path.write_text("a file\n")
    m.note("file for", path)


def sparse(m: Mutant) -> None:
    path = m.file()
    size = m.random.choice((1 << 40, 1 << 32, 1 << 29, 3 << 26))
    os.truncate(path, size)
    m.note(f"{size:,} bytes in", path)


def delete(m: Mutant) -> None:
    path = m.entry()
    m.remove(path)
    m.note("delete", path)


def swap(m: Mutant) -> None:
    a, b = m.file(), m.file()
    ours, theirs = a.read_bytes(), b.read_bytes()
    a.write_bytes(theirs)
    b.write_bytes(ours)
    m.note(f"swap with {b.name}", a)


def deepen(m: Mutant) -> None:
    path = m.file()
    path.write_bytes(m.random.choice((b"[", b'{"a":', b"(", b"((lambda: ")) * 200_000)
    m.note("deepen", path)


def duplicate(m: Mutant) -> None:
    path = m.random.choice([p for p in m.root.rglob("*") if p.is_dir()] or [m.root / "none"])
    name = os.fsdecode(m.random.choice(NAMES))
    # By hard links: another mutation may have made a file a terabyte of nothing.
    shutil.copytree(path, path.parent / name, symlinks=True, copy_function=os.link)
    m.note(f"duplicate as {name!r:.50}", path)


def crowd(m: Mutant) -> None:
    """Many entries where a few belong."""
    path = m.random.choice([m.root, *(p for p in m.root.rglob("*") if p.is_dir())])
    for number in range(2_000):
        (path / f"entry-{number}").touch()
    m.note("crowd", path)


_MUTATIONS: tuple[Callable[[Mutant], None], ...] = (
    *(flip, truncate, insert_text, insert_text, rename, rename, link, link, fifo, device),
    *(replace_field, replace_field, replace_field, replace_field, replace_field),
    *(folder_for_file, file_for_folder, sparse, delete, swap, deepen, duplicate, crowd),
)
