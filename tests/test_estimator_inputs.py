"""What people give to the estimator: lists, loaders, masks, rotations, grids, bad matrices."""

import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn
import torch
from scipy.spatial.transform import Rotation
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch.utils.data import DataLoader, TensorDataset

import gyrobn.torch
from gyrobn import (
    REGISTRY,
    SPD,
    Chunks,
    Correlation,
    Euclidean,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    Hyperboloid,
    Klein,
    PoincareBall,
    Product,
    ProperVelocity,
    SpecialOrthogonal,
    Sphere,
    Stereographic,
    batch_stats,
    covariance_to_correlation,
    denormalize,
    frechet,
    normalize,
    normalize_batch,
)
from gyrobn.cli import main

# ---------------------------------------------------------------------- lists

SHAPES = {
    "vectors": (PoincareBall(2), ()),
    "vectors, channels": (PoincareBall(2), (3,)),
    "vectors, more channels": (PoincareBall(2), (2, 3)),
    "matrices": (SPD(2), ()),
    "matrices, channels": (SPD(2), (3,)),
    "blocks": (Correlation(3), (2,)),
}
shapes = pytest.mark.parametrize(("M", "channels"), SHAPES.values(), ids=SHAPES)
KINDS = {"numpy": np.asarray, "torch": torch.as_tensor}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def named(M):
    return next(name for name, cls in REGISTRY.items() if cls is type(M))


def host(x):
    return np.asarray(x)


@shapes
@pytest.mark.parametrize("cuts", [[10, 20, 30], [7, 20, 39], []], ids=str)
def test_a_list_of_chunks_is_their_samples(M, channels, cuts):
    X = M.random(40, *channels, rng=0, spread=0.5)
    whole = GyroBN(M).fit(X)
    parts = np.split(X, cuts)
    for manifold in (M, named(M)):
        for chunks in (parts, tuple(parts)):
            bn = GyroBN(manifold).fit(chunks)
            assert bn.n_samples_seen_ == 40
            assert bn.mean_.shape == (*channels, *M.point_shape)
            np.testing.assert_allclose(bn.mean_, whole.mean_, rtol=0, atol=1e-12)
            np.testing.assert_allclose(bn.var_, whole.var_, rtol=1e-12)
    with pytest.raises(TypeError, match=r"transform_chunks\(\) returns chunks"):
        whole.transform(parts)
    Y = np.concatenate(list(whole.transform_chunks(parts)))
    np.testing.assert_allclose(Y, whole.transform(X), rtol=0, atol=1e-12)
    more = GyroBN(M).fit(X).partial_fit(parts)
    assert more.n_samples_seen_ == 80
    np.testing.assert_allclose(more.mean_, whole.mean_, rtol=0, atol=1e-12)


@kinds
def test_a_list_of_chunks_of_every_library(kind):
    X = PoincareBall(2).random(40, rng=0, like=np.zeros((), "f4"))
    bn = GyroBN("poincare_ball").fit([kind(X[:10]), kind(X[10:])])
    assert type(bn.mean_) is type(kind(X))
    np.testing.assert_allclose(host(bn.mean_), GyroBN("poincare_ball").fit(X).mean_, atol=1e-6)


@shapes
def test_a_list_of_samples_is_stacked(M, channels):
    X = M.random(10, *channels, rng=0, spread=0.5)
    bn = GyroBN(M).fit(X)
    want = bn.transform(X)
    for given in (X.tolist(), [x.tolist() for x in X], list(X), tuple(X)):
        if channels and given[0] is not X.tolist() and hasattr(given[0], "shape"):
            # before fit an array of more axes than a point is a chunk; after fit samples are known
            assert GyroBN(M).fit(given).mean_.ndim < bn.mean_.ndim
        else:
            np.testing.assert_allclose(GyroBN(M).fit(given).mean_, bn.mean_, rtol=0, atol=1e-14)
        np.testing.assert_allclose(bn.transform(given), want, rtol=0, atol=1e-14)


