"""The series data sets: clips of several channels, as covariances, correlations or subspaces."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from gyrobn import covariance_to_correlation

SERIES = "hdm05_11", "msraction3d", "natops", "basicmotions", "japanesevowels"
SKELETONS = "hdm05_11", "msraction3d"
WINDOWS = {"hdm05_windows": ("hdm05_11", 30, 10), "msraction3d_windows": ("msraction3d", 15, 5)}
"""Larger sets: windows of the clips, with their length and the frames from one to the next."""
AXES = {"hdm05_11": 3, "msraction3d": 3, "natops": 3, "hdm05_windows": 3, "msraction3d_windows": 3}
"""Data sets whose channels are the coordinates of joints, (joint, axis) in this order."""

RIDGE = 1e-3
"""Part of the mean variance that is added to every variance: short clips have singular matrices."""

Clips = list[np.ndarray]


@dataclass(frozen=True)
class Split:
    """Samples and their classes, for training and tests as the source divides them."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def hold_out(self, part: float, seed: int) -> tuple["Split", tuple[Tensor, Tensor]]:
        """Take a part of the training samples away, from each class alike, for validation."""
        rest, held = train_test_split(
            np.arange(len(self.y)), test_size=part, random_state=seed, stratify=self.y.numpy()
        )
        return replace(self, x=self.x[rest], y=self.y[rest]), (self.x[held], self.y[held])


def clips(name: str, folder: Path, by: str = "source") -> tuple[Clips, np.ndarray, np.ndarray]:
    """Return clips of shape (time, channels), their classes, and which of them are for tests.

    Frames of zeros are dropped: the sensor lost the body. One clip of msraction3d has no others.

    ``by`` is ``"source"`` for the division of the source, by subjects where it has them, or
    ``"random half"``: one half for all runs, as the published loader of HDM05 draws it. All
    windows of a clip are on the same side.
    """
    source, length, stride = WINDOWS.get(name, (name, 0, 1))
    with np.load(folder / f"{source}.npz") as file:
        x, y, is_test = file["X"].astype(np.float64), file["y"], file["is_test"].astype(bool)
        lengths = file["lengths"] if "lengths" in file.files else None
    parts = list(x.transpose(0, 2, 1)) if lengths is None else np.split(x, np.cumsum(lengths)[:-1])
    parts = [part[np.any(part != 0.0, axis=-1)] for part in parts]
    kept = [i for i, part in enumerate(parts) if len(part) > 1]
    parts, y, is_test = [parts[i] for i in kept], y[kept].astype(np.int64), is_test[kept]
    if by == "random half":
        is_test = np.random.default_rng(1024).permutation(len(y)) < len(y) // 2
    if length:
        starts = [range(0, len(part) - length + 1, stride) for part in parts]
        of = np.repeat(np.arange(len(parts)), [len(times) for times in starts])
        parts = [p[t : t + length] for p, times in zip(parts, starts, strict=True) for t in times]
        y, is_test = y[of], is_test[of]
    return parts, y, is_test


def split(
    name: str, folder: Path, matrices: Callable[[Clips], np.ndarray], by: str = "source"
) -> Split:
    """Read a data set, turn every clip into a point, and divide the points."""
    parts, y, is_test = clips(name, folder, by)
    return divided(torch.as_tensor(matrices(parts)), y, is_test)


def divided(x: Tensor, y: np.ndarray, is_test: np.ndarray) -> Split:
    """Divide points into those for training and for tests."""
    labels = torch.as_tensor(y)
    return Split(x[~is_test], labels[~is_test], x[is_test], labels[is_test])


def covariance(x: np.ndarray) -> np.ndarray:
    r"""Return :math:`S + 10^{-3}\,\tfrac{\operatorname{tr}S}n I` for a clip (..., time, n)."""
    centred = x - x.mean(axis=-2, keepdims=True)
    S = np.swapaxes(centred, -1, -2) @ centred / x.shape[-2]
    size = np.trace(S, axis1=-2, axis2=-1)[..., None, None] / S.shape[-1]
    return S + RIDGE * size * np.eye(S.shape[-1])


def covariances(parts: Clips) -> np.ndarray:
    """Return the covariance of every clip, in a unit in which the mean variance is about one."""
    S = np.stack([covariance(part) for part in parts])
    return S / np.median(np.trace(S, axis1=-2, axis2=-1) / S.shape[-1])


def correlations(parts: Clips, axes: int = 1, windows: bool = True) -> np.ndarray:
    """Return correlation matrices of joints: one channel per axis and window of time.

    The windows are those of a pyramid of two levels: the clip, its first and its second half.
    """

    def channels(part: np.ndarray) -> np.ndarray:
        half = len(part) // 2
        cuts = (part, part[:half], part[half:]) if windows else (part,)
        by_axis = [cut.reshape(len(cut), -1, axes).transpose(2, 0, 1) for cut in cuts]
        return np.concatenate([covariance(cut) for cut in by_axis])

    return covariance_to_correlation(np.stack([channels(part) for part in parts]))


def subspaces(parts: Clips, p: int) -> np.ndarray:
    """Return a basis (n, p) of the p directions in which the frames of a clip vary most."""

    def basis(part: np.ndarray) -> np.ndarray:
        return np.linalg.svd((part - part.mean(axis=0)).T, full_matrices=False)[0][:, :p]

    return np.stack([basis(part) for part in parts])
