"""pytest plugin of `benchmarks/outside.py`: what other projects' tests need, a line per test.

It stands in for what a wheel leaves out (jax's own test utilities) and for what only a server needs
(vLLM's logger); kernels and tests are used as they are. It also patches a test's own gate where the
gate is in the test suite rather than in jax; everything else is left to `-o pallas_pretend`.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import signal
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from absent import AbsentPackages, import_bare
from outside import SETTINGS, STACK

_SETTINGS: dict[str, Any] = json.loads(os.environ[SETTINGS])
_CHECKOUT = Path(_SETTINGS["checkout"])
_RESULTS = Path(_SETTINGS["results"])
_MAX_TEXT = 4000


faulthandler.register(signal.SIGUSR1, _RESULTS.with_name(STACK).open("w"))


def _write(**line: object) -> None:
    with _RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")


# --- what the suites import, and an installation does not have


def _prepare_jax() -> None:
    """Test utilities of jax that its wheel leaves out, from the checkout."""
    import jax._src
    import jax._src.pallas

    jax._src.__path__.append(str(_CHECKOUT / "jax/_src"))
    jax._src.pallas.__path__.append(str(_CHECKOUT / "jax/_src/pallas"))
    from jax._src import config

    # Flags of a checkout that is newer or older than the installed release.
    for flag in ("jax_pallas_use_mosaic_gpu",):
        if not hasattr(config, flag):
            setattr(config, flag, types.SimpleNamespace(value=False))


def _prepare_tpu_inference() -> None:
    """The server and PyTorch, which its kernels' helpers import and do not use here."""
    sys.meta_path.append(AbsentPackages("vllm", "torch", "torchax"))
    import_bare("tpu_inference", _CHECKOUT / "tpu_inference")  # its own starts the server's plugins


_PREPARE = {"jax": _prepare_jax, "tpu-inference": _prepare_tpu_inference}
_PREPARE.get(_SETTINGS["suite"], lambda: None)()


# --- which tests run


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Drop `skip` marks, which the suites' own CI uses for what takes long."""
    item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "skip"]
    # MaxText's conftest skips on a TPU what is not marked for one, these kernels' tests included.
    if _SETTINGS["suite"] == "maxtext" and _SETTINGS["pretends"]:
        item.add_marker("tpu_only")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep `per` parameter sets of each test function, evenly spread, without those already run."""
    groups = defaultdict(list)
    for item in items:
        owner = getattr(item, "cls", None)
        function = re.sub(r"[\[\d].*$", "", item.name)
        groups[item.path, owner and owner.__name__, function].append(item)
    kept = set()
    for group in groups.values():
        number = min(_SETTINGS["per"] or len(group), len(group))
        kept |= {group[n * len(group) // number] for n in range(number)}
    done = set(_SETTINGS["done"])
    left_out = [item for item in items if item not in kept or item.nodeid in done]
    items[:] = [item for item in items if item in kept and item.nodeid not in done]
    config.hook.pytest_deselected(items=left_out)
    _write(collected=[item.nodeid for item in items])


# --- their outcomes


def pytest_runtest_logstart(nodeid: str) -> None:
    _write(started=nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(test=report.nodeid, outcome="not collected", text=_last_line(str(report.longrepr)))


def _last_line(text: str) -> str:
    errors = [line for line in text.splitlines() if line.startswith("E  ")]
    return (errors or text.splitlines() or [""])[-1].lstrip("E ")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        text, kind = "", ""
        if call.excinfo is not None:
            kind = f"{call.excinfo.type.__module__}.{call.excinfo.type.__qualname__}"
            crash = getattr(report.longrepr, "reprcrash", None)
            text = str(call.excinfo.value) if crash is None else crash.message
        ours = "\n".join(body for name, body in report.sections if "pallas" in name)
        _write(
            test=item.nodeid,
            outcome=report.outcome,
            seconds=round(report.duration, 3),
            kind=kind,
            text=text[:_MAX_TEXT],
            ours=ours[:_MAX_TEXT],
        )
    return report
