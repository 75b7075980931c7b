"""Unparser for loops, branches and scopes: nested functions that close over variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax import lax

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import jax_core
from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.unparse import values
from pallas_debug.bridge.unparse.page import Writer, types
from pallas_debug.bridge.unparse.values import tuple_of

Write = Callable[[Writer, Any, Sequence[str], Sequence[str]], tuple[Writer, list[str]]]
"""Type of `equations.write`, which writes the inner jaxprs."""


def _cond(block: Writer, eqn: Any, write: Write) -> None:
    index, *operands = eqn.invars
    branches = eqn.params["branches"]
    args = [block.read(atom) for atom in operands]
    choice = block.choice(index, of_two=len(branches) == 2)
    if len(branches) == 2 and not eqn.outvars and not jaxcompat.opened(branches[0])[0].eqns:
        block.line(f"@pl.when({choice})")
        _function(block, "when", branches[1], args, write)
        return
    if len(branches) == 2:
        yes = _function(block, "if_true", branches[1], args, write)
        no = _function(block, "if_false", branches[0], args, write)
        block.assign(eqn.outvars, f"lax.cond({choice}, {yes}, {no})")
        return
    names = [_function(block, f"case_{i}", b, args, write) for i, b in enumerate(branches)]
    block.assign(eqn.outvars, f"lax.switch({choice}, [{', '.join(names)}])")


def _function(block: Writer, wanted: str, inner: Any, args: Sequence[str], write: Write) -> str:
    """Write a function that returns the outputs of a jaxpr; return its name."""
    name = block.page.name(wanted)
    block.line(f"def {name}():")
    body = block.deeper()
    jaxpr, consts = jaxcompat.opened(inner)
    _, outputs = write(body, jaxpr, [values.constant(c) for c in consts], args)
    _ends(body, block, ", ".join(outputs))
    return name


def _ends(body: Writer, around: Writer, returned: str) -> None:
    if returned:
        body.line(f"return {returned}")
    elif around.page.lines[-1].strip().startswith("def "):
        body.line("pass")


def _scan(block: Writer, eqn: Any, write: Write) -> None:
    params = eqn.params
    num_consts, num_carry = jaxcompat.scan_sizes(params)
    consts = [block.read(atom) for atom in eqn.invars[:num_consts]]
    carry = eqn.invars[num_consts : num_consts + num_carry]
    xs = [block.read(atom) for atom in eqn.invars[num_consts + num_carry :]]
    if _is_counted(block, eqn, num_consts, num_carry):
        _fori(block, eqn, consts, carry, write)
        return
    jaxpr, own = jaxcompat.opened(params["jaxpr"])
    name = block.page.name("step")
    block.line(f"def {name}(carry, x):")
    body = block.deeper()
    names = [block.page.value() for _ in jaxpr.invars[num_consts:]]
    _unpack(body, names[:num_carry], "carry", jaxpr.invars[num_consts:][:num_carry])
    _unpack(body, names[num_carry:], "x", jaxpr.invars[num_consts:][num_carry:])
    _, outputs = write(body, jaxpr, [values.constant(c) for c in own], [*consts, *names])
    body.line(f"return {tuple_of(outputs[:num_carry])}, {tuple_of(outputs[num_carry:])}")
    results = [block.bind(var) for var in eqn.outvars]
    options = {n: params[n] for n in ("reverse", "unroll") if params[n] not in (False, 1)}
    given = "".join(f", {n}={values.parameter(v)}" for n, v in options.items())
    start = tuple_of([block.read(atom) for atom in carry])
    block.line(
        f"{_target(results[:num_carry])}, {_target(results[num_carry:])} = lax.scan({name}, "
        f"{start}, {tuple_of(xs) if xs else None}, length={params['length']}{given})",
        types(eqn.outvars),
    )


def _is_counted(block: Writer, eqn: Any, num_consts: int, num_carry: int) -> bool:
    """Return whether a loop is a `fori_loop` with known bounds."""
    jaxpr, _ = jaxcompat.opened(eqn.params["jaxpr"])
    plain = len(eqn.outvars) == num_carry == len(eqn.invars) - num_consts
    if not plain or not num_carry or eqn.params["reverse"]:
        return False
    start, variable, last = eqn.invars[num_consts], jaxpr.invars[num_consts], jaxpr.outvars[0]
    return (
        isinstance(start, jax_core.Literal)
        and not start.aval.shape
        and start.aval.dtype.name in ("int32", "int64")
        and block.is_dropped(eqn.outvars[0])
        and _adds_one(jaxpr, variable, last)
    )


def _adds_one(jaxpr: Any, variable: Any, last: Any) -> bool:
    made = [e for e in jaxpr.eqns if last in e.outvars]
    if len(made) != 1 or made[0].primitive is not lax.add_p or last in jaxpr.outvars[1:]:
        return False
    read = [a for e in jaxpr.eqns for a in e.invars if a is last]
    one = [a for a in made[0].invars if isinstance(a, jax_core.Literal) and a.val == 1]
    return bool(one) and variable in made[0].invars and not read


def _fori(block: Writer, eqn: Any, consts: list[str], carry: Sequence[Any], write: Write) -> None:
    jaxpr, own = jaxcompat.opened(eqn.params["jaxpr"])
    carried = jaxpr.invars[len(consts) + 1 :]
    counting = next(e for e in jaxpr.eqns if jaxpr.outvars[0] in e.outvars)
    jaxpr = jaxpr.replace(
        eqns=[e for e in jaxpr.eqns if e is not counting], outvars=jaxpr.outvars[1:]
    )
    name, index = block.page.name("body"), block.page.name("i")
    names = [block.page.value() for _ in carried]
    one = len(names) == 1
    packed = names[0] if one else ("carry" if names else "_")
    block.line(f"def {name}({index}, {packed}):")
    body = block.deeper()
    if not one:
        _unpack(body, names, "carry", carried)
    args = [*consts, index, *names]
    _, outputs = write(body, jaxpr, [values.constant(c) for c in own], args)
    _ends(body, block, ", ".join(outputs))
    start = [block.read(atom) for atom in carry[1:]]
    first = int(carry[0].val)
    unroll = eqn.params["unroll"]
    given = "" if unroll == 1 else f", unroll={values.parameter(unroll)}"
    bounds = f"{first}, {first + eqn.params['length']}"
    packed = start[0] if one else (tuple_of(start) if start else "None")
    block.assign(eqn.outvars[1:], f"lax.fori_loop({bounds}, {name}, {packed}{given})")


def _while(block: Writer, eqn: Any, write: Write) -> None:
    params = eqn.params
    texts = [block.read(atom) for atom in eqn.invars]
    of_condition, of_body, start = nested.while_operands(params, texts)
    names = []
    for wanted, inner, consts in (
        ("condition", params["cond_jaxpr"], of_condition),
        ("body", params["body_jaxpr"], of_body),
    ):
        jaxpr, own = jaxcompat.opened(inner)
        names.append(block.page.name(wanted))
        block.line(f"def {names[-1]}(carry):")
        body = block.deeper()
        carried = [block.page.value() for _ in start]
        _unpack(body, carried, "carry", jaxpr.invars[len(consts) :])
        _, outputs = write(body, jaxpr, [values.constant(c) for c in own], [*consts, *carried])
        body.line(f"return {outputs[0] if wanted == 'condition' else tuple_of(outputs)}")
    results = [block.bind(var) for var in eqn.outvars]
    block.line(
        f"{_target(results)} = lax.while_loop({', '.join(names)}, {tuple_of(start)})",
        types(eqn.outvars),
    )


def _run_scoped(block: Writer, eqn: Any, write: Write) -> None:
    params = eqn.params
    if any(params.get("ref_transforms") or ()):
        raise values.CannotUnparse("a scoped buffer that is seen through a transform")
    jaxpr = params["jaxpr"]
    name = block.page.name("scope")
    wanted = list(jaxpr.debug_info.arg_names or ())[: len(jaxpr.invars)]
    wanted += [f"buffer_{i}" for i in range(len(wanted), len(jaxpr.invars))]
    buffers = [block.page.name(str(w)) for w in wanted]
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
