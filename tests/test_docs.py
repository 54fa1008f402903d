"""The documentation: every Python block runs, every other block has its test, links lead somewhere.

(Sphinx checks links to headings and names: it is built with warnings as errors, and nitpicky.)
"""

import importlib
import re
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not {"_build", "_generated"} & set(page.relative_to(ROOT).parts)
]
NAMES = sorted(str(page.relative_to(ROOT)) for page in PAGES)
PORTING = "docs/porting.md"
PEERS = {"geoopt": "geoopt", "pyRiemann": "pyriemann", "spd_learn": "spd_learn", "HypLL": "hypll"}
"""Sections of that page, and the library that each runs beside this one."""
NOT_REQUIRED = {"hypll", "spd_learn"}  # pip install --no-deps hypll spd-learn einops

FENCE = re.compile(r"^(`{3,}|:{3,})([^\n`]*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
NEEDS_GPU = "# needs a GPU"


def fences(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each block, at its own line of the page."""
    return list(fences_of(page.read_text(encoding="utf-8")))


def fences_of(text: str):
    for m in FENCE.finditer(text):
        yield m[2].strip(), "\n" * text.count("\n", 0, m.start(3)) + m[3]


def blocks(text: str, *, gpu: bool) -> list[str]:
    """Return the Python blocks, with or without those that need a GPU."""
    found = [code for language, code in fences_of(text) if language == "python"]
    return [code for code in found if gpu or not code.lstrip().startswith(NEEDS_GPU)]


def run(name: str, found: list[str]) -> None:
    """Run blocks in the order of the page, in one namespace."""
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for block in found:
        exec(compile(block, name, "exec"), namespace)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


WITH_BLOCKS = [name for name in NAMES if blocks(text_of(name), gpu=False) and name != PORTING]
WITH_GPU = [name for name in NAMES if NEEDS_GPU in text_of(name)]
SECTIONS = re.split(r"^## ", text_of(PORTING), flags=re.MULTILINE)[1:]


def test_there_are_blocks():
    assert len(WITH_BLOCKS) > 10
    assert {"README.md", "CONTRIBUTING.md", "docs/guide.md", "docs/layers.md"} <= set(WITH_BLOCKS)
    assert {"README.md", "docs/backends.md"} <= set(WITH_GPU)


@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_python_blocks_run(name, tmp_path, monkeypatch):
    """A warning is an error, as in every test."""
    monkeypatch.chdir(tmp_path)
    run(name, blocks(text_of(name), gpu=False))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.partition("\n")[0])
def test_porting(section, tmp_path, monkeypatch):
    """Beside the other library, of the version that the section names."""
    peer = PEERS.get(section.partition("\n")[0])
    if peer in NOT_REQUIRED and find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed, and the test requirements do not include it")
    if peer is not None:
        with warnings.catch_warnings():  # some import what is deprecated
            warnings.simplefilter("ignore")
            importlib.import_module(peer)
        assert re.search(rf"^\| {peer} {re.escape(version(peer))} ", section, re.M | re.I)
    monkeypatch.chdir(tmp_path)
    run(PORTING, blocks(section, gpu=False))


def test_every_peer_has_a_section():
    assert set(PEERS) <= {section.partition("\n")[0] for section in SECTIONS}


@pytest.mark.gpu
@pytest.mark.parametrize("name", WITH_GPU)
def test_gpu_blocks_run(name, tmp_path, monkeypatch):
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)
    run(name, blocks(text_of(name), gpu=True))


NOT_RUN = {
    ("README.md", "bibtex"): "a citation",
    ("README.md", "sh"): ".ci/run runs the two that install; tests/test_cli_docs.py the third",
    ("CONTRIBUTING.md", "sh"): "they install, run the whole suite, or take minutes",
    ("docs/design.md", "text"): "a drawing of the modules",
    ("docs/experiments.md", "sh"): "they train for hours: test_experiments trains a small graph",
    ("docs/command_line.md", "sh"): "tests/test_cli_docs.py runs them",
    ("docs/command_line.md", "text"): "and compares the output",
}
"""The blocks that no test here runs, and why."""


def test_every_block_is_run():
    kinds = {
        (name, language.split()[0])
        for name in NAMES
        for language, _ in fences(ROOT / name)
        if language and not language.startswith("{")
    }
    assert {kind for kind in kinds if kind[1] != "python"} == set(NOT_RUN)


@pytest.mark.parametrize(
    ("heading", "words"),
    [("## Run it", ["pip install", "gyrobn demo"]), ("## Test it", ["pip install", "-m pytest"])],
)
def test_readme_commands(heading, words):
    """.ci/run takes the command from the README: one block of one line under its heading."""
    (section,) = re.findall(rf"^{heading}\n(.*?)(?=^## )", text_of("README.md"), re.M | re.S)
    ((language, command),) = fences_of(section)
    assert language == "sh"
    assert command.strip().count("\n") == 0
    assert all(word in command for word in words)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MyST name them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    labels = re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE)
    names = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return names | set(labels)


@pytest.mark.parametrize("name", NAMES)
def test_relative_links_lead_somewhere(name):
    """Sphinx does not read the pages outside of docs/, which GitHub shows."""
    page = ROOT / name
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    missing = []
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?[^)]*\)", text):
        target = page.parent / link if link else page
        there = target.exists()
        if not there or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(f"{link}#{anchor}")
    assert not missing


def test_mentioned_paths_exist():
    """Files of the repository that a page names in code."""
    found = re.findall(
        r"`((?:gyrobn|tests|benchmarks|docs|\.ci|\.github)/[\w./-]+)`", "".join(map(text_of, NAMES))
    )
    missing = {path for path in found if not (ROOT / path).exists()} - {"docs/_static"}
    assert found
    assert not missing