@shapes
def test_lists_that_are_neither_are_refused(M, channels):
    X = M.random(10, *channels, rng=0, spread=0.5)
    point = M.random(rng=0)
    mixed = {
        "a chunk and a point": [X, point],
        "samples and labels": (X, np.zeros(10)),
        "arrays and lists": [X[:5], X[5:].tolist()],
        "batches of samples and labels": [(X[:5], np.zeros(5)), (X[5:], np.zeros(5))],
        "lists of arrays": [[X[:5]], [X[5:]]],
    }
    bn = GyroBN(M).fit(X)
    for given in mixed.values():
        with pytest.raises(TypeError, match=r"X is a (list|tuple) of 2 parts .* gyrobn\.Chunks"):
            GyroBN(M).fit(given)
        with pytest.raises(TypeError, match=r"X is a (list|tuple) of 2 parts"):
            bn.transform(given)
    with pytest.raises(ValueError, match="chunks must agree"):
        GyroBN(M).fit([X, X.astype(np.float32)])


# ---------------------------------------------------------------------- loaders, masks, rotations


@pytest.mark.parametrize("more", [0, 1, 2])
def test_loaders_that_yield_lists(more):
    X = PoincareBall(2).random(50, rng=0)
    extra = [torch.arange(50) for _ in range(more)]
    loader = DataLoader(TensorDataset(torch.as_tensor(X), *extra), batch_size=20)
    want = GyroBN("poincare_ball").fit(X)
    if more:
        message = (
            rf"chunk 0 must be an array .* got list of {more + 1}: take the samples out, fit\("
        )
        with pytest.raises(TypeError, match=message):
            GyroBN("poincare_ball").fit(loader)
        bn = GyroBN("poincare_ball").fit(lambda: (b[0] for b in loader))  # as it advises
    else:
        bn = GyroBN("poincare_ball").fit(loader)
        Y = np.concatenate([host(y) for y in bn.transform_chunks(loader)])
        np.testing.assert_allclose(Y, want.transform(X), rtol=0, atol=1e-13)
    np.testing.assert_allclose(host(bn.mean_), want.mean_, rtol=0, atol=1e-13)


def test_loaders_that_yield_dicts():
    X = PoincareBall(2).random(6, rng=0)
    with pytest.raises(TypeError, match=r"got dict of 2: take the samples out, fit\(.*\[key\]"):
        GyroBN("poincare_ball").fit(DataLoader([{"x": x, "y": 0} for x in X]))


def test_masked_arrays():
    M, X = PoincareBall(2), PoincareBall(2).random(10, rng=0)
    masked, bn = np.ma.masked_array(X, mask=X > 0.2), GyroBN(M).fit(X)
    uses = [
        lambda: GyroBN(M).fit(masked),
        lambda: GyroBN(M).fit(list(masked)),
        lambda: GyroBN(M).fit([masked, masked]),
        lambda: GyroBN(M).fit(Chunks(masked)),
        lambda: GyroBN(M).partial_fit(masked),
        lambda: bn.transform(masked),
        lambda: bn.inverse_transform(masked),
        lambda: list(bn.transform_chunks([masked])),
        lambda: GyroBN(M).fit(X, sample_weight=np.ma.masked_array(np.ones(10), X[:, 0] > 0)),
        lambda: GyroBN(M, bias=masked[0], scale=np.ma.masked_array(1.0, True)).fit(X),
        lambda: frechet(M, masked),
        lambda: normalize(M, masked, batch_stats(M, X)),
        lambda: M.dist(masked, X),
    ]
    for use in uses:
        with pytest.raises(TypeError, match="is a masked array, and its mask would be lost: drop"):
            use()
    whole = np.ma.masked_array(X, mask=False)  # nothing is masked
    np.testing.assert_array_equal(GyroBN(M).fit(whole).mean_, bn.mean_)
    assert type(bn.transform(whole)) is np.ndarray


