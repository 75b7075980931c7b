"""Record of a broken kernel: its fault, a fixed version, and how jax and libtpu react to it."""

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import jax
import jax.numpy as jnp
import numpy as np

MARKER = "# FAULT"


class JaxEngine(StrEnum):
    """Step of jax or libtpu that may react to a fault, without pallas-debug."""

    TRACE = "trace"
    LOWER = "lower"
    """jax lowers the call for a TPU."""
    COMPILE = "compile"
    """libtpu compiles it."""
    HLO = "hlo"
    """HLO interpret mode."""
    TPU = "tpu"
    """TPU interpret mode, `pltpu.InterpretParams()`."""
    TPU_RACES = "tpu_races"
    """The same with `detect_races=True`, two cores and 1024 clocks (fewer miss races)."""


class Reaction(StrEnum):
    """Reaction of an engine to a kernel."""

    PASSES = "passes"
    """No message; values, if any, equal those of the reference."""
    WRONG = "wrong values"
    """No message, but wrong values."""
    NAN = "NaN"
    """No message, but NaN where the reference has none."""
    PRINTS = "prints"
    """A line on standard output and no error."""
    RAISES = "raises"
    ABORTS = "aborts"
    """The process dies."""
    HANGS = "hangs"
    NOT_APPLICABLE = "not applicable"
    """The engine cannot run such a kernel, or an earlier one refuses it."""


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Expected reaction to a kernel on some targets and versions.

    Attributes:
      message: part of what is raised or printed.
      targets: compile targets for which it holds; empty for all.
      since, before: range of versions, of libtpu for `JaxEngine.COMPILE`, otherwise of jax.
    """

    reaction: Reaction
    message: str = ""
    targets: tuple[str, ...] = ()
    since: str | None = None
    before: str | None = None

    def holds_for(self, target: str, version: str) -> bool:
        at = _numbers(version)
        return (
            (not self.targets or target in self.targets)
            and (self.since is None or at >= _numbers(self.since))
            and (self.before is None or at < _numbers(self.before))
        )


PASSES = Expectation(reaction=Reaction.PASSES)
WRONG = Expectation(reaction=Reaction.WRONG)
NAN = Expectation(reaction=Reaction.NAN)
HANGS = Expectation(reaction=Reaction.HANGS)
NOT_APPLICABLE = Expectation(reaction=Reaction.NOT_APPLICABLE)


def passes(*targets: str) -> Expectation:
    return Expectation(reaction=Reaction.PASSES, targets=targets)


def raises(
    message: str, *targets: str, since: str | None = None, before: str | None = None
) -> Expectation:
    return Expectation(
        reaction=Reaction.RAISES, message=message, targets=targets, since=since, before=before
    )


def prints(message: str, *, since: str | None = None, before: str | None = None) -> Expectation:
    return Expectation(reaction=Reaction.PRINTS, message=message, since=since, before=before)


def aborts(message: str, *, since: str | None = None, before: str | None = None) -> Expectation:
    return Expectation(reaction=Reaction.ABORTS, message=message, since=since, before=before)


OneOrMore = Expectation | tuple[Expectation, ...]
"""One for all versions and targets, or several: the first that applies counts, else `PASSES`."""


RACE = (prints("RACE DETECTED", before="0.12"), raises("RACE DETECTED", since="0.12"))
"""Reaction of jax's race detector."""


@dataclass(frozen=True, kw_only=True)
class Expectations:
    """Expected reaction of each engine; `tpu_races` defaults to `tpu`."""

    trace: OneOrMore = PASSES
    lower: OneOrMore = PASSES
    compile: OneOrMore = PASSES
    hlo: OneOrMore = PASSES
    tpu: OneOrMore = PASSES
    tpu_races: OneOrMore | None = None

    def of(self, engine: JaxEngine) -> tuple[Expectation, ...]:
        """Return all expectations for `engine`, for any version and target."""
        if engine is JaxEngine.TPU_RACES and self.tpu_races is None:
            return self.of(JaxEngine.TPU)
        found: OneOrMore = getattr(self, engine)
        return found if isinstance(found, tuple) else (found,)


@dataclass(frozen=True, kw_only=True)
class MachineFinding:
    """Finding that the kernel machine must report for a broken kernel, at the faulty line.

    Attributes:
      operand: name of the operand, semaphore or value.
      grid_point: grid point of the first sighting; None if the fault belongs to no grid point.
      loop: iterations of the loops around the line, outermost first.
      fault: kind of the fault, if it differs from `BrokenKernel.fault`.
      other: text in the line of the other side, for a fault with two sides: `acc_ref[...] = `.
      values: values of the witness, by name; the witness may have more.
    """

    operand: str | None
    grid_point: tuple[int, ...] | None
    loop: tuple[int, ...] = ()
    fault: str | None = None
    other: str | None = None
    values: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class BrokenKernel:
    """A kernel with one deliberate fault, and a fixed version.

    Attributes:
      fault: kind of the fault, as in findings: `OutOfBoundsRead`, ...
      summary: one sentence that says what is wrong.
      function: function that calls only this kernel. The faulty line ends in `# FAULT`: the
        operation that goes wrong, or the place at which something is missing.
      repaired: fixed version on the same arguments: equal to `reference`, and no engine reacts.
      reference: the same in plain jax.numpy.
      args: arguments of all three.
      values: fixed values of arguments, by position, such as page tables or data that overflows.
      expected: how each engine reacts to `function`.
      x64: whether to call it within `jax.enable_x64(True)`.
      machine: findings of the kernel machine in `function`; None if they are not recorded.
      machine_only: whether no other engine of pallas-debug finds the fault, except by comparison
        with `reference`.
      hint: kind of the hint that `verify` gives without a reference, if the fault is one of intent:
        a comparison with `reference` then reports `fault`, a `ValueMismatch`.
    """

    fault: str
    summary: str
    function: Callable[..., jax.Array]
    repaired: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    args: tuple[jax.ShapeDtypeStruct, ...]
    expected: Expectations
    values: Mapping[int, object] = field(default_factory=dict, hash=False)
    x64: bool = False
    machine: MachineFinding | None = None
    machine_only: bool = False
    hint: str | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def file(self) -> str:
        """Path of the file that contains the faulty line."""
        return inspect.getsourcefile(self.function) or ""

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
    def targets(self) -> tuple[str, ...]:
        """Targets with a separate expectation, after v5e."""
        named = {
            target
            for engine in (JaxEngine.LOWER, JaxEngine.COMPILE)
            for expectation in self.expected.of(engine)
            for target in expectation.targets
        }
        return ("v5e", *sorted(named - {"v5e"}))

    def expectation(
        self,
        engine: JaxEngine,
        *,
        target: str = "v5e",
        jax_version: str | None = None,
        libtpu_version: str | None = None,
    ) -> Expectation:
        """Return the reaction of `engine` with these versions, by default the installed ones."""
        at_jax = jax_version or jax.__version__
        steps = (JaxEngine.TRACE, JaxEngine.LOWER)
        for earlier in steps if engine is JaxEngine.COMPILE else steps[:1]:
            reaction = self._expectation(earlier, target, at_jax).reaction
            if engine is not earlier and reaction is not Reaction.PASSES:
                return NOT_APPLICABLE
        if engine is not JaxEngine.COMPILE:
            return self._expectation(engine, target, at_jax)
        at_libtpu = libtpu_version or importlib.metadata.version("libtpu")
        return self._expectation(engine, target, at_libtpu)

    def _expectation(self, engine: JaxEngine, target: str, version: str) -> Expectation:
        return next((e for e in self.expected.of(engine) if e.holds_for(target, version)), PASSES)

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
