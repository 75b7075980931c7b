"""Compact output for programs and coding assistants: `--for-agents`.

Records of `key: value` lines, separated by an empty line. Keys and their order are stable: a key
without a value is left out, and new keys may be added. The first line names the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pallas_debug.cli.exits import MEANING, OUTCOMES
from pallas_debug.cli.group import COMMANDS
from pallas_debug.cli.output import SCHEMAS

if TYPE_CHECKING:
    from pallas_debug.model import Finding, Hint

VERSION = 1
"""Version of the format, incremented when a key is removed, renamed or changes its meaning."""

Fields = Mapping[str, object]


def render(kind: str, records: Iterable[Fields]) -> str:
    """Return records as text, preceded by a record that names the format."""
    first = {"format": f"pallas-debug/{kind}-lines/{VERSION}"}
    return "\n\n".join("\n".join(_lines(fields)) for fields in (first, *records))


def _lines(fields: Fields) -> Iterator[str]:
    for key, value in fields.items():
        values = value if isinstance(value, list | tuple) else [value]
        for one in values:
            text = "" if one is None else " ".join(str(one).split())
            if text:
                yield f"{key}: {text}"


def of_finding(finding: Finding) -> Fields:
    """Return the record of a finding."""
    seen = finding.witness
    return {
        "finding": finding.kind,
        "kernel": finding.kernel,
        "at": seen.source,
        "source": seen.source.text if seen.source else None,
        "other": seen.other,
        "grid": None if seen.grid_point is None else list_text(seen.grid_point),
        "loop": list_text(seen.loop) if seen.loop else None,
        "operand": seen.operand,
        "index": seen.index,
        "shape": seen.shape,
        "value": [f"{name} = {value}" for name, value in seen.values.items()],
        "message": finding.message,
        "cause": finding.cause,
        "try": finding.advice,
        "only if": finding.only_if,
        "targets": ", ".join(finding.targets),
        "seen by": ", ".join(finding.engines),
    }


def of_hint(hint: Hint) -> Fields:
    """Return the record of a hint."""
    return {
        "hint": hint.kind,
        "kernel": hint.kernel,
        "at": hint.source,
        "source": hint.source.text if hint.source else None,
        "other": hint.other,
        "grid": None if hint.grid_point is None else list_text(hint.grid_point),
        "operand": hint.operand,
        "message": hint.message,
    }


def list_text(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def of_answers(answers: Iterable[Mapping[str, Any]]) -> str:
    """Return a record for each error in the JSON of `explain`."""
    records: list[Fields] = []
    for answer in answers:
        if not answer["errors"]:
            records.append({"what": answer["what"], "known": str(answer["known"]).lower()})
        for error in answer["errors"]:
            records.append(
                {
                    "what": answer["what"],
                    "known": str(error["entry"] is not None).lower(),
                    "entry": error["entry"],
                    "code": error["code"],
                    "kernel": error["kernel"],
                    "target": error["target"],
                    "lines": list_text(error["at"]),
                    "count": error["count"] if error["count"] > 1 else None,
                    "title": error["title"],
                    "cause": error["cause"],
                    "try": error["advice"],
                    "detail": list(error["details"]),
                    "see": list(error["links"]),
                    "text": error["text"] if error["entry"] is None else None,
                }
            )
    return render("explain", records)


HEAD = """\
# pallas-debug

> Checks JAX Pallas TPU kernels on a machine without a TPU: compiles them with the real TPU
> compiler, runs them in jax's interpreters with checks inserted, and reports each fault once, with
> its line.

## Working on a kernel

1. Judge it: `pallas-debug verify kern.py:function --arg 'f32[16,128]' --target v5e --for-agents`.
   One `--arg` per argument: an array by dtype and shape, with values as in `'i32[2]=[0,4]'`, or a
   Python value (`causal=True`). Neither a TPU nor a network is needed.
2. Exit code 0: nothing found, and everything judged. 1: apply the fix in `try` at the line in `at`,
   and repeat. 2: the command line is invalid; the message explains why. 3: something could not be
   judged or run, so a kernel without a finding may still be wrong.
3. A kernel that does not compile: `pallas-debug dump kern.py:function --arg …`, then
   `pallas-debug explain dumps --for-agents`. A log or a message: `pallas-debug explain FILE`.
4. See what the compiler did: `pallas-debug ls dumps`, `pallas-debug show dumps/NAME PASS`,
   `pallas-debug diff dumps/NAME PASS`.
5. In a test suite: `pytest --pallas-verify=v5e tests/`.

Reading dumps does not require jax. `pallas-debug doctor` lists what is missing on a machine.
"""


def guide() -> str:
    """Return instructions for programs and coding assistants that use the commands."""
    parts = [HEAD, "## Commands\n", *(f"- `{name}`: {what}" for name, what in COMMANDS.items())]
    parts += ["\n## Exit codes\n", *(f"- {code.value}: {text}" for code, text in MEANING.items())]
    parts += ["\nThe same outcome has the same code in every command:\n"]
    parts += [f"- {code.value}: {text}" for text, code in OUTCOMES.items()]
    schemas = ", ".join(f"`pallas-debug/{name}/{version}`" for name, version in SCHEMAS.items())
    parts += [
        "\n## Output for programs\n",
        "- `--json`: one document with a field `schema`, the name and version of its format. The "
        "version goes up when a field is removed, renamed or changes its meaning; new fields may "
        f"appear at any time. Schemas: {schemas}.",
        "- `--for-agents` (`verify`, `explain`): records of `key: value` lines, separated by empty "
        f"lines; the first line is `format: pallas-debug/verify-lines/{VERSION}` and the like.",
        "- `verify --sarif FILE` and `verify --github` for code scanning and workflows.",
        "- Data is on standard output, messages are on standard error.",
    ]
    return "\n".join(parts) + "\n"
