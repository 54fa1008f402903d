"""The estimator where the geometry is seen from a reference, and where it only centres."""

import json

import numpy as np
import pytest
from cli_runner import report, run_here
from conftest import Library, host
from sklearn.base import clone

from gyrobn import (
    REGISTRY,
    SPD,
    Chunks,
    Correlation,
    FrechetWarning,
    Grassmannian,
    GyroBN,
    PoincareBall,
    SpecialOrthogonal,
    Sphere,
    Stats,
    batch_stats,
    frechet_mean,
    normalize,
)

GEOMETRIES = [M for family in REGISTRY.values() for M in family.examples()]
geometries = pytest.mark.parametrize("M", GEOMETRIES, ids=repr)
SOME = [PoincareBall(2), Sphere(3), SPD(3), Grassmannian(4, 2), Correlation(3)]


def samples(M, *batch, away=0.7, spread=0.3):
    return M.add(M.random(rng=1, spread=away), M.random(*batch, rng=0, spread=spread))


@geometries
@pytest.mark.parametrize("reference", ["fit", "point"])
def test_the_theorem_from_a_reference(M, reference):
    """The mean goes to the reference, or to the bias; the variance to what was asked for."""
    X, r = samples(M, 20, 2), M.random(2, rng=2, spread=0.3)
    bias = M.random(2, rng=3, spread=0.3)
    given = "fit" if reference == "fit" else r
    for b in (None, bias):
        bn = GyroBN(M, bias=b, scale=0.4, eps=1e-3, reference=given).fit(X)
        plain = GyroBN(M).fit(X)
        np.testing.assert_array_equal(bn.mean_, plain.mean_)
        wanted = plain.mean_ if reference == "fit" else r
        np.testing.assert_array_equal(bn.reference_, wanted)
        Y = bn.transform(X)
        mean, var = batch_stats(M, Y)
        assert M.dist(mean, wanted if b is None else b).max() < 1e-9
        np.testing.assert_allclose(var, 0.16 * bn.var_ / (bn.var_ + 1e-3), rtol=1e-8)
        np.testing.assert_array_equal(
            Y, normalize(M, X, Stats(bn.mean_, bn.var_), b, 0.4, 1e-3, reference=wanted)
        )
        assert M.dist(bn.inverse_transform(Y), X).max() < 1e-6


@geometries
def test_centring_only(M):
    """It is an isometry: the distances of all samples stay, and so does the variance."""
    X = samples(M, 12, 2)
    bn = GyroBN(M, scale=None).fit(X)
    Y = bn.transform(X)
    np.testing.assert_allclose(M.dist(Y[:, None], Y), M.dist(X[:, None], X), atol=1e-7)
    mean, var = batch_stats(M, Y)
    assert M.norm(mean).max() < 1e-9
    np.testing.assert_allclose(var, bn.var_, rtol=1e-8)
    assert M.dist(bn.inverse_transform(Y), X).max() < 1e-6
    C = bn.set_params(output="coordinates").transform(X).reshape(12, 2, M.dim)
    np.testing.assert_allclose(C, M.to_normal(Y), atol=1e-7)


@pytest.mark.parametrize("M", SOME, ids=repr)
def test_domains_chunks_dask_and_coordinates(M):
    import dask.array as da

    X, who = samples(M, 30), np.repeat(["a", "b", "c"], 10)
    X[who == "b"] = M.add(M.random(rng=4, spread=0.5), X[who == "b"])
    bn = GyroBN(M, reference="fit", scale=0.5).fit(X, domains=who)
    means = frechet_mean(M, bn.mean_)
    assert M.dist(bn.reference_, means) < 1e-9
    Y = bn.transform(X, domains=who)
    for domain in "abc":
        assert M.dist(frechet_mean(M, Y[who == domain]), bn.reference_) < 1e-9
    assert M.dist(bn.inverse_transform(Y, domains=who), X).max() < 1e-6
    lazy = da.from_array(X, chunks=(10, *M.point_shape))
    np.testing.assert_allclose(bn.transform(lazy, domains=who).compute(), Y, atol=1e-12)
    parts = Chunks(X, size=7)
    np.testing.assert_allclose(
        np.concatenate([*bn.transform_chunks(parts, domains=who)]), Y, atol=1e-12
    )
    table = bn.set_params(output="coordinates")
    C = table.transform(X, domains=who)
    np.testing.assert_allclose(C, M.relative_normal(bn.reference_, Y), atol=1e-6)
    assert M.dist(table.inverse_transform(C, domains=who), X).max() < 1e-6

    # more samples do not move it, and a new domain goes there
    first = bn.reference_
    bn.set_params(output="points", unseen="refit").partial_fit(X[:5], domains=["d"] * 5)
    assert bn.reference_ is first
    new = bn.transform(X[10:20], domains=["e"] * 10)
    np.testing.assert_allclose(new, Y[10:20], atol=1e-7)


def test_libraries(lib: Library):
    M = Sphere(2)
    X = lib.array(samples(M, 10))
    bn = GyroBN(M, reference="fit", scale=None).fit(X)
    Y = bn.transform(X)
    assert Y.dtype == bn.reference_.dtype == X.dtype
    assert host(M.dist(frechet_mean(M, Y), bn.mean_)) < 100 * lib.eps
    np.testing.assert_allclose(host(Y), host(X), atol=100 * lib.eps)  # there and back
    other = GyroBN(M, reference=[0.0, 1.0, 0.0]).fit(X)
    assert host(M.dist(frechet_mean(M, other.transform(X)), other.reference_)) < 100 * lib.eps


NEAR = {
    Sphere(2): [np.cos(np.radians(175.0)), np.sin(np.radians(175.0)), 0.0],
    Grassmannian(4, 2): Grassmannian(4, 2).from_normal(np.radians([86.0, 0.0, 0.0, 84.0])),
    SpecialOrthogonal(3): SpecialOrthogonal(3).from_normal(
        np.sqrt(2.0) * np.radians([174.0, 0.0, 0.0])
    ),
}


@pytest.mark.parametrize("M", NEAR, ids=repr)
def test_a_mean_near_the_cut_locus_is_reported_with_the_option(M):
    X = M.add(np.asarray(NEAR[M]), M.random(30, rng=0, spread=0.3))
    for method in "fit", "partial_fit":
        advice = rf"GyroBN.{method}\(\) .*° from the cut locus of the identity.*reference='fit'"
        with pytest.warns(FrechetWarning, match=advice):
            plain = getattr(GyroBN(M), method)(X)
    e = M.origin(X)
    with pytest.warns(FrechetWarning, match="cut locus of the reference.* nearer to the data"):
        GyroBN(M, reference=e).fit(X)
    bn = GyroBN(M, reference="fit").fit(X)  # no warning

    def moved(fitted):
        """By how much samples move for each unit by which the mean moves."""
        before, mean = fitted.set_params(scale=None).transform(X), fitted.mean_
        for c in 1e-4 * np.eye(M.dim):
            fitted.mean_ = M.shift(mean, c)
            yield M.dist(before, fitted.transform(X)).max() / 1e-4

    assert max(moved(bn)) < 1.2
    assert max(moved(plain)) > (2.0 if M.gyrocommutative else 0.99)  # a group has no gyrations


def test_a_mean_elsewhere_is_not_reported():
    for M in (Sphere(2), Grassmannian(4, 2), SpecialOrthogonal(3), PoincareBall(2)):
        GyroBN(M).fit(samples(M, 20))


def test_parameters():
    M = PoincareBall(2)
    X, bn = samples(M, 9), GyroBN(M, reference="fit", scale=None)
    assert repr(bn).endswith("reference='fit', scale=None)")
    assert clone(bn).get_params()["reference"] == "fit"
    for wrong, message in (
        ("first_batch", r"reference must be 'fit', got 'first_batch'"),
        ([0.1, 0.2, 0.3], r"reference must be a point of .* shape \(2,\).* got shape \(3,\)"),
        ([0.9, 0.9], "reference is off PoincareBall"),
    ):
        with pytest.raises(ValueError, match=message):
            clone(bn).set_params(reference=wrong).fit(X)
    with pytest.raises(ValueError, match="'sqrt_dim' or None"):
        bn.set_params(scale=np.inf).fit(X)
    assert GyroBN(M).fit(X).reference_ is None


