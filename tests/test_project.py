"""What publishing needs: one version, one address, workflows whose commands and files exist."""

import itertools
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

import gyrobn
from gyrobn.cli.command import COMMANDS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PYTHON = "Programming Language :: Python :: "


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def loaded(path: Path) -> dict:
    """Return a workflow; YAML 1.1 reads its key ``on`` as True."""
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_one_version():
    released = re.findall(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert PROJECT["version"] == gyrobn.__version__ == CITATION["version"]
    assert released[:1] in ([], [PROJECT["version"]])
    assert released or "## [Unreleased]" in read("CHANGELOG.md")


def test_classifiers_are_the_pythons_of_the_workflow():
    (oldest,) = re.findall(r">=3\.(\d+)", PROJECT["requires-python"])
    minors = [c.removeprefix(PYTHON + "3.") for c in PROJECT["classifiers"] if PYTHON + "3." in c]
    assert minors == [str(m) for m in range(int(oldest), int(oldest) + len(minors))]
    jobs = loaded(ROOT / ".github/workflows/ci.yml")["jobs"]
    matrix = jobs["pythons"]["strategy"]["matrix"]
    tested = {*matrix["python"], *(one["python"] for one in matrix["include"])}
    assert tested == {f"3.{m}" for m in minors}
    for name in ("ruff", "mypy"):
        assert re.search(rf"\[tool\.{name}\][^[]*3\.?{oldest}\"", read("pyproject.toml"))


def test_one_address():
    """Whatever names the repository or the site names the same; releasing.md lists the files."""
    repository, site = PROJECT["urls"]["Repository"], PROJECT["urls"]["Documentation"]
    assert CITATION["repository-code"] == repository
    assert CITATION["url"] == site
    owner, name = repository.removeprefix("https://github.com/").split("/")
    files = [*ROOT.glob("*.*"), *ROOT.glob("docs/*.md"), *(ROOT / ".github").rglob("*.*")]
    found = {}
    for path in files:
        if path.suffix in (".md", ".toml", ".cff", ".yml", ".yaml") and path.is_file():
            text = path.read_text(encoding="utf-8")
            for match in re.findall(r"github\.com/([\w.-]+/gyrobn)\b", text):
                found.setdefault(match, []).append(path.name)
            for match in re.findall(r"([\w.-]+)\.readthedocs\.io", text):
                assert path.name == "backends.md" or f"https://{match}.readthedocs.io" == site
    assert set(found) == {f"{owner}/{name}"}, found
    assert len(found[f"{owner}/{name}"]) >= 6


def test_links_of_the_readme_work_on_pypi():
    """The builder makes them absolute, and each of them leads to a file of the repository."""
    repository = PROJECT["urls"]["Repository"]
    text = ProjectMetadata(str(ROOT), PluginManager()).core.readme
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]*)\)", text)
    assert all(url.startswith("https://") for _, url in links)
    ours = [(mark, url) for mark, url in links if url.startswith(repository)]
    assert len(ours) > 20
    assert {mark for mark, _ in ours} == {"", "!"}
    for mark, url in ours:
        folder = f"{repository}/{'raw' if mark else 'blob'}/v{PROJECT['version']}/"
        assert (ROOT / url.removeprefix(folder).split("#")[0]).is_file(), url


def test_the_paper_is_cited_alike():
    paper = CITATION["preferred-citation"]
    (entry,) = re.findall(r"```bibtex\n(.*?)```", read("README.md"), re.DOTALL)
    assert f"{{{paper['title']}}}" in entry
    assert paper["url"] in entry
    assert str(paper["year"]) in entry
    names = [f"{a['family-names']}, {a['given-names']}" for a in paper["authors"]]
    assert f"{{{' and '.join(names)}}}" in entry.replace('{\\"o}', "ö")


