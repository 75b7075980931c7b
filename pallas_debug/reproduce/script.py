"""Generator of the script that reproduces a kernel."""

from __future__ import annotations

import base64
import textwrap
import zlib

from pallas_debug.chips import gpu_of
from pallas_debug.compiler import switches
from pallas_debug.errors import CannotRunError
from pallas_debug.model import Failure
from pallas_debug.render import one_line
from pallas_debug.reproduce.recorded import Recorded
from pallas_debug.reproduce.template import FIRST_LINE, IMPORTS_OF_STABLEHLO, TEMPLATES, for_gpu

_WIDTH = 96
_MAX_LINE = 1000
_MAX_QUOTED = 10_000

MAX_STABLEHLO = 64 * 2**20
"""Maximum length of a module in characters."""


def script_of(recorded: Recorded, *, program: str | None = None, note: str = "") -> str:
    """Generate a script that lowers and compiles the kernel.

    It contains the dump's program as it is: read it before you run it, as any script.

    Args:
      program: replaces the dump's program, for example with a smaller one.
      note: lines for its header.

    Raises:
      CannotRunError: the dump's StableHLO is too long.
    """
    program = program if program is not None else recorded.program
    kind = TEMPLATES["stablehlo" if program is None else "program"]
    config = gpu_of(recorded.target.name)
    settings = _settings(recorded)
    if config is not None:
        kind = for_gpu(kind)
        settings += f'TARGET_CONFIG = """{config.target_config}"""\n'
    body = program if program is not None else _module(recorded)
    head = _head(recorded, program is None, note)
    return "\n".join([FIRST_LINE, head, body.rstrip(), "", settings, kind])


def _head(recorded: Recorded, is_stablehlo: bool, note: str) -> str:
    compilation, failure = recorded.compilation, recorded.failure
    given = compilation.versions if compilation else recorded.kernel.versions
    versions = ", ".join(f"{name} {version}" for name, version in given.items() if name != "build")
    if compilation is None:
        outcome = f"It was not compiled for {recorded.target.name} yet."
    elif failure is None:
        outcome = f"It compiled for {recorded.target.name}."
    else:
        outcome = f"It failed for {recorded.target.name}, {_STAGES[failure.stage]}:"
    lines = [f"The kernel {recorded.kernel.name!r}, with {versions}."]
    if is_stablehlo:
        lines.append(f"It is embedded as StableHLO: {recorded.why_no_program}.")
    is_for_gpu = gpu_of(recorded.target.name) is not None
    how = _HOW_FOR_GPU if is_for_gpu else _HOW
    lines += [*note.splitlines(), outcome, *_quoted(failure), "", *how.splitlines()]
    return "\n".join(f"# {one_line(line)[:_MAX_LINE]}".rstrip() for line in lines)


_STAGES = {
    "lowering": "while jax lowered it",
    "compile": "in the compiler",
    "crash": "because the compiler's process died",
    "timeout": "because the compiler was stopped",
    "setup": "because no compiler was available",
}

_HOW = """\
Run it with Python; it needs jax and, to compile, libtpu (`pip install "jax[tpu]"`), and no TPU.
It exits with 0 if the kernel compiles and with 1 if it fails; a compiler crash ends it."""


_HOW_FOR_GPU = """\
Run it with Python; it needs jax, its CUDA plugin and ptxas (`pip install 'pallas-debug[gpu]'`), and
no GPU. It exits with 0 if the kernel compiles and with 1 if it fails; a compiler crash ends it."""


def _quoted(failure: Failure | None) -> list[str]:
    if failure is None:
        return []
    lines = f"{failure.type}: {failure.message[:_MAX_QUOTED]}".splitlines()[:6]
    wrapped = [part for line in lines for part in textwrap.wrap(line, _WIDTH)][:10]
    return ["", *(f"    {line}" for line in wrapped)]


def _settings(recorded: Recorded) -> str:
    compilation = recorded.compilation
    names = compilation.switches if compilation else ()
    flags = compilation.flags if compilation else ()
    given = [flag for flag in flags if "/" not in flag]  # the others write files of that machine
    target = recorded.target
    return "\n".join(
        [
            "",
            f"TOPOLOGY = {recorded.topology!r}",
            f"DEVICE_KIND, NUM_CORES = {target.device_kind!r}, {target.num_cores}",
            f"NUM_DEVICES = {recorded.num_devices}",
            f"SETTINGS = {switches.lowering_settings(names)!r}",
            f"OPTIONS = {switches.compile_options(names)!r}",
            f"FLAGS = {' '.join(given)!r}",
            "",
        ]
    )


def _module(recorded: Recorded) -> str:
    module = recorded.stablehlo or ""
    if len(module) > MAX_STABLEHLO:
        raise CannotRunError(
            f"the StableHLO of {recorded.kernel.name!r} has {len(module):,} characters, and a "
            f"script holds at most {MAX_STABLEHLO:,}: compile it with a script of your own"
        )
    packed = base64.b85encode(zlib.compress(module.encode(errors="replace"), 9)).decode()
    return f"{IMPORTS_OF_STABLEHLO}\nMODULE = {_parted(packed)}"


def _parted(text: str) -> str:
    """Split a long string literal into lines."""
    parts = [text[at : at + _WIDTH] for at in range(0, len(text), _WIDTH)]
    return "\n".join(["(", *(f"    {part!r}" for part in parts), ")"])
