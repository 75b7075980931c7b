"""Normal forms of equations: the only place where parameters of primitives are taken apart.

`primitives.form` gives the form of an equation; the rows of its table name the functions below. A
form holds values in place of the equation's operands: its atoms, or whatever a walk knows of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from pallas_debug.bridge import jaxcompat
from pallas_debug.bridge.jaxcompat import indexing, jax_core, state_types


class Region(NamedTuple):
    """A jaxpr within an equation, and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


class At(NamedTuple):
    """A ref, or the part of it that a chain of transforms selects.

    Attributes:
      ref: the ref itself; a `TransformedRef` of several refs, of which one is selected.
      transforms: in the order in which they apply.
    """

    ref: Any
    transforms: tuple[Any, ...] = ()

    @property
    def indexers(self) -> list[Any]:
        return [t for t in self.transforms if isinstance(t, indexing.NDIndexer)]

    def starts(self) -> Iterator[tuple[int, Any]]:
        """Yield each indexed dimension with its first position."""
        for indexer in self.indexers:
            for dim, index in enumerate(indexer.indices):
                yield dim, index.start if isinstance(index, indexing.Slice) else index


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """A load from a ref, or a store to it.

    Attributes:
      value: what is stored; None for a load.
      adds: whether the value is added to what is there.
      mask: selects the elements; None for all.
      other: value of the elements that a load leaves out.
    """

    at: At
    value: Any = None
    adds: bool = False
    mask: Any = None
    other: Any = None

    @property
    def is_load(self) -> bool:
        return self.value is None

    @property
    def places(self) -> tuple[At, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Atomic:
    """An indivisible update of a ref's elements.

    Attributes:
      kind: jax's name of the update; `cas` compares with the first value, and stores the second.
    """

    at: At
    kind: str
    values: tuple[Any, ...]
    mask: Any = None

    @property
    def places(self) -> tuple[At, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The start of a DMA, or a wait for one.

    Attributes:
      received, sent: semaphores for the bytes at the destination, and at the source.
      device: device of the destination, in jax's terms; None for the same one.
      device_type: what `device` numbers.
      is_wait: whether it waits for the copy.
    """

    source: At
    destination: At
    received: At
    sent: At | None
    device: Any
    device_type: Any
    adds: bool
    is_wait: bool

    @property
    def places(self) -> tuple[At, ...]:
        sent = () if self.sent is None else (self.sent,)
        return (self.source, self.destination, self.received, *sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Add to a semaphore, of this device and core or of another."""

    at: At
    amount: Any
    device: Any
    device_type: Any
    core: Any

    @property
    def places(self) -> tuple[At, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Wait for a semaphore to reach an amount, and subtract it if `decrements`.

    Without an amount, the semaphore is only read.
    """

    at: At
    amount: Any = None
    decrements: Any = False

    @property
    def places(self) -> tuple[At, ...]:
        return (self.at,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A jaxpr that takes the operands and gives the results."""

    body: Region
    inputs: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One of several jaxprs, by the value of `index`, clamped to their number."""

    index: Any
    branches: tuple[Region, ...]
    inputs: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """A `scan`, or a `while` loop. Its jaxprs take their constants, then the carried values.

    Attributes:
      stacked: of a scan; its body takes one element of each, and returns those to stack.
      length: number of iterations of a scan; None for a `while` loop.
      condition: of a `while` loop.
    """

    body: Region
    constants: Sequence[Any]
    carry: Sequence[Any]
    stacked: Sequence[Any] = ()
    length: int | None = None
    reverse: bool = False
    condition: Region | None = None
    condition_constants: Sequence[Any] = ()

    @property
    def carried(self) -> Sequence[Any]:
        """Variables of the carried values in the body."""
        first = len(self.constants)
        variables: Sequence[Any] = self.body.jaxpr.invars[first : first + len(self.carry)]
        return variables

    def steps(self) -> list[int | None]:
        """By how much an iteration changes each carried value: a known integer, or None."""
        jaxpr = self.body.jaxpr
        made = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        return [
            0 if out is variable else _added(variable, out, made)
            for variable, out in zip(self.carried, jaxpr.outvars, strict=False)
        ]

    @property
    def is_counted(self) -> bool:
        """True for a `while` loop that counts up by one to a bound that it does not change."""
        condition = self.condition.jaxpr if self.condition is not None else None
        if condition is None or [eqn.primitive.name for eqn in condition.eqns] != ["lt"]:
            return False
        (test,) = condition.eqns
        counter, bound = test.invars
        carried = list(condition.invars[len(self.condition_constants) :])
        steps = dict(zip(carried, self.steps(), strict=True))
        is_fixed = isinstance(bound, jax_core.Literal) or steps.get(bound, 0) == 0
        is_counter = not isinstance(counter, jax_core.Literal) and steps.get(counter) == 1
        return condition.outvars == test.outvars and is_counter and is_fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A jaxpr that takes buffers, which last as long as it, and closes over the operands.

    Attributes:
      collective: axes of the cores that share the buffers.
    """

    body: Region
    inputs: Sequence[Any]
    collective: tuple[str, ...]


Control = Call | Branch | Loop | Scope
Form = Access | Atomic | Copy | Signal | Wait | Control


def at(ref: Any, transforms: Any = ()) -> At:
    """Return a ref with all of its transforms, those of a `TransformedRef` first."""
    chain = tuple(transforms or ())
    while isinstance(ref, state_types.TransformedRef) and not isinstance(ref.ref, (tuple, list)):
        chain = (*ref.transforms, *chain)
        ref = ref.ref
    return At(ref, chain)


def _added(variable: Any, out: Any, made: Mapping[Any, Any]) -> int | None:
    """The literal integer in `out = variable + 1`; None for another result."""
    eqn = None if isinstance(out, jax_core.Literal) else made.get(out)
    if eqn is None or eqn.primitive.name != "add" or variable not in eqn.invars:
        return None
    steps = [np.asarray(a.val) for a in eqn.invars if isinstance(a, jax_core.Literal)]
    return int(steps[0]) if steps and steps[0].dtype.kind in "iu" else None


def get(eqn: Any, inputs: Sequence[Any]) -> Access:
    return Access(at=at(inputs[0], jax.tree.unflatten(eqn.params["tree"], inputs[1:])))


def swap(eqn: Any, inputs: Sequence[Any]) -> Access:
    """Unpack a store of a TensorCore, or of a SparseCore, which may have a mask."""
    ref, value, *rest = inputs
    mask = rest.pop() if eqn.params.get("has_mask") else None
    place = at(ref, jax.tree.unflatten(eqn.params["tree"], rest))
    return Access(at=place, value=value, mask=mask, adds=bool(eqn.params.get("add")))


def addupdate(eqn: Any, inputs: Sequence[Any]) -> Access:
    ref, value, *rest = inputs
    place = at(ref, jax.tree.unflatten(eqn.params["tree"], rest))
    return Access(at=place, value=value, adds=True)


def subcore_load(eqn: Any, inputs: Sequence[Any]) -> Access:
    ref, *rest = inputs
    mask = rest.pop() if eqn.params["has_mask"] else None
    return Access(at=at(ref, jax.tree.unflatten(eqn.params["tree"], rest)), mask=mask)


def masked_load(eqn: Any, inputs: Sequence[Any]) -> Access:
    ref, transforms, mask, other = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return Access(at=at(ref, transforms), mask=mask, other=other)


def masked_swap(eqn: Any, inputs: Sequence[Any]) -> Access:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return Access(at=at(ref, transforms), value=value, mask=mask)


def atomic_rmw(eqn: Any, inputs: Sequence[Any]) -> Atomic:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    kind = str(eqn.params["atomic_type"].value)
    return Atomic(at=at(ref, transforms), kind=kind, values=(value,), mask=mask)


def atomic_cas(_: Any, inputs: Sequence[Any]) -> Atomic:
    ref, expected, value = inputs
    return Atomic(at=at(ref), kind="cas", values=(expected, value))


def dma(eqn: Any, inputs: Sequence[Any]) -> Copy:
    tree = jax.tree.unflatten(eqn.params["tree"], inputs)
    source, destination, received, sent, device = tree
    return Copy(
        source=at(source),
        destination=at(destination),
        received=at(received),
        sent=None if sent is None else at(sent),
        device=device,
        device_type=eqn.params.get("device_id_type"),
        adds=bool(eqn.params.get("add")),
        is_wait=eqn.primitive.name == "dma_wait",
    )


def semaphore_signal(eqn: Any, inputs: Sequence[Any]) -> Signal:
    ref, transforms, amount, device, core = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return Signal(
        at=at(ref, transforms),
        amount=amount,
        device=device,
        device_type=eqn.params["device_id_type"],
        core=core,
    )


def semaphore_wait(eqn: Any, inputs: Sequence[Any]) -> Wait:
    ref, transforms, amount, decrements = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return Wait(at=at(ref, transforms), amount=amount, decrements=decrements)


def semaphore_read(eqn: Any, inputs: Sequence[Any]) -> Wait:
    ref, transforms = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return Wait(at=at(ref, transforms))


def call(eqn: Any, inputs: Sequence[Any]) -> Call:
    return Call(body=Region(*jaxcompat.opened(eqn.params["jaxpr"])), inputs=inputs)


def custom_call(eqn: Any, inputs: Sequence[Any]) -> Call:
    return Call(body=Region(*jaxcompat.opened(eqn.params["call_jaxpr"])), inputs=inputs)


def cond(eqn: Any, inputs: Sequence[Any]) -> Branch:
    index, *operands = inputs
    branches = tuple(Region(*jaxcompat.opened(branch)) for branch in eqn.params["branches"])
    return Branch(index=index, branches=branches, inputs=operands)


def scan(eqn: Any, inputs: Sequence[Any]) -> Loop:
    constants, carry = jaxcompat.scan_sizes(eqn.params)
    every = list(inputs)
    return Loop(
        body=Region(*jaxcompat.opened(eqn.params["jaxpr"])),
        constants=every[:constants],
        carry=every[constants : constants + carry],
        stacked=every[constants + carry :],
        length=int(eqn.params["length"]),
        reverse=bool(eqn.params["reverse"]),
    )


def while_loop(eqn: Any, inputs: Sequence[Any]) -> Loop:
    first, constants = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    every = list(inputs)
    return Loop(
        body=Region(*jaxcompat.opened(eqn.params["body_jaxpr"])),
        constants=every[first : first + constants],
        carry=every[first + constants :],
        condition=Region(*jaxcompat.opened(eqn.params["cond_jaxpr"])),
        condition_constants=every[:first],
    )


def run_scoped(eqn: Any, inputs: Sequence[Any]) -> Scope:
    axes = eqn.params.get("collective_axes") or ()
    return Scope(
        body=Region(*jaxcompat.opened(eqn.params["jaxpr"])),
        inputs=inputs,
        collective=tuple(map(str, axes)),
    )
