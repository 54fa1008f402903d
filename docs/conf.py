"""Sphinx. Build with ``python -m sphinx -W --keep-going -b html docs docs/_build/html``."""

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import gyrobn

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

import tables  # noqa: E402

project = "gyrobn"
author = "The gyrobn developers"
copyright = author
version = release = gyrobn.__version__
metadata = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_generated"]
nitpicky = True  # a reference to something that is not on these pages is an error
nitpick_ignore_regex = [
    ("py:class", ".*"),  # napoleon takes the words that describe a parameter for classes
    ("py:func", r"numpy\..*"),
    ("py:meth", "train|eval"),  # of nnx.Module
]
myst_enable_extensions = ["amsmath", "attrs_block", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the parameters are described in words; Array is Any to a type checker
napoleon_google_docstring = False
napoleon_use_param = False  # parameters that share a description stand in one line
napoleon_use_rtype = False

html_theme = "furo"
html_title = "gyrobn"
html_css_files = ["site.css"]

# MathJax is one file of a package, so that formulas need no network
mathjax_path = "tex-svg-full.js"
(package,) = importlib.util.find_spec("sphinx-mathjax-offline").submodule_search_locations
html_static_path = ["_static", f"{package}/static/mathjax/{mathjax_path}"]

# tried by the workflow links.yml, not here: there may be no network
linkcheck_timeout = 30
linkcheck_retries = 3
# our own addresses are placeholders until the first release
linkcheck_ignore = [f"{re.escape(url)}.*" for url in metadata["urls"].values()]


# ---------------------------------------------------------------------- docstrings


def escape_shapes(app, what, name, obj, options, lines):
    """Keep the stars of a shape (*channels, n_) from meaning emphasis, and n_ from being a link."""
    for i, line in enumerate(lines):
        parts = re.split("(`+[^`]*`+)", line)
        parts[::2] = [
            re.sub(r"\*(?=channels|point_shape)|(?<=\()\*(?=shape)", r"\\*", part)
            for part in parts[::2]
        ]
        lines[i] = "".join(parts)
        for link in ("(n_features_in_", "shape of var_"):
            lines[i] = lines[i].replace(link, link[:-1] + r"\_")


def write_tables(app):
    """Measure, and write what pages include."""
    tables.write(DOCS / "_generated")


def setup(app):
    app.connect("autodoc-process-docstring", escape_shapes, priority=400)  # before napoleon
    app.connect("builder-inited", write_tables)
