"""Description of a kernel seen by the hook: `model.Kernel`, its jaxpr and source as text.

The only reader of jax's parameters of the Pallas primitives.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, TypeVar

import jax

from pallas_debug.bridge import chip, primitives, versions
from pallas_debug.bridge.capture import meshes
from pallas_debug.bridge.capture.calls import CallSite
from pallas_debug.bridge.jaxcompat import jax_core, source_info_util
from pallas_debug.bridge.jaxprs import lines, nested, windows
from pallas_debug.bridge.jaxprs.params import (
    block_entry,
    dimension_semantics,
    equations_of,
    index_map_line,
    jaxprs_of,
    memory_space,
    static_shape,
)
from pallas_debug.errors import PallasDebugError
from pallas_debug.guards import guarded
from pallas_debug.model import CostEstimate, Kernel, Operand, OperandKind, SourceLine

_T = TypeVar("_T")

_CHECK_NUMBER = re.compile(r"(= select_n False:bool\[\] )\d+(:i32\[\] -1:i32\[\])")
"""Number of a check, which jax counts over the whole process."""

_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b|(?<=\bVar\(id=)\d+")
_DEFINITION = re.compile(r"^\s*def (\w+)", re.MULTILINE)
_DECORATORS = 10
_ALIGNED_COMMENT = re.compile(r" {2,}# (?=\S+:\d+)")
_LINE_COMMENT = re.compile(r"  # \S+:\d+.*$", re.MULTILINE)
_EMPTY_COMMENT = re.compile(r" +# *$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Capture:
    """A kernel as seen by the hook: its description, and everything needed to lower it again.

    Attributes:
      jaxpr: text with the source line of every equation.
      source: text of the kernel function's file; None if unavailable.
      params: parameters of the primitive, unchanged.
      avals: types of the operands, as one device sees them.
      mesh: jax's mesh if the kernel was lowered within `shard_map`.
      is_partitioned: whether jax, and not `shard_map`, partitions its arrays.
      enable_x64: jax's setting in the thread that lowered the kernel.
      calls: files and lines of the user's frames that lead to the kernel's call.
      problems: errors in describing parts of the kernel, which are omitted.
    """

    kernel: Kernel
    jaxpr: str
    source: str | None
    params: Mapping[str, Any]
    avals: tuple[Any, ...]
    mesh: Any | None
    enable_x64: bool
    is_partitioned: bool = False
    calls: frozenset[tuple[str, int]] = frozenset()
    problems: tuple[PallasDebugError, ...] = ()


def capture(primitive: str, context: Any, params: dict[str, Any]) -> Capture:
    """Describe the kernel of one equation.

    Args:
      primitive: name of the primitive, one of `hook.PRIMITIVES`.
    """
    problems: list[PallasDebugError] = []

    def part(what: str, describe: Callable[[], _T], default: _T) -> _T:
        with guarded("capture", f"{what} of kernel `{name}`", problems.append):
            return describe()
        return default

    jaxprs = jaxprs_of(params)
    name = params.get("name") or jaxprs[0].debug_info.func_name
    mesh = meshes.mesh_of(context)
    first = part("finding the first line", lambda: _first_line(jaxprs[0].debug_info), None)
    source = part("finding the first line", lambda: _source(first, params), first)
    jaxpr = part("printing the jaxpr", lambda: _text(jaxprs), "")
    if not jaxpr:  # a placeholder, unique to each kernel
        numbers = ", ".join(str(id(j)) for j in jaxprs)
        jaxpr = f"# this jaxpr could not be printed ({numbers})\n"
    cores = part("finding the cores that it signals", lambda: _signalled(params), "")
    calls: frozenset[tuple[str, int]] = part("finding the callers", lines.calling, frozenset())
    unknown: tuple[SourceLine | None, ...] = ()
    blocks = part("finding its specs", lambda: _block_sources(params, calls), unknown)
    kernel = Kernel(
        name=name,
        digest="",
        primitive=primitive,
        source=source,
        grid=_grid(params),
        grid_names=_grid_names(params),
        dimension_semantics=dimension_semantics(params),
        operands=_operands(params, jaxprs[0], context.avals_in, blocks),
        aliases=_aliases(params),
        compiler_params=_compiler_params(params.get("compiler_params")),
        cost_estimate=_cost_estimate(params.get("cost_estimate")),
        metadata={str(k): str(v) for k, v in dict(params.get("metadata") or {}).items()},
        mesh=meshes.sizes(mesh),
        chip=chip.was_asked(first),
        versions=versions.installed(),
    )
    return Capture(
        kernel=replace(kernel, digest=_digest(kernel, first, _LINE_COMMENT.sub("", jaxpr) + cores)),
        jaxpr=jaxpr,
        source=part("reading the source", lambda: _file_text(source), None),
        params=params,
        avals=tuple(context.avals_in),
        mesh=mesh,
        enable_x64=bool(jax.config.jax_enable_x64),
        is_partitioned=part("reading the mesh", lambda: meshes.is_partitioned(context), False),
        calls=calls,
        problems=tuple(problems),
    )


def of_equation(eqn: Any) -> Capture:
    """Describe the kernel of an equation that is not being lowered.

    Its digest is the one that the hook computes outside a mesh.
    """
    context = SimpleNamespace(
        module_context=SimpleNamespace(axis_context=None),
        avals_in=[atom.aval for atom in eqn.invars],
    )
    source, params = eqn.source_info, dict(eqn.params)
    if "grid_mapping" in params:  # while it watches, the hook names windows as jax traces a kernel
        params["jaxpr"] = windows.with_names(params["jaxpr"])
    with source_info_util.user_context(source.traceback, name_stack=source.name_stack):
        return capture(eqn.primitive.name, context, params)


def _text(jaxprs: Sequence[Any]) -> str:
    """Print jaxprs; empty if jax cannot, as for `select_ref` of references that are sliced."""
    try:
        text = "\n\n".join(_with_lines(j) for j in jaxprs) + "\n"
    except TypeError:
        return ""
    numbers = itertools.count()
    return _CHECK_NUMBER.sub(lambda match: f"{match[1]}{next(numbers)}{match[2]}", text)


def _signalled(params: Mapping[str, Any]) -> str:
    """Cores that semaphores are signalled on, if they are numbers: jax does not print them."""
    signals = (e for e in equations_of(params) if e.primitive.name == "semaphore_signal")
    cores = (primitives.form(eqn).core for eqn in signals)
    return "".join(f"on core {core.val}\n" for core in cores if isinstance(core, jax_core.Literal))


def _file_text(source: SourceLine | None) -> str | None:
    return "".join(linecache.getlines(source.file)) or None if source else None


def _digest(kernel: Kernel, first: SourceLine | None, jaxpr: str) -> str:
    """Digest of the kernel itself, without its line numbers, versions and chip.

    The function and its file's name distinguish equal kernels in two places.

    Args:
      first: first line of the kernel function.
    """
    identity = asdict(replace(kernel, source=None, chip=None, versions={}))
    for operand in identity["operands"]:
        del operand["block_source"]
    if len(kernel.mesh) > 1:  # the order of the axes numbers the devices; sorted keys lose it
        identity["mesh"] = list(kernel.mesh.items())
    where = first and (PurePath(first.file).name, first.function)
    content = json.dumps([identity, where, jaxpr], sort_keys=True, default=str)
    return hashlib.sha256(content.encode(errors="replace")).hexdigest()


def _source(first: SourceLine | None, params: Mapping[str, Any]) -> SourceLine | None:
    """Line of a kernel, or of its call if the function is jax's, as in `emit_pipeline`."""
    if first is None or not lines.is_internal(first):
        return first
    return lines.of_caller() or lines.around(equations_of(params)) or first


