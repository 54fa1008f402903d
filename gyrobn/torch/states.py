"""States of layers: the geometry belongs to them, and another one is refused."""

from typing import Any

import torch
from torch import Tensor, nn

from gyrobn.normalization.settings import LearntGeometry

__all__ = ["GeometryState"]


class GeometryState(nn.Module):
    """A module whose state dict holds its geometry."""

    settings: LearntGeometry

    def get_extra_state(self) -> Tensor:
        """Return the geometry as part of the state: its JSON description, as bytes in a tensor.

        Whatever stores the tensors of a state can store it.
        """
        from gyrobn.estimator.conversion import geometry_text

        text = geometry_text(self.settings).encode()
        return torch.tensor(list(text), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Do nothing: the geometry is fixed, and ``_load_from_state_dict`` has compared it."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a state of the same geometry; states of old versions do not name theirs."""
        from gyrobn.estimator.conversion import raw_shift

        key, name = f"{prefix}_extra_state", f"{prefix}raw_curvature"
        if key in state_dict:
            letters = state_dict[key].to(torch.uint8)  # a whole state may have been cast
            text, raw = bytes(letters.tolist()).decode(), state_dict.get(name)
            try:
                shift = raw_shift(self.settings, text, None if raw is None else float(raw.detach()))
            except ValueError as error:
                error_msgs.append(
                    f"{prefix.rstrip('.') or type(self).__name__}: {error}; to load the numbers "
                    f"all the same, delete {key!r} from the state"
                )
                return
            if raw is not None and shift:
                state_dict[name] = raw + shift
        else:
            state_dict[key] = self.get_extra_state()
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
