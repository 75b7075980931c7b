"""GPU back ends of Pallas: what a child needs to compile for them, and the files that it leaves.

Mosaic GPU writes its texts where `MOSAIC_GPU_DUMP_TO` says, and XLA those of Triton. The child then
assembles the PTX itself, for the registers and the machine instructions with their Python lines.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_debug.chips import GPUS, gpu_of
from pallas_debug.compiler.protocol import CompileRequest
from pallas_debug.compiler.stages import ChildFlags
from pallas_debug.errors import CannotRunError
from pallas_debug.installed import numbers
from pallas_debug.model import Target
from pallas_debug.store import layout

if TYPE_CHECKING:
    from pallas_debug.bridge.libtpu import ExecutableReport

REMEDY = "pip install 'pallas-debug[gpu]'"
"""Command that installs what the back ends need."""

PLUGINS = ("jax-cuda13-plugin", "jax-cuda12-plugin")
"""Distributions of XLA's plugin, in jax's order."""

_TOOLS = {"ptxas": ("nvidia.cuda_nvcc", "nvidia.cu13"), "nvdisasm": ("nvidia.cu13",)}
"""Packages with a folder `bin` that may have NVIDIA's tools."""

_ENTRY = re.compile(r"\.entry\s+(?P<name>[\w$]+)")
_INLINE = re.compile(
    r"(?P<first>// begin inline asm\n(?:\t\.loc[^\n]*\n)?)(?P<rest>.*?)(?=// end inline asm)",
    re.DOTALL,
)
_LOCATION = re.compile(r"^\t\.loc[^\n]*\n", re.MULTILINE)
_TARGET = re.compile(r"^\.target (?P<name>\w+)", re.MULTILINE)
_MODULE = re.compile(r"module_(?P<number>\d+)\.(?P<rest>.+?)\.(?:0\.)?ir-no-opt\.ll")
_RELEASE = re.compile(r"release [\d.]+, V(?P<version>[\d.]+)")
_OF_TRITON = ".triton-to-llvm.txt"

_LINES, _WITHOUT = "lines-of-triton", "without"
"""Our own option, and the file that is there while XLA compiles what we wrote."""

_CANDIDATES = 64
"""Numbers that XLA may give to the module that it compiles next; it counts by three."""


def flags(target: Target) -> ChildFlags:
    """Flags of the children that compile for a target."""
    return ChildFlags(gpu=target.topology or "")


class AssemblyError(Exception):
    """ptxas rejects the PTX."""


def tool(name: str) -> str | None:
    """Path of `ptxas` or `nvdisasm`: of NVIDIA's package, else on PATH; None if it is absent."""
    for package in _TOOLS[name]:
        with contextlib.suppress(ModuleNotFoundError):
            found = importlib.util.find_spec(package)
            for folder in (found.submodule_search_locations or ()) if found else ():
                path = Path(folder, "bin", name)
                if path.exists():
                    return str(path)
    return shutil.which(name)


def plugin() -> tuple[str, str] | None:
    """Name and version of the installed plugin; None if there is none."""
    for name in PLUGINS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return name, metadata.version(name)
    return None


def lacking(architecture: str = "") -> list[str]:
    """Requirements of compiling for GPUs, or for one architecture, that are not met, as clauses."""
    found = []
    if sys.platform != "linux":
        found.append(f"XLA's CUDA plugin runs on Linux only, and this is {sys.platform}")
    known, jax = plugin(), metadata.version("jax")
    if known is None:
        found.append(f"{PLUGINS[-1]} is not installed")
    elif known[1] != jax:
        found.append(f"{known[0]} {known[1]} is not of jax's version, {jax}")
    if numbers(jax) < (0, 12) and importlib.util.find_spec("absl") is None:
        found.append("absl-py, which Mosaic GPU imports, is not installed")
    ptxas = tool("ptxas")
    if ptxas is None:
        return [*found, "there is no ptxas (nvidia-cuda-nvcc-cu12)"]
    version, oldest = _release(ptxas), (gpu_of(architecture) or GPUS["h100"]).ptxas
    if not numbers(version):
        found.append(f"{ptxas} cannot be run: {version}")
    elif numbers(version) < numbers(oldest):
        target = f" for {architecture}" if architecture else ""
        found.append(f"ptxas {version} is too old ({oldest} or later is needed{target})")
    return found


