"""Validator of Chrome's JSON trace event format, after its public description.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU, JSON object format.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from typing import Any

METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is no JSON")


def validated(text: str) -> list[dict[str, Any]]:
    """Parse a trace, and return its events, after checking each and how they fit together."""
    document = json.loads(text, parse_constant=_refuse)
    assert isinstance(document, dict)
    assert document["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in document["otherData"].values())
    events = document["traceEvents"]
    assert isinstance(events, list)
    for event in events:
        _check(event)
    _check_slices(events)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    return events


def _check(event: dict[str, Any]) -> None:
    assert isinstance(event["name"], str), event
    assert event["name"], event
    assert type(event["pid"]) is int, event
    assert type(event["tid"]) is int, event
    phase = event["ph"]
    if phase == "M":
        key, kind = METADATA[event["name"]]
        assert type(event["args"][key]) is kind, event
        return
    assert isinstance(event["ts"], (int, float)), event
    assert 0 <= event["ts"] < math.inf, event
    assert isinstance(event["cat"], str), event
    assert phase == "X", event
    assert math.isfinite(event["dur"]), event
    assert event["dur"] >= 0, event
    assert isinstance(event["args"], dict), event


def _check_slices(events: list[dict[str, Any]]) -> None:
    """No slice of a thread overlaps another, as ours need no nesting."""
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for found in threads.values():
        for one, other in itertools.pairwise(found):
            assert round((one["ts"] + one["dur"]) * 1000) <= round(other["ts"] * 1000), (one, other)
