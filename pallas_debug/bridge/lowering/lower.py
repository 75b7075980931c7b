"""Lowering of a captured kernel for a target, in this process and without its compiler."""

from __future__ import annotations

import contextlib
import functools
import linecache
import math
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractDevice, AbstractMesh, NamedSharding, PartitionSpec

from pallas_debug import defaults
from pallas_debug.bridge import chip, jaxcompat, patches
from pallas_debug.bridge.active import ThreadValue
from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import (
    error_handling,
    lowering,
    mlir,
    mlir_ir,
    source_info_util,
    triton_dialect,
)
from pallas_debug.bridge.jaxprs import inherited, lines
from pallas_debug.bridge.jaxprs.params import gpu_backend, is_for_tpu, passes_semaphores
from pallas_debug.bridge.lowering import hook, mosaic_gpu
from pallas_debug.errors import CannotRunError, CompiledWithOthersError
from pallas_debug.model import Failure, SourceLine, Target
from pallas_debug.store import layout

_CALL_AT = re.compile(r"\bat (?P<file>\S+\.py):(?P<line>\d+)\b")
"""Kernel location in jax errors without an equation: `in pallas_call k at FILE:LINE`."""

_TRITON = "__gpu$xla.gpu.triton"
"""Custom call of a kernel that Triton compiles."""

_LONGEST_NAME = 100
"""Maximum length of a kernel name. libtpu names its dumps after the kernel, encodes each non-ASCII
byte as three characters, and crashes if the file name is too long."""


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """A kernel lowered to a module for a target.

    Attributes:
      module: StableHLO bytecode, as passed to the compiler.
      stablehlo: the same as text, with locations.
      mosaic: a TPU kernel's own module as text, with locations, before any pass.
      num_devices: number of devices that the module is partitioned for.
      texts: what a back end for GPUs had before XLA gets the kernel, by name: Triton's
        module, and Mosaic GPU's before and after it inferred layouts (since jax 0.12).
    """

    module: bytes
    stablehlo: str
    mosaic: str
    num_devices: int
    texts: Mapping[str, str] = field(default_factory=dict)


