"""The networks of the link prediction tables: sizes, equivalences, a graph that trains."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.experiments import link_prediction, online, pictures, report, report_claims
from benchmarks.experiments.encoders import BACKBONES, PublishedLRBN, encoder, parameter_groups
from benchmarks.experiments.graphs import Graph, load
from benchmarks.experiments.layers import FermiDiracDecoder
from gyrobn import Klein, PoincareBall, Sphere, batch_stats, convert
from gyrobn.torch.baselines import LRBN

DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.mark.parametrize(
    ("backbone", "features", "parameters"),
    [
        ("HNN", 11, 18_048),
        ("KNN", 12, 18_176),
        ("PHNN", 500, 80_640),
        ("SNN", 1433, 200_064),
        ("LNN", 11, 18_447),
        ("LNN", 12, 18_576),
        ("LNN", 500, 81_528),
        ("LNN", 1433, 201_885),
    ],
)
def test_networks_have_the_size_of_the_papers(backbone, features, parameters):
    for norm, more in (("none", 0), ("gyro", 2 * 129), ("lrbn", 2 * 129)):
        net = encoder(backbone, features, norm)
        assert sum(p.numel() for p in net.parameters()) == parameters + more


@pytest.mark.parametrize("norm", ["none", "gyro", "lrbn"])
@pytest.mark.parametrize(
    ("half", "whole", "target"),
    [("HNN", "KNN", Klein(6)), ("PHNN", "SNN", Sphere(6))],
)
def test_two_of_the_five_networks_are_others_at_half_scale(norm, half, whole, target):
    torch.manual_seed(0)  # for the weights: the networks clip far points at different distances
    rng = torch.Generator().manual_seed(0)
    f = 0.5 * torch.randn(20, 4, generator=rng, dtype=torch.float64)
    nets = [encoder(name, 4, norm, dim=6, dropout=0.0) for name in (half, whole)]
    with torch.no_grad():
        for p in nets[0].parameters():
            p += 0.2 * torch.randn(p.shape, generator=rng, dtype=p.dtype)
        # In the paper's coordinates the biases are halved, too. Ours are normal coordinates.
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            q.copy_(p)
        for mode in (True, False):  # with the statistics of the batch, and the running ones
            z, w = (
                net.train(mode)(BACKBONES[name].features(scale * f))
                for net, name, scale in zip(nets, (half, whole), (0.5, 1.0), strict=True)
            )
            same = convert(BACKBONES[half].space(6), target, z)
            assert float((same - w).abs().max()) < 1e-12


def test_features_beyond_the_injectivity_radius_stay_finite():
    f = torch.tensor([[np.pi / 2, 0.0], [np.pi, 0.0], [30_000.0, 1.0], [0.0, 0.0]]).double()
    torch.manual_seed(0)
    for name, row in BACKBONES.items():
        net = encoder(name, 2, "gyro", dim=3).eval()
        assert bool(torch.isfinite(net(row.features(f))).all()), name


def test_adam_treats_biases_as_the_papers_coordinates():
    M = PoincareBall(3)
    c = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    target = M.from_normal(torch.tensor([1.0, 0.4, -0.3], dtype=torch.float64))

    class Holder(torch.nn.Module):
        def __init__(self, unit):
            super().__init__()
            self.unit, self.bias = unit, torch.nn.Parameter(c / unit)

    ours, theirs = Holder(1.0), Holder(2.0)
    groups = parameter_groups(ours, 2.0, 0.1, 0.05), parameter_groups(theirs, 1.0, 0.1, 0.05)
    for net, group in zip((ours, theirs), groups, strict=True):
        optimizer = torch.optim.Adam(group, eps=0.0)
        for _ in range(5):
            optimizer.zero_grad()
            M.dist(M.from_normal(net.unit * net.bias), target).backward()
            optimizer.step()
    torch.testing.assert_close(ours.bias, 2.0 * theirs.bias)


def test_published_lrbn_differs_from_lrbn_in_evaluation_only():
    M = PoincareBall(3)
    x = M.random(30, rng=0, like=torch.zeros((), dtype=torch.float64), spread=0.7)
    published, plain = (cls(M, eps=0.0, dtype=torch.float64) for cls in (PublishedLRBN, LRBN))
    for layer in (published, plain):
        for batch in x.split(15):
            layer(batch)
    torch.testing.assert_close(published(x), plain(x))  # s is one: its root is, too
    torch.testing.assert_close(
        published.running_var,
        sum(batch_stats(M, batch).var for batch in (x[:15], x[15:], x)) / 3,
    )
    published.eval(), plain.eval()
    stats = batch_stats(M, published(x).detach())
    assert float((published(x) - plain(x)).detach().abs().max()) > 0.01
    variance = published.running_var * 29 / 30  # the evaluation batch's own spread is gone
    torch.testing.assert_close(stats.var, variance, rtol=0.2, atol=0.0)


def small_graph() -> Graph:
    """Two communities of nodes that are linked inside, with noisy features."""
    rng = np.random.default_rng(0)
    side = np.repeat([0, 1], 30)
    features = rng.standard_normal((60, 5)) + 1.5 * side[:, None]
    pairs = np.array([(i, j) for i in range(60) for j in range(i + 1, 60)])
    inside = side[pairs[:, 0]] == side[pairs[:, 1]]
    edges, others = (torch.as_tensor(rng.permutation(pairs[k])) for k in (inside, ~inside))
    parts = edges[:100], edges[100:150], edges[150:250]
    return Graph(
        torch.as_tensor(features), parts[0], (parts[1], others[:50]), (parts[2], others[50:150])
    )


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")  # a sphere, filled by unit variance
@pytest.mark.parametrize("backbone", ["HNN", "LNN", "SNN", "HNN++", "RResNet"])
def test_a_small_graph_trains_in_seconds(backbone):
    torch.manual_seed(0)
    data, row = small_graph(), BACKBONES[backbone]
    scale = 1.0 if backbone == "RResNet" else 0.3  # it begins with a linear map
    net = encoder(backbone, 5, "gyro", dim=8)
    optimizer = torch.optim.Adam(parameter_groups(net, row.unit, 1e-2, 0.0))
    ticks = []
    result = link_prediction.train(
        net,
        FermiDiracDecoder(row.space(8)),
        row.features(scale * data.features),
        data,
        optimizer,
        ticks.append,
        epochs=25,
    )
    assert result["test_roc"] > 75.0
    assert result["epochs"] == len(result["curve"]) == len(ticks) == 25


@pytest.mark.skipif(not DATA.exists(), reason="the folder ../shared/data is not there")
def test_graphs_are_read_as_the_paper_reads_them():
    sizes = {"disease": (2665, 11, 2265), "airport": (3188, 12, 15837), "cora": (2708, 1433, 4488)}
    for name, (nodes, features, edges) in sizes.items():
        data = load(name, DATA)
        assert data.features.shape == (nodes, features)
        assert len(data.train) == edges
        drawn = data.negatives(np.random.default_rng(0))
        assert drawn.shape == data.train.shape
        codes = {tuple(pair) for pair in data.train.tolist()}
        assert not [pair for pair in drawn.tolist() if tuple(pair) in codes]
        assert bool((drawn[:, 0] <= drawn[:, 1]).all())
    sums = load("cora", DATA).features.sum(-1)
    assert bool(((sums - 1).abs() < 1e-12).logical_or(sums == 0).all())


def test_the_pages_are_made_from_the_results(tmp_path):
    for name, text in report.pages().items():
        kept = (report.DOCS / name).read_text()
        assert kept == text, f"{name}: run python -m benchmarks.experiments.report"
    for drawn in pictures.draw(tmp_path):
        kept = report.DOCS / "_static" / drawn.name
        assert drawn.name in report.pages()["experiments.md"]
        assert kept.read_bytes() == drawn.read_bytes(), f"{kept} is not what the results show"


def test_the_page_reads_in_five_minutes():
    """Words and numbers; the claims of the paper come first, each with its verdict."""
    page = report.pages()["experiments.md"]
    assert len(re.findall(r"\S*\w\S*", page)) <= 3000
    first = page.split("\n## ")[1]
    assert first.startswith("The paper's claims")
    lines = [line for line in first.splitlines() if line.startswith("| ")][2:]
    verdicts = {line.rsplit(" | ", 1)[1].removesuffix(" |") for line in lines}
    assert verdicts == {report_claims.HOLDS, report_claims.FAILS, report_claims.UNTESTED}


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_a_small_set_of_subjects_is_classified_trial_by_trial(tmp_path):
    rng = np.random.default_rng(0)
    y, subject = np.arange(36) % 2, np.repeat(["a", "b", "c"], 12)
    power = np.where(y[:, None] == np.arange(20) % 2, 3.0, 1.0)
    power *= np.repeat(np.exp(0.5 * rng.standard_normal((3, 20))), 12, axis=0)
    frames = power[:, None] * rng.standard_normal((36, 60, 20))
    np.savez(
        tmp_path / "small.npz",
        X=frames.reshape(-1, 20),
        lengths=np.full(36, 60),
        y=y,
        subject=subject,
    )
    for method in ("refit_so_far", "online_4"):
        cell = {"data": "small", "method": method, "order": "shuffled", "seed": 0}
        found = online.work(cell, lambda fraction: None, tmp_path)
        assert found["trials"] == 36
        assert len(found["subjects"]) == 3
        assert found["accuracy"] > 80.0