def test_rotations_of_scipy():
    rotations = Rotation.random(20, random_state=0)
    M, X = SpecialOrthogonal(3), rotations.as_matrix()
    bn = GyroBN("special_orthogonal", scale=0.5).fit(X[[0, 0]])
    for use in (
        lambda: GyroBN(M).fit(rotations),
        lambda: GyroBN("special_orthogonal").fit(rotations[0]),
        lambda: GyroBN(M).fit([rotations[0], rotations[1]]),
        lambda: bn.transform(rotations),
        lambda: frechet(M, rotations),
    ):
        with pytest.raises(TypeError, match=r"is a Rotation: give rotation\.as_matrix\(\)"):
            use()


def test_tables_of_matrices_are_refused():
    X = SPD(2).random(10, rng=0)
    bn = GyroBN("spd").set_output(transform="pandas")
    message = r"set_output\(transform='pandas'\) .* samples of shape \(2, 2\) are not rows"
    for estimator in (bn, clone(bn)):
        with pytest.raises(ValueError, match=message):
            estimator.fit_transform(X)
    with sklearn.config_context(transform_output="pandas"):
        with pytest.raises(ValueError, match=message):
            GyroBN("spd").fit_transform(X)
        Y = GyroBN("spd").set_output(transform="default").fit_transform(X)
        assert type(GyroBN().fit_transform(X[:, 0])).__name__ == "DataFrame"
    np.testing.assert_array_equal(Y, GyroBN("spd").fit_transform(X))
    np.testing.assert_allclose(bn.inverse_transform(Y), X, rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("poincare", "poincare_ball"),
        ("PoincareBall", "poincare_ball"),
        ("poincareball", "poincare_ball"),
        ("SPD", "spd"),
        ("grassmanian", "grassmannian"),
        ("special-orthogonal", "special_orthogonal"),
        ("correlations", "correlation"),
        ("Hyperboloid", "hyperboloid"),
    ],
)
def test_misspelt_names(name, meant):
    with pytest.raises(
        ValueError, match=rf"unknown manifold '{name}': .*: did you mean '{meant}'\?"
    ):
        GyroBN(name).fit(np.zeros((3, 2)))


def test_misspelt_metrics():
    with pytest.raises(ValueError, match="got 'log_euclid': did you mean 'log_euclidean'"):
        SPD(2, "log_euclid")
    with pytest.raises(ValueError, match="got 'offlog': did you mean 'off_log'"):
        GyroBN("correlation", metric="offlog").fit(Correlation(3).random(5, rng=0))
    with pytest.raises(ValueError, match=r"got 'banana'$"):
        SPD(2, "banana")


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.zeros((3, 2), int), r"x\.astype\('float64'\)"),
        (torch.zeros(3, 2, dtype=torch.int64), r"x\.to\(torch\.float64\)"),
        (jnp.zeros((3, 2), int), r"x\.astype\('float64'\)"),
    ],
    ids=["numpy", "torch", "jax"],
)
def test_advice_is_in_the_words_of_the_library(x, words):
    with pytest.raises(TypeError, match=f"for example with {words}$"):
        frechet(PoincareBall(2), x)
    if not isinstance(x, np.ndarray):
        with pytest.raises(TypeError, match=f"for example with {words}$".replace("64", "32")):
            GyroBN("poincare_ball").fit(x)


# ---------------------------------------------------------------------- scale


GEOMETRIES = [
    Euclidean(3),
    SPD(3),
    SPD(3, "log_cholesky", theta=0.5),
    PoincareBall(4),
    Correlation(4),
    Product(Euclidean(2), SPD(2)),
]


HYPERBOLIC = [Klein(2), PoincareBall(2), Stereographic(2, -0.5), Hyperboloid(2), ProperVelocity(2)]


