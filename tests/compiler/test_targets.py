"""Targets: known and unknown names, and topologies that are large enough."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import UnknownTargetError

BUILTIN = ["v4", "v5e", "v5p", "v6e", "tpu7x"]
GPUS = ["a100", "a10", "l4", "h100", "h200", "b200", "b300", "rtxpro6000"]


@pytest.mark.parametrize(
    "names, found",
    [
        ("v6e,v5e", ["v6e", "v5e"]),
        (" v5e , v6e,v5e,", ["v5e", "v6e"]),
        (" all ", BUILTIN),
        ("v6e,all", ["v6e", "v4", "v5e", "v5p", "tpu7x"]),
        ("v5e,v5e:2x4", ["v5e", "v5e:2x4"]),
        (["v5e", " v4 "], ["v5e", "v4"]),
    ],
)
def test_lists(names: str | list[str], found: list[str]) -> None:
    assert [t.name for t in targets.resolve_all(names)] == found


@pytest.mark.parametrize("name", ["v5e:2x4", "v4:2x2x4", "tpu7x:4x4x4", " v5p:2x2x1 "])
def test_topology(name: str) -> None:
    target = targets.resolve(name)
    chip = targets.resolve(name.strip().partition(":")[0])
    assert target == replace(
        chip, name=name.strip(), topology=name.strip(), summary=f"topology {name.strip()}"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("v9", "V5E", "tpu:2x2", "v9:2x2", "mine:2x2", "v5e\x00", "../v5e"),
        *("v5e:", "v5e:2", "v5e:2x", "v5e:2x2x2x2", "v5e:axb", "v5e:2x0", "v5e:02x2"),
        *("v5e:1000x1000", "v5e:-2x2", "v5e:٢x2"),
    ],
)
def test_unknown(name: str) -> None:
    with pytest.raises(UnknownTargetError) as error:
        targets.resolve(name)
    message = re.sub(r" \(did you mean [^)]*\?\)", "", str(error.value))
    assert message == (
        f"unknown target {name!r}; the known ones are v4, v5e, v5p, v6e, tpu7x, tpu, a100, a10, l4, "
        "h100, h200, b200, b300, rtxpro6000, or a full topology name such as v5e:2x4 (`pallas-debug doctor --targets` describes them)"
    )


@pytest.mark.parametrize("names", ["", " , ", [], [" "]])
def test_no_names(names: str | list[str]) -> None:
    with pytest.raises(UnknownTargetError) as error:
        targets.resolve_all(names)
    assert str(error.value).startswith("unknown target ''; the known ones are v4, v5e, v5p, v6e")


@pytest.mark.parametrize(
    "name, target",
    [
        ("v7x", "tpu7x"), ("Ironwood", "tpu7x"), ("TPU7x", "tpu7x"), ("v5litepod", "v5e"),
        ("TPU v5 lite", "v5e"), ("trillium", "v6e"), ("V5P", "v5p"), ("v6", "v6e"),
    ],
)  # fmt: skip
def test_another_name_of_a_generation_is_recognized(name: str, target: str) -> None:
    with pytest.raises(UnknownTargetError) as error:
        targets.resolve(name)
    assert f"unknown target {name!r} (did you mean {target!r}?); the known ones" in str(error.value)


def test_of_device() -> None:
    for builtin in targets.BUILTIN:
        assert targets.of_device(str(builtin.device_kind)) == replace(builtin, name="tpu")
    for kind in ("cpu", "TPU v2", ""):
        assert targets.of_device(kind) is None
    assert targets.resolve("tpu") == targets.DEVICE


@pytest.mark.parametrize(
    "name, by_devices",
    [
        ("v4", {1: "2x2x1", 4: "2x2x1", 5: "2x2x2", 8: "2x2x2", 16: "4x2x2"}),
        ("v5e", {1: "2x2", 4: "2x2", 5: "2x4", 8: "2x4", 16: "4x4"}),
        ("v5p", {1: "2x2x1", 4: "2x2x1", 8: "2x2x2", 16: "4x2x2"}),
        ("v6e", {1: "2x2", 4: "2x2", 8: "2x4", 16: "4x4"}),
        ("tpu7x", {1: "2x2x1", 4: "2x2x1", 8: "2x2x2", 16: "4x2x2"}),
    ],
)
def test_for_devices(name: str, by_devices: dict[int, str]) -> None:
    target = targets.resolve(name)
    of_host = targets.of_device(str(target.device_kind))
    assert of_host is not None
    for devices, shape in by_devices.items():
        assert targets.for_devices(target, devices) == f"{name}:{shape}"
        assert targets.for_devices(of_host, devices) == f"{name}:{shape}"
        assert targets.for_devices(targets.resolve("v5e:2x2"), devices) == "v5e:2x2"


def test_libtpu_has_them(tmp_path: Path, run_python: Callable[..., CompletedProcess[str]]) -> None:
    """Every topology for 8 and 16 devices really loads, and has them."""
    wanted = {
        str(targets.for_devices(target, devices)): devices
        for target in targets.BUILTIN
        for devices in (1, 8, 16)
    }
    code = (
        "import json, sys\n"
        "from pallas_debug.bridge import libtpu\n"
        "found = {name: libtpu.describe(name)[:2] for name in sys.argv[1:]}\n"
        "print(json.dumps(found))\n"
    )
    done = run_python(
        "-c",
        code,
        *wanted,
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        TMPDIR=str(tmp_path),  # libtpu leaves logs there
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, devices in wanted.items():
        kind, has = found[name]
        assert has >= devices
        assert kind == targets.resolve(name.partition(":")[0]).device_kind
