"""The geometries, one file per family, and the registry from which all else finds them.

A new geometry is one file and one line here. Tables and figures have the order of the imports.
"""

import re
from inspect import isabstract
from typing import TYPE_CHECKING

from gyrobn.manifolds.gyrospace import GyroSpace as GyroSpace
from gyrobn.manifolds.euclidean import Euclidean as Euclidean
from gyrobn.manifolds.models import (
    Stereographic as Stereographic,
    PoincareBall as PoincareBall,
    ProjectedHypersphere as ProjectedHypersphere,
    Hyperboloid as Hyperboloid,
    Sphere as Sphere,
    Klein as Klein,
    ProperVelocity as ProperVelocity,
)
from gyrobn.manifolds.grassmannian import Grassmannian as Grassmannian
from gyrobn.manifolds.spd import SPD as SPD
from gyrobn.manifolds.rotations import SpecialOrthogonal as SpecialOrthogonal
from gyrobn.manifolds.correlation import Correlation as Correlation
from gyrobn.manifolds.fixed_rank import FixedRankSPD as FixedRankSPD
from gyrobn.manifolds.hpd import HPD as HPD
from gyrobn.manifolds.unitary import Unitary as Unitary
from gyrobn.manifolds.special_unitary import SpecialUnitary as SpecialUnitary
from gyrobn.manifolds.special_euclidean import SpecialEuclidean as SpecialEuclidean
from gyrobn.manifolds.torus import Torus as Torus
from gyrobn.manifolds.matrix_ball import MatrixBall as MatrixBall
from gyrobn.manifolds.complex_ball import ComplexBall as ComplexBall
from gyrobn.manifolds.siegel_disk import SiegelDisk as SiegelDisk
from gyrobn.manifolds.product import Product as Product


def name_of(cls: type[GyroSpace]) -> str:
    """Return the name of a geometry: that of its class, in lower case.

    >>> name_of(PoincareBall), name_of(SPD)
    ('poincare_ball', 'spd')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()


REGISTRY: dict[str, type[GyroSpace]] = {
    name_of(cls): cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, GyroSpace) and not isabstract(cls)
}
"""Every geometry by its name in the estimator and on the command line."""

if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = ["REGISTRY", *(cls.__name__ for cls in REGISTRY.values())]
