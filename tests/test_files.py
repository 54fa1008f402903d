"""Models in files: what is saved comes back; what is damaged, foreign or newer is refused."""

import json
import os
import pickle
import re
import stat
import subprocess
import sys
import zipfile
from io import BytesIO

import array_api_strict
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import torch
from conftest import GEOMETRIES, STRICT_DEVICE, assert_close, dtype_for
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import gyrobn
from gyrobn import SPD, Correlation, Euclidean, FixedRankSPD, GyroBN, PoincareBall, Product, Sphere
from gyrobn.estimator.files import geometry_from_json, geometry_to_json


def fitted(M, dtype="float64", domains=None, **options):
    X = M.add(M.random(2, rng=7, spread=0.4), M.random(12, 2, rng=8, spread=0.5))
    scale = np.linspace(0.5, 1.5, 2)
    if len(M.blocks) > 1:
        scale = scale[:, None] + np.linspace(0.0, 0.5, len(M.blocks))
    if isinstance(M, FixedRankSPD):  # a far subspace comes back from the other side
        scale = 0.85 * scale
    given = {"bias": M.random(rng=9, spread=0.6), "scale": scale}
    return GyroBN(M, **given | options).fit(X.astype(dtype_for(M, dtype)), domains=domains)


def same_params(one, other):
    a, b = one.get_params(), other.get_params()
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(value, b[name])
        else:
            assert value == b[name], name
            assert type(value) is type(b[name]), name


def same_attributes(one, other):
    names = {n for n in vars(one) if n.endswith("_") and not n.startswith("_")}
    assert names <= {n for n in vars(other) if n.endswith("_")}
    for name in names:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b)
        else:
            assert a == b, name
            assert type(a) is type(b), name


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("M", GEOMETRIES, ids=str)
def test_what_is_saved_comes_back_to_the_last_bit(M, dtype, tmp_path):
    options = {"eps": 0.1 + 0.2, "tol": 1e-9, "max_iter": 77, "on_invalid": "project"}
    bn = fitted(M, dtype, **options)
    bn.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model")
    same_params(bn, again)
    same_attributes(bn, again)
    x = M.random(5, 2, rng=1, spread=0.5).astype(dtype_for(M, dtype))
    np.testing.assert_array_equal(again.transform(x), bn.transform(x))
    np.testing.assert_array_equal(again.inverse_transform(x), bn.inverse_transform(x))
    same_params(clone(again), clone(bn))
    other = pickle.loads(pickle.dumps(again))
    np.testing.assert_array_equal(other.transform(x), bn.transform(x))


@pytest.mark.parametrize(
    "labels", [["b", "a", "ü\n"], [3, -1, 2**40], np.asarray([7, 5, 6], dtype=np.uint8)], ids=str
)
def test_domains(labels, tmp_path):
    M = PoincareBall(2)
    bn = fitted(M, domains=np.repeat(labels, 4), unseen="adapt", adapt_rate=0.3)
    bn.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model")
    same_params(bn, again)
    same_attributes(bn, again)
    x, own = M.random(6, 2, rng=1, spread=0.5), np.repeat(labels, 2)
    np.testing.assert_array_equal(again.transform(x, own), bn.transform(x, own))


def test_names_numbers_and_a_geometry_given_by_name(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).random((9, 3)), columns=["a", "long name", "ß"])
    bn = GyroBN("euclidean", scale=2).fit(table)
    bn.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model")
    same_params(bn, again)
    same_attributes(bn, again)
    assert again.manifold == "euclidean"
    assert again.manifold_ == Euclidean(3)
    assert (again.n_iter_, again.converged_) == (bn.n_iter_, True)
    np.testing.assert_array_equal(again.transform(table), bn.transform(table))
    with pytest.raises(ValueError, match="feature names"):
        again.transform(table.rename(columns={"a": "b"}))


def test_a_curvature_that_is_a_tensor_becomes_a_number(tmp_path):
    K = torch.tensor(-0.7, dtype=torch.float64, requires_grad=True)
    M = Product(PoincareBall(2, curvature=K), Euclidean(1))
    x = M.random(8, rng=0, like=torch.zeros(1, dtype=torch.float64)).detach()
    bn = GyroBN(M).fit(x)
    bn.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model", like=x)
    assert again.manifold == again.manifold_ == Product(PoincareBall(2, -0.7), Euclidean(1))
    np.testing.assert_allclose(again.transform(x), bn.transform(x).detach(), rtol=0, atol=1e-15)


