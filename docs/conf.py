"""Sphinx. Build with ``python -m sphinx -W --keep-going -b html docs docs/_build/html``."""

import contextlib
import re
from pathlib import Path

import gyrobn

DOCS = Path(__file__).parent

project = "gyrobn"
author = "The gyrobn developers"
copyright = author
version = release = gyrobn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["amsmath", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the parameters are described in words; Array is Any to a type checker
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "gyrobn"
html_static_path = ["_static"]


# ---------------------------------------------------------------------- docstrings


def escape_shapes(app, what, name, obj, options, lines):
    """Keep the stars of a shape (*channels, n_) from meaning emphasis, and n_ from being a link."""
    for i, line in enumerate(lines):
        parts = re.split("(`+[^`]*`+)", line)
        parts[::2] = [re.sub(r"\*(?=channels|point_shape)", r"\\*", part) for part in parts[::2]]
        lines[i] = "".join(parts)
        for link in ("(n_features_in_", "shape of var_"):
            lines[i] = lines[i].replace(link, link[:-1] + r"\_")


# ---------------------------------------------------------------------- the table of geometries


def measure(manifold, like):
    """Normalise points and return how far the mean of the output is from where it should be."""
    x = manifold.random(50, rng=0, like=like, spread=min(1.0, 0.3 * manifold.convexity_radius))
    bias = manifold.random(rng=1, like=like, spread=0.5)
    y = gyrobn.normalize(manifold, x, gyrobn.batch_stats(manifold, x), bias, scale=0.5)
    found = gyrobn.frechet(manifold, y)
    if not bool(found.converged):
        raise RuntimeError(f"{manifold!r} does not converge on {type(like)}")
    return f"{float(manifold.dist(found.mean, bias)):.0e}".replace("-", "\N{NON-BREAKING HYPHEN}")


def libraries():
    """Yield the name of each array library, a float64 scalar of it, and a context to use it in."""
    import array_api_strict
    import jax
    import numpy
    import torch

    yield "NumPy", numpy.zeros(()), contextlib.nullcontext()
    yield "torch", torch.zeros((), dtype=torch.float64), contextlib.nullcontext()
    with jax.enable_x64(True):
        yield "JAX", jax.numpy.zeros(()), jax.enable_x64(True)
    device = array_api_strict.Device("device1")
    yield "array-api-strict", array_api_strict.zeros((), device=device), contextlib.nullcontext()


def write_geometries_table(app):
    """Run GyroBN on every geometry of the registry and every library, and tabulate the errors."""
    families = {name: cls.examples()[0] for name, cls in gyrobn.REGISTRY.items()}
    columns = {}
    for library, like, context in libraries():
        with context:
            columns[library] = {name: measure(M, like) for name, M in families.items()}
    lines = [
        f"| geometry | example | {' | '.join(columns)} |",
        "|---" * (2 + len(columns)) + "|",
        *(
            f"| `{name}` | `{M!r}` | {' | '.join(column[name] for column in columns.values())} |"
            for name, M in families.items()
        ),
    ]
    page = DOCS / "_generated" / "geometries_table.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")


def setup(app):
    app.connect("autodoc-process-docstring", escape_shapes, priority=400)  # before napoleon
    app.connect("builder-inited", write_geometries_table)
