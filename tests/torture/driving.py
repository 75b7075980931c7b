"""Prologue of programs that write dump directories in child processes, without jax.

A test prepends the text of this file to its own program.
"""

import hashlib
from pathlib import Path

from pallas_debug.model import Compilation, Kernel, Pass, SourceLine
from pallas_debug.store import Store, StoredKernel


def kernel(number: int, version: int = 0) -> Kernel:
    """A kernel whose line, jaxpr and source differ from version to version."""
    place = SourceLine(file=f"{version}.py", line=1)
    return Kernel(name="k", digest=f"{number:08x}" * 8, primitive="p", source=place)


def put_kernel(store: Store, number: int, version: int = 0) -> None:
    this = kernel(number, version)
    store.put_kernel(this, jaxpr=f"jaxpr {version}", source=f"source {version}")


def put_compilation(store: Store, number: int, version: int = 0) -> None:
    text = f"pass of {version}".encode() * 50
    name = "passes/00-a.mlir"
    one = Pass(number=0, name="a", size=len(text), seconds=None, changed=True, file=name)
    made = Compilation(kernel="k", target="v5e", status="ok", key=f"{version}", passes=(one,))
    files: dict[str, bytes | Path] = {name: text, "compiler.log": f"log {version}".encode()}
    store.put_compilation(kernel(number, version), made, files)


def check(stored: StoredKernel) -> int:
    """The version of the compilation for v5e, every file of which is there as recorded."""
    (found,) = stored.compilations
    assert found.problem is None, found.problem
    compilation = found.compilation
    assert compilation is not None
    assert set(compilation.files) == {"passes/00-a.mlir", "compiler.log"}, compilation.files
    for name, record in compilation.files.items():
        content = (found.folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record.sha256, name
    assert (found.folder / "compiler.log").read_text() == f"log {compilation.key}"
    return int(compilation.key)
