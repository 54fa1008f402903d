"""What all layers with a geometry share: its place in the state, and a curvature to learn."""

from typing import Any

import torch
from torch import Tensor, nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.settings import LearntGeometry


class GeometryState(nn.Module):
    """A module on one geometry, whose curvature may be learnt.

    Its state dict holds the geometry, and refuses that of a layer on another one.
    """

    settings: LearntGeometry
    raw_curvature: nn.Parameter | None

    @property
    def manifold(self) -> GyroSpace:
        """The geometry, with the curvature learnt so far: :math:`K = K_0 e^r`, or K itself."""
        raw: Tensor | None = self.raw_curvature
        if raw is not None and raw.dtype in (torch.float16, torch.bfloat16):
            raw = raw.float()  # as points in half precision are
        return self.settings.manifold(raw)

    def reset_parameters(self) -> None:
        """Reset the curvature."""
        if self.raw_curvature is not None:
            nn.init.constant_(self.raw_curvature, self.settings.initial_curvature)

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


class GeometryLayer(GeometryState):
    """A layer of :mod:`gyrobn.torch.nn` with parameters on one geometry."""

    _shown: tuple[str, ...] = ()
    """Attributes to print."""

    def __init__(
        self,
        manifold: GyroSpace,
        learn_curvature: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.settings = LearntGeometry(manifold, learn_curvature)
        self.raw_curvature = None
        if learn_curvature:
            raw = self.settings.initial_curvature
            self.raw_curvature = nn.Parameter(torch.tensor(raw, device=device, dtype=dtype))

    @property
    def manifold(self) -> Any:
        """The geometry, with the curvature learnt so far."""
        return super().manifold

    def extra_repr(self) -> str:
        """Return the options to print."""
        learns = ["learn_curvature=True"] if self.settings.learn_curvature else []
        own = [f"{name}={getattr(self, name)}" for name in self._shown]
        return ", ".join([repr(self.settings.geometry), *learns, *own])
