"""The page about trials that arrive one by one; its numbers come from the results."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.experiments.online import COMPONENTS, DATA, EARLY, METHODS, NAME
from benchmarks.experiments.report import Row, scores, spread, table

ROWS = {
    "none": "one mean for all",
    "refit": '`"refit"`, all trials at once',
    "adapt": '`"adapt"`, all trials at once',
    "refit_so_far": '`"refit"` again at each trial',
    "adapt_so_far": '`"adapt"` again at each trial',
    "online_1": '`"online"`, prior strength 1',
    "online_4": '`"online"`, 4 (the default)',
    "online_16": '`"online"`, 16',
}


def page(found: Mapping[str, list[Row]]) -> str:
    """Return the page."""
    rows = found.get(NAME, [])
    cells = [
        [
            ROWS[method],
            *(
                spread(_of(rows, data, method, order, name).values())
                for data in DATA
                for order, name in COLUMNS.values()
            ),
        ]
        for method in METHODS
    ]
    head = ["statistics of the new subject", *(f"{d}: {c}" for d in DATA for c in COLUMNS)]
    gains = [
        f"{_gain(rows, data, 'online_4', 'refit_so_far'):+.1f} points on {data}" for data in DATA
    ]
    return f"""# One trial at a time

What {{doc}}`guide` says about new subjects, in numbers, made by `python -m benchmarks.experiments.online --data ../shared/data`.
Each subject in turn is new, and everything is fitted to the others. A clip becomes the covariance matrix of {COMPONENTS} principal
components, and a logistic regression on normal coordinates names the action. Percentage of clips whose action was found, over
shuffled orders; *first*, among the first {EARLY} clips of a subject; *sorted*, all clips of one action come together.

{table(head, cells)}

With the default strength, `unseen="online"` gains {" and ".join(gains)} against `"refit"` again at each trial. As long as all clips are of one action, that action is
taken for the centre; a stronger prior holds against it.
"""


COLUMNS = {
    "all": ("shuffled", "accuracy"),
    "first": ("shuffled", "first"),
    "sorted": ("recorded", "accuracy"),
}


def _gain(rows: list[Row], data: str, method: str, other: str) -> float:
    """Return the mean difference of two methods over the orders that both have run."""
    a, b = (_of(rows, data, m, "shuffled", "accuracy") for m in (method, other))
    both = a.keys() & b.keys()
    return statistics.mean(a[seed] - b[seed] for seed in both)


def _of(rows: list[Row], data: str, method: str, order: str, name: str) -> Any:
    return scores(rows, name, data=data, method=method, order=order)
