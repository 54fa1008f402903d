"""Link prediction: which pairs of nodes are edges, from embeddings in a curved space.

``python -m benchmarks.experiments.link_prediction --data ../shared/data --backbone HNN`` runs the
cells that are not done yet. Settings are the paper's, as far as they are known.
"""

import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor, nn

from benchmarks.experiments import records
from benchmarks.experiments.encoders import BACKBONES, NORMS, encoder, parameter_groups
from benchmarks.experiments.graphs import GRAPHS, SCALINGS, Graph, load
from benchmarks.experiments.layers import FermiDiracDecoder
from benchmarks.experiments.lorentz_variants import VARIANTS

PATIENCE, EPOCHS = 100, 5000
NAME = "link_prediction"
FIVE = "HNN", "KNN", "LNN", "SNN", "PHNN"
"""The networks of the main table."""


def cells(seeds: int) -> list[records.Cell]:
    """Return all cells of the main table, the cheap data sets and the first seeds first."""
    return [
        {"data": data, "backbone": backbone, "norm": norm, "seed": seed}
        for seed in range(seeds)
        for data in GRAPHS
        for backbone in FIVE
        for norm in NORMS
    ]


def steps_cells(seeds: int) -> list[records.Cell]:
    """Return the cells of the ablation over steps of the mean; the table above has the limit."""
    return [
        {"data": data, "backbone": backbone, "norm": "gyro", "steps": steps, "seed": seed}
        for seed in range(seeds)
        for data in ("disease", "cora", "airport")
        for backbone in FIVE
        for steps in (1, 2, 5, 10)
    ]


def hnnpp_cells(seeds: int) -> list[records.Cell]:
    """Return the cells of HNN++ with and without dropout, and of its ablation over weight decay."""
    main = [
        {"data": data, "backbone": "HNN++", "norm": norm, **more, "seed": seed}
        for seed in range(seeds)
        for data in ("disease", "cora", "airport")
        for more in ({"dropout": 0.0}, {})
        for norm in NORMS
    ]
    decay = [
        {"data": data, "backbone": "HNN++", "norm": norm, "weight_decay": decay, "seed": seed}
        for seed in range(seeds)
        for data in ("cora", "pubmed")
        for decay in (0.0, 5e-4, 1e-3)
        if data == "pubmed" or decay > 0.0  # Cora without decay is in the main table
        for norm in ("none", "lrbn", "gyro")
    ]
    return main + decay


def rresnet_cells(seeds: int) -> list[records.Cell]:
    """Return the cells of RResNet over the dimension of the embedding."""
    return [
        {"data": data, "backbone": "RResNet", "norm": norm, "dim": dim, "seed": seed}
        for seed in range(seeds)
        for data in ("disease", "cora", "airport")
        for dim in (8, 16, 32, 64, 128)
        for norm in ("none", "lrbn", "gyro")
    ]


def lorentz_cells(seeds: int) -> list[records.Cell]:
    """Return the cells of LNN with other choices where the paper leaves one."""
    return [
        {"data": "disease", "backbone": "LNN", "norm": norm, "variant": variant, "seed": seed}
        for seed in range(seeds)
        for variant in VARIANTS
        for norm in ("none", "gyro")
    ]


def scaling_cells(seeds: int) -> list[records.Cell]:
    """Return the cells of LNN on Disease with other scalings of the features."""
    return [
        {"data": "disease", "backbone": "LNN", "norm": norm, "scaling": scaling, "seed": seed}
        for seed in range(seeds)
        for scaling in SCALINGS
        if scaling != "signed row sum"  # as in the main table
        for norm in ("none", "gyro")
    ]


TABLES = {
    "lorentz": lorentz_cells,
    "main": cells,
    "hnnpp": hnnpp_cells,
    "rresnet": rresnet_cells,
    "scaling": scaling_cells,
    "steps": steps_cells,
}


def main() -> None:
    """Run the cells that the command line asks for."""
    parser = records.arguments(__doc__ or "", data_set=GRAPHS, backbone=BACKBONES, norm=NORMS)
    parser.add_argument("--table", choices=list(TABLES), default="main", help="which cells")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, args.data = args.data, args.data_set
    wanted = records.chosen(TABLES[args.table](args.seeds), args)
    part = records.part_of(args.part)
    records.run(NAME, wanted, lambda cell, tick: work(cell, tick, folder), part, args.results)


