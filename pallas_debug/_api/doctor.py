"""`pallas-debug doctor`: checks of what works on this machine, with remedies.

Every check does the real thing: patches are compared with the installed jax, and a kernel is
compiled for every target.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from pallas_debug._version import __version__
from pallas_debug.bridge import versions
from pallas_debug.installed import REMEDY, jax_problem

State = Literal["ok", "warning", "failed"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check.

    Attributes:
      patches: rows of the table of jax patches that the check covers.
    """

    name: str
    state: State
    detail: str
    remedy: str | None = None
    patches: tuple[object, ...] = ()


def examine() -> Iterator[Check]:
    """Run the checks, and yield each result."""

    yield Check(
        name="pallas-debug",
        state="ok",
        detail=f"{__version__} on Python {platform.python_version()}",
    )
    yield _machine()
    problem = jax_problem()
    if problem is not None:
        yield from _without_jax(problem)
        return
    yield from _guarded("jax", _jax)
    yield from _guarded("hooks", _hooks)
    yield from _guarded("libtpu", _libtpu)
    yield from _guarded("device", _device)
    yield from _guarded("compiler", _compiles)
    yield from _guarded("GPUs", _gpus)


def _guarded(name: str, check: Callable[[], Iterator[Check]]) -> Iterator[Check]:
    try:
        yield from check()
    except Exception as error:  # noqa: BLE001 - a doctor reports, whatever is wrong
        yield Check(
            name=name,
            state="failed",
            detail=f"{type(error).__name__}: {error}",
        )


def _machine() -> Check:
    detail = f"{sys.platform} {platform.machine()}, {os.cpu_count()} cores"
    if sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64"):
        return Check(name="machine", state="ok", detail=detail)
    return Check(
        name="machine",
        state="failed",
        detail=f"{detail}; libtpu runs on x86-64 Linux only",
        remedy="dump on such a machine or in a container; any machine can read dumps",
    )


def _without_jax(problem: str) -> Iterator[Check]:
    """Report that jax is missing; the other checks need it and are skipped."""
    yield Check(
        name="jax",
        state="failed",
        detail=f"{problem}: kernels cannot be compiled, checked or interpreted here",
        remedy=REMEDY,
    )
    libtpu = versions.installed().get("libtpu")
    yield Check(
        name="libtpu",
        state="ok" if libtpu else "failed",
        detail=libtpu or "not installed, so nothing can be compiled",
        remedy=None if libtpu else REMEDY,
    )
    yield Check(name="dumps", state="ok", detail="can be read and browsed without jax")


def _jax() -> Iterator[Check]:
    installed = versions.installed()
    yield Check(
        name="jax",
        state="ok",
        detail=f"{installed.get('jax')}, jaxlib {installed.get('jaxlib')}",
    )


def _complete(name: str, lacks: Sequence[str], what: str, fine: str, then: str) -> Check:
    """Check that nothing of a kind is lacking; if it is, `then` says what follows from it."""
    if not lacks:
        return Check(name=name, state="ok", detail=fine)
    detail, remedy = f"{what}: {', '.join(lacks)}", f"{then}; upgrade pallas-debug"
    return Check(name=name, state="warning", detail=detail, remedy=remedy)


def _hooks() -> Iterator[Check]:
    from pallas_debug.bridge import jaxcompat, meaning, patches, primitives

    used = sum(len(internal.names) for internal in jaxcompat.internals())
    yield _complete(
        "private names",
        jaxcompat.missing(),
        "missing in this jax",
        f"{used} used, all there",
        "what needs these is refused by name, the rest works",
    )
    yield _complete(
        "primitives",
        primitives.unknown(),
        "without a row in our table",
        f"{len(primitives.TABLE)} in our table, all that this jax lowers",
        "the machine runs these only if jax does on a CPU, and the analysis knows nothing of them",
    )
    yield _complete(
        "meaning",
        [str(one) for one in meaning.changed()],
        "not as in a tested jax",
        f"{len(meaning.KERNELS)} tiny kernels are decoded as expected",
        "the machine and the analysis refuse kernels with these, the rest works; install a jax "
        f"from {versions.OLDEST} to {versions.NEWEST}",
    )
    for name, problem in patches.results().items():
        rows = patches.needed(name)
        replaced = f"; replaces {', '.join(map(str, rows))}" if rows else ""
        yield Check(
            name=name,
            state="failed" if problem else "ok",
            detail=problem or f"as expected in this jax{replaced}",
            patches=rows,
            remedy="upgrade pallas-debug, or install a jax version that it supports"
            if problem
            else None,
        )


