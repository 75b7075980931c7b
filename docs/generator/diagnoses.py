"""Pages on findings, explanations of errors, and advice."""

from __future__ import annotations

import ast
import inspect
import itertools

from generator.markdown import escaped, page, table


def errors() -> str:
    """The catalogue of explanations."""
    from pallas_debug.explain.catalogue import TOPICS

    parts = [
        "The catalogue of `pallas-debug explain`: known failures of kernels, with their cause and "
        "what to do. An entry is found by its id, by XLA's code, by the message or by the kind of "
        "a finding. See the [guide](../guides/failures.md) for examples.",
    ]
    for topic, entries in TOPICS.items():
        parts.append(f"## {topic}")
        for entry in entries:
            code = f" ({entry.code})" if entry.code else ""
            parts += [f"### {entry.id}{code}", f"{_sentence(entry.title)}"]
            rows = [
                ["cause", escaped(entry.cause)],
                ["what to do", escaped(entry.advice)],
                ["versions", escaped(entry.versions)],
                ["targets", ", ".join(f"`{target}`" for target in entry.targets)],
                ["findings", ", ".join(f"`{kind}`" for kind in entry.kinds)],
                ["links", ", ".join(f"<{link}>" for link in entry.links)],
            ]
            parts.append(table(["", "about it"], [row for row in rows if row[1]]))
    return page("Errors", "pallas_debug/explain/catalogue/", parts)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def advice() -> str:
    """Every piece of advice that `stats` gives."""
    from pallas_debug.profile.advice import MAX_SHOWN, MIN_SAVING
    from pallas_debug.profile.rules import IDIOMS, RULES

    parts = [
        "What `pallas-debug stats` and the report advise: the line, what costs time there, what to "
        f"change, and the cycles with the change. Only what saves {100 * MIN_SAVING:.0f} % of a "
        f"kernel's cycles or more is said, at most {MAX_SHOWN} rows, what saves most first; a "
        "cycle pays for one row only. `stats --what-if` estimates any change.",
        table(
            ["advice", "what costs time", "what the change saves", "remedy"],
            [[f"`{r.name}`", r.title, r.saving, r.remedy] for r in RULES],
        ),
        "What the instructions at a line do decides some remedies:",
        table(
            ["class", "opcode", "remedy"],
            [[kind, f"`{part}`", hint] for kind, part, hint in IDIOMS],
        ),
    ]
    return page("Advice", "pallas_debug/profile/rules.py", parts)


def findings() -> str:
    """Every kind of finding, by severity."""
    from pallas_debug.findings.faults import GUARANTEES, Fault, Severity, Sure
    from pallas_debug.findings.hints import HintKind

    parts = [
        "Kinds of findings, worst first. Reports, JSON, suppressions and `pallas.expect` use these "
        "names. If several engines report a fault, the message comes from the engine listed first.",
        table(
            ["certainty of an engine", "meaning"],
            [[f"`{sure}`", _doc_below(Sure, sure.name)] for sure in Sure],
        ),
    ]
    for severity in Severity:
        faults = [fault for fault in Fault if fault.severity is severity]
        rows = [
            [
                f"`{fault}`",
                fault.summary,
                ", ".join(f"{engine} ({GUARANTEES[engine]})" for engine in fault.engines),
            ]
            for fault in faults
        ]
        parts += [
            f"## {severity.name.capitalize()}",
            _doc_below(Severity, severity.name),
            table(["kind", "what happens", "engines"], rows),
        ]
    parts += [
        "## Hints",
        "What looks unintended, although a correct program may do it. A hint fails nothing. It is "
        "shown below a verdict, below a test that failed, and first of all below a `ValueMismatch` "
        "if it lies on the way to the first wrong element.",
        table(["kind", "what was observed"], [[kind, kind.summary] for kind in HintKind]),
    ]
    return page("Findings", "pallas_debug/findings/faults.py and hints.py", parts)


def _doc_below(cls: type, member: str) -> str:
    """The string below a member of an enumeration."""
    (body,) = (node.body for node in ast.parse(inspect.getsource(cls)).body)
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == member:
            return str(below.value.value)
    raise LookupError(f"{cls.__name__}.{member} has no docstring")
