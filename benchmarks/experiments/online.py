"""A subject that nobody has seen: its trials one by one, against all of them at once.

``python -m benchmarks.experiments.online`` leaves out one subject at a time. The coordinates of the
joints are reduced to their first principal components, a clip becomes their covariance matrix,
GyroBN normalizes by subject, and a logistic regression on the normal coordinates names the action.
Everything is fitted to the other subjects, and so is the classifier of every row.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from benchmarks.experiments import records
from gyrobn import SPD, GyroBN

NAME = "online"
DATA = ("msraction3d", "hdm05_11")
METHODS = {
    "none": {},
    "refit": {"unseen": "refit"},
    "adapt": {"unseen": "adapt"},
    "refit_so_far": {"unseen": "refit"},
    "adapt_so_far": {"unseen": "adapt"},
    "online_1": {"unseen": "online", "prior_strength": 1.0},
    "online_4": {"unseen": "online", "prior_strength": 4.0},
    "online_16": {"unseen": "online", "prior_strength": 16.0},
}
ORDERS = ("shuffled", "recorded")
COMPONENTS = 15
EARLY = 5
"""How many trials of a subject count as its first."""
M = SPD(COMPONENTS)


class Fold(NamedTuple):
    """One subject that was left out, and what was fitted to the others."""

    X: NDArray[Any]
    y: NDArray[Any]
    together: tuple[GyroBN, LogisticRegression]
    by_subject: tuple[GyroBN, LogisticRegression]


def cells(seeds: int) -> Iterator[records.Cell]:
    """Return the cells; there is one recorded order, which is sorted by action."""
    for data in DATA:
        for order in ORDERS:
            for seed in range(seeds if order == "shuffled" else 1):
                for method in METHODS:
                    once = method.endswith("so_far")  # slow: every trial begins all over again
                    if not once or (order, seed) == ("shuffled", 0):
                        yield {"data": data, "method": method, "order": order, "seed": seed}


def main() -> None:
    """Run the cells that the command line asks for."""
    args = records.arguments(__doc__ or "", method=METHODS, order=ORDERS).parse_args()
    folder, args.data = args.data, None
    part = records.part_of(args.part)
    wanted = records.chosen(cells(args.seeds), args)
    records.run(NAME, wanted, lambda cell, tick: work(cell, tick, folder), part, args.results)


def work(cell: records.Cell, tick: records.Tick, folder: Path) -> dict[str, Any]:
    """Return the accuracy on trials of subjects that were left out, in percent."""
    found, left_out = [], folds(cell["data"], folder)
    for number, fold in enumerate(left_out):
        order = np.arange(len(fold.y))
        if cell["order"] == "shuffled":
            order = np.random.default_rng([cell["seed"], number]).permutation(order)
        right = predict(fold, cell["method"], fold.X[order]) == fold.y[order]
        found.append(right)
        tick((number + 1) / len(left_out))
    everything = np.concatenate(found)
    first = np.concatenate([right[:EARLY] for right in found])
    return {
        "accuracy": round(100 * float(everything.mean()), 3),
        "first": round(100 * float(first.mean()), 3),
        "subjects": [round(100 * float(right.mean()), 3) for right in found],
        "trials": len(everything),
    }


def predict(fold: Fold, method: str, X: NDArray[Any]) -> NDArray[Any]:
    """Return the classes of the trials of a new subject, −1 where a method gives none."""
    if method == "none":
        bn, classifier = fold.together
        return classes(classifier, bn.transform(X))
    bn, classifier = fold.by_subject
    bn.set_params(**METHODS[method]).reset_online()
    if not method.endswith("so_far"):
        return classes(classifier, bn.transform(X, domains=["new"] * len(X)))
    seen = [bn.transform(X[:t], domains=["new"] * t)[-1] for t in range(2, len(X) + 1)]
    return np.append(-1, classes(classifier, np.stack(seen)))


def classes(classifier: LogisticRegression, points: NDArray[Any]) -> NDArray[Any]:
    """Return what the classifier says of normalized points."""
    named: NDArray[Any] = classifier.predict(M.to_normal(points))
    return named


@cache
def folds(data: str, folder: Path) -> list[Fold]:
    """Return what each left-out subject meets; all cells of a data set share it."""
    clips, y, subject = load(folder / f"{data}.npz")
    found = []
    for name in np.unique(subject):
        known = subject != name
        frames = np.concatenate([clip for clip, use in zip(clips, known, strict=True) if use])
        pca = PCA(COMPONENTS, svd_solver="full").fit(frames)
        X = np.stack([covariance(pca.transform(clip)) for clip in clips])
        together, by_subject = (GyroBN(M, scale="sqrt_dim") for _ in range(2))
        pairs = (
            (together, together.fit_transform(X[known])),
            (by_subject, by_subject.fit_transform(X[known], domains=subject[known])),
        )
        trained = [
            (bn, LogisticRegression(max_iter=2000).fit(M.to_normal(Z), y[known])) for bn, Z in pairs
        ]
        found.append(Fold(X[~known], y[~known], trained[0], trained[1]))
    return found


def load(path: Path) -> tuple[list[NDArray[Any]], NDArray[Any], NDArray[Any]]:
    """Return clips (frames, coordinates), their actions and subjects.

    Frames without a skeleton (all zeros) are dropped, and clips with fewer than ten others.
    """
    with np.load(path) as file:
        frames, lengths = file["X"].astype(np.float64), file["lengths"]
        clips = np.split(frames, np.cumsum(lengths)[:-1])
        clips = [clip[np.any(clip != 0, axis=1)] for clip in clips]
        use = np.asarray([len(clip) >= 10 for clip in clips])
        clips = [clip for clip, good in zip(clips, use, strict=True) if good]
        return clips, file["y"][use], file["subject"][use].astype(str)


def covariance(clip: NDArray[Any]) -> NDArray[Any]:
    """Return the covariance matrix of a clip, made regular by a thousandth of its trace."""
    S = np.cov(clip, rowvar=False)
    return S + 1e-3 * np.trace(S) / len(S) * np.eye(len(S))


if __name__ == "__main__":
    main()
