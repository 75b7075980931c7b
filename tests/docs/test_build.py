"""Strict mkdocs build of the site, without any page that loads from the network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?P<src>[^"'\s>]+)"""
    r"""|<link[^>]*\shref=["']?(?P<href>[^"'\s>]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return folder


@pytest.mark.slow
def test_every_page_is_built(site: Path) -> None:
    docs = ROOT / "docs"
    for page in docs.rglob("*.md"):
        built = page.relative_to(docs).with_suffix("")
        folder = built.parent if built.name == "index" else built
        assert (site / folder / "index.html").is_file()


@pytest.mark.slow
def test_the_scripts_are_no_part_of_the_site(site: Path) -> None:
    assert not list(site.rglob("*.py"))


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        for match in _LOADED.finditer(page.read_text()):
            address = match["src"] or match["href"]
            assert not address.startswith(("http:", "https:", "//")), f"{page.name}: {address}"


def test_the_links_of_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
            if not target.startswith("https:"):
                assert (ROOT / target).is_file(), f"{name}: {target}"


def words(page: Path) -> int:
    """Count like `wc -w`, without what is generated between `<!-- map -->` and `<!-- /map -->`."""
    text = re.sub(r"<!-- map -->.*<!-- /map -->", "", page.read_text(), flags=re.DOTALL)
    return len(text.split())


def test_the_readme_is_short() -> None:
    assert words(ROOT / "README.md") <= 800


def test_there_are_few_guides() -> None:
    assert len(list((ROOT / "docs/guides").iterdir())) <= 18, "one task each; merge, or delete one"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/guides").glob("*.md")), ids=lambda p: p.stem)
def test_a_guide_is_short(page: Path) -> None:
    assert words(page) <= 900, "move details to the reference"
