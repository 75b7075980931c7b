"""The catalogue of explanations: one INI file per topic, one section per entry.

The keys of a section, all but `title`, `cause` and `try` optional:
  message: core of each message, one per line, without prefix and exception class; `…` matches any
    text within a line.
  code: XLA's error code with its name. XLA prints both; a code alone may be another tool's.
  kinds: kinds of findings that the entry explains.
  kind: kind of finding to report for such a failure; by default the first of `kinds`.
  title, cause, try, versions, targets: as in `Explanation`; `try` is the advice.
  see: `jax#123`, an error code, `pallas/` and a page of its documentation, or a URL.
  match: `ambiguous`, `general`, or both.
"""

from __future__ import annotations

import re
from configparser import ConfigParser, SectionProxy
from pathlib import Path

from pallas_debug.model import Explanation

JAX = "https://github.com/jax-ml/jax/issues/"
_SITES = (
    ("jax#", JAX),
    ("pallas/", "https://docs.jax.dev/en/latest/pallas/"),
    ("E", "https://openxla.org/xla/errors/error_"),
)
_OF_A_FINDING = "in kernel `"


def _topic(file: str) -> tuple[Explanation, ...]:
    parser = ConfigParser(interpolation=None, delimiters=(":",), comment_prefixes=("#",))
    parser.read_string(Path(__file__).with_name(file).read_text("utf-8"))
    return tuple(_entry(id, parser[id]) for id in parser.sections())


def _entry(id: str, section: SectionProxy) -> Explanation:
    messages = [line for line in section.get("message", "").splitlines() if line]
    code, _, name = section.get("code", "").partition(" ")
    kinds = _list(section, "kinds")
    parts = [".*?".join(map(re.escape, text.split("…"))) for text in messages]
    marks = [max(text.split("…"), key=len).strip() for text in messages]
    if code:
        parts.append(rf"\b{code}: {name}\b")
        marks.append(name)
    for kind in kinds:  # as in our own reports
        parts.append(rf"\b{kind} in kernel `")
        marks.append(_OF_A_FINDING)
    texts = {key: section.get(key, "").replace("\n", " ") for key in ("cause", "try", "versions")}
    match = _list(section, "match")
    return Explanation(
        id=id,
        pattern="|".join(parts),
        cause=texts["cause"],
        advice=texts["try"],
        title=section["title"],
        code=code or None,
        versions=texts["versions"],
        targets=_list(section, "targets"),
        kind=section.get("kind", kinds[0] if kinds else ""),
        kinds=kinds,
        links=tuple(map(_link, ([code] if code else []) + list(_list(section, "see")))),
        marks=tuple(dict.fromkeys(marks)),
        ambiguous="ambiguous" in match,
        general="general" in match,
    )


def _list(section: SectionProxy, key: str) -> tuple[str, ...]:
    return tuple(section[key].split(", ")) if key in section else ()


def _link(short: str) -> str:
    site = next((site for site in _SITES if short.startswith(site[0])), ("", ""))
    return site[1] + short.removeprefix(site[0])


TOPICS = {
    "Memory": _topic("memory.ini"),
    "Blocks and tiles": _topic("tiling.ini"),
    "Shapes and layouts": _topic("layout.ini"),
    "Lowering": _topic("lowering.ini"),
    "Calls": _topic("misuse.ini"),
    "Running": _topic("running.ini"),
    "Values": _topic("values.ini"),
    "Checks, prints, interpret modes": _topic("checks.ini"),
    "Environment": _topic("environment.ini"),
    "Crashes": _topic("crash.ini"),
    "GPU kernels": _topic("gpu.ini"),
    "Other errors": _topic("general.ini"),
}

CATALOGUE: tuple[Explanation, ...] = tuple(e for entries in TOPICS.values() for e in entries)
