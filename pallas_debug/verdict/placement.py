"""Where XLA puts the operands of kernels that declare them in HBM.

The kernel alone does not tell: only when the whole function is compiled does XLA choose a memory
for what it computes itself, and a custom call does not constrain that choice (jax#39744).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from pallas_debug import guards
from pallas_debug.bridge import versions
from pallas_debug.bridge.lowering import raised, trace
from pallas_debug.compiler.protocol import Reply
from pallas_debug.errors import PallasDebugError
from pallas_debug.explain import known
from pallas_debug.findings.faults import Fault
from pallas_debug.findings.hints import HintKind
from pallas_debug.findings.sighting import Sighting
from pallas_debug.ir.hlo import PlacedCall
from pallas_debug.model import Finding, Hint, Kernel, Operand, Target, Witness
from pallas_debug.session import Session
from pallas_debug.verdict.engines import Call, Seen, Traced

_HBM = "hbm"

_MEMORY = {1: "VMEM", 3: "CMEM"}
"""XLA's numbers of memory spaces, as seen in programs for v5e and v4."""

_REMEDIES = {
    "input": "pass pltpu.with_memory_space_constraint(x, pltpu.HBM) for {name}",
    "output": "declare {name} as pltpu.HBM(shape, dtype) in out_shape",
}


@dataclass
class Placements:
    """Compilations of the whole function, for the targets on which a kernel declares HBM."""

    _compiled: dict[str, Future[object] | str] = field(default_factory=dict)

    def request(self, call: Call, session: Session, found: Traced) -> None:
        """Start compiling the function, while its kernels are judged."""
        for target in session.targets:
            if target.platform != "tpu":
                continue
            captures = [c for d, c in found.captures.items() if target in found.targets[d]]
            if any(map(_declared, (c.kernel for c in captures))):
                meshes = any(c.mesh is not None for c in captures)
                self._compiled[target.name] = (
                    "the function is partitioned" if meshes else _compile(call, session, target)
                )

    def judged(self, seen: Seen, kernel: Kernel, target: str) -> Seen:
        """Add what is wrong with the operands of a kernel to the results of its compilation."""
        (outcome,) = seen.outcomes
        compiled = self._compiled.get(target)
        if outcome.status != "ok" or compiled is None or not _declared(kernel):
            return seen
        reply = compiled if isinstance(compiled, str) else compiled.result()
        calls = _calls_of(kernel, reply) if isinstance(reply, Reply) else ()
        if not calls:
            why = _why_not(reply)
            left_out = f"the memory in which XLA puts the operands in HBM: {why}"
            return replace(seen, outcomes=(outcome.without(left_out),))
        misplaced = dict.fromkeys(found for call in calls for found in _misplaced(kernel, call))
        if not known.MISPLACED.is_in(versions.installed()):
            return replace(seen, hints=tuple(_hint(kernel, target, *one) for one in misplaced))
        findings = tuple(_finding(kernel, target, *one) for one in misplaced)
        status = "found" if findings else outcome.status
        return replace(seen, outcomes=(replace(outcome, status=status),), findings=findings)


def _compile(call: Call, session: Session, target: Target) -> Future[object] | str:
    failed: list[PallasDebugError] = []
    doing = f"lowering {target.name}'s whole program"
    with guards.guarded("lower", doing, failed.append), session.collecting():
        try:
            module = trace.lower_labelled(call.function, call.args, call.kwargs, target)
        except Exception as error:  # noqa: BLE001 - of the user's code, or raised by jax for it
            return f"the function around the kernel was not lowered ({raised.in_a_line(error)})"
        return session.queue.compile_whole(module, target)
    return str(failed[0])


def _declared(kernel: Kernel) -> bool:
    return any(o.memory_space == _HBM for o in (*_passed(kernel), *kernel.of_kind("output")))


def _passed(kernel: Kernel) -> tuple[Operand, ...]:
    """Operands of the kernel's call, in order."""
    return tuple(
        operand
        for kind in ("dynamic_grid", "scalar_prefetch", "input")
        for operand in kernel.of_kind(kind)
    )


def _calls_of(kernel: Kernel, reply: Reply) -> list[PlacedCall]:
    """Calls of a kernel with the operands that it declares, as XLA may fuse others into them."""
    sizes = len(_passed(kernel)), len(kernel.of_kind("output"))
    return [
        call
        for call in reply.calls
        if call.label == kernel.digest and (len(call.operands), len(call.results)) == sizes
    ]


def _why_not(reply: object) -> str:
    if isinstance(reply, str):
        return reply
    if isinstance(reply, Reply) and reply.error is None:
        return "the compiled function has no call of it with these operands"
    error = reply.error if isinstance(reply, Reply) else None
    what = (error or "the compiler's process died").splitlines()[0]
    return f"the function around the kernel does not compile ({what})"


def _misplaced(kernel: Kernel, call: PlacedCall) -> Iterator[tuple[Operand, str]]:
    operands = (*_passed(kernel), *kernel.of_kind("output"))
    for operand, space in zip(operands, (*call.operands, *call.results), strict=True):
        if operand.memory_space == _HBM and space:
            yield operand, _MEMORY.get(space, f"memory space {space}")


def _finding(kernel: Kernel, target: str, operand: Operand, place: str) -> Finding:
    at = Witness(operand=operand.name, source=operand.block_source or kernel.source)
    seen = Sighting(kernel=kernel.name, engine="compile", witness=at, targets=(target,))
    where = f"{place} on {target}"
    found = seen.of(Fault.MISPLACED_OPERAND, place=where, remedy=_remedy(operand))
    return replace(found, digest=kernel.digest)


def _hint(kernel: Kernel, target: str, operand: Operand, place: str) -> Hint:
    return Hint(
        kind=HintKind.PLACEMENT,
        kernel=kernel.name,
        digest=kernel.digest,
        message=f"{operand.name} is declared in HBM, but XLA puts it in {place} on {target}: "
        f"{_remedy(operand)}",
        source=operand.block_source or kernel.source,
        operand=operand.name,
    )


def _remedy(operand: Operand) -> str:
    return _REMEDIES["output" if operand.kind == "output" else "input"].format(name=operand.name)
