"""Table of all patches to jax: one row each, with the target, replacement, reason and versions.

Nothing else in pallas-debug modifies jax. `installed` and `install` apply the rows of an area;
`require` checks that each row's target exists; `pallas-debug doctor` lists them.

Not patches: settings of `jax.config`, our own contexts in jax's cache keys
(`jax.make_user_context`), and the state of the interpret mode, which has a setter for all threads
(`config…set_global`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pallas_debug.bridge import versions
from pallas_debug.errors import IncompatibleJaxError

ABSENT: Any = object()
"""Marks a missing value, both as an original and as a replacement."""


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replacement in jax.

    Attributes:
      area: purpose; the patches of an area are installed together.
      owner: `module` or `module:attribute` of the object to modify.
      name: name of the attribute, or the key.
      is_key: whether `name` is a key, or the path of one.
      replacement: `module:function`, called with the original and `args`; returns the value to
        install.
      why: the reason, in a clause.
      parameters: parameters of the original that the replacement relies on.
      is_optional: whether the original may be missing.
      is_lazy: whether the owner is imported only for users of the area, not to test the row.
      first: first jax that needs it.
      last: last series of jax that it was verified with; a row with an older one ends there.
    """

    area: str
    owner: str
    name: str
    replacement: str
    why: str
    is_key: bool = False
    args: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    is_optional: bool = False
    is_lazy: bool = False
    first: str = versions.OLDEST
    last: str = versions.NEWEST

    def __str__(self) -> str:
        owner = re.split(r"[.:]", self.owner)[-1]
        if self.is_key:
            _, is_path, path = self.name.partition(":")
            key = path if is_path else repr(self.name)
            module = self.owner.partition(":")[0].rpartition(".")[2]
            return f"{module}.{owner}[{key}]"
        return f"{owner}.{self.name}"

    @property
    def is_needed(self) -> bool:
        """True if the installed jax needs this patch."""
        is_open = self.last == versions.NEWEST
        return versions.is_within(self.first, "" if is_open else self.last)

    def problem(self) -> str | None:
        """Return how the installed jax does not fit this row, or None."""
        if self.is_lazy and self.owner.partition(":")[0] not in sys.modules:
            return None
        now = self.now()
        if now is ABSENT:
            return None if self.is_optional else f"{self} is not where it was"
        if not self.parameters:
            return None
        missing = set(self.parameters) - set(inspect.signature(now).parameters)
        return f"{self} has no parameter {', '.join(sorted(missing))}" if missing else None

    def now(self) -> Any:
        """Current value, inherited or not."""
        owner = resolve(self.owner)
        return owner.get(self._key, ABSENT) if self.is_key else getattr(owner, self.name, ABSENT)

    def own(self) -> Any:
        """Current value; ABSENT for an inherited attribute."""
        return self.now() if self.is_key else vars(resolve(self.owner)).get(self.name, ABSENT)

    @property
    def _key(self) -> Any:
        return resolve(self.name) if ":" in self.name else self.name

    def put(self, value: Any) -> None:
        """Install a value; ABSENT removes it."""
        owner = resolve(self.owner)
        if not self.is_key:
            if value is not ABSENT:
                setattr(owner, self.name, value)
            elif self.name in vars(owner):
                delattr(owner, self.name)
        elif value is ABSENT:
            owner.pop(self._key, None)
        else:
            owner[self._key] = value


def resolve(path: str) -> Any:
    """Return the object at `module` or `module:attribute.attribute`."""
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split(".") if names else ():
        found = getattr(found, name)
    return found


LOWERING = "capture: lowering rules"
LINES = "capture: lines of kernels under grad"
RUNS = "capture: runs of jitted programs"
MODES = "interpret modes"
CHIP = "chip while tracing"
PRETEND = "devices that answer as the chip"
MOSAIC = "Mosaic module"
CHECKIFY = "checkify"
NO_TPU = "backends without a TPU"
MOSAIC_GPU = "texts of Mosaic GPU"


@dataclass(frozen=True)
class _Installed:
    original: Any
    ours: Any


_lock = threading.RLock()
_users: Counter[str] = Counter()
_in_place: dict[Patch, _Installed] = {}


@contextlib.contextmanager
def installed(*areas: str) -> Iterator[None]:
    """Install the patches of these areas in this context, in every thread.

    They are installed for the first user of an area and removed after its last. If other code has
    replaced the same attribute in between, its patch stays: restoring jax's own would undo it. Ours
    is then still called through it, does nothing without users, and is not installed again on top.
    """
    with contextlib.ExitStack() as stack:
        for area in areas:
            install(area)
            stack.callback(uninstall, area)
        yield


