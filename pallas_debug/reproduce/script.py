"""The script that shows a kernel again."""

from __future__ import annotations

import base64
import pprint
import textwrap
import zlib

from pallas_debug.aot import switches
from pallas_debug.bridge import internals
from pallas_debug.model import Failure
from pallas_debug.reproduce.recorded import Recorded

COMPILED, FAILED, NO_COMPILER = 0, 1, 3
"""How a script exits: the kernel compiled, failed, or could not be given to a compiler."""

_WIDTH = 96


def script_of(recorded: Recorded, *, program: str | None = None, note: str = "") -> str:
    """The kernel as a script that lowers and compiles it.

    Args:
      program: instead of that of the dump, such as a smaller one.
      note: lines for its head.
    """
    program = program if program is not None else recorded.program
    kind = _OF_PROGRAM if program is not None else _OF_STABLEHLO
    body = program if program is not None else _module(recorded)
    settings = _settings(recorded)
    return "\n".join([_head(recorded, program is None, note), body.rstrip(), "", settings, kind])


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
        lines.append(f"It is given as StableHLO: {recorded.why_no_program}.")
    lines += [*note.splitlines(), outcome, *_quoted(failure), "", *_HOW.splitlines()]
    return "\n".join(f"# {line}".rstrip() for line in lines)


_STAGES = {
    "lowering": "as jax lowered it",
    "compile": "in the compiler",
    "crash": "where the compiler's process died",
    "timeout": "where the compiler was stopped",
    "setup": "before there was a compiler",
}

_HOW = """\
Run it with Python; it needs jax and, to compile, libtpu (`pip install "jax[tpu]"`), and no TPU.
It exits with 0 if the kernel compiles and with 1 if it fails; it dies if the compiler does."""


def _quoted(failure: Failure | None) -> list[str]:
    """The first lines of what was said."""
    if failure is None:
        return []
    said = f"{failure.type}: {failure.message}".splitlines()[:6]
    wrapped = [part for line in said for part in textwrap.wrap(line, _WIDTH)][:10]
    return ["", *(f"    {line}" for line in wrapped)]


def _settings(recorded: Recorded) -> str:
    compilation = recorded.compilation
    names = compilation.switches if compilation else ()
    flags = compilation.flags if compilation else ()
    target = recorded.target
    return "\n".join(
        [
            "",
            f"TOPOLOGY = {recorded.topology!r}",
            f"DEVICE_KIND, NUM_CORES = {target.device_kind!r}, {target.num_cores}",
            f"NUM_DEVICES = {recorded.num_devices}",
            f"SETTINGS = {switches.lowering_settings(names)!r}",
            f"OPTIONS = {switches.compile_options(names)!r}",
            f"FLAGS = {' '.join(flags)!r}",
            "",
        ]
    )


def _module(recorded: Recorded) -> str:
    packed = base64.b85encode(zlib.compress((recorded.stablehlo or "").encode(), 9)).decode()
    return f"MODULE = {pprint.pformat(packed, width=_WIDTH)}"


_START = '''
def compile_only():
    """The compiler's devices: libtpu makes them up, and looks for no TPU."""
    import os

    os.environ.update(TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
    os.environ["LIBTPU_INIT_ARGS"] = FLAGS
    from jax.experimental import topologies

    described = topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGY)
    return list(described.devices)[:NUM_DEVICES]


def failed(stage, error):
    print(f"{stage} failed")
    print(f"{type(error).__name__}: {error}", flush=True)
    return 1
'''

_END = """

def main():
    import importlib.metadata

    for name in ("jax", "jaxlib", "libtpu"):
        try:
            print(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            print(name, "is not installed")
    jax.config.update("jax_platforms", "cpu")
    print(f"lowering for {DEVICE_KIND}", flush=True)
    try:
        lowered()
    except Exception as error:
        return failed("lowering", error)
    try:
        devices = compile_only()
    except Exception as error:
        print(f"there is no compiler: {error}")
        return 3
    print(f"compiling for {TOPOLOGY}", flush=True)
    try:
        compiled(devices)
    except Exception as error:
        return failed("compile", error)
    print("it compiles")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
"""

_OF_PROGRAM = (
    _START
    + '''

def lowered(devices=None):
    """The kernel for a TPU; on devices, as the compiler wants it."""
    from jax.sharding import AbstractDevice, AbstractMesh, Mesh, NamedSharding, PartitionSpec
    from jax.sharding import SingleDeviceSharding

    chip = AbstractDevice(device_kind=DEVICE_KIND, num_cores=NUM_CORES, platform="tpu")
    function, arguments = call, ARGUMENTS
    around = AbstractMesh((), (), abstract_device=chip)
    placed = None
    for name in SETTINGS:
        jax.config.update(name, True)
    with jax.enable_x64(ENABLE_X64):
        if AXES:  # the kernel talks to other devices: it is lowered for all of them
            sizes, names = tuple(AXES.values()), tuple(AXES)
            if devices is None:
                around = mesh = AbstractMesh(sizes, names, abstract_device=chip)
            else:
                mesh = Mesh(np.array(devices).reshape(sizes), names)
                around = mesh.abstract_mesh
            shares = PartitionSpec(names)
            placed = NamedSharding(mesh, shares)
            specs = tuple(shares if a.shape else PartitionSpec() for a in ARGUMENTS)
            function = jax.shard_map(
                call, mesh=mesh, in_specs=specs, out_specs=shares, check_vma=False
            )
            arguments = [
                jax.ShapeDtypeStruct(
                    (a.shape[0] * NUM_DEVICES, *a.shape[1:]) if a.shape else (),
                    a.dtype,
                    sharding=NamedSharding(mesh, spec),
                )
                for a, spec in zip(ARGUMENTS, specs)
            ]
        elif devices is not None:
            placed = SingleDeviceSharding(devices[0])
            arguments = [
                jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=placed) for a in ARGUMENTS
            ]
        with jax.sharding.use_abstract_mesh(around):
            staged = jax.jit(function, out_shardings=placed).trace(*arguments)
            return staged.lower(lowering_platforms=("tpu",))


def compiled(devices):
    return lowered(devices).compile(OPTIONS)
'''
    + _END
)

_OF_STABLEHLO = (
    """import base64
import zlib

import jax
import numpy as np
"""
    + _START
    + '''

def lowered():
    """As jax lowered it; there is nothing left that could fail."""
    return zlib.decompress(base64.b85decode(MODULE)).decode()


'''
    + internals.COMPILE_A_MODULE
    + _END
)
