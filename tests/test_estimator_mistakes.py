"""Mistakes in the use of the estimator that once went unnoticed: each is refused, and named."""

import dask.array as da
import numpy as np
import pytest
import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from gyrobn import REGISTRY, SPD, Chunks, Correlation, Euclidean, GyroBN, PoincareBall, Sphere

VECTORS = [name for name, cls in REGISTRY.items() if len(cls.examples()[0].point_shape) == 1]
VECTORS.remove("product")  # which has no sizes to take from the data


def as_given(X, kind):
    """Return samples in one of the forms that ``fit`` takes."""
    if kind == "torch":
        return torch.as_tensor(X)
    if kind == "chunks":
        return Chunks(X, size=7)
    return da.from_array(X, chunks=(7, *X.shape[1:])) if kind == "dask" else X


KINDS = ["numpy", "torch", "chunks", "dask"]


@pytest.mark.parametrize("name", VECTORS)
def test_rows_of_symmetric_matrices_are_not_vectors(name):
    """A name takes its sizes from the data, and covariances are not vectors in channels."""
    X = 1e-3 * SPD(12).random(30, rng=0)
    message = rf"\(30, 12, 12\) holds symmetric matrices, and manifold='{name}' .*'spd'"
    for method in ("fit", "partial_fit", "fit_transform"):
        with pytest.raises(ValueError, match=message):
            getattr(GyroBN(name), method)(X)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_default_geometry_is_not_for_matrices(kind, dtype):
    for M, channels in ((SPD(12), ()), (Correlation(3), ()), (SPD(2), (4,))):
        X = M.random(30, *channels, rng=0).astype(dtype)
        with pytest.raises(ValueError, match=r"holds symmetric matrices.*give manifold='spd'"):
            GyroBN().fit(as_given(X, kind))
        rows = GyroBN(Euclidean(X.shape[-1])).fit(as_given(X, kind))  # rows, if they are meant
        np.testing.assert_allclose(np.asarray(rows.mean_), X.mean(0), atol=1e-5)
    square = np.random.default_rng(0).normal(size=(30, 4, 4)).astype(dtype)
    assert GyroBN().fit(as_given(square, kind)).manifold_ == Euclidean(4)  # channels of vectors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("M", [Euclidean(2), SPD(2), Sphere(2)], ids=repr)
def test_one_sample_has_no_variance(M, kind):
    X = M.random(1, 3, rng=0, spread=0.3)
    methods = ("fit",) if kind == "chunks" else ("fit", "fit_transform")
    for method in methods:
        with pytest.raises(ValueError, match=r"fit\(\) needs at least 2 samples .*got 1 sample:"):
            getattr(GyroBN(M), method)(as_given(X, kind))
    X, weights = M.random(8, 3, rng=0, spread=0.3), np.eye(8)[3]
    with pytest.raises(ValueError, match=r"with a weight other than 0.* got 1 sample:"):
        GyroBN(M).fit(as_given(X, kind), sample_weight=weights)
    bn = GyroBN(M)  # a stream of single samples
    for x in X:
        bn.partial_fit(as_given(x[None], kind))
    assert bn.n_samples_seen_ == 8
    assert np.all(np.asarray(bn.var_) > 1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [-0.5, np.asarray(-1.0), [1.0, -1.0, 1.0]])
def test_a_negative_scale_is_not_a_standard_deviation(kind, scale):
    X = as_given(PoincareBall(2).random(20, 3, rng=0), kind)
    for method in ("fit", "partial_fit"):
        bn = GyroBN("poincare_ball", scale=scale)
        with pytest.raises(ValueError, match=r"scale is the standard deviation .* not be negative"):
            getattr(bn, method)(X)
        assert not hasattr(bn, "mean_")


def test_domains_in_place_of_y():
    """Class labels are y, too, so the mistake shows only where domains were meant elsewhere."""
    C = SPD(3).random(20, rng=0)
    who = np.repeat(["Ada", "Bo"], 10)
    bn = GyroBN("spd").fit(C, who)  # as class labels in a pipeline
    for method in ("transform", "inverse_transform"):
        with pytest.raises(ValueError, match=r"fit\(X, domains=\.\.\.\), too, by name .* is y"):
            getattr(bn, method)(C, domains=who)
    for unseen in ("refit", "adapt", "online"):
        for method in ("fit", "fit_transform", "partial_fit"):
            with pytest.raises(ValueError, match=rf"unseen='{unseen}' .* got y, .* no domains"):
                getattr(GyroBN("spd", unseen=unseen), method)(C, who)
        assert GyroBN("spd", unseen=unseen).fit(C, who, domains=who).domains_.tolist() == [
            "Ada",
            "Bo",
        ]


def test_domains_that_a_pipeline_does_not_pass_on():
    X = np.random.default_rng(0).normal(size=(20, 2))
    y, who = np.arange(20) % 2, np.repeat(["Ada", "Bo"], 10)
    model = make_pipeline(GyroBN(unseen="refit"), LogisticRegression())
    with pytest.raises(ValueError, match=r"no domains: .* fit\(X, y, gyrobn__domains=...\)"):
        model.fit(X, y)
    with sklearn.config_context(enable_metadata_routing=True):
        step = GyroBN(unseen="refit").set_fit_request(domains=True)
        step.set_transform_request(domains=True)
        make_pipeline(step, LogisticRegression()).fit(X, y, domains=who)


# ---------------------------------------------------------------------- names of features


@pytest.mark.parametrize("M", [SPD(8), Correlation(3), PoincareBall(2)], ids=repr)
def test_samples_that_are_not_rows_have_no_names(M):
    """Eight names for 8 x 8 matrices would be wrong; coordinates have names."""
    X = M.random(10, *(2,) * (M.point_shape == (2,)), rng=0)
    bn = GyroBN(M).fit(X)
    shape = str(X.shape[1:]).replace("(", r"\(").replace(")", r"\)")
    message = rf"samples of shape {shape} .* output='coordinates'"
    with pytest.raises(ValueError, match=message):
        bn.get_feature_names_out()
    with pytest.raises(ValueError, match=message):
        make_pipeline(bn).get_feature_names_out()
    with pytest.raises(ValueError, match=message):
        bn.set_output(transform="pandas").transform(X)
