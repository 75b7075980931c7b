"""Self-test of meaning: tiny kernels, whose decoded programs are compared with stored ones.

A newer jax may keep a name and change what a parameter means. Each kernel here uses one mechanism
of Pallas; the steps of its decoded program are its normal form. `forms.txt` has the forms that are
right, as text; `python -m pallas_debug.bridge.meaning` writes it.

With a jax that is newer than those tested, they are compared before the first kernel is captured,
and kernels that use a changed mechanism are refused.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_debug.bridge import chip, jaxcompat, versions
from pallas_debug.bridge.capture import capture
from pallas_debug.bridge.hosted.client import evaluating
from pallas_debug.bridge.jaxprs import mechanisms, nested
from pallas_debug.bridge.lowering import hook
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs.launch import launch
from pallas_debug.model import Target

STORED = Path(__file__).with_name("forms.txt")

_CHIP = Target(name="v6e", topology="v6e:2x2", device_kind="TPU v6 lite")
_ROWS = pl.BlockSpec((8, 128), lambda i: (i, 0))
_HBM = pl.BlockSpec(memory_space=pl.ANY)
_X = jax.ShapeDtypeStruct((16, 128), jnp.float32)
_LEFT_OUT = frozenset(("site", "evaluate", "unit", "branches", "names", "located", "text"))

Kernel = Callable[..., None]


def _load_and_store(x_ref: Any, o_ref: Any) -> None:
    o_ref[pl.ds(0, 4), :] = x_ref[pl.ds(4, 4), :]
    o_ref[7, :] = x_ref[pl.program_id(0), :]


def _copy(x_ref: Any, o_ref: Any, buffer: Any, done: Any) -> None:
    coming = pltpu.make_async_copy(x_ref.at[pl.ds(8, 8)], buffer, done)
    coming.start()
    coming.wait()
    o_ref[...] = buffer[...]


def _semaphores(x_ref: Any, o_ref: Any, ready: Any) -> None:
    pl.semaphore_signal(ready, 2)
    pl.semaphore_wait(ready, 2)
    o_ref[...] = x_ref[...]


def _scan(x_ref: Any, o_ref: Any) -> None:
    def copy_row(i: Any, _: Any) -> None:
        o_ref[i, :] = x_ref[i, :]

    lax.fori_loop(0, 8, copy_row, None)


def _while(x_ref: Any, o_ref: Any) -> None:
    def copy_row(i: Any) -> Any:
        o_ref[i, :] = x_ref[i, :]
        return i + 1

    lax.while_loop(lambda i: i < 8, copy_row, 0)


def _cond(x_ref: Any, o_ref: Any) -> None:
    def store() -> None:
        o_ref[...] = x_ref[...]

    pl.when(pl.program_id(0) == 0)(store)


def _scoped(x_ref: Any, o_ref: Any) -> None:
    def within(buffer: Any) -> None:
        buffer[...] = x_ref[...]
        o_ref[...] = buffer[...]

    pl.run_scoped(within, pltpu.VMEM((8, 128), jnp.float32))


def _print(x_ref: Any, o_ref: Any) -> None:
    pl.debug_print("at {}", pl.program_id(0))
    o_ref[...] = x_ref[...]


def _pipeline(x_ref: Any, o_ref: Any) -> None:
    def copy_block(x_block: Any, o_block: Any) -> None:
        o_block[...] = x_block[...]

    pltpu.emit_pipeline(copy_block, grid=(2,), in_specs=[_ROWS], out_specs=[_ROWS])(x_ref, o_ref)


def _prefetch(table_ref: Any, x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = x_ref[...]


def _blocked(kernel: Kernel, *scratch: Any, space: Any = _ROWS) -> Callable[[Any], Any]:
    return lambda x: pl.pallas_call(
        kernel, out_shape=x, grid=(2,), in_specs=[space], out_specs=_ROWS, scratch_shapes=scratch
    )(x)


def _whole(kernel: Kernel) -> Callable[[Any], Any]:
    return lambda x: pl.pallas_call(kernel, out_shape=x, in_specs=[_HBM], out_specs=_HBM)(x)


def _by_table(x: Any) -> Any:
    rows = pl.BlockSpec((8, 128), lambda i, table_ref: (table_ref[i], 0))
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1, grid=(2,), in_specs=[rows], out_specs=rows
    )
    return pl.pallas_call(_prefetch, grid_spec=spec, out_shape=x)(jnp.arange(2), x)


def _on_cores(x: Any) -> Any:
    def copy_half(x_ref: Any, o_ref: Any) -> None:
        rows = pl.ds(lax.axis_index("core") * 8, 8)
        pltpu.sync_copy(x_ref.at[rows], o_ref.at[rows])

    return pl.kernel(copy_half, out_type=x, mesh=jaxcompat.tensorcore_mesh("core", 2))(x)


def _on_subcores(x: Any) -> Any:
    from jax.experimental.pallas import tpu_sc

    def copy_row(x_ref: Any, o_ref: Any, row: Any) -> None:
        number = lax.axis_index("subcore")
        pltpu.sync_copy(x_ref.at[number], row)
        row[pl.ds(0, 8)] = row[pl.ds(8, 8)]
        pltpu.sync_copy(row, o_ref.at[number])

    mesh = tpu_sc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=16
    )
    row = pltpu.VMEM((128,), jnp.float32)
    return pl.kernel(copy_row, out_type=x, mesh=mesh, scratch_types=[row])(x)


_COPYING = (pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA)

KERNELS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "load and store": (_blocked(_load_and_store), "get swap"),
    "dma": (_blocked(_copy, *_COPYING, space=_HBM), "dma_start dma_wait"),
    "semaphores": (
        _blocked(_semaphores, pltpu.SemaphoreType.REGULAR),
        "semaphore_signal semaphore_wait",
    ),
    "a scan": (_blocked(_scan), "scan"),
    "a while loop": (_blocked(_while), "while"),
    "a branch": (_blocked(_cond), "cond"),
    "run_scoped": (_blocked(_scoped), "run_scoped"),
    "debug_print": (_blocked(_print), "debug_print"),
    "emit_pipeline": (_whole(_pipeline), mechanisms.PIPELINE),
    "scalar prefetch": (_by_table, mechanisms.PREFETCH),
    "a mesh of TensorCores": (_on_cores, "TensorCoreMesh"),
    "SparseCore": (_on_subcores, "VectorSubcoreMesh ScalarSubcoreMesh"),
}
"""A kernel for each mechanism, by its name, and the features of kernels that use it."""


def form(name: str) -> str:
    """Return the normal form of a tiny kernel; the exception if it cannot be decoded."""
    try:
        with hook.unwatched(), evaluating(enable_x64=False), chip.answering(_CHIP):
            jaxpr = jax.make_jaxpr(KERNELS[name][0])(_X).jaxpr
            kernels = hook.PRIMITIVES.values()
            (eqn,) = [e for e in nested.equations(jaxpr) if e.primitive in kernels]
            decoded = launch(capture.of_equation(eqn))
    except Exception as error:  # noqa: BLE001 - whatever a change of jax causes
        return f"{type(error).__name__}: {error}"
    operands = ", ".join(f"{operand.kind} {operand.type.space}" for operand in decoded.operands)
    maps = [o.block.index_map for o in decoded.operands if o.block is not None]
    bodies = [mesh.body for mesh in decoded.meshes] or [decoded.body]
    lines = [line for part in (*bodies, *maps) for line in ("program", *_program(part, "  "))]
    return "\n".join([f"grid {decoded.grid}: {operands}", *lines])


def _program(program: ir.KernelProgram, indent: str) -> Iterator[str]:
    def text(value: Any) -> str:
        if isinstance(value, ir.Reg):
            constant = program.template[value.number]
            return f"%{value.number}" if constant is None else str(constant)
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(text, value))})"
        if is_dataclass(value):
            return f"{type(value).__name__}({', '.join(_named(value, text))})"
        return str(value)

    for step in program.steps:
        unit = getattr(step, "unit", None)
        parts = _named(step, text)
        parts += [] if unit is None else [eqn.primitive.name for eqn in unit.eqns]
        yield f"{indent}{type(step).__name__} {' '.join(parts)}".rstrip()
        for inner, _ in ir.inner_programs(step):
            yield from _program(inner, indent + "  ")


def _named(value: Any, text: Callable[[Any], str]) -> list[str]:
    """Fields that are set, except places, functions and programs."""
    given = [(f.name, getattr(value, f.name)) for f in fields(value) if f.name not in _LEFT_OUT]
    return [
        f"{name}={text(item)}"
        for name, item in given
        if not (item is None or item is False or isinstance(item, ir.KernelProgram))
        if not (isinstance(item, (tuple, frozenset)) and not item)
    ]


def stored() -> dict[str, list[str]]:
    """Forms that are right, by the kernel's name: one, or one for each series of jax."""
    found: dict[str, list[str]] = {}
    for section in STORED.read_text().split("\n## ")[1:]:
        name, _, text = section.partition("\n")
        found.setdefault(name, []).append(text.strip())
    return found


