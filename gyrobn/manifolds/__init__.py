"""The geometries, one file a family, and the registry that tests, docs and the demo go through."""

from gyrobn.gyrospace import GyroSpace
from gyrobn.manifolds.correlation import Correlation, covariance_to_correlation
from gyrobn.manifolds.euclidean import Euclidean
from gyrobn.manifolds.grassmannian import Grassmannian
from gyrobn.manifolds.isometry import convert
from gyrobn.manifolds.klein import Klein
from gyrobn.manifolds.product import Product
from gyrobn.manifolds.radius import Hyperboloid, Sphere
from gyrobn.manifolds.rotations import SpecialOrthogonal
from gyrobn.manifolds.spd import SPD
from gyrobn.manifolds.stereographic import PoincareBall, ProjectedHypersphere, Stereographic

__all__ = [
    "REGISTRY",
    "SPD",
    "Correlation",
    "Euclidean",
    "Grassmannian",
    "Hyperboloid",
    "Klein",
    "PoincareBall",
    "Product",
    "ProjectedHypersphere",
    "SpecialOrthogonal",
    "Sphere",
    "Stereographic",
    "convert",
    "covariance_to_correlation",
]

REGISTRY: dict[str, type[GyroSpace]] = {
    "euclidean": Euclidean,
    "stereographic": Stereographic,
    "poincare_ball": PoincareBall,
    "projected_hypersphere": ProjectedHypersphere,
    "hyperboloid": Hyperboloid,
    "sphere": Sphere,
    "klein": Klein,
    "grassmannian": Grassmannian,
    "spd": SPD,
    "special_orthogonal": SpecialOrthogonal,
    "correlation": Correlation,
    "product": Product,
}
"""Every geometry by the name that the estimator and the command line know it by."""
