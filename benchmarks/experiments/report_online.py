"""The page about trials that arrive one by one; its numbers come from the results."""

import statistics
from typing import Any

from benchmarks.experiments import records
from benchmarks.experiments.online import COMPONENTS, DATA, EARLY, METHODS, NAME
from benchmarks.experiments.report import Row, scores, spread, table

ROWS = {
    "none": "one mean for all subjects",
    "refit": '`"refit"`, with all trials of the subject at once',
    "adapt": '`"adapt"`, with all trials of the subject at once',
    "refit_so_far": '`"refit"` again at each trial, with the trials so far',
    "adapt_so_far": '`"adapt"` again at each trial, with the trials so far',
    "online_1": '`"online"`, prior strength 1',
    "online_4": '`"online"`, prior strength 4 (the default)',
    "online_16": '`"online"`, prior strength 16',
}

USE = """
# One trial at a time

A new subject sits down, and the first trial has to be classified now. `unseen="refit"` and `"adapt"` need at least two
trials, and compute their statistics from one call alone. `unseen="online"` needs one trial, and goes on from call to call:

```python
import numpy as np
from gyrobn import SPD, GyroBN

M = SPD(3)
X, who = M.random(60, rng=0, spread=0.5), np.repeat(["Ada", "Bo", "Cy"], 20)
bn = GyroBN(M, unseen="online", prior_strength=4).fit(X, domains=who)

trials = M.add(M.random(rng=1, spread=1.0), M.random(30, rng=2, spread=0.5))
for trial in trials:  # as they come
    y = bn.transform(trial[None], domains=["Di"])
assert bn.online_["Di"].count == 30

bn.reset_online()  # one call with all of them does the same
assert np.allclose(bn.transform(trials, domains=["Di"] * 30)[-1:], y)
```

## What it computes

The average of the known domains is the prior: the Fréchet mean $\\mu_0$ of their means, and the mean $v_0^2$ of their
variances. It counts as κ samples, `prior_strength`. Trial t then moves mean and variance by its share of all samples,

$$ \\eta_t = \\frac1{\\kappa + t}, \\qquad
   \\mu_t = \\mu_{t-1} \\oplus (\\eta_t \\odot (\\ominus\\mu_{t-1} \\oplus x_t)), \\qquad
   v_t^2 = (1 - \\eta_t)\\, v_{t-1}^2 + \\eta_t\\, d(\\mu_{t-1}, x_t)\\, d(\\mu_t, x_t), $$

and is normalized with the result, $\\mu_t$ and $v_t^2$. On a flat geometry this is exact: $\\mu_t$ is
$(\\kappa\\mu_0 + \\sum x_i)/(\\kappa + t)$, and $v_t^2$ is the variance of those samples. On a curved geometry the mean depends
slightly on the order of the trials. As t grows, the prior fades, and both converge to the Fréchet mean and variance of the
domain, if trials are independent.

## What to know

* **`transform` changes the estimator** (`online_`) if a domain is new. If you transform the same trials twice, they count
  twice. `reset_online()` forgets all new domains, and so do `fit` and `partial_fit`. A call that fails changes nothing.
* The order of the trials matters, so a lazy Dask array with new domains is refused, and so is `jax.jit`. `transform_chunks`
  takes the chunks in their order.
* `inverse_transform` refuses a domain that `fit` did not see: every trial had its own statistics.
* A pickle and a file of `save` keep the state, so a loaded model goes on with the new domains. `clone` does not.
* `gyrobn.torch.DomainGyroBN(..., unseen="online")` does the same in evaluation. Its state is the dictionary `layer.online`,
  which is not in `state_dict()`. A training batch empties it, and training refuses a domain with one sample. Weights are
  refused for new domains. In a distributed evaluation each process follows the trials that it gets.
"""

