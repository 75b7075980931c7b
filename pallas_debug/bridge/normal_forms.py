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


class InnerJaxpr(NamedTuple):
    """A jaxpr within an equation, and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


class RefChain(NamedTuple):
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
class _OnePlace:
    """An operation on one ref."""

    place: RefChain

    @property
    def places(self) -> tuple[RefChain, ...]:
        return (self.place,)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessForm(_OnePlace):
    """A load from a ref, or a store to it.

    Attributes:
      value: what is stored; None for a load.
      adds: whether the value is added to what is there.
      mask: selects the elements; None for all.
      other: value of the elements that a load leaves out.
    """

    value: Any = None
    adds: bool = False
    mask: Any = None
    other: Any = None

    @property
    def is_load(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicForm(_OnePlace):
    """An indivisible update of a ref's elements.

    Attributes:
      kind: jax's name of the update; `cas` compares with the first value, and stores the second.
    """

    kind: str
    values: tuple[Any, ...]
    mask: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyForm:
    """The start of a DMA, or a wait for one.

    Attributes:
      received, sent: semaphores for the bytes at the destination, and at the source.
      device: device of the destination, in jax's terms; None for the same one.
      device_type: what `device` numbers.
      is_wait: whether it waits for the copy.
    """

    source: RefChain
    destination: RefChain
    received: RefChain
    sent: RefChain | None
    device: Any
    device_type: Any
    adds: bool
    is_wait: bool

    @property
    def places(self) -> tuple[RefChain, ...]:
        sent = () if self.sent is None else (self.sent,)
        return (self.source, self.destination, self.received, *sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalForm(_OnePlace):
    """Add to a semaphore, of this device and core or of another."""

    amount: Any
    device: Any
    device_type: Any
    core: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitForm(_OnePlace):
    """Wait for a semaphore to reach an amount, and subtract it if `decrements`.

    Without an amount, the semaphore is only read.
    """

    amount: Any = None
    decrements: Any = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """A jaxpr that takes the operands and gives the results."""

    body: InnerJaxpr
    inputs: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchForm:
    """One of several jaxprs, by the value of `index`, clamped to their number."""

    index: Any
    branches: tuple[InnerJaxpr, ...]
    inputs: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopForm:
    """A `scan`, or a `while` loop. Its jaxprs take their constants, then the carried values.

    Attributes:
      stacked: of a scan; its body takes one element of each, and returns those to stack.
      length: number of iterations of a scan; None for a `while` loop.
      condition: of a `while` loop.
    """

    body: InnerJaxpr
    constants: Sequence[Any]
    carry: Sequence[Any]
    stacked: Sequence[Any] = ()
    length: int | None = None
    reverse: bool = False
    condition: InnerJaxpr | None = None
    condition_constants: Sequence[Any] = ()

    @property
    def carried(self) -> Sequence[Any]:
        """Variables of the carried values in the body."""
        first = len(self.constants)
        variables: Sequence[Any] = self.body.jaxpr.invars[first : first + len(self.carry)]
        return variables

    def steps(self) -> list[int | None]:
        """Return what each iteration adds to each carried value; None if that is no constant."""
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
class ScopeForm:
    """A jaxpr that takes buffers, which last as long as it, and closes over the operands.

    Attributes:
      collective: axes of the cores that share the buffers.
    """

    body: InnerJaxpr
    inputs: Sequence[Any]
    collective: tuple[str, ...]


Control = CallForm | BranchForm | LoopForm | ScopeForm
Form = AccessForm | AtomicForm | CopyForm | SignalForm | WaitForm | Control


def at(ref: Any, transforms: Any = ()) -> RefChain:
    """Return a ref with all of its transforms, those of a `TransformedRef` first."""
    chain = tuple(transforms or ())
    while isinstance(ref, state_types.TransformedRef) and not isinstance(ref.ref, (tuple, list)):
        chain = (*ref.transforms, *chain)
        ref = ref.ref
    return RefChain(ref, chain)


def _added(variable: Any, out: Any, made: Mapping[Any, Any]) -> int | None:
    """The literal integer in `out = variable + 1`; None for another result."""
    eqn = None if isinstance(out, jax_core.Literal) else made.get(out)
    if eqn is None or eqn.primitive.name != "add" or variable not in eqn.invars:
        return None
    steps = [np.asarray(a.val) for a in eqn.invars if isinstance(a, jax_core.Literal)]
    return int(steps[0]) if steps and steps[0].dtype.kind in "iu" else None


def load(eqn: Any, inputs: Sequence[Any]) -> AccessForm:
    """Unpack a load of a TensorCore, or of a SparseCore, which may have a mask."""
    ref, *rest = inputs
    mask = rest.pop() if eqn.params.get("has_mask") else None
    return AccessForm(place=at(ref, jax.tree.unflatten(eqn.params["tree"], rest)), mask=mask)


def store(eqn: Any, inputs: Sequence[Any]) -> AccessForm:
    """Unpack a store of a TensorCore, or of a SparseCore, which may have a mask."""
    ref, value, *rest = inputs
    mask = rest.pop() if eqn.params.get("has_mask") else None
    place = at(ref, jax.tree.unflatten(eqn.params["tree"], rest))
    adds = eqn.primitive.name == "addupdate" or bool(eqn.params.get("add"))
    return AccessForm(place=place, value=value, mask=mask, adds=adds)


def masked_load(eqn: Any, inputs: Sequence[Any]) -> AccessForm:
    ref, transforms, mask, other = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return AccessForm(place=at(ref, transforms), mask=mask, other=other)


def masked_swap(eqn: Any, inputs: Sequence[Any]) -> AccessForm:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return AccessForm(place=at(ref, transforms), value=value, mask=mask)


def atomic_rmw(eqn: Any, inputs: Sequence[Any]) -> AtomicForm:
    ref, transforms, value, mask = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    kind = str(eqn.params["atomic_type"].value)
    return AtomicForm(place=at(ref, transforms), kind=kind, values=(value,), mask=mask)


def atomic_cas(_: Any, inputs: Sequence[Any]) -> AtomicForm:
    ref, expected, value = inputs
    return AtomicForm(place=at(ref), kind="cas", values=(expected, value))


def dma(eqn: Any, inputs: Sequence[Any]) -> CopyForm:
    tree = jax.tree.unflatten(eqn.params["tree"], inputs)
    source, destination, received, sent, device = tree
    return CopyForm(
        source=at(source),
        destination=at(destination),
        received=at(received),
        sent=None if sent is None else at(sent),
        device=device,
        device_type=eqn.params.get("device_id_type"),
        adds=bool(eqn.params.get("add")),
        is_wait=eqn.primitive.name == "dma_wait",
    )


def semaphore_signal(eqn: Any, inputs: Sequence[Any]) -> SignalForm:
    ref, transforms, amount, device, core = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return SignalForm(
        place=at(ref, transforms),
        amount=amount,
        device=device,
        device_type=eqn.params["device_id_type"],
        core=core,
    )


def semaphore_wait(eqn: Any, inputs: Sequence[Any]) -> WaitForm:
    ref, transforms, amount, decrements = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return WaitForm(place=at(ref, transforms), amount=amount, decrements=decrements)


def semaphore_read(eqn: Any, inputs: Sequence[Any]) -> WaitForm:
    ref, transforms = jax.tree.unflatten(eqn.params["args_tree"], inputs)
    return WaitForm(place=at(ref, transforms))


def call(eqn: Any, inputs: Sequence[Any]) -> CallForm:
    return CallForm(body=InnerJaxpr(*jaxcompat.opened(eqn.params["jaxpr"])), inputs=inputs)


def custom_call(eqn: Any, inputs: Sequence[Any]) -> CallForm:
    return CallForm(body=InnerJaxpr(*jaxcompat.opened(eqn.params["call_jaxpr"])), inputs=inputs)


def cond(eqn: Any, inputs: Sequence[Any]) -> BranchForm:
    index, *operands = inputs
    branches = tuple(InnerJaxpr(*jaxcompat.opened(branch)) for branch in eqn.params["branches"])
    return BranchForm(index=index, branches=branches, inputs=operands)


def scan(eqn: Any, inputs: Sequence[Any]) -> LoopForm:
    constants, carry = jaxcompat.scan_sizes(eqn.params)
    every = list(inputs)
    return LoopForm(
        body=InnerJaxpr(*jaxcompat.opened(eqn.params["jaxpr"])),
        constants=every[:constants],
        carry=every[constants : constants + carry],
        stacked=every[constants + carry :],
        length=int(eqn.params["length"]),
        reverse=bool(eqn.params["reverse"]),
    )


def while_loop(eqn: Any, inputs: Sequence[Any]) -> LoopForm:
    first, constants = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    every = list(inputs)
    return LoopForm(
        body=InnerJaxpr(*jaxcompat.opened(eqn.params["body_jaxpr"])),
        constants=every[first : first + constants],
        carry=every[first + constants :],
        condition=InnerJaxpr(*jaxcompat.opened(eqn.params["cond_jaxpr"])),
        condition_constants=every[:first],
    )


def run_scoped(eqn: Any, inputs: Sequence[Any]) -> ScopeForm:
    axes = eqn.params.get("collective_axes") or ()
    return ScopeForm(
        body=InnerJaxpr(*jaxcompat.opened(eqn.params["jaxpr"])),
        inputs=inputs,
        collective=tuple(map(str, axes)),
    )
