"""Dask arrays on worker processes: the same numbers, also if a worker dies in the middle."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import array_api_strict
import dask
import dask.array as da
import numpy as np
import pytest
import torch
from distributed import Client, KilledWorker, LocalCluster

from gyrobn import SPD, GyroBN, frechet
from gyrobn.backends import backend_of
from gyrobn.cli import main
from gyrobn.data import open_array

M = SPD(3)
X = M.add(M.random(rng=1), M.random(300, rng=0, spread=0.5))
LABELS = np.arange(300) % 3
WHOLE = GyroBN(M, scale=0.5).fit(X)


@pytest.fixture(scope="module")
def client():
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


def check(X):
    """Fit, transform and undo, with and without domains, and compare with memory."""
    bn = GyroBN(M, scale=0.5).fit(X)
    close(bn.mean_, WHOLE.mean_)
    Y = bn.transform(X)
    close(Y.compute(), WHOLE.transform(np.asarray(X)))
    close(bn.inverse_transform(Y).compute(), np.asarray(X))


def test_processes():
    with dask.config.set(scheduler="processes", num_workers=1):
        close(frechet(M, da.from_array(X, chunks=(100, 3, 3))).mean, WHOLE.mean_)


def test_cluster(client):
    lazy = da.from_array(X, chunks=(40, 3, 3))
    check(lazy)
    check(lazy.persist())
    own = GyroBN(M).fit(X, domains=LABELS)
    bn = GyroBN(M).fit(lazy, domains=da.from_array(LABELS, chunks=50))
    close(bn.mean_, own.mean_)
    close(bn.transform(lazy, domains=LABELS).compute(), own.transform(X, domains=LABELS))
    bad = X.copy()
    bad[250] *= -1
    with pytest.raises(ValueError, match="the first at index 250: that matrix is indefinite"):
        GyroBN(M).fit(da.from_array(bad, chunks=(40, 3, 3)))


def _as_tensor(x):
    return torch.tensor(x)


def _as_strict(x):
    return array_api_strict.asarray(x, device=array_api_strict.Device("device1"), copy=True)


@pytest.mark.parametrize("convert", [_as_tensor, _as_strict])
def test_blocks_of_another_library(client, convert):
    """They travel between processes, and stay in their library and on their device."""
    lazy = da.from_array(X, chunks=(40, 3, 3)).map_blocks(
        convert, meta=convert(np.empty((0, 0, 0)))
    )
    w = np.random.default_rng(0).random(300)
    memory = GyroBN(M, scale=0.5).fit(convert(X), sample_weight=w)
    bn = GyroBN(M, scale=0.5).fit(lazy, sample_weight=w)
    blocks = dask.compute(*bn.transform(lazy).to_delayed().ravel())
    expected = memory.transform(convert(X))
    for found in (bn.mean_, bn.var_, bn.weight_sum_, *blocks):
        assert type(found) is type(expected)
        assert found.device == expected.device
    host = backend_of(expected).to_numpy
    close(host(bn.mean_), host(memory.mean_))
    close(np.concatenate([host(block) for block in blocks]), host(expected))


def _deadly(x, folder, block_id=None):
    """Return a block; the third time that block 2 is asked for, kill its worker, once."""
    if block_id[0] == 2:
        seen = len(list(Path(folder).glob("seen*")))
        (Path(folder) / f"seen{seen}").touch()
        if seen == 2:
            os._exit(1)
    return x


def test_a_worker_dies_in_the_middle_of_a_fit(client, tmp_path):
    lazy = da.from_array(X, chunks=(40, 3, 3))
    lazy = lazy.map_blocks(_deadly, str(tmp_path), dtype=X.dtype, meta=lazy._meta)
    with ThreadPoolExecutor(1) as pool:
        bn = pool.submit(GyroBN(M, scale=0.5).fit, lazy).result(timeout=120)
    close(bn.mean_, WHOLE.mean_)
    close(bn.var_, WHOLE.var_)
    assert len(list(tmp_path.iterdir())) > 3  # it died, and was asked again


@pytest.mark.parametrize(
    ("suffix", "domains", "here"),
    [(".npy", False, False), (".zarr", True, False), (".npz", True, False), (".npy", False, True)],
)
def test_command(client, tmp_path, monkeypatch, capfd, here, domains, suffix):
    """On the cluster of an address, or on one that the command starts; the samples in blocks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gyrobn.data.chunks.BYTES", 2**12)
    np.save("x.npy", X)
    np.save("d.npy", LABELS)
    words = ["--manifold", "spd", *(["--domains", "d.npy"] if domains else [])]
    dask = ["--dask"] if here else ["--dask", client.scheduler.address]
    assert main(["normalize", "x.npy", "y.npy", *words]) == 0
    assert main(["normalize", "x.npy", f"z{suffix}", *words, *dask, "--save-model", "m"]) == 0
    with open_array(f"z{suffix}") as z:
        close(z[:], np.load("y.npy"))
    close(GyroBN.load("m").mean_, GyroBN(M).fit(X, domains=LABELS if domains else None).mean_)
    capfd.readouterr()
    bad = X.copy()
    bad[250] *= -1
    np.save("bad.npy", bad)
    assert main(["normalize", "bad.npy", "w.npy", *words, *dask]) == 1
    error = capfd.readouterr().err
    assert error.startswith("gyrobn: error: ")
    assert "the first at index 250: that matrix is indefinite" in error
    assert error.count("\n") == 1
    assert not Path("w.npy").exists()


def test_the_order_of_samples_and_workers_that_die(client, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)
    np.save("d.npy", LABELS)
    np.save("zeros.npy", np.zeros(len(X), int))
    dask = ["--dask", client.scheduler.address]
    main(["fit", "x.npy", "m", "--manifold", "spd", "--domains", "zeros.npy"])
    line = ["transform", "x.npy", "y.npy", "--model", "m", "--domains", "d.npy"]
    assert main([*line, "--unseen", "online", *dask]) == 1
    assert "computed in any order" in capfd.readouterr().err

    def die(*_, **__):
        raise KilledWorker("task", None, 3)

    monkeypatch.setattr(GyroBN, "fit", die)
    assert main(["normalize", "x.npy", "y.npy", "--manifold", "spd", *dask]) == 1
    assert capfd.readouterr().err.startswith("gyrobn: error: the workers died several times")
    assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "d.npy", "zeros.npy", "m"}
