"""Scratch whose contents reach nothing: forward dataflow, nothing runs.

Each scratch buffer is followed to the operands that may hold values computed from it. What decides
about an access, a branch or a loop, or is given to an operation with another effect, counts as
used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pallas_debug.bridge.jaxprs import nested
from pallas_debug.bridge.jaxprs.params import jaxprs_of
from pallas_debug.bridge.walk.dataflow.dependence import (
    MAX_ROUNDS,
    Dependence,
    FlowValue,
    KernelMemory,
    KernelWalk,
    Names,
    ProgramPlace,
    names_of,
)


def unread_scratch(captured: Any) -> frozenset[int]:
    """Positions of the scratch buffers, among a kernel's refs, whose contents reach nothing."""
    operands = captured.kernel.operands
    jaxprs = jaxprs_of(captured.params)
    if len(jaxprs) != 1 or "grid_mapping" not in captured.params:
        return frozenset()  # the cores of a mesh may read each other's
    inner, _ = nested.opened(jaxprs[0])
    if len(inner.invars) != len(operands):
        return frozenset()
    scratch = {i for i, operand in enumerate(operands) if operand.kind == "scratch"}
    memories = [KernelMemory(frozenset({str(i)})) for i in range(len(operands))]
    walk = _Uses()
    for _ in range(MAX_ROUNDS):
        before = [memory.names for memory in memories]
        walk.run(inner, memories, ProgramPlace())
        if [memory.names for memory in memories] == before:
            break
    used = walk.used.union(*(m.names for i, m in enumerate(memories) if i not in scratch))
    return frozenset(i for i in scratch if str(i) not in used)


class _Uses(KernelWalk):
    """Walk of a kernel.

    Attributes:
      used: refs whose contents are used other than in values that go to refs.
    """

    def __init__(self) -> None:
        super().__init__(Dependence())
        self.used: Names = frozenset()

    def decides(self, eqn: Any, names: Names, place: ProgramPlace) -> None:
        self.used |= names

    def other(self, eqn: Any, inputs: list[FlowValue], place: ProgramPlace) -> Sequence[FlowValue]:
        has_ref = any(isinstance(value, KernelMemory) for value in inputs)
        if not has_ref and (eqn.effects or not eqn.outvars):
            self.used |= names_of(inputs)
        return super().other(eqn, inputs, place)

    def add(self, eqn: Any, place: ProgramPlace, *, values: Names, accesses: Names) -> None:
        self.used |= accesses