def require(architecture: str) -> None:
    """Check that kernels can be compiled for GPUs of an architecture.

    Raises:
      CannotRunError: something is missing.
    """
    lacks = lacking(architecture)
    if lacks:
        raise CannotRunError(
            f"nothing can be compiled for a GPU here: {'; '.join(lacks)}. Install what is "
            f"needed with: {REMEDY}"
        )


def installed() -> dict[str, str]:
    """Versions of the plugin and of NVIDIA's tools."""
    known = plugin()
    found = {} if known is None else {known[0]: known[1]}
    for name in _TOOLS:
        path = tool(name)
        if path is not None:
            found[name] = _release(path)
    return found


@functools.cache
def _release(path: str) -> str:
    """Version of a tool, as it says itself."""
    try:
        text = _run([path, "--version"])
    except OSError as error:
        return str(error.strerror)
    match = _RELEASE.search(text.stdout)
    return match["version"] if match else f"exit code {text.returncode}"


def identity() -> list[object]:
    """Everything that affects the result of a compilation, besides the kernel and the target."""
    return [installed(), user_flags()]


def notes() -> tuple[str, ...]:
    """Sentences about settings of the user that have no effect."""
    found = [name for name in os.environ if name.startswith("MOSAIC_GPU_DUMP")]
    given = os.environ.get("XLA_FLAGS", "").split()
    found += [flag.partition("=")[0] for flag in given if flag not in user_flags()]
    if not found:
        return ()
    return (f"{', '.join(found)} had no effect: the dump directory has these files",)


def environment() -> dict[str, str]:
    """Environment variables of a child, besides those of every child."""
    found = {
        "MOSAIC_GPU_DUMP_PTX": "1",
        "MOSAIC_GPU_DUMP_MLIR_PASSES": "1",
        # Otherwise LLVM runs a symboliser for a third of a second before it prints a message.
        "LLVM_DISABLE_SYMBOLIZATION": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "XLA_FLAGS": " ".join(user_flags()),
    }
    ptxas = tool("ptxas")
    if ptxas is not None:
        # XLA takes the ptxas on PATH first, and writes PTX of the version that it supports.
        root = Path(ptxas).parents[1]
        found["PATH"] = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", "")])
        found["MOSAIC_GPU_CUDA_ROOT"] = found["CUDA_ROOT"] = str(root)
    known = plugin()
    spec = importlib.util.find_spec(known[0].replace("-", "_")) if known else None
    if spec is not None and spec.origin is not None:
        runtime = Path(spec.origin).with_name("libmosaic_gpu_runtime.so")
        found["MOSAIC_GPU_RUNTIME_LIB_PATH"] = str(runtime)
    return found


def dump_variables(dumps: Path) -> dict[str, str]:
    """Environment variables that name the folder of a child's dumps."""
    return {"MOSAIC_GPU_DUMP_TO": str(dumps)}


def user_flags() -> list[str]:
    """The user's `XLA_FLAGS`, without those about dumps, which are set for each compilation."""
    flags = os.environ.get("XLA_FLAGS", "").split()
    return [flag for flag in flags if not flag.lstrip("-").startswith("xla_dump")]


def died_of_lines(dumps: Iterable[Path]) -> bool:
    """Return whether a child died while it compiled LLVM IR with the lines that we put back."""
    return any(path.name == _LINES for path in dumps)


NO_LINES = "XLA died of Triton's LLVM IR with lines: its PTX and SASS have none"

WITHOUT_LINES = {_LINES: _WITHOUT}
"""Option of a request to leave them out."""


