"""The documentation: every Python block runs, and what other programs read from it is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILT = ("_build", "_generated")
PAGES = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    if not set(page.relative_to(ROOT).parts) & set(BUILT)
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LEAST = {
    "README.md": 5,
    "CONTRIBUTING.md": 2,
    "docs/index.md": 1,
    "docs/guide.md": 22,
    "docs/geometries.md": 6,
    "docs/which_geometry.md": 8,
    "docs/streaming.md": 4,
    "docs/files.md": 7,
    "docs/many_machines.md": 4,
    "docs/online.md": 1,
    "docs/command_line.md": 1,
    "docs/edge_cases.md": 12,
    "docs/coming_from_the_papers_code.md": 10,
    "docs/backends.md": 3,
    "docs/examples/correlation.md": 2,
    "docs/examples/cupy.md": 2,
    "docs/examples/eeg.md": 6,
    "docs/examples/hyperbolic.md": 4,
    "docs/examples/subspaces.md": 5,
}
"""How many blocks a page has at least, so that this test cannot pass on nothing."""

FENCE = re.compile(r"^(`{3,}|:{3,})([^\n`]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
NEEDS_GPU = "# needs a GPU"


def fences(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block, at its own line of the page."""
    text = page.read_text(encoding="utf-8")
    return [
        (m[2].strip(), "\n" * text.count("\n", 0, m.start(3)) + m[3]) for m in FENCE.finditer(text)
    ]


def blocks(page: Path, *, gpu: bool) -> list[str]:
    """Return the Python blocks, with or without those that need a GPU."""
    found = [code for language, code in fences(page) if language == "python"]
    return [code for code in found if gpu or not code.lstrip().startswith(NEEDS_GPU)]


def run(name: str, found: list[str]) -> None:
    """Run blocks in the order of the page, in one namespace."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in found:
        exec(compile(block, name, "exec"), namespace)


@pytest.mark.parametrize("name", NAMES)
def test_python_blocks_run(name, tmp_path, monkeypatch):
    """A warning is an error, as in every test."""
    found = blocks(ROOT / name, gpu=False)
    assert len(found) >= LEAST.get(name, 0)
    monkeypatch.chdir(tmp_path)
    run(name, found)


WITH_GPU = [
    page for page in NAMES if blocks(ROOT / page, gpu=True) != blocks(ROOT / page, gpu=False)
]


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_GPU)
def test_gpu_blocks_run(name, tmp_path, monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)
    run(name, blocks(ROOT / name, gpu=True))


def test_pages_that_must_have_blocks_exist():
    assert set(LEAST) <= set(NAMES)
    assert {"README.md", "docs/examples/cupy.md"} <= set(WITH_GPU)


DIRECTIVES = {"{eval-rst}", "{glossary}", "{image}", "{include}", "{toctree}"}
"""What Sphinx acts on: the documentation is built with warnings as errors."""

NOT_RUN = {
    ("README.md", "bibtex"): "a citation: tests/test_project.py compares it with CITATION.cff",
    ("README.md", "sh"): ".ci/run runs the two that install; tests/test_cli_docs.py the third",
    ("CONTRIBUTING.md", "sh"): "they install, run the whole suite, or take minutes: benchmarks",
    ("docs/design.md", "text"): "a drawing of the modules",
    ("docs/many_machines.md", "text"): "they need two processes: test_distributed, test_sharding",
}
"""The blocks that no test runs, and why. (tests/test_cli_docs.py runs docs/command_line.md.)"""

RUN_ELSEWHERE = {("docs/command_line.md", "sh"), ("docs/command_line.md", "text")}


def test_every_block_is_run_by_a_test():
    kinds = {
        (name, language.split()[0] if language else "")
        for name in NAMES
        for language, _ in fences(ROOT / name)
    }
    unknown = {
        (name, language)
        for name, language in kinds
        if language != "python" and language not in DIRECTIVES
    } - RUN_ELSEWHERE
    assert unknown <= set(NOT_RUN), "blocks of a language that no test runs"
    assert set(NOT_RUN) <= unknown, "no such block any more: take it off the list"


@pytest.mark.parametrize(
    ("heading", "words"),
    [("## Run it", ["pip install", "gyrobn demo"]), ("## Test it", ["pip install", "-m pytest"])],
)
def test_readme_commands(heading, words):
    """.ci/run takes the test command from the README: one block of one line under its heading."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^{heading}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    ((_, language, command),) = FENCE.findall(section)
    assert language == "sh"
    assert command.count("\n") == 1
    assert all(word in command for word in words)


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name):
    page = ROOT / name
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing
