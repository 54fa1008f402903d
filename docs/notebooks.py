"""The example pages as Jupyter notebooks, written when the documentation is built.

A notebook has the blocks of its page as cells to run, and the text between them as text. Pictures
are inside the notebook, and links lead to the site.
"""

import base64
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SITE = f"{PROJECT['urls']['Documentation']}/en/latest"
NEEDS_GPU = "# needs a GPU"

CODE = re.compile(r"^```python\n(.*?)^```$\n?", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"^```\{image\} (\S+)\n:alt: (.*)\n```$", re.MULTILINE)
ROLE = re.compile(r"\{(doc|term)\}`([^`<]*?)(?:\s*<([^`>]*)>)?`", re.DOTALL)
TO_NOTEBOOK = re.compile(r"^This page is also a \{download\}.*$", re.MULTILINE)


def write(folder: Path) -> None:
    """Write a notebook for each example."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in sorted((DOCS / "examples").glob("*.md")):
        if page.name != "index.md":
            text = json.dumps(notebook(page), indent=1, ensure_ascii=False)
            (folder / f"{page.stem}.ipynb").write_text(text + "\n", encoding="utf-8")


def notebook(page: Path) -> dict[str, Any]:
    """Return the notebook of a page, in version 4.5 of the format."""
    parts = CODE.split(page.read_text(encoding="utf-8"))
    cells = []
    for i, part in enumerate(parts):  # text and code take turns
        if part.strip():
            cells.append(code_cell(part) if i % 2 else text_cell(part, page))
    for i, cell in enumerate(cells):
        cell["id"] = f"{page.stem}-{i}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def code_cell(code: str) -> dict[str, Any]:
    """Return a cell to run. If it needs a GPU and there is none, the cells after it still run."""
    tags = {"tags": ["raises-exception"]} if code.startswith(NEEDS_GPU) else {}
    cell = {"cell_type": "code", "execution_count": None, "metadata": tags, "outputs": []}
    return {**cell, "source": code.strip("\n").splitlines(keepends=True)}


def text_cell(text: str, page: Path) -> dict[str, Any]:
    """Return text with its pictures, without what only Sphinx understands."""
    pictures: dict[str, Any] = {}

    def attach(found: re.Match[str]) -> str:
        path = page.parent / found[1]
        pictures[path.name] = {"image/png": base64.b64encode(path.read_bytes()).decode()}
        return f"![{found[2]}](attachment:{path.name})"

    to_page = f"This notebook is also [a page]({SITE}/examples/{page.stem}.html)."
    text = TO_NOTEBOOK.sub(to_page, text)
    text = ROLE.sub(lambda found: plain(found, page), IMAGE.sub(attach, text))
    cell: dict[str, Any] = {"cell_type": "markdown", "metadata": {}}
    if pictures:
        cell["attachments"] = pictures
    return {**cell, "source": text.strip("\n").splitlines(keepends=True)}


def plain(found: re.Match[str], page: Path) -> str:
    """Return a role of Sphinx as a link to the site; a term is only its words."""
    role, words, target = found.groups()
    if role == "term":
        return words
    name = posixpath.normpath(f"examples/{target or words}")
    if target is None:
        (words, *_) = re.findall(r"^# (.*)$", (DOCS / f"{name}.md").read_text(), re.MULTILINE)
    return f"[{words}]({SITE}/{name}.html)"