def test_samples_that_coordinates_cannot_hold_are_reported_from_a_reference_too():
    M = PoincareBall(2)
    X = samples(M, 20)
    X[3] = M.from_normal(np.asarray([15.0, 0.0]))
    for reference in (None, [0.0, 0.5]):
        bn = GyroBN(M, reference=reference, scale=20.0).fit(X[4:])
        with pytest.warns(FrechetWarning, match="the first at index 3, farther than"):
            bn.transform(X)


def test_a_traced_function():
    import jax

    with jax.enable_x64(True):
        M = Sphere(2)
        X = jax.numpy.asarray(samples(M, 10))
        bn = GyroBN(M, reference="fit", scale=None).fit(X)
        np.testing.assert_allclose(jax.jit(bn.transform)(X), bn.transform(X), rtol=1e-12)


# ---------------------------------------------------------------------- files, command line


@pytest.mark.parametrize("M", SOME, ids=repr)
@pytest.mark.parametrize("reference", ["fit", "point"])
@pytest.mark.parametrize("channels", [(), (2,)])
def test_files(tmp_path, M, reference, channels):
    X = samples(M, 10, *channels)
    point = M.random(*channels, rng=2, spread=0.3)
    given = "fit" if reference == "fit" else point
    bn = GyroBN(M, reference=given, scale=None).fit(X)
    bn.save(tmp_path / "m.npz")
    again = GyroBN.load(tmp_path / "m.npz")
    assert again.scale is None
    np.testing.assert_array_equal(again.reference, given)
    np.testing.assert_array_equal(again.reference_, bn.reference_)
    np.testing.assert_array_equal(again.transform(X), bn.transform(X))

    import torch

    narrow = GyroBN.load(tmp_path / "m.npz", like=torch.zeros(1))
    assert narrow.reference_.dtype == torch.float32
    Y = narrow.transform(torch.asarray(X, dtype=torch.float32))
    assert M.dist(Y.double().numpy(), bn.transform(X)).max() < 1e-3
    narrow.save(tmp_path / "n.npz")  # and from float32 to float64
    wide = GyroBN.load(tmp_path / "n.npz", like=np.zeros(1))
    assert M.contains(wide.reference_).all()


def test_a_file_with_a_wrong_reference(tmp_path):
    M = PoincareBall(2)
    path = tmp_path / "m.npz"
    GyroBN(M, reference="fit").fit(samples(M, 9)).save(path)
    with np.load(path) as archive:
        members = dict(archive)
    header = json.loads(bytes(members.pop("header.json")))
    for wrong in (np.zeros(3), np.asarray([0.9, 0.9]), None):
        arrays, names = dict(members), list(header["arrays"])
        if wrong is None:
            del arrays["seen_from"]
            names.remove("seen_from")
        else:
            arrays["seen_from"] = wrong
        write(path, arrays, header | {"arrays": names})
        with pytest.raises(ValueError, match="reference"):
            GyroBN.load(path)


def write(path, arrays, header):
    from zipfile import ZipFile

    np.savez(path, **arrays)
    with ZipFile(path, "a") as archive:
        archive.writestr("header.json", json.dumps(header))


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    M = Sphere(2)
    X, r = samples(M, 20), M.random(rng=2, spread=0.3)
    np.save("x.npy", X)
    np.save("r.npy", r)
    line = "normalize", "x.npy", "y.npy", "--manifold", "sphere", "--scale"
    for option, reference in (("fit", "fit"), ("r.npy", r)):
        values = report(*line, "none", "--reference", option, "--save-model", "m")
        bn = GyroBN(M, reference=reference, scale=None).fit(X)
        np.testing.assert_allclose(np.load("y.npy"), bn.transform(X), atol=1e-14)
        assert values["scale"] is None
        assert values["normalized_deviation"] == values["standard_deviation"]
        report("transform", "x.npy", "z.npy", "--model", "m")
        np.testing.assert_array_equal(np.load("z.npy"), np.load("y.npy"))
        assert report("inspect", "m")["reference"] == bn.reference_.tolist()
    process = run_here(*line, "1", "--model", "m", "--reference", "fit")
    assert process.returncode == 2  # --manifold and --model
    process = run_here("normalize", "x.npy", "y.npy", "--model", "m", "--reference", "fit")
    assert "--reference and --model exclude each other" in process.stderr