def compile_module(request: CompileRequest, dumps: Path) -> ExecutableReport:
    """In the child: compile a module, with the lines of Triton's kernels, and assemble the PTX.

    Raises:
      AssemblyError: ptxas rejects the PTX.
      jax.errors.JaxRuntimeError: XLA or a back end rejects the module.
    """
    from pallas_debug.bridge import cuda

    compile_for = functools.partial(
        cuda.compile_module, target=request.topology or "", num_devices=request.num_devices
    )
    with tempfile.TemporaryDirectory() as folder:
        options = {**_options(dumps), **request.options}
        is_wanted = options.pop(_LINES, "") != _WITHOUT
        compiled = compile_for(request.module, options=options)
        file = _with_lines(dumps, Path(folder)) if is_wanted else None
        if file is not None:
            options["xla_gpu_llvm_ir_file"] = file
            (dumps / _LINES).touch()
            compile_for(request.module, options=options)
            (dumps / _LINES).unlink()
        _assemble(dumps, Path(folder))
    return compiled


def _options(dumps: Path) -> dict[str, str]:
    """XLA's options for a compilation with dumps."""
    ptxas = tool("ptxas")
    root = {} if ptxas is None else {"xla_gpu_cuda_data_dir": str(Path(ptxas).parents[1])}
    return {
        "xla_dump_to": str(dumps),
        "xla_dump_emitter_re": ".*",
        "xla_gpu_dump_llvmir": "True",
        # It first parses 660 measurements of other kernels.
        "xla_gpu_enable_analytical_sol_latency_estimator": "False",
        **root,
    }


def _with_lines(dumps: Path, folder: Path) -> str | None:
    """Write LLVM IR with the Python lines that XLA strips from what Triton makes.

    Args:
      folder: for the LLVM IR.

    Returns:
      The value of XLA's option that compiles it; None if there is no such kernel.
    """
    passes = next(dumps.glob(f"*{_OF_TRITON}"), None)
    written = [m for p in sorted(dumps.iterdir()) if (m := _MODULE.fullmatch(p.name))]
    if passes is None or not written:
        return None
    match = written[0]
    from pallas_debug.compiler import triton_lines

    text = triton_lines.with_lines((dumps / match[0]).read_text(), passes.read_text())
    if text is None:
        return None
    first = folder / "lines.ll"
    first.write_text(text)
    # XLA reads the file whose name begins with the module's, whose number we do not know.
    names = []
    for number in range(int(match["number"]) + 1, int(match["number"]) + _CANDIDATES):
        path = folder / f"module_{number:04d}.{match['rest']}.ll"
        path.symlink_to(first.name)
        names.append(str(path))
    return ",".join(names)


def _assemble(dumps: Path, folder: Path) -> None:
    """Assemble and disassemble the kernel's PTX, the one with lines if there are several.

    Args:
      folder: for what is not kept.
    """
    ptx = _ptx(dumps)
    target = _TARGET.search(ptx or "")
    ptxas, nvdisasm = tool("ptxas"), tool("nvdisasm")
    if ptx is None or ptxas is None or target is None:
        return
    # LLVM counts the lines of inline assembly on from that of its operation.
    ptx = _INLINE.sub(lambda asm: asm["first"] + _LOCATION.sub("", asm["rest"]), ptx)
    (dumps / layout.PTX).write_text(ptx)
    cubin = str(folder / "kernel.cubin")
    flags = [f"-arch={target['name']}", "-lineinfo", "-v"]
    done = _run([ptxas, *flags, str(dumps / layout.PTX), "-o", cubin])
    messages = done.stdout + done.stderr
    (dumps / layout.PTXAS).write_text(messages)
    if done.returncode:
        raise AssemblyError(messages.strip())
    if nvdisasm is not None:
        listed = _run([nvdisasm, "-g", "-c", cubin])
        if listed.returncode == 0:
            (dumps / layout.SASS).write_text(listed.stdout)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _ptx(dumps: Path) -> str | None:
    """The PTX with the kernel, not XLA's own; the last one written, as the one with lines is."""
    names = [path.name.removesuffix(_OF_TRITON) for path in dumps.glob(f"*{_OF_TRITON}")]
    kernels = [name.rpartition(".")[2] for name in names]
    paths = sorted(dumps.glob("*.ptx"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    paths.sort(key=lambda path: not path.name.startswith("module_"))  # Mosaic GPU's is the last
    texts = [text for path in reversed(paths) if ".entry" in (text := path.read_text())]
    of_kernel = (t for t in texts if any(m["name"] in kernels for m in _ENTRY.finditer(t)))
    return next(of_kernel, texts[0] if texts else None)