def install(area: str) -> None:
    """Install the patches of an area, or count one more user."""
    with _lock:
        if not _users[area]:
            done = []
            try:
                for patch in needed(area):
                    _install(patch)
                    done.append(patch)
            except BaseException:
                for patch in reversed(done):
                    _restore(patch)
                raise
        _users[area] += 1


def uninstall(area: str) -> None:
    """Remove the patches of an area after its last user; a no-op for an area without users."""
    with _lock:
        if not _users[area]:
            return
        _users[area] -= 1
        if not _users[area]:
            for patch in reversed(needed(area)):
                _restore(patch)


def _install(patch: Patch) -> None:
    before, now = _in_place.get(patch), patch.own()
    if before is not None and now is not before.original:
        return  # other code has patched on top of ours
    ours = resolve(patch.replacement)(patch.now(), *patch.args)
    _in_place[patch] = _Installed(now, ours)
    patch.put(ours)


def _restore(patch: Patch) -> None:
    before = _in_place[patch]
    if patch.own() is before.ours:
        patch.put(before.original)
        del _in_place[patch]


@functools.cache
def needed(area: str) -> tuple[Patch, ...]:
    """Rows of an area that the installed jax needs."""
    return tuple(patch for patch in TABLE if patch.area == area and patch.is_needed)


@functools.cache
def results() -> dict[str, str | None]:
    """Return for each area how the installed jax does not fit one of its rows, or None."""
    found: dict[str, str | None] = {}
    for area in dict.fromkeys(patch.area for patch in TABLE):
        try:
            problems = (row.problem() for row in needed(area))
            found[area] = next((problem for problem in problems if problem is not None), None)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            found[area] = f"{type(error).__name__}: {error}"
    return found


def require() -> None:
    """Check that the installed jax fits, so that a moved internal is reported in a sentence.

    Raises:
      IncompatibleJaxError: it does not; the message says how.
    """
    bad = {name: why for name, why in results().items() if why is not None}
    if bad:
        jax = versions.installed().get("jax", "none")
        listed = "; ".join(f"{name} ({why})" for name, why in bad.items())
        raise IncompatibleJaxError(
            f"jax {jax} is not one that this pallas-debug can hook into: {listed}. "
            f"Upgrade pallas-debug, or install a supported jax version, from {versions.OLDEST} on."
        )


def absent(_: Any) -> Any:
    """Replacement that removes the original."""
    return ABSENT


_HOOK = "pallas_debug.bridge.lowering.hook"
_SEES_KERNELS = "a lowering rule sees every kernel in its final form, after vmap and grad"
_NO_FASTPATH = "jax's C++ dispatch bypasses Python once it knows a program"
_NO_CHIP = "without a TPU, code that queries its chip while it is traced fails"
_GATES = "code queries its device before it calls a kernel; jax itself gets the real values"
_CHECKIFY = "since 0.10.1, checkify reports no errors in kernels"

