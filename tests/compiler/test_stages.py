"""Names of stages, the flags that they mean, and which stages include others."""

from __future__ import annotations

import re

import pytest

from pallas_debug.compiler import stages
from pallas_debug.compiler.stages import BUNDLE_PASSES, child_flags, parse
from pallas_debug.errors import UsageError
from pallas_debug.model import Compilation


@pytest.mark.parametrize(
    "text, names",
    [
        ("", ("bundles",)),
        ("mosaic", ()),
        ("mosaic, bundles", ("bundles",)),
        ("estimate", ("bundles", "estimate")),
        ("mosaic,estimate", ("bundles", "estimate")),
        (["bundles", "llo:post-ra,llo"], ("llo", "bundles")),
        ("mosaic,llo:post-ra,llo:*MXU*,llo:post-ra", ("llo:*MXU*", "llo:post-ra")),
    ],
)
def test_stages_are_parsed_into_their_usual_order(text: str, names: tuple[str, ...]) -> None:
    parsed = parse(text)
    assert parsed.names == names
    assert parse(["mosaic", *parsed.names]) == parsed
    assert bool(parsed) == bool(names)


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "bundels",
            "unknown stage 'bundels' (did you mean 'bundles'?); there are mosaic, llo, bundles, "
            "estimate, and llo:PASS for single LLO passes",
        ),
        ("mosaic:13", "unknown stage 'mosaic:13'"),
        (
            "llo:post ra",
            "'llo:post ra' is not an LLO pass: 'post ra' has characters other than letters, "
            "digits, `-`, `_`, `.` and `*`, which stands for any. Name a pass as it appears below "
            "llo/, such as llo:post-ra or llo:*bundles*.",
        ),
        ("llo:", "'llo:' is not an LLO pass: '' has characters"),
        ("llo:(a", "'llo:(a' is not an LLO pass"),
    ],
)
def test_what_is_no_stage(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    "kept, wanted, does",
    [
        ("bundles", "mosaic", True),
        ("mosaic", "bundles", False),
        ("bundles", "estimate", False),
        ("estimate", "bundles", True),
        ("llo", "llo:post-ra", True),
        ("llo:post-ra", "llo", False),
        ("llo:a,llo:b", "llo:b", True),
        ("mosaic,llo:a", "bundles", False),
    ],
)
def test_which_stages_include_others(kept: str, wanted: str, does: bool) -> None:
    assert parse(kept).covers(parse(wanted)) is does
    both = parse(kept) | parse(wanted)
    assert both.covers(parse(kept))
    assert both.covers(parse(wanted))


def test_only_the_texts_of_a_schedule_are_written() -> None:
    """libtpu searches the expression in the labels, and `critical-path` is a part of others."""
    (regex,) = [
        value for name, value in child_flags(parse("bundles")).flags.items() if "regex" in name
    ]
    taken = {
        label
        for label in (*BUNDLE_PASSES, "DGO-post-critical-path-scheduler", "packed-bundles-post-ra")
        if re.search(regex, label)
    }
    assert taken == set(BUNDLE_PASSES)


def test_patterns_of_passes_become_an_expression() -> None:
    flags = child_flags(parse("mosaic,llo:post-ra,llo:*MXU*.2")).flags
    (regex,) = [value for name, value in flags.items() if "regex" in name]
    assert regex == "^.*MXU.*[.]2$|^post-ra$"
    assert not any("regex" in name for name in child_flags(parse("llo,bundles")).flags)


def test_the_estimate_is_asked_for_only_by_name() -> None:
    assert stages.ESTIMATE_TO not in child_flags(parse("bundles")).names
    flags = child_flags(parse("estimate"))
    assert stages.ESTIMATE_TO in flags.names
    without = flags.without([stages.ESTIMATE_TO])
    assert without == child_flags(parse("bundles"))
    assert without.key != flags.key


def test_stages_of_a_later_version_are_left_out() -> None:
    made = Compilation(
        kernel="k", target="v5e", status="ok", key="0", stages=("bundles", "heap", "llo:a b")
    )
    assert stages.of(made).names == ("bundles",)