def changed() -> list[mechanisms.Changed]:
    """Mechanisms whose kernels mean something else with this jax than with those tested."""
    right, found = stored(), []
    for name, (_, features) in KERNELS.items():
        text = form(name)
        if text not in right.get(name, ()):
            expected, differs = _difference(right.get(name, ("",))[-1], text)
            found.append(mechanisms.Changed(name, expected, differs, frozenset(features.split())))
    return found


def _difference(expected: str, found: str) -> tuple[str, str]:
    """First lines in which two forms differ."""
    pairs = itertools.zip_longest(expected.splitlines(), found.splitlines(), fillvalue="nothing")
    return next(((a.strip(), b.strip()) for a, b in pairs if a != b), ("", ""))


@functools.cache
def examine() -> Sequence[mechanisms.Changed]:
    """Compare the tiny kernels once if this jax is newer than those tested; refuse what changed."""
    if not versions.is_within(versions.OLDEST, versions.NEWEST):
        mechanisms.changed[:] = changed()
    return mechanisms.changed


def main() -> None:
    """Add the forms of the installed jax to the stored ones."""
    right = stored() if STORED.exists() else {}
    for name in KERNELS:
        text = form(name)
        if text not in right.setdefault(name, []):
            right[name].append(text)
    parts = [f"\n## {name}\n{text}\n" for name, texts in right.items() for text in texts]
    STORED.write_text(
        "Normal forms of the kernels in meaning.py, read by a person.\n" + "".join(parts)
    )


if __name__ == "__main__":
    main()