@cache
def graph(name: str, folder: Path, scaling: str) -> Graph:
    """Return a graph, which all cells share."""
    return load(name, folder, scaling)


def work(cell: records.Cell, tick: records.Tick, folder: Path) -> dict[str, Any]:
    """Train one network, and return its results."""
    data = graph(cell["data"], folder, cell.get("scaling", "signed row sum"))
    cora = cell["data"] == "cora"
    torch.manual_seed(1234 + cell["seed"])
    row, dim = BACKBONES[cell["backbone"]], cell.get("dim", 128)
    net = encoder(
        cell["backbone"],
        data.features.shape[-1],
        cell["norm"],
        dim,
        activation=not cora,
        dropout=cell.get("dropout", 0.2),
        steps=cell.get("steps"),
    )
    plain = cora and cell["backbone"] != "RResNet"  # the paper's exception for Cora
    decay = cell.get("weight_decay", 0.0 if plain else 1e-3)
    decoder: nn.Module = FermiDiracDecoder(row.space(dim))
    if "variant" in cell:
        variant = VARIANTS[cell["variant"]]
        decoder, decay = variant.change(net, decoder), variant.decay
        row = replace(row, clip=variant.longest)
    optimizer = torch.optim.Adam(parameter_groups(net, row.unit, 1e-2, decay))
    return train(net, decoder, row.features(data.features), data, optimizer, tick)


def train(
    net: nn.Module,
    decoder: nn.Module,
    features: Tensor,
    data: Graph,
    optimizer: torch.optim.Optimizer,
    tick: records.Tick,
    epochs: int | None = None,
) -> dict[str, Any]:
    """Train with early stopping on the validation edges; return the test scores at the best."""
    rng = np.random.default_rng(1234)  # the same negatives in every run, as in the published code
    best, result, curve, spent = -1.0, {"epochs": 0}, [], 0.0
    for epoch in range(1, (epochs or EPOCHS) + 1):
        begin = time.process_time()
        net.train()
        optimizer.zero_grad()
        loss = losses(decoder, net(features), data.train, data.negatives(rng))
        loss.backward()
        optimizer.step()
        spent += time.process_time() - begin
        net.eval()
        with torch.no_grad():
            z = net(features)
            val = scores(decoder, z, *data.val)
            curve.append(round(100 * val[0], 2))
            if sum(val) / 2 > best:
                best = sum(val) / 2
                test = scores(decoder, z, *data.test)
                result = {"test_roc": 100 * test[0], "test_ap": 100 * test[1], "best": epoch}
                result |= {"val_roc": 100 * val[0]}
        tick(epoch / (result["best"] + PATIENCE))
        # As in HGCN: if the first epoch is the best of the first hundred, the run goes on.
        if epoch - result["best"] == PATIENCE and epoch > PATIENCE + 1:
            break
    thin = max(1, len(curve) // 60)
    return {
        **{name: round(value, 3) for name, value in result.items()},
        "epochs": epoch,
        "seconds_per_epoch": round(spent / epoch, 4),
        "parameters": sum(p.numel() for p in net.parameters()),
        "loss": round(float(loss.detach()), 4),
        "curve": curve[::thin],
        "curve_step": thin,
    }


def losses(decoder: nn.Module, z: Tensor, edges: Tensor, others: Tensor) -> Tensor:
    """Return the mean cross entropy of edges plus that of other pairs, on probabilities.

    Logarithms are clamped at −100 by torch. A loss on logits is not the same: with it far pairs
    keep their slopes, and plain HNN on Disease stays at chance.
    """
    p, q = (decoder(z[pairs[:, 0]], z[pairs[:, 1]]) for pairs in (edges, others))
    bce = nn.functional.binary_cross_entropy
    return bce(p, torch.ones_like(p)) + bce(q, torch.zeros_like(q))


def scores(decoder: nn.Module, z: Tensor, edges: Tensor, others: Tensor) -> tuple[float, float]:
    """Return the area under the ROC curve, and the average precision."""
    pairs = torch.cat([edges, others])
    p = decoder(z[pairs[:, 0]], z[pairs[:, 1]]).numpy()
    truth = np.repeat([1, 0], [len(edges), len(others)])
    return float(roc_auc_score(truth, p)), float(average_precision_score(truth, p))


if __name__ == "__main__":
    main()