@pytest.mark.parametrize("M", HYPERBOLIC, ids=repr)
@pytest.mark.parametrize("library", ["numpy", "torch", "chunks", "factor"])
def test_a_scale_that_coordinates_cannot_reach(M, library):
    """A sample that is held where they end is farther in than the theorem says: not silently."""
    space = Product(Euclidean(1), M) if library == "factor" else M
    X = space.random(200, rng=0, spread=0.5, like=np.zeros((), np.float32))
    X = torch.as_tensor(X) if library == "torch" else X

    def transformed(bn):
        if library != "chunks":
            return bn.transform(X)
        return np.concatenate(list(bn.transform_chunks([X[:90], X[90:]])))

    far = GyroBN(space, scale=40.0).fit(X)
    with pytest.warns(FrechetWarning, match="the first at index .* in (torch.)?float32 reach"):
        Y = transformed(far)
    with pytest.warns(FrechetWarning, match="cannot be undone; give a smaller scale, or a bias"):
        GyroBN(space, scale=40.0).fit_transform(X)
    assert bool(np.all(np.asarray(space.contains(Y))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transformed(GyroBN(space, scale=1.5).fit(X))


@pytest.mark.parametrize("curvature", [1e-8, 1.0, 1e8])
def test_a_scale_beyond_the_opposite_point(curvature):
    """Also where all distances are small."""
    M = Sphere(2, curvature)
    unit = curvature**-0.5
    X = M.random(50, rng=0, spread=0.3 * unit)
    bn = GyroBN(M, scale=3.0 * unit, eps=1e-5 * unit**2)
    with pytest.warns(FrechetWarning, match="19 of 50 samples, .*, beyond the opposite point"):
        bn.fit_transform(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bn.set_params(scale=0.5 * unit).fit_transform(X)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("channels", [(), (2,)])
def test_one_per_dimension(M, channels, tmp_path):
    X = M.random(60, *channels, rng=0, spread=0.5)
    bn = GyroBN(M, scale="sqrt_dim", eps=0.0).fit(X)
    Y = bn.transform(X)
    want = np.asarray(M.blocks, float) if len(M.blocks) > 1 else float(M.dim)
    stats = batch_stats(M, Y)
    np.testing.assert_allclose(stats.var, np.broadcast_to(want, stats.var.shape), rtol=1e-8)
    np.testing.assert_allclose(bn.inverse_transform(Y), X, rtol=1e-8, atol=1e-8)
    # the functions, files and layers mean the same
    old = batch_stats(M, X)
    np.testing.assert_allclose(normalize(M, X, old, scale="sqrt_dim", eps=0.0), Y, atol=1e-10)
    np.testing.assert_allclose(
        normalize_batch(M, X, scale="sqrt_dim", eps=0.0)[0], Y, rtol=1e-9, atol=1e-9
    )
    back = denormalize(M, Y, old, scale="sqrt_dim", eps=0.0)
    np.testing.assert_allclose(back, X, rtol=1e-8, atol=1e-8)
    bn.save(tmp_path / "model.npz")
    loaded = GyroBN.load(tmp_path / "model.npz")
    assert loaded.scale == "sqrt_dim"
    np.testing.assert_array_equal(loaded.transform(X), Y)
    layer = gyrobn.torch.GyroBN.from_estimator(bn).eval()
    np.testing.assert_allclose(layer(torch.as_tensor(X)).detach().numpy(), Y, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="this estimator has a scale: give the layer one"):
        gyrobn.torch.GyroBN.from_estimator(bn, affine=False)


@pytest.mark.parametrize("scale", ["sqrt", "dim", "1", ""])
def test_other_words_are_no_scale(scale):
    M = PoincareBall(2)
    X = M.random(10, rng=0)
    message = f"scale must be a finite number, an array of them, None or 'sqrt_dim', got '{scale}'"
    with pytest.raises(ValueError, match=message):
        GyroBN(M, scale=scale).fit(X)
    with pytest.raises(ValueError, match=message):
        normalize(M, X, batch_stats(M, X), scale=scale)


# ---------------------------------------------------------------------- parameters of a geometry


def test_parameters_of_a_geometry_by_name(tmp_path):
    cases = [
        ("spd", {"metric": "log_euclidean"}, SPD(3, "log_euclidean")),
        ("spd", {"theta": 0.5, "metric": "log_cholesky"}, SPD(3, "log_cholesky", 0.5)),
        ("poincare_ball", {"curvature": -0.5}, PoincareBall(3, -0.5)),
        ("sphere", {"curvature": np.float32(0.25)}, Sphere(2, 0.25)),
        ("correlation", {"metric": "off_log"}, Correlation(3, "off_log")),
        ("grassmannian", {"representation": "projector"}, Grassmannian(3, 2, "projector")),
        (SPD(3), {"metric": "log_euclidean"}, SPD(3, "log_euclidean")),
        (PoincareBall(3, -2.0), {"curvature": -0.5}, PoincareBall(3, -0.5)),
    ]
    for manifold, given, M in cases:
        X = M.random(20, rng=0, spread=0.3)
        bn = GyroBN(manifold, **given)
        assert {k: bn.get_params()[k] for k in given} == given
        bn = clone(bn).fit(X)
        assert bn.manifold_ == M
        np.testing.assert_array_equal(bn.mean_, GyroBN(M).fit(X).mean_)
        path = tmp_path / "model.npz"
        bn.save(path)
        loaded = GyroBN.load(path)
        assert loaded.get_params() == bn.get_params()
        assert clone(loaded).fit(X).manifold_ == M
        assert GyroBN().set_params(manifold=manifold, **given).fit(X).manifold_ == M


@pytest.mark.parametrize(
    ("manifold", "given", "message"),
    [
        ("poincare_ball", {"metric": "log_euclidean"}, "poincare_ball has no metric, got metric="),
        (
            "spd",
            {"curvature": -1.0},
            "spd has no curvature.* spd has metric and theta",
        ),
        ("euclidean", {"theta": 2.0}, "euclidean has none"),
        (PoincareBall(2), {"representation": "basis"}, "PoincareBall has no representation"),
        (Product(Euclidean(2)), {"metric": "off_log"}, "Product has no metric"),
        ("poincare_ball", {"curvature": 1.0}, "needs a negative sectional curvature"),
        ("poincare_ball", {"curvature": "1"}, "curvature of PoincareBall must be a finite number"),
        ("grassmannian", {"representation": "projector"}, "projectors are square"),
    ],
)
def test_parameters_that_a_geometry_has_not(manifold, given, message):
    X = np.zeros((4, 2)) if manifold != "spd" else np.tile(np.eye(2), (4, 1, 1))
    bn = GyroBN(manifold, **given)
    with pytest.raises(ValueError, match=message):
        bn.fit(X)
    assert not hasattr(bn, "mean_")


def test_projectors_have_a_rank():
    with pytest.raises(ValueError, match="have the trace 0, which is not the rank"):
        GyroBN("grassmannian", representation="projector").fit(np.zeros((4, 3, 3)))


def log(P):
    return SPD(P.shape[-1]).to_normal(P)


def test_grid_search_without_a_size():
    M = SPD(2)
    X = np.concatenate(
        [M.add(M.random(rng=k), M.random(20, rng=10 + k, spread=0.3)) for k in (1, 2)]
    )
    y = np.repeat([0, 1], 20)
    model = make_pipeline(GyroBN("spd"), FunctionTransformer(log), LogisticRegression())
    grid = [
        {"gyrobn__metric": ["affine_invariant", "log_euclidean", "log_cholesky"]},
        {"gyrobn__theta": [0.5, 1.0], "gyrobn__scale": [1.0, "sqrt_dim"]},
        {"gyrobn__manifold": ["correlation", M], "gyrobn__on_invalid": ["project"]},
    ]
    search = GridSearchCV(model, grid, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 9
    assert search.best_score_ > 0.9
    model.set_params(gyrobn__metric="log_euclidean").fit(X, y)
    assert model[0].manifold_ == SPD(2, "log_euclidean")


# ---------------------------------------------------------------------- singular matrices


def deficient(n=12, rank=5, count=30):
    Z = np.random.default_rng(0).standard_normal((count, n, rank))
    S = Z @ Z.swapaxes(1, 2)
    good = np.random.default_rng(1).standard_normal((3, n, 5 * n))
    S[[0, 7, 20]] = good @ good.swapaxes(1, 2)
    return S


PAIR = Product(SPD(12), Euclidean(1))


def pairs(S):
    return PAIR.join(S, np.zeros((len(S), 1)))


SINGULAR = {
    "covariances": (SPD(12), deficient()),
    "log-Euclidean": (SPD(12, "log_euclidean"), deficient()),
    "of EEG": (SPD(12), 1e-26 * deficient()),
    "correlations": (Correlation(12), covariance_to_correlation(deficient())),
    "in a product": (PAIR, pairs(deficient())),
}
singular = pytest.mark.parametrize(("M", "X"), SINGULAR.values(), ids=SINGULAR)
MANY = 27


@singular
@pytest.mark.parametrize("like", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_singular_matrices_are_called_so(M, X, like):
    message = (
        rf"in {MANY} of 30 samples, the first at index 1: that matrix is (of SPD.*)?singular, of "
        r"rank 5 of 12 \(condition number .*; the limit in .*float64 is 3.8e\+14\)\. "
        r"Shrink .*ledoit_wolf.*'lwf'.*; on_invalid='project' moves such samples"
    )
    with pytest.raises(ValueError, match=message):
        GyroBN(M).fit(like(X))


@singular
def test_projected_matrices_are_told_of(M, X):
    bn = GyroBN(M, on_invalid="project")
    message = (
        rf"GyroBN\.{{}}\(\) moved {MANY} of 30 samples onto .*; {MANY} of them were not positive "
        r"definite \(the first, at index 1, is .*singular, of rank 5 of 12 \(.*\)\), .* are now "
        r"1\.5e-08 of the largest: .* depend on this floor\. Shrink .*ledoit_wolf"
    )
    with pytest.warns(FrechetWarning, match=message.format("fit")) as told:
        bn.fit(X)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert bn.n_projected_ == MANY
    with pytest.warns(FrechetWarning, match=message.format("transform")) as told:
        bn.transform(X)
    assert told[0].filename == __file__
    with pytest.warns(FrechetWarning, match=message.format("fit")) as told:  # once, in many passes
        streamed = GyroBN(M, on_invalid="project").fit(Chunks(X, size=7))
    assert len(told) == 1
    assert streamed.n_projected_ == MANY
    with pytest.warns(FrechetWarning, match=message.format("transform")) as told:
        list(streamed.transform_chunks(Chunks(X, size=7)))
    assert len(told) == 1
    with pytest.warns(FrechetWarning, match=message.format("partial_fit")):
        bn.partial_fit(X)
    assert bn.n_projected_ == 2 * MANY


def test_indefinite_matrices_are_called_so():
    X = SPD(3).random(5, rng=0)
    X[2] = np.diag([1.0, -1.0, -2.0])
    with pytest.raises(
        ValueError, match="index 2: that matrix is indefinite, with 2 of 3 eigenval"
    ):
        GyroBN("spd").fit(X)


def test_projections_of_another_kind_are_counted_and_no_more():
    X = PoincareBall(2).random(10, 2, rng=0)
    X[3, 1] = X[4, 0] = [3.0, 4.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bn = GyroBN("poincare_ball", on_invalid="project").fit(X)
        assert bn.n_projected_ == 2
        assert (
            GyroBN("poincare_ball", on_invalid="project").fit(Chunks(X, size=4)).n_projected_ == 2
        )
        P = SPD(2).random(5, rng=0)
        P[1, 0, 1] += 1e-3  # not symmetric, but definite
        assert GyroBN("spd", on_invalid="project").fit(P).n_projected_ == 1
    assert GyroBN("poincare_ball").fit(X[:3]).n_projected_ == 0


def test_shrinkage_as_advised():
    from sklearn.covariance import ledoit_wolf

    series = np.random.default_rng(0).standard_normal((20, 10, 12))  # 10 times, 12 variables
    with pytest.raises(ValueError, match="singular, of rank 9 of 12"):
        GyroBN("spd").fit(np.stack([np.cov(x.T) for x in series]))
    bn = GyroBN("spd").fit(np.stack([ledoit_wolf(x)[0] for x in series]))
    assert bn.var_ < 20  # and not hundreds


# ---------------------------------------------------------------------- the command line


def test_the_command_line_scales_and_counts(tmp_path, capsys):
    M, files = SPD(2), [str(tmp_path / name) for name in ("x.npy", "y.npy", "m.npz")]
    X = M.random(30, rng=0)
    X[[2, 5, 7], 0, 1] += 1e-3
    np.save(files[0], X)
    options = ["--manifold", "spd", "--scale", "sqrt_dim", "--on-invalid", "project"]
    assert main(["normalize", *files[:2], *options, "--save-model", files[2]]) == 0
    said = capsys.readouterr().out
    assert "normalized deviation  1.732\n" in said
    assert "projected             3\n" in said
    bn = GyroBN("spd", scale="sqrt_dim", on_invalid="project").fit(X)
    np.testing.assert_allclose(np.load(files[1]), bn.transform(X), rtol=0, atol=1e-12)
    assert GyroBN.load(files[2]).scale == "sqrt_dim"
    assert GyroBN.load(files[2]).n_projected_ == 3
    assert main(["fit", files[0], files[2], *options]) == 0
    assert "projected             3\n" in capsys.readouterr().out
    for command in ("transform", "inverse"):
        assert main([command, *files[:2], "--model", files[2], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["projected"] == 3
    with pytest.raises(SystemExit):
        main(["normalize", *files[:2], "--manifold", "spd", "--scale", "dim"])
    assert "argument --scale: invalid scale value: 'dim'" in capsys.readouterr().err


# ---------------------------------------------------------------------- two kinds of bad samples

WITH_OFF = [cls.examples()[0] for cls in REGISTRY.values() if not cls.complex_points]
WITH_OFF = [M for M in WITH_OFF if not M.contains(np.full(M.point_shape, 5.0))]


@pytest.mark.parametrize("M", WITH_OFF, ids=lambda M: type(M).__name__)
@kinds
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_nan_does_not_hide_samples_that_are_off(M, kind, value):
    good = M.random(8, rng=0, spread=0.2)
    x = good.copy()
    x[6].flat[0] = value
    x[[1, 3]] = 5.0
    word = "NaN" if np.isnan(value) else "inf"
    each = [
        rf"X has {word} in 1 of 8 samples, the first at index 6: drop or impute",
        r"; also, X is off .* in 2 of 8 samples, the first at index 1: .*on_invalid='project'",
    ]
    bn = GyroBN(M).fit(kind(good))
    for call in (GyroBN(M).fit, bn.transform, bn.inverse_transform, GyroBN(M).partial_fit):
        with pytest.raises(ValueError, match=".*".join(each)):
            call(kind(x))
    x[[1, 3]] = good[[1, 3]]
    with pytest.raises(ValueError, match=each[0]) as error:
        GyroBN(M).fit(kind(x))
    assert "also" not in str(error.value)


def test_a_layer_tells_of_nan_and_of_samples_that_are_off():
    x = torch.as_tensor(SPD(3).random(8, rng=0))
    x[6, 0, 0], x[2] = torch.nan, -x[2]
    with pytest.raises(ValueError, match=r"has NaN .*index 6.* is off .*index 2.* indefinite"):
        gyrobn.torch.GyroBN(SPD(3), dtype=torch.float64)(x)
