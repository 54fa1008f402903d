"""Training of a classifier on points: the loop that the tables of matrices share."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.experiments.records import Tick
from benchmarks.experiments.series import Split

DTYPE = torch.float64
MARKS = 20
"""Number of places on a learning curve."""


def train(
    net: nn.Module,
    data: Split,
    optimizer: torch.optim.Optimizer,
    epochs: int,
    tick: Tick,
    batch: int = 30,
    clip: float = float("inf"),
    decay: bool = False,
    validation: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Any]:
    """Train with cross entropy, and return the accuracy after the last epoch.

    With samples for ``validation``, which are not trained with, the test accuracy is that of the
    epoch with the best accuracy on them; the smaller loss decides between equal ones. The test
    samples play no part in the training. ``clip`` is the largest norm of a gradient, and with
    ``decay`` the learning rate falls to zero along a cosine. The seconds are those of the CPU, in
    training alone.
    """
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs) if decay else None
    spent, curves, marks = 0.0, {"curve": [], "train_curve": [], "loss_curve": []}, []
    best, chosen = (-1.0, 0.0), {}
    for epoch in range(1, epochs + 1):
        begin = time.process_time()
        loss = _epoch(net, data, optimizer, batch, clip)
        spent += time.process_time() - begin
        if schedule is not None:
            schedule.step()
        if validation is not None and (found := _quality(net, *validation)) > best:
            best = found
            chosen = {"best": epoch, "val_accuracy": found[0]}
            chosen["test_accuracy"] = accuracy(net, data.x_test, data.y_test)
        if epoch % max(1, epochs // MARKS) == 0 or epoch == epochs:
            marks.append(epoch)
            curves["curve"].append(accuracy(net, data.x_test, data.y_test))
            curves["train_curve"].append(accuracy(net, data.x, data.y))
            curves["loss_curve"].append(round(loss, 4))
        tick(epoch / epochs)
    return {
        "test_accuracy": curves["curve"][-1],
        "train_accuracy": curves["train_curve"][-1],
        "loss": curves["loss_curve"][-1],
        "epochs": epochs,
        "seconds_per_epoch": round(spent / epochs, 4),
        "parameters": parameters(net),
        **curves,
        "curve_epochs": marks,
        **chosen,
    }


def _epoch(
    net: nn.Module, data: Split, optimizer: torch.optim.Optimizer, batch: int, clip: float
) -> float:
    """Go through all samples once, in random order; return the mean loss.

    A last batch of one sample, which has no variance, is left out.
    """
    net.train()
    total = 0.0
    for rows in torch.randperm(len(data.x)).split(batch):
        if len(rows) == 1:
            continue
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(data.x[rows]), data.y[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        total += float(loss.detach()) * len(rows)
    return total / len(data.x)


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the percentage of samples whose class has the largest score, in evaluation mode."""
    net.eval()
    right = (net(x).argmax(dim=-1) == y).double().mean()
    return round(100 * float(right), 3)


@torch.no_grad()
def _quality(net: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return the accuracy, and the negative loss, in evaluation mode."""
    right = accuracy(net, x, y)
    return right, -float(nn.functional.cross_entropy(net(x), y))


def parameters(net: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(p.numel() for p in net.parameters())