def _first_line(debug_info: Any) -> SourceLine | None:
    first = lines.of_function(debug_info)
    if first is None:
        return None
    # jax replaces the function's name with the kernel's `name=`; the source still has it, on that
    # line or below the decorators.
    below = (linecache.getline(first.file, first.line + i) for i in range(_DECORATORS))
    defined = _DEFINITION.search("".join(below))
    return first if defined is None else replace(first, function=defined[1])


def _grid(params: Mapping[str, Any]) -> tuple[int | None, ...]:
    if "grid_mapping" in params:
        return tuple(d if isinstance(d, int) else None for d in params["grid_mapping"].grid)
    return tuple(int(size) for mesh in params["meshes"] for size in dict(mesh.shape).values())


def _grid_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    if "grid_mapping" in params:
        return tuple(str(name) for name in params["grid_mapping"].grid_names or ())
    return tuple(str(name) for mesh in params["meshes"] for name in dict(mesh.shape))


def _block_sources(
    params: Mapping[str, Any], calls: frozenset[tuple[str, int]]
) -> tuple[SourceLine | None, ...]:
    """Lines of the specs of inputs and outputs, in order; reads the user's source."""
    if "grid_mapping" not in params:
        return ()
    grid_mapping = params["grid_mapping"]
    inputs = grid_mapping.num_inputs
    site = CallSite(calls)
    found = []
    for number, block in enumerate(grid_mapping.block_mappings):
        spec = ("in_specs", number) if number < inputs else ("out_specs", number - inputs)
        found.append(site.block_line(index_map_line(block), *spec))
    return tuple(found)


