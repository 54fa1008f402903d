"""The documentation: every Python block runs, and what other programs read from it is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LEAST = {
    "README.md": 5,
    "CONTRIBUTING.md": 2,
    "docs/index.md": 1,
    "docs/guide.md": 22,
    "docs/geometries.md": 6,
    "docs/edge_cases.md": 12,
    "docs/coming_from_the_papers_code.md": 10,
    "docs/backends.md": 3,
}
"""How many blocks a page has at least, so that this test cannot pass on nothing."""

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NEEDS_GPU = "# needs a GPU"


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of one language, each at its own line of the page."""
    text = page.read_text(encoding="utf-8")
    found = [m for m in FENCE.finditer(text) if m[1] == language and not m[2].startswith(NEEDS_GPU)]
    return ["\n" * text.count("\n", 0, m.start(2)) + m[2] for m in found]


@pytest.mark.parametrize("name", NAMES)
def test_python_blocks_run(name, tmp_path, monkeypatch):
    """In the order of the page, in one namespace; a warning is an error, as in every test."""
    found = blocks(ROOT / name, "python")
    assert len(found) >= LEAST.get(name, 0)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in found:
        exec(compile(block, name, "exec"), namespace)


def test_pages_that_must_have_blocks_exist():
    assert set(LEAST) <= set(NAMES)


@pytest.mark.parametrize(
    ("heading", "words"),
    [("## Run it", ["pip install", "gyrobn demo"]), ("## Test it", ["pip install", "-m pytest"])],
)
def test_readme_commands(heading, words):
    """.ci/run takes the test command from the README: one block of one line under its heading."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^{heading}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    ((language, command),) = FENCE.findall(section)
    assert language == "sh"
    assert command.count("\n") == 1
    assert all(word in command for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
