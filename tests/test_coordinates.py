"""``GyroBN(output="coordinates")``: scaled normal coordinates, of which no point is made."""

import pickle

import dask.array as da
import jax
import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from conftest import GEOMETRIES, host
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import gyrobn.torch
from gyrobn import (
    SPD,
    Chunks,
    Correlation,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
)
from gyrobn.cli import main

WHO = np.repeat(["a", "b", "c"], 10)


def samples(M, *channels, spread=0.2):
    x = M.random(30, *channels, rng=0, spread=spread)
    return M.add(M.random(rng=1, spread=0.2), x)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
@pytest.mark.parametrize("channels", [(), (2, 3)])
@pytest.mark.parametrize("domains", [None, WHO], ids=["one", "domains"])
def test_they_are_the_coordinates_of_the_points(M, channels, domains):
    X = samples(M, *channels)
    bn = GyroBN(M, scale=0.3).fit(X, domains=domains)
    wanted = M.to_normal(bn.transform(X, domains=domains)).reshape(30, -1)
    bn = GyroBN(M, scale=0.3, output="coordinates")
    C = bn.fit_transform(X, domains=domains)
    np.testing.assert_allclose(C, wanted, atol=1e-9)
    np.testing.assert_allclose(bn.transform(X, domains=domains), C, atol=1e-12)
    assert C.shape == (30, len(bn.get_feature_names_out()))
    back = bn.inverse_transform(C, domains=domains)
    assert back.shape == X.shape
    assert M.dist(back, X).max() < 1e-7
    chunks = list(bn.transform_chunks(Chunks(X, size=7), domains))
    np.testing.assert_allclose(np.concatenate(chunks), C, atol=1e-12)
    undone = bn.transform_chunks([C[:11], C[11:]], domains, inverse=True)
    np.testing.assert_allclose(np.concatenate(list(undone)), back, atol=1e-12)


@pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
def test_one_per_dimension_on_every_geometry(M):
    """Also where the points of such a scale would be beyond the opposite point, or out of range."""
    C = GyroBN(M, scale="sqrt_dim", eps=0.0, output="coordinates").fit_transform(samples(M))
    np.testing.assert_allclose(C.mean(0), 0.0, atol=1e-7)
    squares, first = (C**2).mean(0), 0
    for size in M.blocks:
        np.testing.assert_allclose(squares[first : first + size].mean(), 1.0, rtol=1e-9)
        first += size


LARGE = [
    (Correlation(28), np.float64),
    (SPD(128), np.float64),
    (SPD(32), np.float32),
    (SPD(32, "log_euclidean"), np.float32),
    (Grassmannian(8, 3), np.float64),
]


@pytest.mark.parametrize(("M", "dtype"), LARGE, ids=repr)
def test_where_points_cannot_be_made(M, dtype):
    X = M.random(20, rng=0, spread=0.3 if isinstance(M, Grassmannian) else 3.0).astype(dtype)
    points = GyroBN(M, scale="sqrt_dim")
    if isinstance(M, Grassmannian):
        with pytest.warns(FrechetWarning, match="choose output='coordinates'"):
            points.fit_transform(X)
    else:
        with pytest.raises(ValueError, match="choose output='coordinates'") as error:
            points.fit_transform(X)
        assert ("compute in float64" in str(error.value)) == (dtype == np.float32)
    bn = GyroBN(M, scale="sqrt_dim", output="coordinates", eps=0.0)
    C = bn.fit_transform(X)
    assert C.dtype == dtype
    single = dtype == np.float32
    np.testing.assert_allclose((C**2).mean(), 1.0, rtol=1e-4 if single else 1e-9)
    assert M.dist(bn.inverse_transform(C), X).max() < (1e-2 if single else 1e-7)


@pytest.mark.parametrize("M", [SPD(3), Sphere(2), Correlation(4)], ids=repr)
@pytest.mark.parametrize("domains", [None, WHO], ids=["one", "domains"])
def test_every_library(M, eager, domains):
    X = samples(M, 2)
    wanted = GyroBN(M, scale=0.5, output="coordinates").fit_transform(X, domains=domains)
    bn = GyroBN(M, scale=0.5, output="coordinates")
    C = bn.fit_transform(eager.array(X), domains=domains)
    assert type(C) is type(eager.array(X))
    assert C.dtype == eager.like.dtype
    np.testing.assert_allclose(host(C), wanted, atol=1e3 * eager.eps)
    back = bn.inverse_transform(C, domains=domains)
    np.testing.assert_allclose(host(back), X, atol=1e3 * eager.eps)


@pytest.mark.parametrize("M", [SPD(3), PoincareBall(2), Product(Sphere(2), SPD(2))], ids=repr)
@pytest.mark.parametrize("channels", [(), (2,)])
@pytest.mark.parametrize("domains", [None, WHO], ids=["one", "domains"])
def test_dask(M, channels, domains):
    X = samples(M, *channels)
    bn = GyroBN(M, output="coordinates").fit(X, domains=domains)
    lazy = da.from_array(X, chunks=(8, *X.shape[1:]))
    C = bn.transform(lazy, domains=domains)
    wanted = bn.transform(X, domains=domains)
    assert C.shape == wanted.shape
    assert C.chunks[0] == lazy.chunks[0]
    np.testing.assert_allclose(C.compute(), wanted, atol=1e-12)
    back = bn.inverse_transform(C, domains=domains)
    assert back.shape == X.shape
    np.testing.assert_allclose(back.compute(), X, atol=1e-9)
    none = None if domains is None else WHO[:0]
    some = bn.transform(lazy[:0], domains=none)
    assert some.compute().shape == (0, wanted.shape[1])


def test_torch_gradients_and_jit():
    M = SPD(3)
    X = samples(M)
    bn = GyroBN(M, output="coordinates").fit(torch.as_tensor(X))
    x = torch.as_tensor(X).requires_grad_()
    bn.transform(x).square().sum().backward()
    assert float(x.grad.abs().min()) > 0
    with jax.enable_x64(True):
        bn = GyroBN(M, output="coordinates").fit(jax.numpy.asarray(X))
        C = jax.jit(bn.transform)(jax.numpy.asarray(X))
        np.testing.assert_allclose(C, bn.transform(jax.numpy.asarray(X)), atol=1e-12)
        back = jax.jit(bn.inverse_transform)(C)
        np.testing.assert_allclose(back, X, atol=1e-9)


# ---------------------------------------------------------------------- tables and scikit-learn


def test_names_and_data_frames():
    X = samples(SPD(2))
    bn = GyroBN("spd", output="coordinates").fit(X)
    assert bn.get_feature_names_out().tolist() == ["gyrobn0", "gyrobn1", "gyrobn2"]
    assert bn.get_feature_names_out().dtype == object
    several = GyroBN("spd", output="coordinates").fit(samples(SPD(2), 2))
    assert several.get_feature_names_out().tolist() == [
        *("gyrobn0_0", "gyrobn0_1", "gyrobn0_2"),
        *("gyrobn1_0", "gyrobn1_1", "gyrobn1_2"),
    ]
    for channels in ((), (2,)):
        X = samples(SPD(2), *channels)
        bn = GyroBN("spd", output="coordinates").set_output(transform="pandas")
        for estimator in (bn, clone(bn), make_pipeline(bn)):
            frame = estimator.fit_transform(X)
            assert list(frame.columns) == estimator.get_feature_names_out().tolist()
            wanted = GyroBN("spd", output="coordinates").fit_transform(X)
            np.testing.assert_array_equal(frame.to_numpy(), wanted)
            np.testing.assert_allclose(estimator.inverse_transform(frame), X, atol=1e-10)
    with sklearn.config_context(transform_output="pandas"):
        assert GyroBN("spd", output="coordinates").fit_transform(X).shape == (30, 6)
    frame = pd.DataFrame(samples(PoincareBall(2)), columns=["u", "v"])
    bn = GyroBN("poincare_ball", output="coordinates").fit(frame)
    assert bn.get_feature_names_out(["u", "v"]).tolist() == ["gyrobn0", "gyrobn1"]
    with pytest.raises(ValueError, match="input_features is not equal"):
        bn.get_feature_names_out(["v", "u"])


def test_features_for_a_classifier():
    M = SPD(3)
    X = np.concatenate(
        [M.add(M.random(rng=k), M.random(30, rng=9 + k, spread=0.5)) for k in (1, 2)]
    )
    y = np.repeat([0, 1], 30)
    order = np.random.default_rng(0).permutation(60)
    X, y = X[order], y[order]
    model = make_pipeline(
        GyroBN("spd", scale="sqrt_dim", output="coordinates"), LogisticRegression()
    )
    assert cross_val_score(model, X, y).mean() > 0.9
    assert model.fit(X, y)[:-1].get_feature_names_out().shape == (6,)
    grid = {"gyrobn__metric": ["affine_invariant", "log_euclidean"]}
    assert GridSearchCV(model, grid, error_score="raise", cv=2).fit(X, y).best_score_ > 0.9