class LoweringFailed(Exception):
    """jax could not lower the kernel."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.headline)
        self.failure = failure


def lower(captured: Capture, target: Target, *, settings: Iterable[str] = ()) -> Lowered:
    """Lower a kernel for a target.

    Args:
      settings: names of jax settings to enable while lowering.

    Raises:
      LoweringFailed: jax failed; its failure has the message and the Python line.
      CompiledWithOthersError: the kernel passes semaphores to or from another kernel.
      CannotRunError: the kernel is written for another platform.
    """
    _require_platform(captured, target)
    if passes_semaphores(captured.params):
        raise CompiledWithOthersError(
            f"{captured.kernel.name} takes or returns semaphores, which cannot be inputs or "
            "outputs of a program. It compiles only within a program whose other kernels return or "
            "take them, but here each kernel is compiled alone"
        )
    sink: list[str] = []
    texts: dict[str, str] = {}
    try:
        with (
            mosaic_gpu.collecting(captured.params, texts),
            hook.unwatched(),
            chip.answering(target),
            jax.enable_x64(captured.enable_x64),
            with_settings(settings),
            collecting_mosaic(sink),
        ):
            traced = _traced(captured, target)
            lowered = traced.lower(lowering_platforms=(target.platform,))
            module = lowered.compiler_ir("stablehlo")
            stablehlo = module.operation.get_asm(enable_debug_info=True)
            bytecode = mlir.module_to_bytecode(module)
            texts |= _texts_of_triton(module) if target.platform == "cuda" else {}
    except Exception as error:
        raise LoweringFailed(failure_of(error)) from error
    return Lowered(
        module=bytecode,
        stablehlo=stablehlo,
        mosaic="\n".join(sink),
        texts=texts,
        num_devices=1 if captured.mesh is None else math.prod(captured.mesh.shape.values()),
    )


def _require_platform(captured: Capture, target: Target) -> None:
    """Refuse a kernel that says that it is for a GPU or a TPU, and a target that is the other."""
    name, backend = captured.kernel.name, gpu_backend(captured.params)
    if backend is not None and target.platform == "tpu":
        raise CannotRunError(
            f"{name} is a kernel for a GPU ({backend}), and {target.name} is a TPU: name a GPU as "
            "the target, such as h100"
        )
    if backend is None and target.platform != "tpu" and is_for_tpu(captured.params):
        raise CannotRunError(
            f"{name} is a kernel for a TPU, and {target.name} is a GPU: name a TPU as the target, "
            f"such as {defaults.TARGET}"
        )


@contextlib.contextmanager
def with_settings(names: Iterable[str]) -> Iterator[None]:
    """Enable these jax settings in this thread.

    Raises:
      CannotRunError: the installed jax has no such setting.
    """
    with contextlib.ExitStack() as stack:
        for name in names:
            setting = jaxcompat.setting(name)
            if setting is None:
                raise CannotRunError(f"jax {jax.__version__} has no setting {name}")
            stack.enter_context(setting(True))
        yield


def _traced(captured: Capture, target: Target) -> Any:
    """Trace the kernel on its own, under its mesh if it has one."""
    primitive = hook.PRIMITIVES[captured.kernel.primitive]
    params = {**captured.params, "interpret": False}
    params.pop("kernel_arg_transforms", None)  # present only under the GPU's interpreter
    if target.platform == "cuda":  # a TPU's modules have the lines of jax's own code there
        params = inherited.with_lines(params)
    name = captured.kernel.name
    if len(name) > _LONGEST_NAME or not name.isascii():
        params |= _with_name(params, name.encode("ascii", "replace").decode()[:_LONGEST_NAME])

    def kernel(*args: Any) -> Any:
        return primitive.bind(*args, **params)

    if captured.mesh is None:
        return jax.jit(kernel).trace(
            *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in captured.avals)
        )
    # A kernel that communicates with its neighbours needs its mesh. Its operands are one device's
    # shards; here each array stacks one shard per device along the first dimension.
    old = captured.mesh
    device: Any = AbstractDevice(
        device_kind=target.device_kind,
        num_cores=target.num_cores,
        platform="tpu" if target.platform == "tpu" else "gpu",
    )
    if gpu_backend(captured.params) == "Mosaic GPU":
        # It traces parts of the kernel again, whose values have the mesh of the first trace.
        device = getattr(old, "abstract_mesh", old).abstract_device
    mesh = AbstractMesh(
        tuple(old.shape.values()),
        tuple(old.shape.keys()),
        axis_types=old.axis_types,
        abstract_device=device,
    )
    whole = PartitionSpec(tuple(mesh.axis_names))
    devices = math.prod(old.shape.values())
    in_specs = tuple(whole if a.shape else PartitionSpec() for a in captured.avals)
    out_specs = tuple(whole if a.shape else PartitionSpec() for a in params["out_avals"])
    args = [
        jax.ShapeDtypeStruct(
            (a.shape[0] * devices, *a.shape[1:]) if a.shape else (),
            a.dtype,
            sharding=NamedSharding(mesh, spec),
        )
        for a, spec in zip(captured.avals, in_specs, strict=True)
    ]
    sharded = jax.shard_map(
        lambda *a: tuple(kernel(*a)),
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )
    return jax.jit(sharded).trace(*args)


def _texts_of_triton(module: Any) -> dict[str, str]:
    """The module that a program passes to Triton, if it passes one."""
    found: dict[str, str] = {}

    def visit(operation: Any) -> Any:
        target = operation.attributes.get("call_target_name")
        if target is not None and target.value == _TRITON:
            bytecode = operation.attributes["mhlo.backend_config"]["ir"].value_bytes
            triton_dialect.register_dialect(module.context)
            kernel = mlir_ir.Module.parse(bytecode, context=module.context)
            found[layout.TTIR] = kernel.operation.get_asm(enable_debug_info=True)
        return mlir_ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found


def _with_name(params: Mapping[str, Any], name: str) -> dict[str, Any]:
    def renamed(jaxpr: Any) -> Any:
        return jaxpr.replace(debug_info=jaxpr.debug_info.replace_func_name(name))

    if "jaxpr" in params:
        return {"name": name, "jaxpr": renamed(params["jaxpr"])}
    return {"name": name, "jaxprs": type(params["jaxprs"])(map(renamed, params["jaxprs"]))}


_sink = ThreadValue[list[str] | None](None)


@contextlib.contextmanager
def collecting_mosaic(sink: list[str]) -> Iterator[None]:
    """Append the text of every Mosaic module that this thread lowers to `sink`.

    The module in the custom call is serialised, and since jax 0.12 its locations are stored
    separately; here it is still complete.
    """
    with _sink.setting(sink), patches.installed(patches.MOSAIC):
        yield


def collecting(lower_module: Callable[..., Any]) -> Callable[..., Any]:
    """Replacement for jax's `lower_module_to_custom_call`."""

    @functools.wraps(lower_module)
    def lower_and_collect(*args: Any, **kwargs: Any) -> Any:
        if _sink.value is not None:
            _sink.value.append(kwargs["module"].operation.get_asm(enable_debug_info=True))
        return lower_module(*args, **kwargs)

    return lower_and_collect


def failure_of(error: BaseException) -> Failure:
    """Convert an error raised during lowering, with the line of the equation being lowered."""
    return Failure(
        stage="lowering",
        type=type(error).__name__,
        message=str(error) or _asserted(error),
        source=_line(error),
    )


def _asserted(error: BaseException) -> str:
    """Text of one of jax's assertions that has no message."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not isinstance(error, AssertionError) or not frames:
        return ""
    frame, number = frames[-1]
    asserted = linecache.getline(frame.f_code.co_filename, number).strip()
    return f"an assertion of jax's failed: `{asserted}` in {frame.f_code.co_name}"


def _line(error: BaseException) -> SourceLine | None:
    """Python line of the equation that jax could not lower.

    jax does not always include it in the message, but the equation is a local variable in the
    frames of the traceback; the innermost one is the cause. An invalid module is detected after all
    equations: jax appends frames of the operation at fault to the traceback.
    """
    frame, reported = None, None
    inner = error.__traceback__
    while inner is not None:
        file = inner.tb_frame.f_code.co_filename
        if file == lowering.__file__:
            reported = None
        elif source_info_util.is_user_filename(file):
            reported = file, inner.tb_lineno, None
        info = getattr(inner.tb_frame.f_locals.get("eqn"), "source_info", None)
        if info is not None:
            frames = source_info_util.user_frames(info.traceback)
            frame = next((f for f in frames if f.file_name != __file__), None) or frame
        inner = inner.tb_next
    if reported is not None and isinstance(error, error_handling.VerificationError):
        return lines.line_of(*reported)
    if frame is not None:
        return lines.line_of(frame.file_name, frame.start_line, frame.function_name)
    named = _CALL_AT.search(str(error))
    return lines.line_of(named["file"], int(named["line"])) if named else None
