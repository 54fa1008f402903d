"""The graphs of the link prediction tables: features, and edges for training and tests."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

GRAPHS = {"disease": "disease_lp", "airport": "airport", "cora": "cora", "pubmed": "pubmed"}

SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "signed row sum": lambda x: x.sum(axis=1),
    "row length": lambda x: np.linalg.norm(x, axis=1),
    "absolute row sum": lambda x: np.abs(x).sum(axis=1),
    "raw": lambda x: np.ones(len(x)),
}
"""What a row of features is divided by. The published loader takes its signed sum."""

EDGES = "train_edges", "val_edges", "val_edges_false", "test_edges", "test_edges_false"


@dataclass(frozen=True)
class Graph:
    """A graph with the split of seed 1234: pairs (i, j) of nodes, edges and others."""

    features: Tensor
    train: Tensor
    """Edges for training."""
    val: tuple[Tensor, Tensor]
    """Edges and other pairs for validation."""
    test: tuple[Tensor, Tensor]

    def negatives(self, rng: np.random.Generator) -> Tensor:
        """Draw as many pairs i ≤ j that are no training edges as there are training edges.

        As in the published code the pair of a node with itself may be drawn, and so may the edges
        of validation and test.
        """
        nodes, count = len(self.features), len(self.train)
        edges = _code(self.train.numpy(), nodes)
        drawn: list[np.ndarray] = []
        while sum(map(len, drawn)) < count:
            pairs = rng.integers(0, nodes, (3 * count, 2))
            pairs = pairs[pairs[:, 0] <= pairs[:, 1]]
            drawn.append(pairs[~np.isin(_code(pairs, nodes), edges)])
        return torch.as_tensor(np.concatenate(drawn)[:count])


def load(name: str, folder: Path, scaling: str = "signed row sum") -> Graph:
    """Read a graph of ``../shared/data``; its README tells where it comes from."""
    with np.load(folder / f"{GRAPHS[name]}.npz") as file:
        parts = [file[f"feat_{part}"] for part in ("data", "indices", "indptr")]
        features = scipy.sparse.csr_matrix(tuple(parts), shape=tuple(file["feat_shape"])).toarray()
        edges = {part: torch.as_tensor(file[part].astype(np.int64)) for part in EDGES}
    features = _scaled(features.astype(np.float64), SCALINGS[scaling])
    if name == "airport":  # the degree in the training graph, up to 5, and a constant
        degree = np.bincount(edges["train_edges"].numpy().ravel(), minlength=len(features))
        more = np.eye(6)[np.minimum(degree, 5)], np.ones((len(features), 1))
        features = np.hstack([features, *more])
    return Graph(
        torch.as_tensor(features),
        edges["train_edges"],
        (edges["val_edges"], edges["val_edges_false"]),
        (edges["test_edges"], edges["test_edges_false"]),
    )


def _scaled(x: np.ndarray, size: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Divide each row by its size; leave rows of size zero as zero."""
    total = size(x)[:, None]
    return np.divide(x, total, out=np.zeros_like(x), where=total != 0)


def _code(pairs: np.ndarray, nodes: int) -> np.ndarray:
    return pairs[:, 0].astype(np.int64) * nodes + pairs[:, 1]
