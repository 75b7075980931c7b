"""Decode a kernel's jaxpr into a `Program`.

Plain operations are collected into units, each emitted just before a step needs one of its results:
loads move ahead of arithmetic, which is then compiled as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pallas_debug.bridge import primitives
from pallas_debug.bridge.jaxcompat import conditionals, dtypes, jax_core, loops
from pallas_debug.bridge.jaxprs import lines, nested
from pallas_debug.bridge.normal_forms import InnerJaxpr
from pallas_debug.bridge.programs import program as ir
from pallas_debug.bridge.programs import scalars, units
from pallas_debug.errors import MachineError
from pallas_debug.model import SourceLine

Rule = Callable[["Decoder", Any, list[Any], ir.StepSite], Any]

MAX_EQUATIONS = 128
"""Maximum number of equations that are compiled together.

XLA takes more than linear time and memory for straight-line code: a sorting network that Python
unrolls (tallax) has thousands of equations, and did not end in 120 s as one program.
"""

RULES: dict[Any, Rule] = {}
"""Decoders of equations that are not plain, registered by the modules of this package."""


def rule(*primitives: Any) -> Callable[[Rule], Rule]:
    """Decorator that registers the rule for these primitives."""

    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(primitives, function))
        return function

    return add


@dataclass(slots=True)
class PendingEquation:
    """A plain equation that no step has needed yet."""

    eqn: Any
    inputs: list[Any]  # Reg, or a constant
    outputs: list[ir.Reg]
    site: ir.StepSite


_Unit = tuple[PendingEquation, ...]
"""Place among the steps for equations that are evaluated together."""


@dataclass
class Decoder:
    """Decodes one jaxpr, with everything that it inlines.

    Attributes:
      fuse: whether plain equations are evaluated together; the debugger steps through each, which
        has its whole call stack then, rather than its innermost line.
      opens: whether plain calls, loops and branches are also decoded, rather than evaluated as one.
      calls: lines of the calls around the equations being decoded.
      here: place of the equation being decoded.
    """

    fuse: bool = True
    opens: bool = False
    calls: tuple[SourceLine, ...] = ()
    template: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    steps: list[ir.MachineStep | _Unit] = field(default_factory=list)
    pending: list[PendingEquation] = field(default_factory=list)
    here: ir.StepSite = field(default_factory=lambda: ir.StepSite("", None))

    # Registers

    def new(self, value: Any = None) -> ir.Reg:
        self.template.append(value)
        return ir.Reg(len(self.template) - 1)

    def reg(self, value: Any) -> ir.Reg:
        """The register of a decoded atom; a new one for a constant."""
        return value if isinstance(value, ir.Reg) else self.new(value)

    def number(self, value: Any) -> ir.Number:
        """A decoded atom as an index."""
        if isinstance(value, (ir.Reg, int)):
            return value
        array = np.asarray(value)
        return int(array) if array.ndim == 0 else self.new(array)

    def optional(self, value: Any) -> ir.Reg | None:
        """The register of a decoded atom, which may be missing."""
        return None if value is None else self.reg(value)

    # Steps

    def emit(self, step: ir.MachineStep) -> tuple[ir.Reg, ...]:
        """Add a step, after the pending equations that it needs; return its results."""
        self.flush(ir.registers(step))
        self.steps.append(step)
        return ir.results(step)

    def compute(
        self, site: ir.StepSite, inputs: Sequence[Any], count: int, function: Callable[..., Any]
    ) -> tuple[ir.Reg, ...]:
        """Add a step that computes results, as many as `count`, by a function of numpy arrays."""

        def evaluate(*values: Any) -> Sequence[Any]:
            results: Sequence[Any] = function(*map(np.asarray, values))
            return results

        regs = tuple(map(self.reg, inputs))
        outputs = tuple(self.new() for _ in range(count))
        return self.emit(ir.Compute(site=site, inputs=regs, outputs=outputs, evaluate=evaluate))

    def flush(self, needed: Iterable[int]) -> None:
        """Emit the pending equations that some registers depend on."""
        wanted = set(needed)
        chosen: list[PendingEquation] = []
        rest: list[PendingEquation] = []
        for item in reversed(self.pending):
            if any(out.number in wanted for out in item.outputs):
                wanted.update(r.number for r in item.inputs if isinstance(r, ir.Reg))
                chosen.append(item)
            else:
                rest.append(item)
        if chosen:
            self.pending = rest[::-1]
            members = tuple(chosen[::-1])
            for first in range(0, len(members), MAX_EQUATIONS):
                self.steps.append(members[first : first + MAX_EQUATIONS])

    # Equations

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Decode the equations of a jaxpr; return its outputs as registers or constants."""
        known = nested.JaxprValues((*jaxpr.constvars, *jaxpr.invars), (*consts, *args))

        def read(atom: Any) -> Any:
            if isinstance(atom, jax_core.Literal):
                return np.asarray(atom.val, atom.aval.dtype)[()]
            return known[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            outputs = self._equation(eqn, inputs)
            known.bind(eqn.outvars, outputs)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, eqn: Any, inputs: list[Any]) -> list[Any]:
        called = nested.inlined(eqn)
        is_opened = self.opens and (called is not None or eqn.primitive in _OPENED)
        if called is not None and self.fuse:
            # numpy computes indices in less time than a call of XLA takes, but has no jnp calls.
            is_opened |= all(scalars.is_integer(a.aval) for a in (*eqn.invars, *eqn.outvars))
        if is_plain(eqn) and not is_opened:
            outputs = [self.new() for _ in eqn.outvars]
            item = PendingEquation(eqn, inputs, outputs, self.site(eqn))
            if self.fuse:
                self.pending.append(item)
            else:
                self.steps.append((item,))
            return list(outputs)
        if called is not None:
            outer, self.calls = self.calls, _stack(self.site(eqn))
            results = self.run(*called, inputs)
            self.calls = outer
            return results
        site = self.site(eqn)
        found = RULES.get(eqn.primitive)
        if found is None:
            raise MachineError(
                f"the kernel machine has no rule for `{eqn.primitive.name}`", where=site.line
            )
        self.here = site
        results = found(self, eqn, inputs, site) or []
        return list(results)

    def site(self, eqn: Any) -> ir.StepSite:
        if not self.fuse:
            stack = (*self.calls, *lines.stack_of(eqn))
            return ir.StepSite(eqn.primitive.name, stack[-1] if stack else None, stack[:-1])
        line = lines.source_of(eqn)
        if line is None and self.calls:
            line = self.calls[-1]
        return ir.StepSite(eqn.primitive.name, line, self.calls)

    def inner(self, region: InnerJaxpr) -> ir.KernelProgram:
        """Decode a jaxpr of an equation: a branch, a body or a condition."""
        return program(*region, **self.context())

    def context(self) -> dict[str, Any]:
        """Arguments of `program` for a jaxpr of the equation being decoded."""
        calls = self.calls if self.fuse else _stack(self.here)
        return {"fuse": self.fuse, "opens": self.opens, "calls": calls}

    def finish(self, inputs: Sequence[ir.Reg], outputs: Sequence[Any]) -> ir.KernelProgram:
        results = tuple(self.reg(out) for out in outputs)
        self.flush(ir.registers(results))
        used = _used(self.steps, results)

        def finished(step: ir.MachineStep | _Unit) -> ir.MachineStep:
            if isinstance(step, ir.MachineStep):
                return _without_unused(step, used)
            return units.compute(step, used) if self.fuse else units.compute_one(step)

        steps = tuple(map(finished, self.steps))
        return ir.KernelProgram(
            tuple(self.template), tuple(inputs), results, steps, dict(self.names)
        )


