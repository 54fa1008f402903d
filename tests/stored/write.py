"""Write the stored files of this folder: one per format and framework, with what they must give.

``tests/test_stored.py`` reads them. They stay as the version that wrote them left them: that
later versions read them is the test. Run this file only for a format that has none yet:

    python tests/stored/write.py torch        # or another of the functions below
"""

import json
import sys
from pathlib import Path

import equinox as eqx
import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import gyrobn.equinox
import gyrobn.flax
import gyrobn.torch
import gyrobn.torch.nn
from gyrobn import SPD, Correlation, Euclidean, GyroBN, PoincareBall, Product, Sphere
from gyrobn.estimator.files import geometry_to_json

HERE = Path(__file__).parent
WHO = np.repeat(["Ada", "Bo"], 10)


def points(M, *batch):
    """Return points around one that is not the identity."""
    return M.add(M.random(rng=1, spread=0.3), M.random(*batch, rng=0, spread=0.4))


def torch_net():
    """Return a network with a layer of each kind that keeps a geometry in its state."""
    M = PoincareBall(3)
    return torch.nn.ModuleDict(
        {
            "linear": gyrobn.torch.nn.GyroLinear(Euclidean(2), M),
            "curved": gyrobn.torch.GyroBN(M, learn_curvature=True),
            "domains": gyrobn.torch.DomainGyroBN(SPD(2, "log_euclidean"), 2),
            "product": gyrobn.torch.GyroBN(Product(Sphere(2), Euclidean(1)), channels=2),
        }
    ).double()


def run_torch(net, given):
    """Return what each layer of a network makes of its input."""
    given = {name: torch.as_tensor(x) for name, x in given.items()}
    curved = net["curved"]
    return {
        "linear": net["linear"](given["linear"]),
        "curved": curved(curved.manifold.from_normal(given["curved"])),
        "domains": net["domains"](given["domains"], torch.arange(8) % 2),
        "product": net["product"](given["product"]),
    }


def flax_layer():
    """Return a layer with two channels."""
    return gyrobn.flax.GyroBN(SPD(2), channels=2, param_dtype=jnp.float64)


def equinox_layer(manifold):
    """Return a layer with two channels, and its state."""
    return eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(manifold, channels=2, dtype=jnp.float64)


def write_estimator():
    """Write models with every kind of member."""
    M = SPD(2)
    X = points(M, 20, 3)
    options = {"unseen": "online", "metric": "log_euclidean"}
    bn = GyroBN("spd", bias=points(M), scale=[0.5, 1.0, 1.5], **options)
    bn.fit(X, domains=WHO, sample_weight=np.arange(20) + 1.0)
    bn.transform(X[:4], domains=["Cy"] * 4)
    bn.save(HERE / "estimator.npz")
    return {"x": X, "y": bn.transform(X, domains=WHO)}


def write_product():
    """Write a model of a product, in float32."""
    M = Product(Sphere(2), Euclidean(2))
    X = points(M, 9).astype(np.float32)
    bn = GyroBN(M, scale="sqrt_dim", tol=1e-6).fit(X)
    bn.save(HERE / "product.npz")
    return {"x": X, "y": bn.transform(X)}


def write_coordinates():
    """Write a model that returns coordinates."""
    X = points(Correlation(3), 9)
    bn = GyroBN("correlation", scale="sqrt_dim", output="coordinates").fit(X)
    bn.save(HERE / "coordinates.npz")
    return {"x": X, "y": bn.transform(X)}


def write_torch():
    """Write the state of a network that was trained."""
    torch.manual_seed(0)
    rng, net = np.random.default_rng(0), torch_net()
    given = {
        "linear": rng.normal(size=(8, 2)),
        "curved": rng.normal(size=(8, 3)),
        "domains": points(SPD(2), 8),
        "product": points(Product(Sphere(2), Euclidean(1)), 8, 2),
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        sum((y**2).sum() for y in run_torch(net, given).values()).backward()
        optimizer.step()
    torch.save(net.state_dict(), HERE / "torch.pt")
    found = run_torch(net.eval(), given)
    return {f"x_{name}": x for name, x in given.items()} | {
        f"y_{name}": y.detach().numpy() for name, y in found.items()
    }


def write_flax():
    """Write the state of a layer, a pure dictionary, as Flax's msgpack."""
    layer, X = flax_layer(), points(SPD(2), 8, 2)
    layer(jnp.asarray(X))
    layer.scale[...] = jnp.asarray([0.5, 2.0])
    state = nnx.to_pure_dict(nnx.state(layer))
    (HERE / "flax.msgpack").write_bytes(flax.serialization.msgpack_serialize(state))
    return {"x": X, "y": np.asarray(layer(jnp.asarray(X), use_running_average=True))}


def write_equinox():
    """Write a layer with its state, after a line that holds the geometry."""
    M = SPD(2, theta=0.5)
    (layer, state), X = equinox_layer(M), points(M, 8, 2)
    _, state = layer(jnp.asarray(X), state)
    layer = eqx.tree_at(lambda own: own.scale, layer, jnp.asarray([0.5, 2.0]))
    with (HERE / "equinox.eqx").open("wb") as file:
        file.write((json.dumps(geometry_to_json(M)) + "\n").encode())
        eqx.tree_serialise_leaves(file, (layer, state))
    return {"x": X, "y": np.asarray(layer(jnp.asarray(X), state, inference=True)[0])}


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for kind in sys.argv[1:]:
        np.savez(HERE / f"{kind}_expected.npz", **globals()[f"write_{kind}"]())
