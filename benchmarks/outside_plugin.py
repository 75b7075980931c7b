"""pytest plugin of `benchmarks/outside.py`: what other projects' tests need, a line per test.

It stands in for what a wheel leaves out (jax's own test utilities) and for what only a server needs
(vLLM's logger); kernels and tests are used as they are. It also patches a test's own gate where the
gate is in the test suite rather than in jax; everything else is left to `--pallas-pretend`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from outside import SETTINGS

_SETTINGS: dict[str, Any] = json.loads(os.environ[SETTINGS])
_CHECKOUT = Path(_SETTINGS["checkout"])
_RESULTS = Path(_SETTINGS["results"])
_MAX_TEXT = 4000


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


class _Logger(logging.Logger):
    def info_once(self, *arguments: object) -> None:
        self.info(*arguments)

    warning_once = debug_once = info_once


def _prepare_tpu_inference() -> None:
    """Stand-ins for the modules of tpu-inference that import vLLM."""
    package = types.ModuleType("tpu_inference")
    package.__path__ = [str(_CHECKOUT / "tpu_inference")]
    sys.modules["tpu_inference"] = package

    def packing(dtype: Any) -> int:
        import jax.numpy as jnp

        return 32 // jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else 1

    _stand_in("tpu_inference.logger", init_logger=_Logger)
    _stand_in(
        "tpu_inference.utils",
        TPU_HEAD_SIZE_ALIGNMENT=128,
        align_to=lambda value, multiple: -(-value // multiple) * multiple,
        get_device_name=lambda *_, **__: "TPU v6e",
        get_dtype_packing=packing,
        to_jax_dtype=lambda dtype: dtype,
        get_jax_dtype_from_str_dtype=lambda dtype: dtype,
        get_mesh_shape_product=lambda *_: 1,
    )


def _stand_in(name: str, **attributes: object) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    parent, _, leaf = name.rpartition(".")
    sys.modules[name] = module
    setattr(sys.modules[parent], leaf, module)


_PREPARE = {"jax": _prepare_jax, "tpu-inference": _prepare_tpu_inference}
_PREPARE.get(_SETTINGS["suite"], lambda: None)()


# --- which tests run


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Drop `skip` marks, which the suites' own CI uses for what takes long."""
    item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "skip"]


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


# --- what came of them


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
            text = str(call.excinfo.value)
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