def program(
    jaxpr: Any,
    consts: Sequence[Any] = (),
    *,
    fuse: bool = True,
    opens: bool = False,
    calls: tuple[SourceLine, ...] = (),
    constvars_first: bool = False,
) -> ir.KernelProgram:
    """Decode a jaxpr.

    Args:
      fuse: whether plain equations are evaluated together.
      opens: whether plain calls, loops and branches are also decoded, rather than evaluated as one.
      calls: see `Decoder`.
      consts: values of its constvars; if `constvars_first`, these are inputs instead.

    Raises:
      MachineError: it uses an operation that the machine does not support.
    """
    decoder = Decoder(fuse=fuse, opens=opens, calls=calls)
    given = [decoder.new() for _ in jaxpr.constvars] if constvars_first else list(consts)
    args = [decoder.new() for _ in jaxpr.invars]
    for name, reg in zip(jaxpr.debug_info.arg_names or (), args, strict=False):
        decoder.names[reg.number] = name
    outputs = decoder.run(jaxpr, given, args)
    inputs = [*given, *args] if constvars_first else args
    return decoder.finish(inputs, outputs)


def _stack(site: ir.StepSite) -> tuple[SourceLine, ...]:
    """Lines that lead to what a step calls."""
    return site.calls if site.line is None else (*site.calls, site.line)


