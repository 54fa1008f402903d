"""What reads samples, fits a model to them, and writes what the model makes of them."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from gyrobn.cli.console import Console
from gyrobn.cli.pipes import PIPE, create_pipe
from gyrobn.data import StoredArray, create_array
from gyrobn.data.joined import JoinedArray, create_folder
from gyrobn.statistics.points import Moved

__all__ = ["InOrder"]


class InOrder(AbstractContextManager["InOrder"]):
    """In this process, one chunk after the other."""

    def __init__(self, source: StoredArray, console: Console, kind: str | None = None) -> None:
        self.source, self.console = source, console
        self.kind = kind
        """The format of an output that is a pipe."""

    def create(self, output: Path | None) -> AbstractContextManager[Any]:
        """Return what makes the output and yields its writer, or None without an output."""
        if output is None:
            return nullcontext()
        source = self.source
        if output == PIPE:
            return create_pipe(self.kind, source)
        if isinstance(source, JoinedArray):
            return create_folder(output, source)
        return create_array(output, source.shape, source.stored, source.key, source.form)

    def samples(self, label: str) -> AbstractContextManager[Any]:
        """Return what opens the samples, and shows each pass over them as progress."""
        return self.console.reading(label, self.source)

    def write(self, bn: Any, out: Any, domains: Any, method: str) -> int:
        """Write the mapped samples; return how many points were moved onto the manifold."""
        from gyrobn.estimator.applying import apply_chunks

        moved = Moved()
        label = "inverse" if method == "inverse_transform" else "transform"
        with self.samples(label) as chunks:
            for chunk in apply_chunks(bn, chunks, domains, method, moved):
                out.write(chunk)
        return moved.count

    def __exit__(self, *_: object) -> None:
        """Do nothing."""
