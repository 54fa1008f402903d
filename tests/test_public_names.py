"""The public names of each package."""

import importlib

import pytest

import gyrobn

NAMES = """
Euclidean Stereographic PoincareBall ProjectedHypersphere Hyperboloid Sphere Klein ProperVelocity
Grassmannian SPD Correlation SpecialOrthogonal Product REGISTRY GyroSpace convert
covariance_to_correlation reduce_rank Chunks FrechetResult FrechetWarning PrecisionWarning Stats
Suggestion
frechet frechet_mean frechet_variance batch_stats normalize normalize_batch suggest denormalize
update_stats merge_stats
Torus SpecialEuclidean HPD Unitary SpecialUnitary MatrixBall ComplexBall SiegelDisk FixedRankSPD
"""
SETS = ["GyroGroupNorm", "GyroInstanceNorm", "GyroLayerNorm", "GyroRMSNorm"]
LAYERS = {
    "gyrobn.torch": ["GyroBN", "DomainGyroBN", *SETS, "update_bn"],
    "gyrobn.torch.baselines": ["LRBN", "ManifoldNorm"],
    "gyrobn.torch.nn": ["GyroActivation", "GyroLinear", "ManifoldParameter"],
    "gyrobn.flax": ["GyroBN", "DomainGyroBN", *SETS],
    "gyrobn.equinox": ["GyroBN", "DomainGyroBN", *SETS],
    "gyrobn.plot": ["plot_normalization", "plot_tangent", "plot_convergence"],
    "gyrobn.cli": ["main"],
    "gyrobn.data": ["open_array", "create_array"],
    "gyrobn.estimator": ["GyroBN"],
}


def test_public_names():
    assert sorted(gyrobn.__all__) == sorted(NAMES.split())
    assert all(hasattr(gyrobn, name) for name in [*NAMES.split(), "GyroBN"])


@pytest.mark.parametrize("layers", ["gyrobn.torch", "gyrobn.flax", "gyrobn.equinox"])
def test_the_stars_do_not_get_in_each_others_way(layers):
    """In any order the layers stay the layers: the estimator has the name of one of them."""
    for order in (("gyrobn", layers), (layers, "gyrobn")):
        found: dict[str, object] = {}
        for module in order:
            exec(f"from {module} import *", found)
        package = importlib.import_module(layers)
        assert all(found[name] is getattr(package, name) for name in package.__all__)
        assert found["PoincareBall"] is gyrobn.PoincareBall
    assert "GyroBN" in dir(gyrobn)


@pytest.mark.parametrize("module", LAYERS)
def test_names_of_the_packages(module):
    assert all(hasattr(importlib.import_module(module), name) for name in LAYERS[module])