def _used(steps: Sequence[ir.MachineStep | _Unit], outputs: Sequence[ir.Reg]) -> set[int]:
    """Registers that are read outside the step that sets them."""
    used = {r.number for r in outputs}
    for step in steps:
        if isinstance(step, ir.MachineStep):
            read, own = set(ir.registers(step)), ir.results(step)
        else:
            read = {r.number for item in step for r in item.inputs if isinstance(r, ir.Reg)}
            own = tuple(out for item in step for out in item.outputs)
        used |= read - {reg.number for reg in own}
    return used


def _without_unused(step: ir.MachineStep, used: set[int]) -> ir.MachineStep:
    """A write that returns the previous value only if that is read, although jax always does."""
    if not isinstance(step, ir.StoreStep | ir.AtomicStep) or step.output is None:
        return step
    return step if step.output.number in used else replace(step, output=None)


_OPENED = (conditionals.cond_p, loops.scan_p)

PLAIN_INSIDE: set[Any] = {conditionals.cond_p, loops.scan_p}
"""Primitives with a rule that are still plain if their operands and jaxprs are."""


def is_plain(eqn: Any, *, is_inner: bool = False) -> bool:
    """Return whether jax can evaluate an equation on its own: no refs, no effects, no endless loop.

    Args:
      is_inner: whether it is in a jaxpr of another equation, where XLA must support it.
    """
    if eqn.primitive in RULES and eqn.primitive not in PLAIN_INSIDE:
        return False
    if eqn.primitive.name not in primitives.TABLE:
        return False
    if is_inner and eqn.primitive in units.EVALUATED:
        return False
    if eqn.params.get("branches_platforms") is not None:
        return False  # XLA would choose the branch for the CPU
    if eqn.effects or any(map(_is_special, (*eqn.invars, *eqn.outvars))):
        return False
    return all(
        is_plain(inner, is_inner=True)
        for region in nested.within(eqn.params)
        for inner in region.jaxpr.eqns
    )


def _is_special(atom: Any) -> bool:
    """Return whether jax has no value of this type outside a kernel: a ref, or a key of the TPU."""
    return nested.is_ref(atom) or is_tpu_key(atom.aval)


def is_tpu_key(aval: Any) -> bool:
    implementation = getattr(getattr(aval, "dtype", None), "_impl", None)
    return "pallas" in getattr(implementation, "name", "")


_SPACES: dict[str, ir.Space] = {
    "any": "hbm",
    "hbm": "hbm",
    "host": "hbm",
    "smem": "smem",
    "vmem_shared": "shared",
    "semaphore_mem": "semaphore",
}


def ref_type(aval: Any) -> ir.RefType:
    """Type of the buffer behind a ref."""
    inner = getattr(aval, "inner_aval", aval)
    kind = None
    name = str(inner.dtype)
    if dtypes.issubdtype(inner.dtype, dtypes.extended) and "sem" in name:
        kind = "dma" if "dma" in name else "barrier" if "barrier" in name else "regular"
        return ir.RefType(tuple(inner.shape), np.dtype(np.int64), "semaphore", kind)
    space = getattr(aval, "memory_space", None)
    space = getattr(space, "memory_space", space)  # a buffer of a mesh of cores
    text = "vmem" if space is None else str(getattr(space, "value", space)).lower()
    dtype = ir.KEY if is_tpu_key(inner) else inner.dtype
    if dtypes.issubdtype(dtype, dtypes.extended):
        raise MachineError(f"the kernel machine has no refs of type {inner.dtype}")
    shape = tuple(int(n) for n in inner.shape)
    return ir.RefType(shape, np.dtype(dtype), _SPACES.get(text, "vmem"))