def bibliography(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return kind and fields of each entry of BibTeX; every value stands in braces."""
    found: dict[str, tuple[str, dict[str, str]]] = {}
    field = re.compile(r"\s*(\w+)\s*=\s*\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}\s*(?:,|$)")
    for entry in re.split(r"^(?=@)", text, flags=re.MULTILINE)[1:]:
        kind, key, inside = re.fullmatch(
            r"@(\w+)\{([\w-]+),\n(.*)\n\}\s*", entry, re.DOTALL
        ).groups()
        assert not field.sub("", inside).strip(), f"{key} has what is no field"
        assert key not in found, f"{key} is there twice"
        found[key] = kind, dict(field.findall(inside))
    return found


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
def test_workflows_use_what_exists(path):
    """Files, extras, commands and options of gyrobn, marks of pytest."""
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    commands = [step["run"] for step in steps(workflow) if "run" in step]
    assert len(commands) + sum("uses" in step for step in steps(workflow)) == len(steps(workflow))
    text = "\n".join(commands)
    words = re.findall(r"(?:tests|gyrobn|\.ci|docs)/[\w./]+|requirements-[\w.]+", text)
    missing = [word for word in words if not (ROOT / word).exists()]
    assert not missing
    for extras in re.findall(r'"\.\[([\w,]+)\]"', text):
        assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    for command, options in re.findall(r'gyrobn"? (\w+)((?: --[\w-]+(?: [\w.]+)?)*)', text):
        assert command in COMMANDS
        assert set(re.findall(r"--[\w-]+", options)) <= set(COMMANDS[command][2].split())
    for mark in re.findall(r"pytest -m (\w+)", text):
        assert f'"{mark}: ' in read("pyproject.toml")


def test_there_are_workflows():
    assert [path.stem for path in WORKFLOWS] == ["ci", "gpu", "links", "release"]
    assert "run: .ci/run" in read(".github/workflows/ci.yml")
    release = loaded(ROOT / ".github/workflows/release.yml")
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in str(release)


def minimum(requirement: str) -> tuple[str, str]:
    """Return the name and the least version of ``name[extra]>=1.2``."""
    name, _, least = requirement.partition(">=")
    return name.split("[")[0], least


def test_the_oldest_versions_are_those_declared():
    """In requirements-oldest.txt, which has all that the package can use but for CuPy."""
    extras = PROJECT["optional-dependencies"]
    declared = dict(map(minimum, [*PROJECT["dependencies"], *itertools.chain(*extras.values())]))
    pin = re.compile(r"^([\w-]+)(?:\[\w+\])?==([\w.]+)$", re.MULTILINE)
    pins = dict(pin.findall(read("requirements-oldest.txt")))
    for name in set(pins) & set(declared):
        least = declared[name].split(".")
        assert pins[name].split(".")[: len(least)] == least, name
        assert not set("".join(pins[name].split(".")[len(least) :])) - {"0"}, name
    used = [r for name, rs in extras.items() if name not in ("test", "docs", "cupy") for r in rs]
    names = {name for name, _ in map(minimum, [*PROJECT["dependencies"], *used])}
    assert names - {"gyrobn"} <= set(pins)


def test_pre_commit_runs_the_linters_of_the_checks():
    (ruff,) = re.findall(r"^ruff==(.*)$", read("requirements-dev.txt"), re.MULTILINE)
    hooks = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert hooks[0]["rev"] == f"v{ruff}"
    entries = {hook["entry"] for hook in hooks[-1]["hooks"]}
    script = read(".ci/run")
    assert entries == {"mypy", "lint-imports"}
    assert all(f".venv/bin/{name}" in script for name in (*entries, "ruff"))


def test_readthedocs_and_templates_parse():
    site = yaml.safe_load(read(".readthedocs.yaml"))
    assert (ROOT / site["sphinx"]["configuration"]).is_file()
    for name in re.findall(r"-r (\S+)", str(site["build"])):
        assert (ROOT / name.rstrip("',")).is_file()
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert ("body" in form) != (path.stem == "config")


def test_the_files_of_a_repository_are_in_the_sdist():
    """hatchling takes what git does not ignore, so that the tests of an sdist find their files."""
    tool = tomllib.loads(read("pyproject.toml"))["tool"]["hatch"]["build"]["targets"]
    assert set(tool) == {"wheel"}
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
