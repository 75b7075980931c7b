"""Record of a broken kernel: its fault, a fixed version, and how jax or libtpu refuses it."""

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

MARKER = "# FAULT"


Stage = Literal["trace", "lowering", "compile"]
"""Step of jax or libtpu that refuses a kernel."""


@dataclass(frozen=True)
class Refusal:
    """Refusal of a kernel by jax or libtpu.

    Attributes:
      message: part of the exception's message.
      targets: targets for which it holds; empty for all.
      since, before: range of versions of libtpu.
      aborts: whether the compiler's process dies.
    """

    stage: Stage
    message: str
    targets: tuple[str, ...] = ()
    since: str | None = None
    before: str | None = None
    aborts: bool = False

    def holds_for(self, target: str, version: str) -> bool:
        at = _numbers(version)
        return (
            (not self.targets or target in self.targets)
            and (self.since is None or at >= _numbers(self.since))
            and (self.before is None or at < _numbers(self.before))
        )


@dataclass(frozen=True, kw_only=True)
class BrokenKernel:
    """A kernel with one deliberate fault, and a fixed version.

    Attributes:
      fault: kind of the fault, as in findings: `OutOfBoundsRead`, ...
      summary: one sentence that says what is wrong.
      function: function that calls only this kernel. The faulty line ends in `# FAULT`: the
        operation that goes wrong, or the place at which something is missing.
      repaired: fixed version on the same arguments, equal to `reference`.
      reference: the same in plain jax.numpy.
      args: arguments of all three.
      values: fixed values of arguments, by position, such as page tables or data that overflows.
      refused: how jax or libtpu refuses `function`; the first that holds counts.
      targets: targets to compile for.
      x64: whether to call it within `jax.enable_x64(True)`.
      hint: kind of the hint that `verify` gives without a reference, if the fault is one of intent:
        a comparison with `reference` then reports `fault`, a `ValueMismatch`.
    """

    fault: str
    summary: str
    function: Callable[..., jax.Array]
    repaired: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    args: tuple[jax.ShapeDtypeStruct, ...]
    refused: tuple[Refusal, ...] = ()
    targets: tuple[str, ...] = ("v5e",)
    values: Mapping[int, object] = field(default_factory=dict, hash=False)
    x64: bool = False
    hint: str | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        """Path of the file that contains the faulty line."""
        return inspect.getsourcefile(inspect.unwrap(self.function)) or ""

    @property
    def line(self) -> int:
        """Line number of the faulty line, the one with the marker."""
        lines, start = inspect.getsourcelines(self.function)
        (line,) = [n for n, text in enumerate(lines, start) if text.rstrip().endswith(MARKER)]
        return line

    @property
    def topic(self) -> str:
        """Name of its module: `bounds`, `dma`, ..."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def is_traced(self) -> bool:
        """Return whether jax traces it: it refuses some before there is a kernel."""
        return all(refusal.stage != "trace" for refusal in self.refused)

    def refusal(self, target: str = "v5e", libtpu_version: str | None = None) -> Refusal | None:
        """Return the refusal for a target, by default of the installed libtpu."""
        at = libtpu_version or importlib.metadata.version("libtpu")
        return next((refusal for refusal in self.refused if refusal.holds_for(target, at)), None)

    def make_args(self, seed: int = 0) -> tuple[jax.Array, ...]:
        """Return arrays for `args`: standard normal, int8-range integers, or the fixed `values`."""
        rng = np.random.default_rng(seed)
        return tuple(
            _random(rng, arg) if i not in self.values else _fixed(self.values[i], arg)
            for i, arg in enumerate(self.args)
        )


def find(kernels: Iterable[BrokenKernel], name: str) -> BrokenKernel:
    """Return the kernel called `name`; a ValueError lists the known ones."""
    by_name = {kernel.name: kernel for kernel in kernels}
    if name not in by_name:
        raise ValueError(
            f"There is no broken kernel {name!r}. The broken kernels are: {', '.join(by_name)}."
        )
    return by_name[name]


def _random(rng: np.random.Generator, arg: jax.ShapeDtypeStruct) -> jax.Array:
    if jnp.issubdtype(arg.dtype, jnp.floating):
        values = rng.standard_normal(arg.shape, np.float32)
    else:
        low = 0 if jnp.issubdtype(arg.dtype, jnp.unsignedinteger) else -128
        values = rng.integers(low, 128, arg.shape)
    array: jax.Array = jnp.asarray(values.astype(arg.dtype))
    return array


def _fixed(values: object, arg: jax.ShapeDtypeStruct) -> jax.Array:
    array: jax.Array = jnp.asarray(np.broadcast_to(np.asarray(values, arg.dtype), arg.shape))
    return array


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])
