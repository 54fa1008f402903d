"""The documentation: every Python block runs, links lead somewhere, notebooks are their pages."""

import importlib
import importlib.util
import re
import warnings
from importlib.metadata import version
from importlib.util import find_spec
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
WITH_CODE = {
    "README.md",
    "CONTRIBUTING.md",
    "docs/index.md",
    "docs/guide.md",
    "docs/geometries.md",
    "docs/which_geometry.md",
    "docs/streaming.md",
    "docs/files.md",
    "docs/many_machines.md",
    "docs/online.md",
    "docs/command_line.md",
    "docs/edge_cases.md",
    "docs/coming_from_the_papers_code.md",
    "docs/backends.md",
    "docs/gpu.md",
    "docs/how_do_i.md",
    "docs/porting/batchnorm.md",
    "docs/porting/geoopt.md",
    "docs/porting/hypll.md",
    "docs/porting/liebn.md",
    "docs/porting/pyriemann.md",
    "docs/porting/spd_learn.md",
    "docs/examples/correlation.md",
    "docs/examples/cupy.md",
    "docs/examples/eeg.md",
    "docs/examples/hyperbolic.md",
    "docs/examples/subspaces.md",
}
"""Pages that have Python blocks, so that the test of these cannot pass on nothing."""

PEERS = {
    "docs/porting/geoopt.md": "geoopt",
    "docs/porting/hypll.md": "hypll",
    "docs/porting/pyriemann.md": "pyriemann",
    "docs/porting/spd_learn.md": "spd_learn",
}
"""The library that a page runs beside this one."""

NOT_REQUIRED = {"hypll", "spd_learn"}  # pip install --no-deps hypll spd-learn einops

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


def import_peer(name: str) -> None:
    """Import the other library of a page: those that are not required may be missing."""
    peer = PEERS.get(name)
    if peer in NOT_REQUIRED and find_spec(peer) is None:
        pytest.skip(f"{peer} is not installed, and the test requirements do not include it")
    if peer is not None:
        with warnings.catch_warnings():  # some import what is deprecated
            warnings.simplefilter("ignore")
            importlib.import_module(peer)


@pytest.mark.parametrize("name", NAMES)
def test_python_blocks_run(name, tmp_path, monkeypatch):
    """A warning is an error, as in every test."""
    found = blocks(ROOT / name, gpu=False)
    assert found or name not in WITH_CODE
    import_peer(name)
    monkeypatch.chdir(tmp_path)
    run(name, found)


@pytest.mark.parametrize(("page", "peer"), PEERS.items())
def test_versions_of_other_libraries(page, peer):
    """The pages name the version that is installed: after an update they must be read again."""
    import_peer(page)
    for text in (ROOT / page, ROOT / "docs/compared.md"):
        assert re.search(rf"{peer} {re.escape(version(peer))}\b", text.read_text("utf-8"), re.I)


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
    assert set(NAMES) >= WITH_CODE
    assert {"README.md", "docs/examples/cupy.md"} <= set(WITH_GPU)


DIRECTIVES = {"{eval-rst}", "{glossary}", "{image}", "{include}", "{toctree}"}
"""What Sphinx acts on: the documentation is built with warnings as errors."""

NOT_RUN = {
    ("README.md", "bibtex"): "a citation: tests/test_project.py compares it with CITATION.cff",
    ("README.md", "sh"): ".ci/run runs the two that install; tests/test_cli_docs.py the third",
    ("CONTRIBUTING.md", "sh"): "they install, run the whole suite, or take minutes: benchmarks",
    ("docs/design.md", "text"): "a drawing of the modules",
    ("docs/experiments.md", "sh"): "they train for hours: test_experiments trains a small graph",
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


# ---------------------------------------------------------------------- links


def script(name: str):
    """Return a module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub and MyST name them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKING = sorted({*PAGES, *ROOT.glob("*.md")})


@pytest.mark.parametrize("page", LINKING, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    """To files, and to headings of pages. (docs/links.py checks the built site.)"""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    missing = []
    for link, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?[^)]*\)", text):
        target = page.parent / link if link else page
        there = target.exists()
        if not there or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            missing.append(f"{link}#{anchor}")
    assert not missing


SITE = {
    "index.html": '<h1 id="top">A</h1><a href="sub/b.html#here">b</a><a href="#top">up</a>',
    "sub/b.html": '<p id="here"><a href="../index.html">a</a> <a href="https://x.org/#y">x</a>',
}


@pytest.mark.parametrize(
    ("page", "added", "problem"),
    [
        ("index.html", "", None),
        ("index.html", '<a href="sub/c.html">c</a>', "index.html: no file sub/c.html"),
        ("sub/b.html", '<a href="../index.html#no">', "sub/b.html: no anchor ../index.html#no"),
        ("sub/b.html", '<img src="../p.png">', "sub/b.html: no file ../p.png"),
        ("index.html", '<script src="https://cdn/m.js">', "index.html: loads https://cdn/m.js"),
    ],
)
def test_the_checker_of_the_site_finds(page, added, problem, tmp_path):
    (tmp_path / "sub").mkdir()
    for name, text in SITE.items():
        (tmp_path / name).write_text(text + added * (name == page), encoding="utf-8")
    links = script("links")
    assert links.problems(tmp_path) == ([problem] if problem else [])
    assert links.main(tmp_path) == (1 if problem else 0)


# ---------------------------------------------------------------------- gallery

EXAMPLES = sorted(p for p in (ROOT / "docs/examples").glob("*.md") if p.name != "index.md")


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda p: p.stem)
def test_a_notebook_is_its_page(page):
    cells = script("notebooks").notebook(page)["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.strip("\n") for block in blocks(page, gpu=True)]
    text = "".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert not re.search(r"\{[a-z]+\}`|```|\]\(\.\.", text), "only Sphinx understands this"
    assert any("attachments" in cell for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)
    kept_going = [cell for cell in cells if cell["metadata"].get("tags") == ["raises-exception"]]
    assert len(kept_going) == len(blocks(page, gpu=True)) - len(blocks(page, gpu=False))


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda p: p.stem)
def test_the_gallery_has(page):
    gallery = (ROOT / "docs/examples/index.md").read_text(encoding="utf-8")
    picture = f"_static/example_{page.stem}.png"
    assert (ROOT / "docs" / picture).exists()
    assert f"(../{picture})]({page.name})" in gallery
    assert f"<../_generated/{page.stem}.ipynb>" in gallery
    assert f"\n{page.stem}\n" in gallery
    assert picture in page.read_text(encoding="utf-8")
