"""Unparser for loops, branches and scopes: nested functions that close over variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.normal_forms import InnerJaxpr
from pallas_debug.bridge.unparse import values
from pallas_debug.bridge.unparse.page import Writer, types
from pallas_debug.bridge.unparse.values import tuple_of

Write = Callable[[Writer, Any, Sequence[str], Sequence[str]], tuple[Writer, list[str]]]
"""Type of `equations.write`, which writes the inner jaxprs."""


def _cond(block: Writer, eqn: Any, write: Write) -> None:
    form = primitives.form(eqn)
    args = [block.read(atom) for atom in form.inputs]
    choice = block.choice(form.index, of_two=len(form.branches) == 2)
    if len(form.branches) == 2 and not eqn.outvars and not form.branches[0].jaxpr.eqns:
        block.line(f"@pl.when({choice})")
        _function(block, "when", form.branches[1], args, write)
        return
    if len(form.branches) == 2:
        yes = _function(block, "if_true", form.branches[1], args, write)
        no = _function(block, "if_false", form.branches[0], args, write)
        block.assign(eqn.outvars, f"lax.cond({choice}, {yes}, {no})")
        return
    names = [_function(block, f"case_{i}", b, args, write) for i, b in enumerate(form.branches)]
    block.assign(eqn.outvars, f"lax.switch({choice}, [{', '.join(names)}])")


def _function(
    block: Writer, wanted: str, region: InnerJaxpr, args: Sequence[str], write: Write
) -> str:
    """Write a function that returns the outputs of a jaxpr; return its name."""
    name = block.page.name(wanted)
    block.line(f"def {name}():")
    body = block.deeper()
    _ends(body, block, ", ".join(_outputs(body, region, args, write)))
    return name


def _outputs(body: Writer, region: InnerJaxpr, args: Sequence[str], write: Write) -> list[str]:
    """Write the lines of a jaxpr; return its outputs."""
    consts = [values.constant(c) for c in region.consts]
    return write(body, region.jaxpr, consts, args)[1]


def _ends(body: Writer, around: Writer, returned: str) -> None:
    if returned:
        body.line(f"return {returned}")
    elif around.page.lines[-1].strip().startswith("def "):
        body.line("pass")


def _scan(block: Writer, eqn: Any, write: Write) -> None:
    loop = primitives.form(eqn)
    consts = [block.read(atom) for atom in loop.constants]
    count = len(loop.carry)
    xs = [block.read(atom) for atom in loop.stacked]
    name = block.page.name("step")
    block.line(f"def {name}(carry, x):")
    body = block.deeper()
    variables = loop.body.jaxpr.invars[len(consts) :]
    names = [block.page.value() for _ in variables]
    _unpack(body, names[:count], "carry", variables[:count])
    _unpack(body, names[count:], "x", variables[count:])
    outputs = _outputs(body, loop.body, [*consts, *names], write)
    body.line(f"return {tuple_of(outputs[:count])}, {tuple_of(outputs[count:])}")
    results = [block.bind(var) for var in eqn.outvars]
    options = {n: eqn.params[n] for n in ("reverse", "unroll") if eqn.params[n] not in (False, 1)}
    given = "".join(f", {n}={values.parameter(v)}" for n, v in options.items())
    start = tuple_of([block.read(atom) for atom in loop.carry])
    block.line(
        f"{_target(results[:count])}, {_target(results[count:])} = lax.scan({name}, "
        f"{start}, {tuple_of(xs) if xs else None}, length={loop.length}{given})",
        types(eqn.outvars),
    )


def _while(block: Writer, eqn: Any, write: Write) -> None:
    loop = primitives.form(eqn, [block.read(atom) for atom in eqn.invars])
    names = []
    for wanted, region, consts in (
        ("condition", loop.condition, loop.condition_constants),
        ("body", loop.body, loop.constants),
    ):
        names.append(block.page.name(wanted))
        block.line(f"def {names[-1]}(carry):")
        body = block.deeper()
        carried = [block.page.value() for _ in loop.carry]
        _unpack(body, carried, "carry", region.jaxpr.invars[len(consts) :])
        outputs = _outputs(body, region, [*consts, *carried], write)
        body.line(f"return {outputs[0] if wanted == 'condition' else tuple_of(outputs)}")
    results = [block.bind(var) for var in eqn.outvars]
    block.line(
        f"{_target(results)} = lax.while_loop({', '.join(names)}, {tuple_of(loop.carry)})",
        types(eqn.outvars),
    )


def _run_scoped(block: Writer, eqn: Any, write: Write) -> None:
    params = eqn.params
    if any(params.get("ref_transforms") or ()):
        raise values.CannotUnparse("a scoped buffer that is seen through a transform")
    jaxpr = params["jaxpr"]
    name = block.page.name("scope")
    buffers = list(map(block.page.name, nested.arg_names(jaxpr, "buffer")))
    block.line(f"def {name}({', '.join(buffers)}):")
    body = block.deeper()
    _, outputs = write(body, jaxpr, [block.read(atom) for atom in eqn.invars], buffers)
    _ends(body, block, ", ".join(outputs))
    kinds = [values.buffer(v.aval) for v in jaxpr.invars]
    axes = params["collective_axes"]
    given = [f"collective_axes={values.parameter(axes)}"] if axes else []
    block.assign(eqn.outvars, f"pl.run_scoped({', '.join([name, *kinds, *given])})")


def _unpack(body: Writer, names: Sequence[str], packed: str, variables: Sequence[Any]) -> None:
    if names:
        body.line(f"{_target(names)} = {packed}", types(variables))


def _target(names: Sequence[str]) -> str:
    return tuple_of(names) if names else "_"


WRITERS: dict[str, Callable[[Writer, Any, Write], None]] = {
    "cond": _cond,
    "scan": _scan,
    "while": _while,
    "run_scoped": _run_scoped,
}
