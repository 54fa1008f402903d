"""LRBN and ManifoldNorm as PyTorch layers, for comparisons with GyroBN.

They differ from :class:`gyrobn.torch.GyroBN` in what they do with the statistics: see
:mod:`gyrobn.normalization.baselines`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

from torch import Tensor, nn

from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.baselines import lrbn, manifold_norm
from gyrobn.normalization.layers import BATCHES_ONLY, learn, prepare, statistics
from gyrobn.normalization.normalize import Stats
from gyrobn.statistics.samples import Group
from gyrobn.torch.layers import Constant, GyroBN, of_arrays


def _runner(formula: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a layer calls: the shared core, with another formula than Algorithm 1."""

    def run(
        constant: Constant,
        given: dict[str, Tensor],
        rate: Any,
        training: bool,
        train_rate: Any,
        first: bool,
        group: Group | None = None,
    ) -> tuple[Tensor, ...]:
        learnt, state, x, weights = of_arrays(given)
        batch = prepare(constant.settings, learnt, state, x, weights, training, group)
        manifold, stats, new = batch.manifold, batch.running, None
        if training or stats is None:
            stats = statistics(batch, group)
            new = learn(batch, state.running, stats, rate, group)
        y, mean = manifold.to_inside(batch.x), manifold.to_inside(stats.mean)
        y = formula(manifold.inside, y, Stats(mean, stats.var), *batch.output)
        return batch.finish(manifold.from_inside(y)), *(new or ())

    return run


class LRBN(GyroBN):
    """Batch normalization of Lou et al. (2020): :func:`gyrobn.normalization.baselines.lrbn`.

    Parameters and attributes are those of :class:`gyrobn.torch.GyroBN`, without ``reference`` and
    ``train_momentum``.
    """

    _formula: ClassVar[Any] = staticmethod(lrbn)

    def __init__(self, *args: Any, **options: Any) -> None:
        for name in BATCHES_ONLY:
            if options.get(name) is not None:
                raise TypeError(f"{type(self).__name__} has no option {name!r}: use GyroBN")
        super().__init__(*args, **options)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # the compiler takes plain functions only
        cls._run = staticmethod(_runner(cls._formula))  # type: ignore[method-assign]

    @classmethod
    def from_estimator(cls, *_: Any, **__: Any) -> NoReturn:
        """Refuse an estimator, whose formula is another one."""
        raise ValueError("only GyroBN layers take an estimator, not those of the baselines")


LRBN._run = staticmethod(_runner(LRBN._formula))  # type: ignore[method-assign]


class ManifoldNorm(LRBN):
    """ManifoldNorm of Chakraborty (2020): :func:`gyrobn.normalization.baselines.manifold_norm`.

    Parameters
    ----------
    manifold, channels, **options
        As in :class:`gyrobn.torch.GyroBN`; ``eps`` has no effect.
    diagonal
        Whether there is one scale per normal coordinate, the algorithm's diagonal matrix, or one
        for all of them, as in the paper's experiments.

    Attributes
    ----------
    scale : Parameter of shape (*channels, dim), or (*channels, 1)
        Diagonal of S.
    """

    def __init__(
        self,
        manifold: GyroSpace,
        channels: int | Sequence[int] = (),
        *,
        diagonal: bool = True,
        **options: Any,
    ) -> None:
        if options.get("clamp") is not None:
            raise ValueError("ManifoldNorm does not divide by the variance: nothing to clamp")
        super().__init__(manifold, channels, **options)
        if self.scale is not None:
            shape = (*self.settings.channels, manifold.dim if diagonal else 1)
            self.scale = nn.Parameter(self.scale.detach().new_ones(shape))

    @staticmethod
    def _formula(manifold: Any, x: Tensor, stats: Stats, bias: Any, scale: Any, *_: Any) -> Any:
        return manifold_norm(manifold, x, stats, bias, 1.0 if scale is None else scale)