def _operands(
    params: Mapping[str, Any],
    jaxpr: Any,
    avals_in: Sequence[Any],
    sources: Sequence[SourceLine | None] = (),
) -> tuple[Operand, ...]:
    kernel_avals = [v.aval for v in jaxpr.invars]
    names = nested.arg_names(jaxpr)
    if "grid_mapping" not in params:
        outputs = len(params["out_avals"])
        inputs = len(avals_in)
        kinds: list[OperandKind] = []
        kinds += ["input"] * inputs
        kinds += ["output"] * outputs
        kinds += ["scratch"] * (len(kernel_avals) - len(kinds))
        return tuple(
            _plain_operand(name, kind, aval)
            for name, kind, aval in zip(names, kinds, kernel_avals, strict=False)
        )
    grid_mapping = params["grid_mapping"]
    dynamic = grid_mapping.num_dynamic_grid_bounds
    prefetch = grid_mapping.num_index_operands
    blocks = grid_mapping.block_mappings
    operands = [
        _plain_operand(f"grid[{i}]", "dynamic_grid", aval)
        for i, aval in enumerate(avals_in[:dynamic])
    ]
    operands += [
        _plain_operand(name, "scalar_prefetch", aval)
        for name, aval in zip(names[:prefetch], kernel_avals[:prefetch], strict=True)
    ]
    for i, block in enumerate(blocks):
        kind: OperandKind = "input" if i < grid_mapping.num_inputs else "output"
        source = sources[i] if i < len(sources) else None
        operands.append(_blocked_operand(names[prefetch + i], kind, block, source))
    first_scratch = prefetch + len(blocks)
    operands += [
        _plain_operand(name, "scratch", aval)
        for name, aval in zip(names[first_scratch:], kernel_avals[first_scratch:], strict=False)
    ]
    return tuple(operands)


def _plain_operand(name: str, kind: OperandKind, aval: Any) -> Operand:
    return Operand(
        name=name,
        kind=kind,
        shape=static_shape(aval),
        dtype=str(getattr(aval, "dtype", aval)),
        memory_space=memory_space(aval),
    )


def _blocked_operand(
    name: str, kind: OperandKind, block: Any, source: SourceLine | None
) -> Operand:
    return Operand(
        name=name,
        kind=kind,
        shape=static_shape(block.array_aval),
        dtype=str(block.array_aval.dtype),
        memory_space=memory_space(block.transformed_block_aval),
        block_shape=tuple(map(_block_size, block.block_shape)),
        index_map=_scrub(block.index_map_jaxpr.pretty_print(use_color=False)),
        pipeline=None if block.pipeline_mode is None else _scrub(str(block.pipeline_mode)),
        block_source=source,
    )


def _block_size(entry: Any) -> int | None:
    dim = block_entry(entry)
    return None if dim.kind == "squeezed" else dim.size


def _aliases(params: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    aliases = params.get("input_output_aliases") or ()
    pairs = aliases.items() if isinstance(aliases, Mapping) else aliases
    return tuple((int(i), int(o)) for i, o in pairs)


def _compiler_params(compiler_params: Any) -> dict[str, str]:
    """Every parameter with a non-default value, as text."""
    if compiler_params is None:
        return {}
    default = type(compiler_params)()
    fields = getattr(compiler_params, "__dataclass_fields__", {})
    values = {name: getattr(compiler_params, name) for name in fields}
    return {
        name: _scrub(str(value))
        for name, value in values.items()
        if value != getattr(default, name, None)
    }


def _cost_estimate(estimate: Any) -> CostEstimate | None:
    if estimate is None:
        return None
    return CostEstimate(
        flops=int(estimate.flops),
        transcendentals=int(estimate.transcendentals),
        bytes_accessed=int(estimate.bytes_accessed),
    )


def _with_lines(jaxpr: Any) -> str:
    """Print the jaxpr with source lines; jax pads these comments to a common column."""
    text = jaxpr.pretty_print(source_info=True, use_color=False)
    return _EMPTY_COMMENT.sub("", _ALIGNED_COMMENT.sub("  # ", _scrub(text)))


def _scrub(text: str) -> str:
    """Remove memory addresses, so that the same kernel has the same text in every process."""
    return _ADDRESS.sub("0x…", text)