def _libtpu() -> Iterator[Check]:
    installed = versions.installed().get("libtpu")
    wanted = _pinned_libtpu()
    if installed is None:
        yield Check(
            name="libtpu",
            state="failed",
            detail="not installed, so nothing can be compiled",
            remedy=REMEDY,
        )
    elif wanted and not _fits(installed, wanted):
        yield Check(
            name="libtpu",
            state="warning",
            detail=f"{installed}, but this jax was built for {wanted}",
            remedy=f"pip install 'jax[tpu]=={metadata.version('jax')}'",
        )
    else:
        fit = ", which this jax was built for" if wanted else ""
        yield Check(name="libtpu", state="ok", detail=f"{installed}{fit}")


def _pinned_libtpu() -> str | None:
    """Return the libtpu version that `jax[tpu]` requires, such as `==0.0.42.*`."""
    for requirement in metadata.requires("jax") or []:
        match = re.match(r"libtpu\s*([^;]+?)\s*;.*extra\s*==\s*[\"']tpu[\"']", requirement)
        if match:
            return match[1].strip("() ")
    return None


def _fits(installed: str, wanted: str) -> bool:
    """Return whether a version meets one of jax's requirements: `==1.2.*` or `==1.2.3`."""
    pin = wanted.removeprefix("==")
    if pin.endswith(".*"):
        return (installed + ".").startswith(pin[:-1])
    return not wanted.startswith("==") or installed == pin


def _gpus() -> Iterator[Check]:
    """Report what compilations for GPUs lack; nothing without the extra for them."""
    from pallas_debug.compiler import gpu

    if gpu.plugin() is None:
        return
    lacks = gpu.lacking()
    if lacks:
        state: State = "warning"
        detail = f"nothing can be compiled for a GPU: {'; '.join(lacks)}"
    else:
        has_listing = gpu.tool("nvdisasm") is not None
        state = "ok" if has_listing else "warning"
        detail = ", ".join(f"{name} {version}" for name, version in gpu.installed().items())
        detail += "" if has_listing else "; without nvdisasm there is no SASS"
    remedy = None if state == "ok" else gpu.REMEDY
    yield Check(name="GPUs", state=state, detail=detail, remedy=remedy)
    if not lacks and (notes := gpu.notes()):
        yield Check(name="GPU dumps", state="ok", detail=notes[0])


def _device() -> Iterator[Check]:
    from pallas_debug.bridge import platform as jax_platform

    backend = jax_platform.default_backend()
    if backend == "cpu":
        detail = "no accelerator: kernels run on the kernel machine while dumping"
    else:
        detail = f"programs run on {backend}: {jax_platform.device_kind()}"
    yield Check(name="device", state="ok", detail=detail)


def _compiles() -> Iterator[Check]:
    """Compile a kernel for every target, end to end."""
    from pallas_debug_kernels import vector_add

    from pallas_debug._api.dump import dump
    from pallas_debug.bridge.jaxprs.arrays import shape_dtype
    from pallas_debug.compiler import targets
    from pallas_debug.store import scratch
    from pallas_debug.store.scratch import PREFIX

    x = shape_dtype((1024,), "float32")
    with scratch.folder(PREFIX) as folder:
        (dumped,) = dump(vector_add, x, x, targets=[t.name for t in targets.BUILTIN], to=folder)
    for compilation in dumped.compilations:
        failure = compilation.failure
        yield Check(
            name=f"target {compilation.target}",
            state="failed" if failure else "ok",
            detail=failure.headline if failure else f"{len(compilation.passes)} passes",
        )