def test_curvatures_that_are_no_numbers_are_refused(tmp_path):
    bn = fitted(PoincareBall(2))
    bn.manifold_ = PoincareBall(2, curvature=np.asarray([-1.0, -2.0]))
    with pytest.raises(ValueError, match=r"array of shape \(2,\) in PoincareBall"):
        bn.save(tmp_path / "model")


# ---------------------------------------------------------------------- libraries, dtypes, devices

LIKE = {
    "numpy": np.zeros,
    "torch": lambda n, dtype: torch.zeros(n, dtype=getattr(torch, dtype)),
    "jax": jnp.zeros,
    "strict": lambda n, dtype: array_api_strict.zeros(
        n, dtype=getattr(array_api_strict, dtype), device=STRICT_DEVICE
    ),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", LIKE)
@pytest.mark.parametrize("domains", [None, ["a", "b"] * 6], ids=["", "domains"])
def test_statistics_get_library_dtype_and_device_of_like(name, dtype, domains, tmp_path):
    bn = fitted(PoincareBall(2), domains=domains)
    bn.save(tmp_path / "model")
    like = LIKE[name](1, dtype=dtype)
    again = GyroBN.load(tmp_path / "model", like=like)
    for array in (again.mean_, again.var_):
        assert type(array) is type(like)
        assert array.dtype == like.dtype
        assert array.device == like.device
    assert type(again.n_iter_) is type(again.converged_) is type(like)
    assert again.n_iter_.device == again.converged_.device == like.device
    assert str(again.n_iter_.dtype).endswith("int32")
    assert "bool" in str(again.converged_.dtype)
    numbers = [float(v) for v in again.var_[0, ...]] if domains else [float(v) for v in again.var_]
    expected = bn.var_[0] if domains else bn.var_
    np.testing.assert_allclose(numbers, expected, rtol=1e-15 if dtype == "float64" else 1e-6)


def test_every_library_writes_the_same_file(lib, tmp_path):
    X = np.random.default_rng(0).integers(-9, 9, (8, 2, 3))  # a power of two: all sums are exact
    bn = GyroBN(bias=[1.0, 2.0, 3.0]).fit(lib.array(X))
    bn.save(tmp_path / "here")
    GyroBN(bias=[1.0, 2.0, 3.0]).fit(X.astype(lib.dtype)).save(tmp_path / "numpy")
    assert (tmp_path / "here").read_bytes() == (tmp_path / "numpy").read_bytes()
    again = GyroBN.load(tmp_path / "numpy", like=lib.like)
    assert_close(again.transform(lib.array(X)), bn.transform(lib.array(X)), 0.0)


@pytest.mark.parametrize("M", [Sphere(2), SPD(3), Correlation(3), PoincareBall(2)], ids=str)
def test_a_model_of_float32_is_one_of_float64_after_loading(M, tmp_path):
    """Its mean and bias are then points to the digits of float64, and can be saved again."""
    bn = fitted(M, "float32", bias=M.random(rng=9, spread=0.6).astype("float32"))
    bn.save(tmp_path / "model")
    wide = GyroBN.load(tmp_path / "model", like=np.zeros(1))
    assert wide.mean_.dtype == np.float64
    x = M.random(5, 2, rng=1, spread=0.5)
    y, z = wide.transform(x), bn.transform(x.astype("float32"))
    assert float(M.dist(y, M.project(z.astype("float64"))).max()) < 1e-5
    wide.save(tmp_path / "model")
    np.testing.assert_array_equal(GyroBN.load(tmp_path / "model").transform(x), y)
    narrow = GyroBN.load(tmp_path / "model", like=np.zeros(1, dtype=np.float32))
    np.testing.assert_allclose(narrow.transform(x.astype("float32")), z, rtol=1e-4, atol=1e-5)


def test_like_and_numbers_that_do_not_fit(tmp_path):
    bn = fitted(Euclidean(2))
    bn.save(tmp_path / "model")
    with pytest.raises(ValueError, match="must be float32 or float64, got int"):
        GyroBN.load(tmp_path / "model", like=np.zeros(1, dtype=int))
    bn.var_ = bn.var_ * 1e60
    bn.save(tmp_path / "model")
    with pytest.raises(ValueError, match="var must be finite"):
        GyroBN.load(tmp_path / "model", like=np.zeros(1, dtype=np.float32))


@pytest.mark.parametrize("domains", [None, ["a", "b"] * 6], ids=["", "domains"])
def test_learning_goes_on_where_it_was(domains, tmp_path):
    M = PoincareBall(2)
    bn = fitted(M, domains=domains)
    bn.save(tmp_path / "model")
    again = GyroBN.load(tmp_path / "model")
    more = M.random(12, 2, rng=5)
    same_attributes(bn.partial_fit(more, domains=domains), again.partial_fit(more, domains=domains))


def test_subclasses(tmp_path):
    class Own(GyroBN):
        """Somebody's estimator."""

    fitted(Euclidean(2)).save(tmp_path / "model")
    assert type(Own.load(tmp_path / "model")) is Own


# ---------------------------------------------------------------------- the file


def test_what_is_in_a_file(tmp_path):
    path = tmp_path / "model.npz"
    bn = fitted(PoincareBall(2, -0.1), domains=[0, 1] * 6)
    bn.save(path)
    with np.load(path, allow_pickle=False) as archive:
        header = json.loads(archive["header.json"])
        np.testing.assert_array_equal(archive["mean"], bn.mean_)
        assert set(archive) == {
            *("header.json", "mean", "var", "weight", "n_iter", "converged"),
            *("bias", "scale", "domains"),
        }
    assert header["format"] == "gyrobn model"
    assert header["version"] == 1
    assert header["gyrobn"] == gyrobn.__version__
    assert header["geometry"] == {"name": "poincare_ball", "n": 2, "curvature": -0.1}
    with zipfile.ZipFile(path) as archive:
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "model"
    fitted(Euclidean(2)).save(path)
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fitted(Euclidean(3)).save(path)
    with pytest.raises(OSError, match="No space left"):
        fitted(Euclidean(3)).save(tmp_path / "new")
    assert os.listdir(tmp_path) == ["model"]
    assert path.read_bytes() == before


def test_a_full_disk_leaves_what_was_there(tmp_path):
    """With a limit on the size of files, as a process."""
    (tmp_path / "model").write_text("before")
    program = (
        "import resource, signal, sys\n"
        "from gyrobn import GyroBN, Euclidean\n"
        "bn = GyroBN().fit(Euclidean(1000).random(3, rng=0))\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "try:\n    bn.save(sys.argv[1])\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    run = [sys.executable, "-c", program, str(tmp_path / "model")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("File too large\n", "")
    assert os.listdir(tmp_path) == ["model"]
    assert (tmp_path / "model").read_text() == "before"


def test_places_where_no_file_can_be(tmp_path):
    bn = fitted(Euclidean(2))
    with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*none"):
        bn.save(tmp_path / "none" / "model")
    with pytest.raises(OSError, match="is a directory: name a file"):
        bn.save(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        bn.save(tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with pytest.raises(FileNotFoundError):
        GyroBN.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        GyroBN.load(tmp_path)
    with pytest.raises(ValueError, match="is not a regular file"):  # and is not waited for
        GyroBN.load(tmp_path / "pipe")


# ---------------------------------------------------------------------- geometries


@settings(max_examples=50, derandomize=True, deadline=None)
@given(K=st.floats(max_value=-1e-300, allow_infinity=False))
def test_curvatures_are_kept_to_the_last_bit(K):
    M = Product(PoincareBall(2, K), Product(Euclidean(1)))
    assert geometry_from_json(json.loads(json.dumps(geometry_to_json(M)))) == M


def test_geometries_that_cannot_be_saved(tmp_path):
    class Own(Euclidean):
        """Somebody's geometry."""

    bn = GyroBN(Own(2)).fit([[0.0, 1.0], [2.0, 3.0]])
    with pytest.raises(ValueError, match=r"Own cannot be saved: .*gyrobn\.REGISTRY"):
        bn.save(tmp_path / "model")
    assert os.listdir(tmp_path) == []


BALL = {"name": "poincare_ball", "n": 2, "curvature": -1.0}
WRONG = [
    None,
    3,
    "poincare_ball",
    [],
    {},
    {"n": 2},
    {"name": "GyroSpace", "n": 2},
    {"name": "os.system", "n": 2},
    {"name": ["poincare_ball"]},
    {"name": "poincare_ball", "curvature": -1.0},
    BALL | {"extra": 1},
    BALL | {"n": 2.0},
    BALL | {"n": True},
    BALL | {"n": "2"},
    BALL | {"n": 0},
    BALL | {"curvature": "-1"},
    BALL | {"curvature": None},
    BALL | {"curvature": False},
    BALL | {"curvature": [-1.0]},
    BALL | {"curvature": 1.0},
    BALL | {"curvature": -float("inf")},
    BALL | {"curvature": float("nan")},
    BALL | {"curvature": -(10**400)},
    {"name": "spd", "n": 2, "metric": "none", "theta": 1.0},
    {"name": "spd", "n": 2, "metric": ["log_euclidean"], "theta": 1.0},
    {"name": "spd", "n": 2, "metric": "log_euclidean", "theta": 0.0},
    {"name": "grassmannian", "n": 2, "p": 2, "representation": "basis"},
    {"name": "grassmannian", "n": 3, "p": 2, "representation": 5},
    {"name": "product", "factors": []},
    {"name": "product", "factors": BALL},
    {"name": "product", "factors": "ab"},
    {"name": "product", "factors": [BALL, 3]},
    {"name": "product", "factors": [BALL], "spaces": [BALL]},
]


@pytest.mark.parametrize("value", WRONG, ids=range(len(WRONG)))
def test_geometries_that_are_none(value):
    with pytest.raises(ValueError, match=r"geometr|factors|curvature|theta|metric|Grass|Prod|Ball"):
        geometry_from_json(value)


# ---------------------------------------------------------------------- bad files

MODEL = fitted(PoincareBall(2), domains=["a", "b"] * 6)


def parts(path):
    """The members of a good file, as bytes."""
    MODEL.save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def put(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members if isinstance(members, list) else members.items():
            archive.writestr(name, content)


def npy(array, **options):
    file = BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def attempt(path):
    """Return the estimator of a file, or the error, in one line, with which it is refused."""
    try:
        return GyroBN.load(path)
    except ValueError as error:
        wrong = error
    assert type(wrong) is ValueError
    assert "\n" not in str(wrong)
    assert len(str(wrong)) < 1000
    return wrong


def refused(path, words="damaged or truncated"):
    wrong = attempt(path)
    assert isinstance(wrong, ValueError)
    assert re.search(words, str(wrong)), wrong


def test_files_of_something_else(tmp_path):
    path = tmp_path / "x"
    np.savez(tmp_path / "arrays.npz", mean=np.zeros(3))
    refused(tmp_path / "arrays.npz", "a zip archive, but not a gyrobn model")
    for content in (b"", b"PK", b"\x93NUMPY", b"GIF89a", pickle.dumps({})):
        path.write_bytes(content)
        refused(path, "is not a gyrobn model, or damaged")
    put(path, {"header.json": "[]"})
    refused(path, "not a gyrobn model")
    put(path, {"header.json": '{"format": "other"}'})
    refused(path, "not a gyrobn model")


def test_files_of_a_newer_version(tmp_path):
    path = tmp_path / "x"
    members = parts(path)
    header = json.loads(members["header.json"])
    newer = json.dumps(header | {"version": 2, "gyrobn": "9.1", "more": 1})
    put(path, members | {"header.json": newer, "more.bin": b"", "mean.npy": b""})
    refused(path, r"by a newer version of gyrobn \('9.1'\): it has the format \['2'\]; upgrade")
    newer = json.dumps(header | {"geometry": {"name": "doughnut", "n": 2}})
    put(path, members | {"header.json": newer})
    refused(path, "has the geometry 'doughnut', which this gyrobn lacks: upgrade gyrobn")


@pytest.mark.parametrize("version", [0, -1, None, "1", 1.5, True, [1]], ids=repr)
def test_versions_that_never_were(version, tmp_path):
    path = tmp_path / "x"
    members = parts(path)
    header = json.loads(members["header.json"]) | {"version": version}
    put(path, members | {"header.json": json.dumps(header)})
    refused(path, "format version")


def test_truncated_files(tmp_path):
    path = tmp_path / "x"
    MODEL.save(path)
    content = path.read_bytes()
    for length in range(4, len(content), 29):
        path.write_bytes(content[:length])
        refused(path, r"damaged or truncated \(.*\): nothing was loaded")


def test_a_bomb_is_not_unpacked(tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in good.items():
            kind = zipfile.ZIP_DEFLATED if name == "mean.npy" else zipfile.ZIP_STORED
            archive.writestr(name, bytes(2**26) if kind else content, kind)
    assert path.stat().st_size < 2**18
    refused(path, "a member is compressed")


class Trap:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("name", ["mean", "bias", "domains", "n_iter"])
def test_pickles_are_not_unpickled(name, tmp_path):
    path, trap = tmp_path / "x", tmp_path / "trap"
    good = parts(path)
    array = np.empty(1, dtype=object)
    array[0] = Trap(trap)
    content = npy(array)
    put(path, good | {f"{name}.npy": content})
    refused(path, "Object arrays cannot be loaded")
    assert not trap.exists()
    np.load(BytesIO(content), allow_pickle=True)[0].close()
    assert trap.exists()  # so it would have been


MEAN, VAR, WEIGHT, BIAS, SCALE = MODEL.mean_, MODEL.var_, MODEL.weight_sum_, MODEL.bias, MODEL.scale
ARRAYS = [
    ("mean", MEAN[:1], "domains must be"),
    ("mean", MEAN[0], "var must be an array"),
    ("mean", MEAN[..., :1], "mean must be an array of float64 of shape"),
    ("mean", MEAN[:, :0], "mean has dtype float64 and shape"),
    ("mean", np.zeros(()), "damaged"),
    ("mean", MEAN.astype(int), "must be float32 or float64, got int64"),
    ("mean", MEAN.astype("f2"), "float16"),
    ("mean", MEAN.astype("c16"), "complex128|numbers"),
    ("mean", MEAN * np.nan, "mean has NaN"),
    ("mean", MEAN + 1.0, "mean is off PoincareBall"),
    ("var", -VAR, "var must be finite and not negative"),
    ("var", VAR * np.nan, "var must be finite"),
    ("var", VAR + np.inf, "var must be finite"),
    ("var", VAR[:, :1], "var must be an array of float64 of shape"),
    ("weight", -WEIGHT, "weight must be finite and not negative"),
    ("weight", WEIGHT[0], "weight must be an array of float64 of shape"),
    ("n_iter", -1 - MODEL.n_iter_, "n_iter must be finite and not negative"),
    ("converged", MODEL.n_iter_, "converged must be an array of bool"),
    ("bias", BIAS * 9.0, "bias is off PoincareBall"),
    ("bias", BIAS * np.nan, "bias has NaN"),
    ("bias", BIAS[:1], "bias must be a point"),
    ("bias", BIAS.astype(np.str_), "numbers"),
    ("scale", SCALE * np.inf, "scale must be a finite number"),
    ("scale", SCALE[:1], "scale must be a finite number"),
    ("scale", SCALE.astype(np.str_), "numbers"),
    ("domains", np.asarray(["b", "a"]), "domains must be"),
    ("domains", np.asarray(["a", "a"]), "domains must be"),
    ("domains", np.asarray([0.0, 1.0]), "domains must be"),
    ("domains", np.asarray([["a", "b"]]), "domains must be"),
    ("domains", np.asarray("a"), "domains must be"),
    ("domains", np.zeros(0, "U1"), "domains must be"),
    ("domains", np.asarray([b"a", b"b"]), "domains must be"),
    ("domains", np.asarray([0, 1], "M8[s]"), "domains must be"),
    ("domains", np.zeros(2, [("a", "f8")]), "damaged"),
    ("domains", np.asarray([0, 2**31], "u4").view("U1"), "damaged"),
    ("feature_names", np.asarray(["a"]), "feature_names must be 2 names"),
    ("feature_names", np.asarray([1, 2]), "feature_names must be 2 names"),
    ("feature_names", np.asarray([["a", "b"]]), "feature_names must be 2 names"),
]


@pytest.mark.parametrize(("name", "array", "words"), ARRAYS, ids=range(len(ARRAYS)))
def test_arrays_that_do_not_fit(name, array, words, tmp_path):
    path = tmp_path / "x"
    members = parts(path)
    header = json.loads(members["header.json"])
    header["arrays"] = sorted({*header["arrays"], name})
    put(path, members | {"header.json": json.dumps(header), f"{name}.npy": npy(array)})
    refused(path, words)


def test_the_set_of_members_is_checked(tmp_path):
    """Names are outside the checksums of a zip archive: the header lists them."""
    path = tmp_path / "x"
    good = parts(path)
    for name in good:
        put(path, {n: c for n, c in good.items() if n != name})
        refused(path, "not a gyrobn model" if name == "header.json" else "should hold the arrays")
    for name in ("../mean.npy", "/etc/passwd", "mean", "mean.npy.npy", ".npy", "more.npy"):
        put(path, good | {name: good["mean.npy"]})
        refused(path, "should hold the arrays")
    with pytest.warns(UserWarning, match="Duplicate name"):
        put(path, [*good.items(), ("mean.npy", good["mean.npy"])])
    refused(path, "should hold the arrays")
    header = json.loads(good["header.json"])
    more = json.dumps(header | {"arrays": [*header["arrays"], "more"]})
    put(path, good | {"header.json": more, "more.npy": good["mean.npy"]})
    refused(path, r"by a newer version of gyrobn .*: it has the arrays \['more'\]")
    put(path, good, zipfile.ZIP_DEFLATED)
    refused(path, "compressed")


def test_what_older_files_do_not_have_takes_its_default(tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    header = json.loads(good["header.json"])
    needed = {key: header[key] for key in ("format", "version", "geometry", "manifold")}
    put(path, good | {"header.json": json.dumps(needed | {"mean_kind": "centroid"})})
    again = GyroBN.load(path)
    assert (again.eps, again.unseen, again.n_samples_seen_) == (1e-5, "error", 0)
    np.testing.assert_array_equal(again.mean_, MODEL.mean_)


def test_arrays_and_headers_that_are_not_read(tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    mean, text = good["mean.npy"], good["header.json"].decode()
    shape = b"(2, 2, 2), }"
    contents = [b"", mean[:-1], mean[:5], mean[8:], mean[:20]]
    for other in (b"(9**9,)", b"(-2, 2,-2)", b"(2, 2, 2.0)", b"[2, 2, 2]", b"(1000000000000,)"):
        contents.append(mean.replace(shape.ljust(25), (other + b", }").ljust(25)))
        assert contents[-1] != mean
    for content in contents:
        put(path, good | {"mean.npy": content})
        refused(path)
    for other in (
        "",
        "{",
        b"\xff\xfe",
        "[" * 200_000,
        '{"a":' * 100_000,
        text.replace("1,", "1,,"),
    ):
        put(path, good | {"header.json": other})
        refused(path)


def test_other_orders_of_bytes_and_axes_are_read(tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    mean = np.asfortranarray(MEAN.astype(">f8"))
    domains = MODEL.domains_.astype(MODEL.domains_.dtype.newbyteorder(">"))
    put(path, good | {"mean.npy": npy(mean), "domains.npy": npy(domains)})
    again = GyroBN.load(path)
    assert again.mean_.dtype.isnative
    np.testing.assert_array_equal(again.mean_, MEAN)
    assert again.domains_.tolist() == ["a", "b"]


HEADER = {
    "eps": [None, "1", -1.0, True, 10**400, float("nan"), float("inf"), [], {}],
    "tol": ["1", -1.0, True, float("nan"), []],
    "max_iter": [None, 0, 1.0, True, 2**63, "1", 10**400],
    "on_invalid": [None, "ignore", 1, []],
    "unseen": [None, "ignore", 1, {}],
    "adapt_rate": [None, -0.1, 1.1, "0", True],
    "n_samples_seen": [None, -1, 1.0, True, 2**63],
    "manifold": [None, "none", 1, {"name": "none"}, ["poincare_ball"]],
    "geometry": [*WRONG, BALL | {"n": 3}, {"name": "euclidean", "n": 10**9}],
}


@pytest.mark.parametrize("name", HEADER)
def test_headers_that_do_not_fit(name, tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    header = json.loads(good["header.json"])
    for value in HEADER[name]:
        put(path, good | {"header.json": json.dumps(header | {name: value})})
        refused(path, "damaged|lacks|newer")


@pytest.mark.parametrize(
    "geometry",
    [
        {"name": "correlation", "n": 2**30, "metric": "poly_hyperbolic_cholesky"},
        {"name": "product", "factors": [{"name": "correlation", "n": 2**30, "metric": "off_log"}]},
        {"name": "special_orthogonal", "n": 2**30},
    ],
    ids=str,
)
def test_geometries_too_large_for_the_arrays_take_no_memory(geometry, tmp_path):
    path = tmp_path / "x"
    good = parts(path)
    header = json.loads(good["header.json"]) | {"geometry": geometry}
    put(path, good | {"header.json": json.dumps(header)})
    refused(path, "mean must be an array of float64 of shape")


# ---------------------------------------------------------------------- fuzz

FUZZ = settings(
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def clean(path):
    """Return the estimator of a file, which is sound, or None if it was refused as it should be."""
    bn = attempt(path)
    if isinstance(bn, ValueError):
        return None
    assert bool(np.all(bn.manifold_.contains(bn.mean_)))
    return bn


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "model"
    members = parts(path)
    return path, path.read_bytes(), members


@pytest.mark.parametrize("kind", ["flip", "drop", "insert"])
def test_every_byte_that_is_changed(good, kind):
    """What is read all the same is what was written: a checksum guards every member."""
    path, content, _ = good
    for at in range(0, len(content), 5 if kind == "flip" else 29):
        changed = bytearray(content)
        if kind == "flip":
            changed[at] ^= 0x81
        else:
            changed[at : at + 3 * (kind == "drop")] = b"" if kind == "drop" else b"\0P\xff"
        path.with_suffix(".x").write_bytes(changed)
        again = clean(path.with_suffix(".x"))
        if again is not None:
            same_params(MODEL, again)
            same_attributes(MODEL, again)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(sorted(gyrobn.REGISTRY)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "n", "p", "curvature", "factors", "metric", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=6,
)


@FUZZ
@given(data=st.data())
def test_headers_at_random(good, data):
    path, _, members = good
    header = json.loads(members["header.json"])
    for key in data.draw(st.lists(st.sampled_from([*header, "more"]), min_size=1, max_size=3)):
        header[key] = data.draw(JSON)
    put(path.with_suffix(".x"), members | {"header.json": json.dumps(header)})
    clean(path.with_suffix(".x"))


@FUZZ
@given(
    name=st.sampled_from(["mean", "var", "weight", "n_iter", "bias", "scale", "domains"]),
    dtype=st.sampled_from(["f8", ">f4", "f2", "i8", "u1", "?", "U2", "S3", "c8", "M8[s]", "O"]),
    shape=st.lists(st.integers(0, 3), max_size=4),
    values=st.binary(min_size=1, max_size=64),
    by_columns=st.booleans(),
)
@example("mean", "f8", [2, 2, 2], b"\0", True)
def test_arrays_at_random(good, name, dtype, shape, values, by_columns):
    path, _, members = good
    length = int(np.prod(shape)) * np.dtype(dtype).itemsize
    text = f"{{'descr': '{dtype}', 'fortran_order': {by_columns}, 'shape': {tuple(shape)}, }}\n"
    start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    content = start + (values * length)[:length]
    put(path.with_suffix(".x"), members | {f"{name}.npy": content})
    clean(path.with_suffix(".x"))


def test_names_in_bytes(tmp_path):
    path = os.fsencode(tmp_path / "m")
    fitted(Euclidean(2)).save(path)
    assert GyroBN.load(path).manifold_ == Euclidean(2)
