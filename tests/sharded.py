"""Checks that need several JAX devices, which a process must ask for before JAX starts.

``python sharded.py NAME [ARGUMENTS]`` runs one of the functions below and prints JSON.
tests/test_sharding.py calls it.
"""

import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from functools import partial

RANKS = 8

if __name__ == "__main__":
    several = sys.argv[1] != "process"
    # on a busy machine a device may be late: XLA would give up after 40 seconds
    flags = ["--xla_cpu_collective_call_terminate_timeout_seconds=600"]
    if several:
        flags.append(f"--xla_force_host_platform_device_count={RANKS}")
    # conftest.py's flags, for fast compilation, are in the environment
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags])

import equinox as eqx  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from flax import nnx  # noqa: E402
from jax.sharding import AxisType, NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import gyrobn  # noqa: E402
import gyrobn.equinox  # noqa: E402
import gyrobn.flax  # noqa: E402
from gyrobn.jax_layers import forward  # noqa: E402
from gyrobn.normalization.layers import Settings, State, initial  # noqa: E402

FAMILIES = [cls for cls in gyrobn.REGISTRY.values() if not cls.complex_points]

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
OPTIONS = {
    "eps": 1e-5,
    "clamp": None,
    "tol": None,
    "max_iter": 64,
    "steps": None,
    "mean_gradient": "implicit",
    "check_input": False,
}
COUNT = 16
"""Samples in a batch."""

quick = partial(jax.jit, compiler_options=QUICK)


def make_mesh():
    return jax.make_mesh((RANKS,), ("b",), axis_types=(AxisType.Auto,))


class Case:
    """A layer of two channels, a weighted batch, and slopes of the output."""

    def __init__(self, M, groups=None, **options):
        self.M, random = M, np.random.default_rng(0)
        learn = "curvature" in M.parameters
        options = OPTIONS | {"learn_curvature": learn} | options
        self.alone = Settings(geometry=M, channels=(2,), **options)
        self.named = replace(self.alone, axis_name="b", axis_index_groups=groups)
        x = M.add(M.random(rng=9, spread=0.5), M.random(COUNT, 2, rng=4, spread=0.4))
        weights = random.uniform(0.5, 1.5, (COUNT, 2))
        weights[1, 0] = weights[2:4] = 0.0  # all samples of the second device
        self.batch = tuple(map(jnp.asarray, (x, weights, random.standard_normal(x.shape))))
        learnt, self.stats = initial(self.alone, jnp.zeros(()), True, True)
        self.learnt = learnt._replace(bias=learnt.bias + 0.1, scale=1.2 * learnt.scale)

    def call(self, settings, learnt, x, weights):
        return forward(settings, learnt, State(self.stats), x, weights, 0.9, True)

    def loss(self, settings, learnt, x, weights, slope):
        y, stats = self.call(settings, learnt, x, weights)
        return jnp.sum(y * slope), (y, stats)

    def slopes(self, settings, learnt, *batch):
        return jax.grad(partial(self.loss, settings), argnums=(0, 1, 2), has_aux=True)(
            learnt, *batch
        )

    def whole(self, rows=slice(None)):
        batch = [a[rows] for a in self.batch]
        return quick(partial(self.slopes, self.alone))(self.learnt, *batch)

    # ------------------------------------------------------------------ the batch in parts

    def part(self, *batch, checked=False):
        (learnt, *rest), aux = self.slopes(self.named, self.learnt, *batch)
        if not checked:  # where types are, JAX sums the slopes of parameters itself
            learnt = jax.lax.psum(learnt, "b", axis_index_groups=self.named.axis_index_groups)
        return (learnt, *rest), aux

    def shard_map(self, checked):
        specs = ((P(), P("b"), P("b")), (P("b"), P()))

        def part(learnt, *batch):
            (by, *rest), aux = self.slopes(self.named, learnt, *batch)
            return (by if checked else jax.lax.psum(by, "b"), *rest), aux

        mapped = jax.shard_map(
            part,
            mesh=make_mesh(),
            in_specs=(P(), P("b"), P("b"), P("b")),
            out_specs=specs,
            check_vma=checked,
        )
        return quick(mapped)(self.learnt, *self.batch)

    def parts(self, mapped):
        """Map over whole parts of the batch, and join what they return."""
        split = (jnp.reshape(a, (RANKS, -1, *a.shape[1:])) for a in self.batch)
        (learnt, *rest), (y, stats) = mapped(self.part)(*split)
        *rest, y = (jnp.reshape(a, (-1, *a.shape[2:])) for a in (*rest, y))
        return (learnt, *rest), (y, stats)

    def first(self, mapped):
        (learnt, *rest), (y, stats) = self.parts(mapped)
        learnt, stats = jax.tree.map(lambda a: a[0], (learnt, stats))
        return (learnt, *rest), (y, stats)

    def vmap(self):
        return self.first(lambda f: quick(jax.vmap(f, axis_name="b")))

    def pmap(self):
        return self.first(lambda f: jax.pmap(f, axis_name="b"))

    def examples(self):
        """One example per lane of vmap; the slopes are taken outside."""

        def loss(learnt, x, weights, slope):
            one = partial(self.call, self.named, learnt)
            y, stats = jax.vmap(one, axis_name="b", out_axes=(0, None))(x, weights)
            return jnp.sum(y * slope), (y, stats)

        slopes = jax.grad(loss, argnums=(0, 1, 2), has_aux=True)
        return quick(slopes)(self.learnt, *self.batch)


