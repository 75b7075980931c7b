"""A decoded call of a kernel: its operands with their blocks, its programs and its grid."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.capture.calls import CallSite
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxprs import lines, mechanisms, nested
from pallas_debug.bridge.jaxprs.index_lines import IndexLines
from pallas_debug.bridge.jaxprs.params import (
    block_entry,
    buffer_count,
    gpu_backend,
    jaxprs_of,
    parallel_axes,
    revisits,
)
from pallas_debug.bridge.programs import accesses, decode, effects, subcores
from pallas_debug.bridge.programs import program as ir
from pallas_debug.errors import MachineError
from pallas_debug.model import SourceLine

_WITH_RULES = (accesses, effects, subcores)

Kind = Literal["prefetch", "input", "output", "scratch"]


@dataclass(frozen=True, kw_only=True)
class OperandBlock:
    """Division of an operand into blocks.

    Attributes:
      sizes: size of a block in each dimension of the array.
      squeezed: dimensions that the block's ref does not have.
      unit: factor from a block index to a start: the size, or 1 for elements.
      padding: elements before and after the array that indices may address.
      index_map: program from the grid point and prefetch refs to block indices.
      buffers: number of buffers of the pipeline.
      revisits: whether blocks of an output are read back when they are visited again.
      clips: on a GPU, whether accesses are masked where the block reaches past its array.
    """

    sizes: tuple[int, ...]
    squeezed: tuple[bool, ...]
    unit: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    index_map: ir.KernelProgram
    buffers: int = 2
    revisits: bool = False
    clips: bool = False

    @functools.cached_property
    def projection(self) -> tuple[tuple[int | None, int], ...] | None:
        """For each dimension, an axis of the grid, or None and a number; None if more complex."""
        program = self.index_map
        if program.steps:
            return None
        axes = {reg: axis for axis, reg in enumerate(program.inputs)}
        return tuple(
            (axes[reg], 0) if reg in axes else (None, int(program.template[reg.number]))
            for reg in program.outputs
        )


@dataclass(frozen=True, kw_only=True)
class LaunchOperand:
    """An operand of a kernel.

    Attributes:
      type: type of the ref that the kernel receives.
      array: shape of the whole array; None for scratch.
      block: None if the kernel receives the whole array in place. In HBM, and in the memory of a
        GPU, a block is a view of the array, and is not copied.
      alias: for an output, position of the input among the call's arrays that it shares.
      is_value: whether the kernel receives the array itself, a scalar that it closes over.
      core_mesh: number of the mesh whose cores have this scratch; None if all have.
      line: line that determines its blocks, or else that of the kernel's call.
    """

    name: str
    kind: Kind
    type: ir.RefType
    array: tuple[int, ...] | None = None
    block: OperandBlock | None = None
    alias: int | None = None
    is_value: bool = False
    core_mesh: int | None = None
    line: SourceLine | None = None


CoreKind = Literal["tensor", "scalar", "vector"]
"""A TensorCore, or the scalar or the vector subcores of a SparseCore."""


@dataclass(frozen=True, kw_only=True)
class CoreMesh:
    """Cores that run a body, each at its own point of the mesh.

    Attributes:
      body: program that takes a ref for each operand of the kernel.
    """

    kind: CoreKind
    axes: Mapping[str, int]
    body: ir.KernelProgram

    @property
    def size(self) -> int:
        return math.prod(self.axes.values())

    @property
    def num_sharing(self) -> int:
        """Cores that share memory: the vector subcores of a SparseCore."""
        return list(self.axes.values())[-1] if self.kind == "vector" else 1


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel, ready to run on arrays.

    Attributes:
      grid: sizes of its axes; None for a size that the call passes, in front of its arrays.
      parallel: axes whose grid points may run in any order, on several cores.
      operands: operands in the order of the kernel's parameters.
      body: program that takes a ref for each operand.
      mapped: axes of the grid that `vmap` added.
      mesh: sizes of the device mesh's axes; empty for a single device.
      is_gpu: whether the kernel is for a GPU: its grid points run at the same time, and access
        arrays in place.
      index_lines: lines that compute the indices of its accesses.
      meshes: meshes of the cores that run the kernel; empty if one core runs the whole grid. `body`
        is the body of the first.
      loops: compiled variants of loops, by identity of the step.
    """

    name: str
    grid: tuple[int | None, ...]
    parallel: tuple[bool, ...]
    operands: tuple[LaunchOperand, ...]
    body: ir.KernelProgram
    mesh: Mapping[str, int]
    index_lines: IndexLines
    enable_x64: bool = False
    axis_names: tuple[str, ...] = ()
    meshes: tuple[CoreMesh, ...] = ()
    mapped: tuple[int, ...] = ()
    is_gpu: bool = False
    loops: dict[int, dict[Any, Any]] = field(default_factory=dict, compare=False, repr=False)

    @functools.cached_property
    def cores(self) -> Mapping[str, int]:
        """Sizes of the axes of all meshes of cores."""
        return {axis: size for mesh in self.meshes for axis, size in mesh.axes.items()}

    def mesh_of(self, core: int) -> tuple[int, int]:
        """Number of the mesh to which a core belongs, and number of its first core."""
        first = 0
        for number, mesh in enumerate(self.meshes):
            if core < first + mesh.size:
                return number, first
            first += mesh.size
        return 0, 0

    def programs(self) -> tuple[ir.KernelProgram, ...]:
        """The bodies of all meshes."""
        return tuple(mesh.body for mesh in self.meshes) or (self.body,)

    def all_steps(self) -> Iterator[ir.MachineStep]:
        """All steps of the kernel, on all cores."""
        return (step for program in self.programs() for step in program.all_steps())

    @functools.cached_property
    def clipped(self) -> Mapping[str, tuple[bool, ...]]:
        """Dimensions of operands along which no access goes past the array (`clips`)."""
        return {
            operand.name: tuple(
                n % size != 0 for n, size in zip(operand.array, operand.block.sizes, strict=True)
            )
            for operand in self.operands
            if operand.array is not None and operand.block is not None and operand.block.clips
        }

    @functools.cached_property
    def axes(self) -> tuple[int, ...]:
        """Axes of the grid that the kernel's code counts, without those added by `vmap`."""
        return tuple(axis for axis in range(len(self.grid)) if axis not in self.mapped)

    def numbers(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Numbers that axes of the grid have in the kernel's code; none for those of `vmap`."""
        own = self.axes
        return tuple(own.index(axis) for axis in axes if axis in own)


def launch(captured: Capture, *, fuse: bool = True, opens: bool = False) -> Launch:
    """Decode a captured kernel.

    Args:
      fuse: whether to evaluate plain operations together; otherwise each is a step, with its whole
        call stack.
      opens: whether to also decode calls, loops and branches of plain operations, so that each
        operation can be checked; otherwise, with `fuse`, they are evaluated as one.

    Raises:
      MachineError: the machine cannot run it.
    """
    params = captured.params
    if reason := mechanisms.refusal(params):
        raise MachineError(f"kernel `{captured.kernel.name}`: {reason}")
    backend = gpu_backend(params)
    if backend not in (None, "Triton"):
        raise MachineError(
            f"kernel `{captured.kernel.name}` is for a GPU ({backend}), but the kernel machine "
            "runs only kernels for TPUs and those of Triton"
        )
    if backend is not None:
        _triton()
    with jax.enable_x64(captured.enable_x64):
        return _launch(captured, fuse, opens or not fuse, backend is not None)


def _launch(captured: Capture, fuse: bool, opens: bool, is_gpu: bool) -> Launch:
    params, kernel = captured.params, captured.kernel
    mapping, meshes = params.get("grid_mapping"), params.get("meshes", ())
    jaxprs = [jaxcompat.opened(closed) for closed in jaxprs_of(params)]
    bodies = [_decoded(captured, *jaxpr, fuse=fuse, opens=opens) for jaxpr in jaxprs]
    cores = tuple(
        CoreMesh(
            kind=_core_kind(kernel.name, mesh),
            axes={str(axis): int(size) for axis, size in dict(mesh.shape).items()},
            body=body,
        )
        for mesh, body in zip(meshes, bodies, strict=False)
    )
    named = [operand for operand in kernel.operands if operand.kind != "dynamic_grid"]
    blocks = iter(() if mapping is None else mapping.block_mappings)
    aliases = {out: given for given, out in kernel.aliases}
    outputs = itertools.count()
    call = CallSite(captured.calls).line()
    operands = []
    for operand, variable in zip(named, jaxprs[0][0].invars, strict=True):
        type_ = decode.ref_type(variable.aval)
        if is_gpu:
            type_ = replace(type_, space="gmem")
        block = next(blocks, None) if operand.kind in ("input", "output") else None
        array = type_.shape if block is None else tuple(map(int, block.array_aval.shape))
        in_place = block is None or _is_in_place(type_, block)
        operands.append(
            LaunchOperand(
                name=operand.name,
                kind=_KINDS[operand.kind],
                type=type_,
                array=None if operand.kind == "scratch" else array,
                block=None if in_place else _block(operand.name, block, is_gpu),
                alias=aliases.get(next(outputs)) if operand.kind == "output" else None,
                is_value=not nested.is_ref(variable),
                core_mesh=_mesh_of(variable.aval, meshes),
                line=operand.block_source or call,
            )
        )
    grid = tuple(cores[0].axes.values()) if cores else kernel.grid
    return Launch(
        name=kernel.name,
        grid=grid,
        parallel=(is_gpu,) * len(grid) if is_gpu or cores else parallel_axes(params),
        operands=tuple(operands),
        body=bodies[0],
        mesh=dict(kernel.mesh),
        enable_x64=captured.enable_x64,
        axis_names=tuple(cores[0].axes) if cores else kernel.grid_names,
        meshes=cores,
        index_lines=IndexLines(jaxprs_of(params)),
        mapped=() if mapping is None else tuple(mapping.vmapped_dims),
        is_gpu=is_gpu,
    )


_KINDS: Mapping[str, Kind] = {
    "scalar_prefetch": "prefetch",
    "input": "input",
    "output": "output",
    "scratch": "scratch",
}


def _decoded(
    captured: Capture, jaxpr: Any, consts: Sequence[Any], *, fuse: bool, opens: bool
) -> ir.KernelProgram:
    """Decode a body of a kernel, and give its equations their lines."""
    function, source = lines.of_function(jaxpr.debug_info), captured.kernel.source
    calls: tuple[SourceLine, ...] = ()
    if function is not None and lines.is_internal(function) and source is not None:
        calls = (source,)  # it contains none of the user's frames
    return decode.program(jaxpr, consts, fuse=fuse, opens=opens, calls=calls)


def _is_in_place(kind: ir.RefType, mapping: Any) -> bool:
    """Return whether the kernel receives a whole array in place; under `vmap` it receives a part.

    An array that another kernel has left in VMEM is used in place.
    """
    own = getattr(mapping.array_aval, "memory_space", None)
    if kind.space not in ("hbm", "gmem", "semaphore", str(getattr(own, "value", own)).lower()):
        return False
    return all(
        getattr(dim, "block_size", dim) == n
        for dim, n in zip(mapping.block_shape, mapping.array_aval.shape, strict=True)
    )


def _core_kind(kernel: str, mesh: Any) -> CoreKind:
    name = type(mesh).__name__
    kinds: dict[str, CoreKind] = {
        "TensorCoreMesh": "tensor",
        "ScalarSubcoreMesh": "scalar",
        "VectorSubcoreMesh": "vector",
    }
    if name not in kinds:
        raise MachineError(f"kernel `{kernel}` runs on a mesh of unknown cores, {name}")
    return kinds[name]


def _mesh_of(aval: Any, meshes: Sequence[Any]) -> int | None:
    """Number of the mesh to which a reference's memory belongs; None for other memory."""
    mesh = getattr(getattr(aval, "memory_space", None), "mesh", None)
    return next((number for number, known in enumerate(meshes) if known == mesh), None)


def _block(name: str, mapping: Any, is_gpu: bool) -> OperandBlock:
    dims = [block_entry(dim) for dim in mapping.block_shape]
    for dim, given in zip(dims, mapping.block_shape, strict=True):
        if dim.kind not in ("blocked", "squeezed", "element"):
            kind = type(given).__name__
            raise MachineError(f"operand `{name}` has a block dimension of kind {kind}")
    index_map, consts = jaxcompat.opened(mapping.index_map_jaxpr)
    return OperandBlock(
        sizes=tuple(dim.size for dim in dims),
        squeezed=tuple(dim.kind == "squeezed" for dim in dims),
        unit=tuple(1 if dim.kind == "element" else dim.size for dim in dims),
        padding=tuple(dim.padding for dim in dims),
        index_map=decode.program(index_map, consts),
        buffers=buffer_count(mapping.pipeline_mode) or 2,
        revisits=revisits(mapping),
        clips=is_gpu and _triton().masks_blocks(),
    )


def _triton() -> Any:
    """The rules for Triton's operations, which only its kernels need."""
    return importlib.import_module("pallas_debug.bridge.programs.triton")


def dynamic_axes(launch: Launch) -> int:
    return sum(size is None for size in launch.grid)


def arrays(values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Convert a call's arrays to numpy; keys of the TPU become arrays of dtype `program.KEY`."""
    return [
        np.ascontiguousarray(jax.random.key_data(value)).view(np.uint64).view(ir.KEY)[..., 0, 0]
        if decode.is_tpu_key(value)
        else np.asarray(value)
        for value in values
    ]


def typed(launch: Launch, given: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Convert the numbers that represent keys of the TPU in a program to the arrays of a call."""
    own = [operand for operand in launch.operands if operand.kind in ("prefetch", "input")]
    found = list(given)
    for position, operand in enumerate(own, dynamic_axes(launch)):
        if operand.type.dtype == ir.KEY:
            words = found[position]
            found[position] = np.empty(words.shape[:-2], ir.KEY)
            found[position]["words"] = words
    return found


def untyped(results: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Convert keys of the TPU in results to the numbers that represent them in a program."""
    return [array["words"] if array.dtype == ir.KEY else array for array in results]
