"""Tables, MATLAB's files and HDF5, compared with the library."""

from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
from cli_runner import report, run_here

from gyrobn import SPD, Correlation, GyroBN, PoincareBall, SpecialOrthogonal
from gyrobn.data import open_array

BALL = PoincareBall(2)
X = BALL.add(np.asarray([0.3, 0.2]), BALL.random(60, rng=0, spread=0.6))
M = SPD(3)
P = M.add(M.random(rng=2), M.random(40, rng=1))
LABELS = np.resize(["Ada", 'Bo, "jr"', "Cy"], len(P))


def normalized(geometry, x, domains=None, **options):
    return GyroBN(geometry, **options).fit(x, domains=domains).transform(x, domains=domains)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def close(y, wanted):
    assert y.shape == wanted.shape
    np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize("header", [None, ["a", "b, in m"]])
def test_text(here, monkeypatch, header):
    """In several blocks, with the byte order mark and the line ends of Windows."""
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 16 * 7)
    pd.DataFrame(X, columns=header).to_csv("x.csv", index=False, header=header is not None)
    text = (here / "x.csv").read_text().replace("\n", "\r\n")
    (here / "x.csv").write_text("\ufeff" + text, encoding="utf-8", newline="")
    values = report("normalize", "x.csv", "y.csv", "--manifold", "poincare_ball")
    assert (values["shape"], values["dtype"]) == ([60, 2], "float64")
    found = (here / "y.csv").read_text(encoding="utf-8").splitlines()
    if header is not None:
        assert found.pop(0) == 'a,"b, in m"'
    y = np.asarray([line.split(",") for line in found], dtype=float)
    close(y, normalized(BALL, X))
    with open_array("y.csv") as again:  # to the last bit
        np.testing.assert_array_equal(again[:], y)


def test_columns_of_numbers_and_of_domains(here):
    who, names = np.resize(["Ada", "Bo, jr"], 60), ["id", "a", "b", "who"]
    frame = pd.DataFrame({"id": np.arange(60), "a": X[:, 0], "b": X[:, 1], "who": who})
    frame.to_csv("x.csv", index=False)
    frame.to_csv("plain.csv", index=False, header=False)
    for name in ("x.csv", "plain.csv"):
        for columns in ("2-3", "2,3", " 2 , 3-3"):
            report("normalize", name, "y.csv", "--manifold", "poincare_ball", "--columns", columns)
            close(pd.read_csv("y.csv", header=0 if name == "x.csv" else None), normalized(BALL, X))
        for column in ("4", "who") if name == "x.csv" else ("4",):
            options = "--columns", "2-3", "--domain-column", column, "--manifold", "poincare_ball"
            assert report("normalize", name, "y.npy", *options)["domains"] == ["Ada", "Bo, jr"]
            close(np.load("y.npy"), normalized(BALL, X, who))
    report("normalize", "x.csv", "y.csv", "--manifold", "euclidean", "--domain-column", "who")
    assert list(pd.read_csv("y.csv").columns) == names[:3]  # all columns but that of labels
    report("normalize", "x.csv", "y.npy", "--manifold", "poincare_ball", "--columns", "3,2")
    close(np.load("y.npy"), normalized(BALL, X[:, ::-1]))


def rows_of(x, layout):
    if layout == "matrix":
        return x.reshape(len(x), -1)
    return x[:, *np.triu_indices(x.shape[-1], int(layout == "strict"))]


SYMMETRIC = [(M, P, layout) for layout in ("matrix", "upper")]
SYMMETRIC += [
    (SpecialOrthogonal(3), SpecialOrthogonal(3).random(30, rng=0, spread=0.3), "matrix"),
    *((Correlation(4), Correlation(4).random(30, rng=0), layout) for layout in ("upper", "strict")),
]


@pytest.mark.parametrize(
    ("geometry", "x", "layout"), SYMMETRIC, ids=[f"{g!r}-{layout}" for g, _, layout in SYMMETRIC]
)
def test_rows_of_matrices(here, geometry, x, layout):
    """A row is a matrix or a triangle of one; a length that fits two layouts must say which."""
    labels, rows = LABELS[: len(x)], rows_of(x, layout)
    name = {"SPD": "spd", "Correlation": "correlation"}.get(type(geometry).__name__)
    frame = pd.DataFrame(rows, columns=[f"c{k}" for k in range(rows.shape[1])])
    frame.insert(2, "who", labels)
    frame.to_csv("x.csv", index=False)
    options = ["--manifold", name or "special_orthogonal", "--domain-column", "who"]
    more = ["--layout", layout] if name == "correlation" else []
    if more:
        process = run_here("normalize", "x.csv", "y.csv", *options)
        assert "--layout upper" in process.stderr
        assert "--layout strict" in process.stderr
    report("normalize", "x.csv", "y.csv", *options, *more, "--save-model", "m")
    wanted = normalized(geometry, x, labels)
    found = pd.read_csv("y.csv")
    assert list(found.columns) == [f"c{k}" for k in range(rows.shape[1])]
    close(found.to_numpy(), rows_of(wanted, layout))
    report("normalize", "x.csv", "y.npy", *options, *more)
    close(np.load("y.npy"), wanted)  # an array has the shape of its samples
    report("transform", "x.csv", "z.npy", "--model", "m", *options[2:])  # it knows the size
    close(np.load("z.npy"), wanted)
    np.save("rows.npy", rows)
    (here / "who.txt").write_text("\n".join(labels))
    plain = *options[:2], "--layout", layout, "--domains", "who.txt"
    report("normalize", "rows.npy", "y.npy", *plain)
    close(np.load("y.npy"), wanted)