MEASURED = """
## Measured on people who were left out

{data} Each subject in turn is the new one, and everything is fitted to the others. The coordinates of the joints
are reduced to {components} principal components. A clip becomes their covariance matrix, GyroBN normalizes by subject with
`scale="sqrt_dim"`, and a logistic regression on the normal coordinates names the action. Cells show the percentage of clips
whose action was found, as mean ± standard deviation over shuffled orders of the clips, with the number of orders in
parentheses. *First* is the percentage among the first {early} clips of each subject. *Sorted* is the order of the files, in
which all clips of one action come together.

`unseen="error"` has no row: it classifies no clip of a new subject. If the statistics are computed again at each clip, the
first one cannot be classified, and counts as wrong.
"""


def page() -> str:
    """Return the page."""
    rows = records.read(NAME)
    parts = [USE, MEASURED.format(data=_data(rows), components=COMPONENTS, early=EARLY)]
    for data in DATA:
        parts += [f"**{data}**", _table(rows, data)]
    parts.append(_verdict(rows))
    parts.append(
        "The numbers are made by `python -m benchmarks.experiments.online --data ../shared/data`, and "
        "this page from them by\n`python -m benchmarks.experiments.report`."
    )
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _data(rows: list[Row]) -> str:
    """Return a sentence with the sizes of the data sets."""
    sizes = {row["settings"]["data"]: row["result"] for row in rows}
    text = [
        f"{d} has {len(r['subjects'])} people and {r['trials']} clips" for d, r in sizes.items()
    ]
    return f"The data are skeletons of people who perform actions: {', '.join(text)}."


def _table(rows: list[Row], data: str) -> str:
    def cell(method: str, order: str, name: str) -> str:
        return spread(_of(rows, data, method, order, name).values())

    return table(
        ["statistics of the new subject", "all clips", "first", "all clips, sorted"],
        [
            (
                ROWS[method],
                cell(method, "shuffled", "accuracy"),
                cell(method, "shuffled", "first"),
                cell(method, "recorded", "accuracy"),
            )
            for method in METHODS
        ],
    )


def _verdict(rows: list[Row]) -> str:
    """Return what the default gains over the others, in percentage points, on the same orders."""
    lines, helps = [], []
    for data in DATA:
        gains = {
            method: _gain(rows, data, "online_4", method)
            for method in ("none", "refit_so_far", "adapt_so_far", "adapt", "refit")
        }
        shown = [f"{g:+.1f} against {ROWS[m]}" for m, g in gains.items() if g is not None]
        result = next(row["result"] for row in rows if row["settings"]["data"] == data)
        refused = 100 * len(result["subjects"]) / result["trials"]
        lines.append(
            f"* {data}: {'; '.join(shown)}. The first clip of each subject, which counts as wrong "
            f"for the methods that begin again at each trial, is at most {refused:.1f} points of it."
        )
        if (lost := _gain(rows, data, "refit", "none")) is not None and lost < 0:
            helps.append(
                f"On {data} normalization by subject does not help, even with all clips at hand "
                f"({lost:+.1f} for refit against one mean for all), and so neither does online."
            )
    return "\n\n".join(
        [
            'Percentage points that `"online"` with the default strength gains, on shuffled clips:',
            "\n".join(lines),
            "The last two comparisons of each line are with methods that know all clips in advance, "
            "which a subject who has just\nbegun cannot offer.",
            *helps,
            "The last column shows the limit of the method: as long as all clips are of one action, "
            "that action is taken for the\ncentre. A stronger prior holds against it.",
        ]
    )


def _gain(rows: list[Row], data: str, method: str, other: str) -> float | None:
    """Return the mean difference of two methods over the orders that both have run."""
    a, b = (_of(rows, data, m, "shuffled", "accuracy") for m in (method, other))
    both = a.keys() & b.keys()
    return statistics.mean(a[seed] - b[seed] for seed in both) if both else None


def _of(rows: list[Row], data: str, method: str, order: str, name: str) -> Any:
    return scores(rows, name, data=data, method=method, order=order)