def error(found, wanted):
    """Return the largest difference, relative to 1 + the value."""
    found, wanted = jax.device_get((found, wanted))  # on devices, JAX would compile each operation
    each = jax.tree.map(lambda a, b: np.max(np.abs(a - b) / (1 + np.abs(b))), found, wanted)
    return float(np.max(jax.tree.leaves(each)))


# ---------------------------------------------------------------------- checks


def registry():
    """Under shard_map, whose types tell which arrays are equal on all devices."""
    found = {}
    for cls in FAMILIES:
        case = Case(cls.examples()[0])
        found[repr(case.M)] = error(case.shard_map(True), case.whole())
    return found


def transformations():
    """One example per lane, with some options; and all other ways, on one geometry."""
    found = {}
    for M, options in (
        (gyrobn.PoincareBall(2), {"steps": 1}),
        (gyrobn.PoincareBall(2), {"mean_gradient": "detach"}),
        (gyrobn.Grassmannian(4, 2), {}),
    ):
        case = Case(M, **options)
        found[f"{M!r} {options}"] = error(case.examples(), case.whole())
    case = Case(gyrobn.PoincareBall(130))  # the Hessian is applied, not formed
    found["large"] = error(case.shard_map(True), case.whole())
    case = Case(gyrobn.PoincareBall(2))
    whole = case.whole()
    found["pmap"] = error(case.pmap(), whole)
    found["vmap"] = error(case.vmap(), whole)
    found["unchecked shard_map"] = error(case.shard_map(False), whole)
    case = Case(gyrobn.PoincareBall(2), groups=[[0, 1, 2, 3], [4, 5, 6, 7]])
    (learnt, *rest), (y, stats) = case.parts(lambda f: jax.pmap(f, axis_name="b"))
    for k, rows in enumerate((slice(COUNT // 2), slice(COUNT // 2, None))):
        own = jax.tree.map(lambda a, k=k: a[4 * k], (learnt, stats))
        found[f"group {k}"] = error(
            ((own[0], *(a[rows] for a in rest)), (y[rows], own[1])), case.whole(rows)
        )
    return found


def explicit():
    """On the mesh that JAX makes by default, where types say how arrays are distributed."""
    found, mesh = {}, jax.make_mesh((RANKS,), ("b",))
    assert mesh.axis_types == (AxisType.Explicit,)
    batch = NamedSharding(mesh, P("b"))
    for cls in FAMILIES:
        M = cls.examples()[0]
        X = M.add(M.random(rng=9, spread=0.5), M.random(COUNT, rng=4, spread=0.4))
        x = jax.device_put(X, batch)
        y, stats = quick(partial(gyrobn.normalize_batch, M))(x)
        assert y.sharding.spec[0] == "b", M
        found[repr(M)] = error((y, stats), gyrobn.normalize_batch(M, X))
    M, W = gyrobn.PoincareBall(2), np.linspace(0.5, 1.5, COUNT)
    X = M.random(COUNT, rng=4, spread=0.4)
    x, w = (jax.device_put(a, batch) for a in (X, W))
    statistics = {
        "frechet": lambda *given: gyrobn.frechet(*given)[:2],
        "centroid": partial(gyrobn.batch_stats, steps=0),
        "variance": lambda M, x, w: gyrobn.frechet_variance(M, x, M.origin(x), w),
        "normalize": lambda M, x, w: gyrobn.normalize(M, x, gyrobn.batch_stats(M, x, w)),
        "normalize_batch": gyrobn.normalize_batch,
    }
    for name, function in statistics.items():
        expected = function(M, X, W)
        found[name] = error(quick(partial(function, M))(x, w), expected)
    with jax.set_mesh(mesh):
        found["set_mesh"] = error(quick(partial(function, M))(x, w), expected)
    found["eager"] = error(gyrobn.normalize_batch(M, x, w), gyrobn.normalize_batch(M, X, W))
    for M in (gyrobn.PoincareBall(2), gyrobn.SPD(2)):
        X = M.random(COUNT, rng=4, spread=0.4)
        x = jax.device_put(X, batch)
        gradient = quick(slope(lambda x, M=M: gyrobn.normalize_batch(M, x)[0]))
        found[f"{M!r} gradient"] = error(gradient(x), gradient(jnp.asarray(X)))
        outcomes = []
        for given in (x, jnp.asarray(X)):
            layer = gyrobn.flax.GyroBN(M, param_dtype=jnp.float64)
            module, state = eqx.nn.make_with_state(gyrobn.equinox.GyroBN)(M, dtype=jnp.float64)
            y = nnx.jit(lambda layer, x: layer(x))(layer, given)
            if given is x:  # Equinox does not let the type of a state change
                state = jax.device_put(state, NamedSharding(mesh, P()))
            z = eqx.filter_jit(module)(given, state)[0]
            outcomes.append((y, layer.mean[...], layer.var[...], z))
        found[f"{M!r} layers"] = error(*outcomes)
    return found


def collectives(text):
    """Return the kinds and the shapes of what a compiled program sends."""
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    lines = re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text)
    return [(kind, re.findall(r"\w+\[([\d,]*)\]", shapes)) for shapes, kind in lines]


def programs():
    """What is sent for a batch of 61 samples on each device."""
    found, mesh = {}, make_mesh()
    for M in (gyrobn.PoincareBall(5), gyrobn.SPD(8)):
        alone = M.random(61 * RANKS, rng=0, like=jnp.zeros(()), spread=0.5)
        x = jax.device_put(alone, NamedSharding(mesh, P("b")))
        settings = Settings(geometry=M, axis_name="b", **OPTIONS)
        learnt, stats = initial(settings, jnp.zeros(()), True, True)
        options = {"weights": None, "momentum": 0.9, "training": True}
        layer = partial(forward, settings, learnt, State(stats), **options)
        mapped = jax.shard_map(
            lambda x, f=layer: f(x=x)[0], mesh=mesh, in_specs=P("b"), out_specs=P("b")
        )
        graph, state = nnx.split(gyrobn.flax.GyroBN(M, param_dtype=jnp.float64))
        plain = lambda x, M=M: gyrobn.normalize_batch(M, x)[0]  # noqa: E731
        flax = lambda x, g=graph, s=state: nnx.merge(g, s, copy=True)(x)  # noqa: E731
        for calls in (
            {"shard_map forward": mapped, "jit forward": plain, "flax forward": flax},
            {"shard_map gradient": slope(mapped), "jit gradient": slope(plain)},
        ):
            single = jax.device_get(jax.jit(list(calls.values())[1])(alone))
            for name, call in calls.items():
                program = jax.jit(call).lower(x).compile()
                wrong = error(jax.device_get(program(x)), single)
                found[f"{M!r} {name}"] = wrong, collectives(program.as_text())
    return found


def slope(function):
    return jax.grad(lambda x: (function(x) ** 3).sum())


def process(rank, port):
    """One of two processes, each with half of a batch."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}", num_processes=2, process_id=int(rank), initialization_timeout=60
    )
    M = gyrobn.SPD(3)
    X = M.random(12, rng=0, spread=0.5)
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    here = slice(6 * int(rank), 6 * int(rank) + 6)
    x = jax.make_array_from_process_local_data(NamedSharding(mesh, P("batch")), X[here])
    y, stats = jax.jit(partial(gyrobn.normalize_batch, M))(x)
    Y, wanted = gyrobn.normalize_batch(M, X)
    own = np.concatenate([np.asarray(part.data) for part in y.addressable_shards])
    return error((own, jax.device_get(stats)), (Y[here], wanted))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if several:
        cache = os.path.join(tempfile.gettempdir(), f"gyrobn-tests-jax-{os.getuid()}")
        jax.config.update("jax_compilation_cache_dir", cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
