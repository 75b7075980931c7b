"""Parts common to all scripts: first line, functions and exit codes."""

from __future__ import annotations

from pallas_debug.bridge import jaxcompat

COMPILED, FAILED, NO_COMPILER = 0, 1, 3
"""Exit codes of a script: the kernel compiled, failed, or no compiler was available."""

FIRST_LINE = "# -*- coding: utf-8 -*-"
"""Encoding declaration. Python honours the first one, so it must be ours, not the dump's."""

SETTINGS = (
    "TOPOLOGY",
    "DEVICE_KIND, NUM_CORES",
    "NUM_DEVICES",
    "SETTINGS",
    "OPTIONS",
    "FLAGS",
)
"""Names that a script assigns between the kernel and the template's functions."""

MAX_DEVICES = 1024
"""Maximum number of devices that a kernel is compiled for."""

IMPORTS_OF_STABLEHLO = """\
import base64
import zlib

import jax
import numpy as np
"""

_START = '''
def compile_only():
    """Devices to compile for, which libtpu provides without a TPU."""
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
    """Lower the kernel for a TPU; with devices, in the form that the compiler expects."""
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
    _START
    + '''

def lowered():
    """Return the module that jax lowered when the kernel was dumped."""
    return zlib.decompress(base64.b85decode(MODULE)).decode()


'''
    + jaxcompat.COMPILE_A_MODULE
    + _END
)

TEMPLATES = {"program": _OF_PROGRAM, "stablehlo": _OF_STABLEHLO}
"""Final parts of scripts, by their content."""

_OF_GPU = '''
def compile_only():
    """Devices to compile for, which XLA's CUDA plugin provides without a GPU."""
    import os

    os.environ.update(JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1", XLA_FLAGS=FLAGS)
    import jax.experimental.mosaic.gpu  # names its run-time library to the plugin
    from jax.experimental import topologies

    described = topologies.get_topology_desc(
        platform="cuda", topology=f"1x1x{NUM_DEVICES}", target_config=TARGET_CONFIG
    )
    return list(described.devices)
'''


def for_gpu(script: str) -> str:
    """Return a script's final part for a GPU, given that for a TPU."""
    begin, end = script.index("\ndef compile_only"), script.index("\n\ndef failed")
    script = script[:begin] + _OF_GPU + script[end:]
    for of_tpu, of_gpu in _OTHERS:
        script = script.replace(of_tpu, of_gpu)
    return script


_OTHERS = (
    ('platform="tpu"', 'platform="gpu"'),
    ('lowering_platforms=("tpu",)', 'lowering_platforms=("cuda",)'),
    ("Lower the kernel for a TPU", "Lower the kernel for a GPU"),
    ('"jaxlib", "libtpu"', '"jaxlib", "jax-cuda12-plugin"'),
)