@parametrize_with_checks(
    [
        GyroBN("euclidean", output="coordinates"),
        GyroBN("poincare_ball", on_invalid="project", output="coordinates"),
    ]
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    given = getattr(check, "keywords", {})
    if given.get("device") == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU (scikit-learn asks only whether torch was built for one)")
    if given.get("array_namespace") == "array_api_strict" and sklearn.__version__ < "1.7":
        pytest.skip("scikit-learn 1.6 tests with a standard in which where takes no numbers")
    check(estimator)


# ---------------------------------------------------------------------- domains, files, layers


@pytest.mark.parametrize("unseen", ["refit", "adapt", "online"])
def test_new_domains(unseen):
    M = SPD(3)
    X, old = samples(M), WHO != "c"
    points = GyroBN(M, unseen=unseen).fit(X[old], domains=WHO[old])
    bn = GyroBN(M, unseen=unseen, output="coordinates").fit(X[old], domains=WHO[old])
    wanted = M.to_normal(points.transform(X, domains=WHO))
    np.testing.assert_allclose(bn.transform(X, domains=WHO), wanted, atol=1e-10)
    with pytest.raises(ValueError, match="did not see domain 'c'"):
        bn.inverse_transform(wanted, domains=WHO)


@pytest.mark.parametrize("channels", [(), (2,)])
def test_files_and_pickles(channels, tmp_path):
    X = samples(Correlation(4), *channels)
    bn = GyroBN("correlation", scale="sqrt_dim", output="coordinates").fit(X)
    bn.save(tmp_path / "model.npz")
    for again in (GyroBN.load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(bn))):
        assert again.output == "coordinates"
        np.testing.assert_array_equal(again.transform(X), bn.transform(X))
        assert again.get_feature_names_out().tolist() == bn.get_feature_names_out().tolist()


def test_layers_return_points():
    M = SPD(3)
    X = samples(M)
    bn = GyroBN(M, output="coordinates").fit(X)
    with pytest.raises(ValueError, match=r"call bn\.set_params\(output='points'\) first"):
        gyrobn.torch.GyroBN.from_estimator(bn)
    layer = gyrobn.torch.GyroBN.from_estimator(bn.set_params(output="points")).eval()
    y = layer(torch.as_tensor(X)).detach().numpy()
    np.testing.assert_allclose(M.to_normal(y), bn.set_params(output="coordinates").transform(X))


# ---------------------------------------------------------------------- errors


def test_bad_choices():
    X = samples(PoincareBall(2))
    with pytest.raises(ValueError, match="output must be 'points' or 'coordinates', got 'coord'"):
        GyroBN("poincare_ball", output="coord").fit(X)
    bn = GyroBN("poincare_ball", output="coordinates", bias=[0.1, 0.2])
    with pytest.raises(ValueError, match="leave bias at None, or choose output='points'"):
        bn.fit(X)
    bn.set_params(bias=None).fit(X).set_params(bias=[0.1, 0.2])
    for method in (bn.transform, bn.inverse_transform):
        with pytest.raises(ValueError, match="leave bias at None, or choose output='points'"):
            method(X)


def test_bad_coordinates():
    M = SPD(2)
    bn = GyroBN(M, output="coordinates").fit(samples(M, 4))
    for shape in ((5, 4, 2, 2), (5, 3), (5, 4, 3)):
        with pytest.raises(ValueError, match=r"expects coordinates of shape \(12,\), .*, got X"):
            bn.inverse_transform(np.zeros(shape))
    C = np.zeros((5, 12))
    C[3, 7] = np.nan
    with pytest.raises(ValueError, match=r"X has NaN in 1 of 20 samples, .* index \(3, 2\)"):
        bn.inverse_transform(C)
    C[3, 7] = 1e5
    with pytest.raises(ValueError, match=r"no point of SPD.* coordinates of 1 of 20 .* \(3, 2\)"):
        bn.inverse_transform(C)
    with pytest.raises(ValueError, match=r"scale=0\.0 takes all samples to one point"):
        bn.set_params(scale=0.0).inverse_transform(C)


@pytest.mark.parametrize("M", [Sphere(2), SpecialOrthogonal(3)], ids=repr)
def test_coordinates_beyond_the_opposite_point(M):
    """They cannot come from ``transform``: the way back is told of, and the way there is exact."""
    X = samples(M)
    bn = GyroBN(M, scale=50.0, output="coordinates").fit(X)
    C = bn.transform(X)
    assert M.dist(bn.inverse_transform(C), X).max() < 1e-7
    with pytest.warns(FrechetWarning, match=r"inverse_transform\(\) scales .* opposite point"):
        bn.inverse_transform(C * 20)


