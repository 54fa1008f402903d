"""The scikit-learn transformer, its checks, and the fitted model with its file."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import scikit-learn only when the transformer is asked for."""
    if name == "GyroBN":
        from gyrobn.estimator.transformer import GyroBN

        return GyroBN
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
