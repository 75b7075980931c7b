"""Unparser for whole kernels: the function, its blocks, its call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from pallas_debug.bridge.capture.capture import Capture
from pallas_debug.bridge.jaxcompat import indexing, opened
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.unparse import equations, values
from pallas_debug.bridge.unparse.page import Page, Writer
from pallas_debug.bridge.unparse.values import CannotUnparse, tuple_of

_HEAD = """\
# The Pallas kernel {name}, written out from its jaxpr by pallas-debug. It needs only jax.
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
"""


def unparsed(captured: Capture) -> str:
    """Unparse the kernel to a module that needs only jax.

    The module defines `ARGUMENTS` (types of the arguments, as one device sees them), `AXES` (the
    mesh sizes by name, empty for one device), `ENABLE_X64` and `call`, which calls the kernel.

    Raises:
      CannotUnparse: part of it cannot be written as text; the message names it.
    """
    params = captured.params
    if captured.kernel.primitive != "pallas_call" or params.get("mesh") is not None:
        raise CannotUnparse("meshes, as pl.kernel makes it, and no grid as pl.pallas_call")
    grid_mapping = params["grid_mapping"]
    vmapped = tuple(grid_mapping.vmapped_dims)
    page = Page(
        enable_x64=captured.enable_x64,
        grid_axes=[i for i in range(len(grid_mapping.grid)) if i not in vmapped],
    )
    jaxpr, consts = opened(params["jaxpr"])
    operands = [page.name(name) for name in nested.arg_names(jaxpr, "operand")]
    body = Writer(page, 1)
    function = page.name(captured.kernel.name)
    page.lines.append(f"def {function}({', '.join(operands)}):")
    equations.write(body, jaxpr, [values.constant(c) for c in consts], operands)
    if len(page.lines) == 1:
        body.line("pass")
    kernel, page.lines = page.lines, []
    prefetched = operands[: grid_mapping.num_index_operands]
    blocked = operands[len(prefetched) :]
    specs = [
        _block_spec(page, block, name, prefetched)
        for block, name in zip(grid_mapping.block_mappings, blocked, strict=False)
    ]
    index_maps, page.lines = page.lines[:-2], []
    call = _call(captured, function, operands, specs)
    names = _argument_names(grid_mapping, operands)
    arguments = [
        "ARGUMENTS = [",
        *(
            f"    {values.array_type(aval)},  # {name}"
            for aval, name in zip(captured.avals, names, strict=False)
        ),
        "]",
        f"AXES = {dict(captured.mesh.shape) if captured.mesh is not None else {}!r}",
        f"ENABLE_X64 = {captured.enable_x64}",
    ]
    imports = "".join(f"import {name}\n" for name in sorted(page.imports))
    parts = [arguments, kernel, *([index_maps] if index_maps else []), call]
    head = _HEAD.format(name=repr(captured.kernel.name))
    return head + imports + "\n" + "\n\n\n".join("\n".join(part) for part in parts) + "\n"


def _argument_names(grid_mapping: Any, operands: Sequence[str]) -> Iterator[str]:
    for i in range(grid_mapping.num_dynamic_grid_bounds):
        yield f"grid dimension {i}"
    yield from operands[: grid_mapping.num_index_operands + grid_mapping.num_inputs]


def _block_spec(page: Page, block: Any, operand: str, prefetched: Sequence[str]) -> str:
    """Write a block; an index map that does not fit on one line becomes a function on the page."""
    if getattr(block, "transforms", ()):
        raise CannotUnparse(f"the block of {operand}, which is seen through a transform")
    space = getattr(block.transformed_block_aval, "memory_space", None)
    options = []
    if not values.is_default(space):
        options.append(f"memory_space={values.memory_space(space)}")
    if block.pipeline_mode is not None:
        options.append(f"pipeline_mode={values.parameter(block.pipeline_mode)}")
    index_map = _index_map(page, block, operand, prefetched)
    return f"pl.BlockSpec({', '.join([_block_shape(block), index_map, *options])})"


def _block_shape(block: Any) -> str:
    texts = []
    for dimension in block.block_shape:
        kind = type(dimension).__name__
        if kind == "Squeezed" or dimension is None:
            texts.append("None")
        elif kind == "Blocked":
            texts.append(str(dimension.block_size))
        else:
            texts.append(values.parameter(dimension))
    return tuple_of(texts)


def _index_map(page: Page, block: Any, operand: str, prefetched: Sequence[str]) -> str:
    jaxpr, consts = opened(block.index_map_jaxpr)
    tree = block.index_map_out_tree
    grid = len(jaxpr.invars) - len(prefetched)
    names = [*(f"i{n}" for n in range(grid)), *prefetched]
    at = len(page.lines)
    inner, _ = equations.write(Writer(page, 1), jaxpr, [values.constant(c) for c in consts], names)
    indices = jax.tree.unflatten(tree, [inner.index(atom) for atom in jaxpr.outvars])
    indices = indices if isinstance(indices, (tuple, list)) else (indices,)
    texts = [_block_index(index) for index in indices]
    returned = tuple_of(texts)
    if len(page.lines) == at:
        return f"lambda {', '.join(names)}: {returned}" if names else f"lambda: {returned}"
    name = page.name(f"{operand}_block")
    page.lines.insert(at, f"def {name}({', '.join(names)}):")
    page.lines += [f"    return {returned}", "", ""]
    return name


def _block_index(index: Any) -> str:
    if isinstance(index, indexing.Slice):
        return f"pl.ds({index.start}, {index.size})"
    return str(index)


def _call(
    captured: Capture, function: str, operands: Sequence[str], specs: Sequence[str]
) -> list[str]:
    params, grid_mapping = captured.params, captured.params["grid_mapping"]
    prefetch, inputs = grid_mapping.num_index_operands, grid_mapping.num_inputs
    dynamic = grid_mapping.num_dynamic_grid_bounds
    first_scratch = prefetch + len(specs)
    jaxpr, _ = opened(params["jaxpr"])
    scratch = [values.buffer(v.aval) for v in jaxpr.invars[first_scratch:]]
    blocked = operands[prefetch:]

    def listed(name: str, items: Sequence[str], names: Sequence[str]) -> list[str]:
        lines = (f"    {item},  # {n}" for item, n in zip(items, names, strict=True))
        return [f"{name}=[", *lines, "],"] if items else [f"{name}=[],"]

    spec = [
        f"num_scalar_prefetch={prefetch},",
        f"grid={_grid(grid_mapping)},",
        *listed("in_specs", specs[:inputs], blocked[:inputs]),
        *listed("out_specs", specs[inputs:], blocked[inputs : len(specs)]),
        *listed("scratch_shapes", scratch, operands[first_scratch:]),
    ]
    outputs = [values.array_type(aval) for aval in params["out_avals"]]
    options = [f"{name}={text}," for name, text in _options(captured).items()]
    lines = [
        "return pl.pallas_call(",
        f"    {function},",
        "    grid_spec=pltpu.PrefetchScalarGridSpec(",
        *(f"        {line}" for line in spec),
        "    ),",
        *(f"    {line}" for line in listed("out_shape", outputs, blocked[inputs : len(specs)])),
        *(f"    {option}" for option in options),
        f")({f'*args[{dynamic}:]' if dynamic else '*args'})",
    ]
    return ["def call(*args):", *(f"    {line}" for line in lines)]


def _grid(grid_mapping: Any) -> str:
    dynamic = 0
    texts = []
    for size in grid_mapping.grid:
        if isinstance(size, int):
            texts.append(str(size))
        else:
            texts.append(f"args[{dynamic}]")
            dynamic += 1
    if grid_mapping.grid_names:
        pairs = zip(grid_mapping.grid_names, texts, strict=True)
        texts = [f"({values.parameter(name)}, {size})" for name, size in pairs]
    return tuple_of(texts)


def _options(captured: Capture) -> dict[str, str]:
    params = captured.params
    found = {"name": repr(params["name"])} if params.get("name") else {}
    aliases = params.get("input_output_aliases") or ()
    pairs = dict(aliases.items() if isinstance(aliases, Mapping) else aliases)
    if pairs:
        found["input_output_aliases"] = values.parameter(pairs)
    compiler_params = params.get("compiler_params")
    if compiler_params is not None:
        found["compiler_params"] = values.parameter(_semantics_of_all(compiler_params, params))
    for name in ("cost_estimate", "metadata"):
        if params.get(name):
            found[name] = values.parameter(params[name])
    return found


def _semantics_of_all(compiler_params: Any, params: Mapping[str, Any]) -> Any:
    """Add semantics for the grid dimensions that `vmap` added, like jax."""
    grid_mapping = params["grid_mapping"]
    semantics = getattr(compiler_params, "dimension_semantics", None)
    vmapped = grid_mapping.vmapped_dims
    if not vmapped or not dataclasses.is_dataclass(compiler_params):
        return compiler_params
    own = iter(semantics or ("arbitrary",) * (len(grid_mapping.grid) - len(vmapped)))
    both = ["parallel" if i in vmapped else next(own) for i in range(len(grid_mapping.grid))]
    given: Any = compiler_params
    return dataclasses.replace(given, dimension_semantics=tuple(both))