def test_a_header_of_numbers_is_asked_for(here):
    """As pandas writes one; it may also be a sample."""
    pd.DataFrame(X).to_csv("x.csv", index=False)
    assert "header='yes' or 'no'" in run_here("inspect", "x.csv").stderr
    assert report("inspect", "x.csv", "--header", "yes")["samples"] == 60
    assert report("inspect", "x.csv", "--header", "no")["samples"] == 61


def test_a_bias_in_a_table():
    np.savetxt("b.csv", [[0.1, 0.2]], delimiter=",")
    np.save("b.npy", [0.1, 0.2])
    np.save("x.npy", X)
    for name in ("b.npy", "b.csv"):
        options = "--manifold", "poincare_ball", "--bias", name
        report("normalize", "x.npy", f"{name}.npy", *options)
    np.testing.assert_array_equal(np.load("b.npy.npy"), np.load("b.csv.npy"))
    close(np.load("b.npy.npy"), normalized(BALL, X, bias=np.asarray([0.1, 0.2])))


# ---------------------------------------------------------------------- MATLAB, HDF5


def save_matlab(array, version, **more):
    """Write a file as MATLAB does: version 7.3 is HDF5, with axes in reverse order."""
    Path("x.mat").unlink(missing_ok=True)
    if version == "7.3":
        with h5py.File("x.mat", "w", userblock_size=512) as file:
            for name, value in {"X": array, **more}.items():
                file.create_dataset(name, data=np.asarray(value).T)
            file.create_group("#refs#").create_dataset("a", data=[1.0])
        with open("x.mat", "r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    else:
        others = {"text": "hello"} if more else {}
        scipy.io.savemat("x.mat", {"X": array, **more, **others}, do_compression=True)


@pytest.mark.parametrize("bytes_", [72 * 7, 2**23])
@pytest.mark.parametrize("axis", ["first", "last"])
@pytest.mark.parametrize("version", ["7", "7.3"])
def test_matlab(monkeypatch, version, axis, bytes_):
    """Beside square matrices the axis is clear; an array of whole numbers, too."""
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", bytes_)
    save_matlab(P if axis == "first" else np.moveaxis(P, 0, -1), version)
    values = report("normalize", "x.mat", "y.mat", "--manifold", "spd")
    assert (values["shape"], values["dtype"]) == ([40, 3, 3], "float64")
    close(scipy.io.loadmat("y.mat")["X"], normalized(M, P))
    report("normalize", "x.mat", "z.mat", "--manifold", "spd", "--axis", axis)
    z = scipy.io.loadmat("z.mat")["X"]
    close(z if axis == "first" else np.moveaxis(z, -1, 0), normalized(M, P))


@pytest.mark.parametrize("version", ["7", "7.3"])
def test_the_axis_of_a_matlab_file_is_asked_for(version):
    save_matlab(X.T, version, other=np.eye(2))
    options = ["--manifold", "poincare_ball", "--key", "X"]
    process = run_here("normalize", "x.mat", "y.npy", *options)
    assert "shape (2, 60): say which axis counts the samples" in process.stderr
    report("normalize", "x.mat", "y.npy", *options, "--axis", "last")
    close(np.load("y.npy"), normalized(BALL, X))
    save_matlab(np.stack([np.eye(3)] * 3), version)
    assert "(3, 3, 3)" in run_here("inspect", "x.mat").stderr
    assert report("inspect", "x.mat", "--axis", "first")["shape"] == [3, 3, 3]
    rows = np.arange(48.0).reshape(4, 3, 2, 2)  # not square: the order of all axes counts
    for axis, array in (("first", rows), ("last", np.moveaxis(rows, 0, -1))):
        save_matlab(array, version)
        with open_array("x.mat", axis=axis) as found:
            np.testing.assert_array_equal(found[1:3], rows[1:3])


def test_hdf5(monkeypatch):
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("a/covariances", data=P, chunks=(7, 3, 3), compression="gzip")
        file.create_dataset("b", data=X)
    report("normalize", "x.h5", "y.hdf5", "--key", "a/covariances", "--manifold", "spd")
    with h5py.File("y.hdf5") as file:
        close(file["X"][:], normalized(M, P))