TABLE: tuple[Patch, ...] = (
    *(
        Patch(
            area=LOWERING,
            owner="jax._src.interpreters.mlir:_lowerings",
            is_key=True,
            name=f"jax._src.pallas.{module}:{name}_p",
            replacement=f"{_HOOK}:reporting",
            args=(name,),
            why=_SEES_KERNELS,
        )
        for module, name in (("pallas_call", "pallas_call"), ("mpmd", "mpmd_map"))
    ),
    Patch(
        area=LOWERING,
        owner="jax._src.interpreters.mlir",
        name="lower_jaxpr_to_module",
        replacement="pallas_debug.bridge.jaxprs.outputs:lowering_programs",
        why="the program around a kernel shows which of its outputs are used",
        parameters=("module_name", "jaxpr"),
    ),
    Patch(
        area=LOWERING,
        owner="jax._src.callback",
        name="emit_python_callback",
        replacement=f"{_HOOK}:emitting_callbacks",
        why="jax cannot lower a program's callbacks for an absent TPU",
        parameters=("ctx", "callback", "token", "operands", "operand_avals", "result_avals"),
    ),
    Patch(
        area=LINES,
        owner="jax._src.pallas.pallas_call",
        name="_trace_kernel_to_jaxpr",
        replacement=f"{_HOOK}:with_own_lines",
        why="`custom_vjp` gives one line to every equation of a kernel under grad",
    ),
    Patch(
        area=RUNS,
        owner="jax._src.pjit",
        name="_pjit_call_impl_python",
        replacement=f"{_HOOK}:following",
        why="records which programs with kernels run",
        parameters=("jaxpr",),
    ),
    Patch(
        area=RUNS,
        owner="jax._src.pjit",
        name="_get_fastpath_data",
        replacement=f"{_HOOK}:refusing",
        why=_NO_FASTPATH,
        parameters=("executable",),
    ),
    *(
        Patch(
            area=MODES,
            owner=f"jax._src.pallas.{primitive}",
            name="bind",
            replacement="pallas_debug.bridge.interpret.interpret:binding",
            why="jax reads the interpret mode when `pallas_call` is made, not when it is called",
        )
        for primitive in ("pallas_call:pallas_call_p", "mpmd:mpmd_map_p")
    ),
    *(
        Patch(
            area=CHIP,
            owner=owner,
            name=name,
            replacement="pallas_debug.bridge.chip:asking",
            args=(what,),
            why=_NO_CHIP,
            first=first,
            last=last,
        )
        for owner, first, last in (
            ("jax._src.pallas.mosaic.tpu_info", versions.OLDEST, "0.11.0"),
            ("jax._src.tpu_info", "0.11.1", versions.NEWEST),
        )
        for name, what in (
            ("get_device_kind", "device_kind"),
            ("get_num_device_cores", "num_cores"),
        )
    ),
    Patch(
        area=CHIP,
        owner="jax.experimental.pallas.tpu",
        name="is_tpu_device",
        replacement="pallas_debug.bridge.chip:asking_for_tpu",
        why="answering queries of a chip must not make code take its TPU path on a CPU",
    ),
    *(
        Patch(
            area=CHIP,
            owner="jaxlib._jax:Device",
            name=name,
            replacement="pallas_debug.bridge.pretend:answering_cores",
            args=(name, platforms),
            is_optional=True,
            why="meshes of cores, and kernels for GPUs, query a number that the CPU does not have",
        )
        for name, platforms in (("num_cores", "tpu cuda"), ("core_count", "cuda"))
    ),
    *(
        Patch(
            area=PRETEND,
            owner=f"jaxlib._jax:{owner}",
            name=name,
            replacement=f"pallas_debug.bridge.pretend:answering_{what}",
            why=_GATES,
        )
        for owner, name, what in (
            ("Device", "platform", "platform"),
            ("Device", "device_kind", "kind"),
            ("Client", "platform", "platform"),
        )
    ),
    Patch(
        area=PRETEND,
        owner="jax._src.xla_bridge",
        name="_get_backend_uncached",
        replacement="pallas_debug.bridge.pretend:finding_backends",
        why='`jax.devices("tpu")` returns the simulated devices',
        parameters=("platform",),
    ),
    Patch(
        area=MOSAIC,
        owner="jax.experimental.mosaic",
        name="lower_module_to_custom_call",
        replacement="pallas_debug.bridge.lowering.lower:collecting",
        why="the module is complete here; newer versions of jax then move its locations out",
        parameters=("module",),
    ),
    *(
        Patch(
            area=MOSAIC_GPU,
            owner=owner,
            name=name,
            replacement=f"pallas_debug.bridge.lowering.mosaic_gpu:{replacement}",
            is_optional=True,
            is_lazy=True,
            first="0.11",
            why="otherwise jax prints these texts to a folder, for the whole process",
        )
        for owner, name, replacement in (
            ("jaxlib.mosaic.python.mosaic_gpu", "get_or_set_dump_options", "with_dumps"),
            ("jax.experimental.mosaic.gpu.utils", "dump_to_file_or_stdout", "keeping"),
        )
    ),
    *(
        Patch(
            area=CHECKIFY,
            owner="jax._src.checkify:error_checks",
            is_key=True,
            name=f"jax._src.pallas.{module}:{name}_p",
            replacement="pallas_debug.bridge.instrument.checkify_rule:rule",
            args=(name,),
            is_optional=True,
            why=_CHECKIFY,
        )
        for module, name in (("pallas_call", "pallas_call"), ("mpmd", "mpmd_map"))
    ),
    Patch(
        area=NO_TPU,
        owner="jax._src.xla_bridge:_backend_factories",
        is_key=True,
        name="tpu",
        replacement=f"{__name__}:absent",
        is_optional=True,
        why="loading libtpu without a TPU takes 0.5 s and prints a page of warnings; never undone",
    ),
)