# ---------------------------------------------------------------------- the command line


@pytest.fixture
def covariances(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = samples(SPD(3))
    np.save("x.npy", X)
    return X


def saved(path):
    return np.load(path) if path.endswith("npy") else np.loadtxt(path, delimiter=",", skiprows=1)


@pytest.mark.parametrize("out", ["y.npy", "y.csv"])
def test_coordinates_in_files(covariances, out):
    wanted = GyroBN("spd", scale="sqrt_dim", output="coordinates").fit_transform(covariances)
    options = ["--scale", "sqrt_dim", "--coordinates"]
    main(["normalize", "x.npy", out, "--manifold", "spd", *options, "--save-model", "m.npz"])
    np.testing.assert_allclose(saved(out), wanted, atol=1e-10)
    if out == "y.csv":
        with open(out) as file:
            assert file.readline() == "gyrobn0,gyrobn1,gyrobn2,gyrobn3,gyrobn4,gyrobn5\n"
    assert GyroBN.load("m.npz").output == "coordinates"
    main(["transform", "x.npy", "z.npy", "--model", "m.npz"])  # as the model says
    np.testing.assert_allclose(np.load("z.npy"), wanted, atol=1e-10)
    main(["inverse", out, "back.npy", "--model", "m.npz"])
    np.testing.assert_allclose(np.load("back.npy"), covariances, atol=1e-9)
    main(["plot", "x.npy", "p.png", "--model", "m.npz"])  # of points


def test_coordinates_of_a_model_of_points(covariances):
    main(["fit", "x.npy", "m.npz", "--manifold", "spd"])
    main(["transform", "x.npy", "c.npy", "--model", "m.npz", "--coordinates"])
    bn = GyroBN("spd", output="coordinates").fit(covariances)
    np.testing.assert_allclose(np.load("c.npy"), bn.transform(covariances), atol=1e-10)
    main(["inverse", "c.npy", "back.npy", "--model", "m.npz", "--coordinates"])
    np.testing.assert_allclose(np.load("back.npy"), covariances, atol=1e-9)


def test_coordinates_of_several_files_and_of_tables(covariances):
    np.save("w.npy", covariances[:11])
    main(["normalize", "w.npy", "x.npy", "out.npy", "--manifold", "spd", "--coordinates"])
    both = np.concatenate([covariances[:11], covariances])
    wanted = GyroBN("spd", output="coordinates").fit_transform(both)
    np.testing.assert_allclose(np.load("out.npy"), wanted, atol=1e-10)
    upper = pd.DataFrame(covariances[:, *np.triu_indices(3)], columns=list("abcdef"))
    upper.insert(1, "who", WHO)
    upper.to_csv("t.csv", index=False)
    table = ["--layout", "upper", "--domain-column", "who"]
    main(["normalize", "t.csv", "c.csv", "--manifold", "spd", "--coordinates", *table])
    frame = pd.read_csv("c.csv")
    assert list(frame.columns) == [f"gyrobn{k}" for k in range(6)]
    wanted = GyroBN("spd", output="coordinates").fit_transform(covariances, domains=WHO)
    np.testing.assert_allclose(frame.to_numpy(), wanted, atol=1e-10)


def test_coordinates_by_dask(covariances):
    from distributed import Client

    local = {"processes": False, "n_workers": 1, "dashboard_address": None}
    with Client(**local) as client:
        options = ["--coordinates", "--dask", client.scheduler.address]
        assert main(["normalize", "x.npy", "y.npy", "--manifold", "spd", *options]) == 0
    wanted = GyroBN("spd", output="coordinates").fit_transform(covariances)
    np.testing.assert_allclose(np.load("y.npy"), wanted, atol=1e-10)


def test_the_command_line_says_what_to_do(covariances, capsys):
    np.save("large.npy", SPD(32).random(20, rng=0).astype(np.float32))
    options = ["--manifold", "spd", "--scale", "sqrt_dim"]
    assert main(["normalize", "large.npy", "y.npy", *options]) == 1
    assert "choose output='coordinates'" in capsys.readouterr().err
    main(["normalize", "large.npy", "y.npy", *options, "--coordinates"])
    assert np.load("y.npy").shape == (20, 32 * 33 // 2)
