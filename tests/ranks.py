"""What test_distributed.py runs on several ranks: ``python ranks.py FOLDER WORLD CHECK``.

Every check compares a synchronised layer, which sees a part of a batch, with a plain layer that
sees all of it. The results of a rank go to a JSON file in the folder.
"""

import json
import os
import sys
import time
import traceback
import warnings
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import gyrobn
from gyrobn import (
    SPD,
    Correlation,
    Euclidean,
    Hyperboloid,
    PoincareBall,
    Product,
    SpecialOrthogonal,
    Sphere,
    Stereographic,
)
from gyrobn.torch import DomainGyroBN, GyroBN

FAMILIES = [cls for cls in gyrobn.REGISTRY.values() if not cls.complex_points]
SPACES = [space for cls in FAMILIES for space in cls.examples()]
FIRST = [cls.examples()[0] for cls in FAMILIES]
COUNT = 40
CUTS = {1: (0, 40), 2: (0, 13, 40), 3: (0, 7, 7, 40), 4: (0, 1, 20, 20, 40)}
"""Where the batch is cut: uneven parts, and an empty one."""
OPTIONS = (
    {"steps": 1},
    {"mean_gradient": "detach"},
    {"momentum": None},
    {"steps": 0},
    {"steps": 0, "mean_gradient": "detach"},
)


def cut_of(rank, world):
    """Return the part of the batch on a rank."""
    return slice(*CUTS[world][rank : rank + 2])


class Counter:
    """Counts the reductions and how many numbers each of them sends."""

    def __init__(self):
        self.sizes = []
        self.original = dist.all_reduce

    def __enter__(self):
        dist.all_reduce = self.count
        return self

    def __exit__(self, *error):
        dist.all_reduce = self.original

    def count(self, x, *args, **kwargs):
        self.sizes.append(x.numel())
        return self.original(x, *args, **kwargs)


def samples(space, *batch, dtype=torch.float64, rng=0):
    like = torch.empty((), dtype=dtype)
    centre = space.random(rng=1, like=like, spread=0.3)
    return space.add(centre, space.random(*batch, rng=rng, like=like, spread=0.5)).detach()


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def gap(a, b):
    """Return the largest difference between two arrays, in units of the larger one or of 1."""
    if a.numel() == 0:
        return 0.0
    size = max(1.0, float(a.detach().abs().max()))
    return float((a.detach() - b.detach()).abs().max()) / size


def largest(values):
    """Return the largest values over all ranks, in order."""
    x = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    return x.tolist()


def compare(space, cut, weighted, dtype=torch.float64, **options):
    """Return the differences between one process and this group, and what was sent."""
    learn = "curvature" in space.parameters
    make = lambda: GyroBN(space, channels=2, dtype=dtype, learn_curvature=learn, **options)  # noqa: E731
    alone, together = make(), GyroBN.convert_sync(make())
    with torch.no_grad():
        for layer in (alone, together):
            layer.bias += 0.1 * drawn(*layer.bias.shape, dtype=dtype, seed=3)
    x, slope = samples(space, COUNT, 2, dtype=dtype), drawn(COUNT, 2, *space.point_shape, seed=1)
    weights = 0.1 + torch.rand(COUNT, 2, generator=torch.Generator().manual_seed(2), dtype=dtype)
    weights[:7] = 0.0  # of three and of four ranks, the first then has samples that weigh nothing
    whole, part = x.clone().requires_grad_(), x[cut].clone().requires_grad_()
    mass = (weights.clone().requires_grad_(), weights[cut].clone().requires_grad_())
    mass = mass if weighted else (None, None)
    y = alone(whole, mass[0])
    (y * slope).sum().backward()
    with Counter() as sent:
        z = together(part, mass[1])
        forward = len(sent.sizes)
        (z * slope[cut]).sum().backward()
    errors = {
        "output": gap(y[cut], z),
        "mean": float(space.dist(alone.running_mean, together.running_mean).max()),
        "variance": gap(alone.running_var, together.running_var),
        "input slope": gap(whole.grad[cut], part.grad),
    }
    if weighted:
        errors["weight slope"] = gap(mass[0].grad[cut], mass[1].grad)
    for (name, own), other in zip(alone.named_parameters(), together.parameters(), strict=True):
        total = other.grad.clone()
        dist.all_reduce(total)
        errors[f"{name} slope"] = gap(own.grad, total)
    found = dict(zip(errors, largest(list(errors.values())), strict=True))
    return found, forward, sent.sizes


def check_geometries(rank, world):
    """On two and three ranks every instance, on one and four the first of each family."""
    cut = cut_of(rank, world)
    results = {}
    for space in SPACES if world in (2, 3) else FIRST:
        for weighted in (False, True):
            found, forward, sizes = compare(space, cut, weighted)
            results[f"{space!r}{', weights' * weighted}"] = found
            if not weighted:
                x = samples(space, COUNT, 2)
                evaluations = int(np.max(gyrobn.frechet(space, x).iterations.numpy()))
                results[f"{space!r}, sent"] = {
                    "forward": forward,
                    "all": len(sizes),
                    "most": max(sizes, default=0),
                    "evaluations": evaluations,
                    "dim": space.dim,
                    "blocks": len(space.blocks),
                    "flat": space.inside.flat,
                }
    return results


def check_options(rank, world):
    cut = cut_of(rank, world)
    results = {}
    for space in (PoincareBall(3), SPD(3), Euclidean(2), Correlation(3)):
        for options in OPTIONS:
            results[f"{space!r} {options}"] = compare(space, cut, False, **options)[0]
    # H of the first is sent, the others are applied; one process forms none of them
    for space in (SPD(12), PoincareBall(130), SpecialOrthogonal(17)):
        results[f"large {space!r}"] = compare(space, cut, False)[0]
    for space in (SPD(10), SpecialOrthogonal(17)):
        for options in ({"steps": 1}, {"steps": 0}):
            results[f"{space!r} {options}"] = compare(space, cut, False, **options)[0]
    results["float32"] = {}
    for space in (PoincareBall(3), SPD(3), Sphere(2)):
        found = compare(space, cut, False, dtype=torch.float32)[0]
        for name, value in found.items():
            results["float32"][name] = max(value, results["float32"].get(name, 0.0))
    return results


def check_twice(rank, world):
    """Slopes of slopes, by the samples, the weights and the parameters of a layer.

    Samples and outputs are given by normal coordinates, since off the manifold, where only the
    array of a sphere can be moved to, a derivative has no meaning.
    """
    own_part, results = cut_of(rank, world), {}
    for space in (PoincareBall(2), Stereographic(2, curvature=0.5), Sphere(2)):
        c, weights = samples(space, COUNT, 2), 0.1 + torch.rand(COUNT, 2, dtype=torch.float64)
        c = space.to_normal(c).detach()
        dist.broadcast(weights, 0)
        slope, along = (drawn(*c.shape, seed=seed) for seed in (1, 2))
        found = []
        for cut, group in ((slice(None), None), (own_part, "world")):
            layer = GyroBN(
                space, channels=2, dtype=torch.float64, learn_curvature=True, process_group=group
            )
            own = [a[cut].clone().requires_grad_() for a in (c, weights)]
            now = layer.manifold
            y = now.to_normal(layer(now.from_normal(own[0]), own[1]))
            (first,) = torch.autograd.grad((y * slope[cut]).sum(), own[:1], create_graph=True)
            (first * along[cut]).sum().backward()
            slopes = [p.grad.clone() for p in layer.parameters()]
            if group:
                for s in slopes:
                    dist.all_reduce(s)
            found.append([first, *(a.grad for a in own), *slopes])
        (*whole, bias, scale, curvature), parts = found
        whole = [*(a[own_part] for a in whole), bias, scale, curvature]
        results[repr(space)] = largest([gap(a, b) for a, b in zip(whole, parts, strict=True)])
    return results


def check_forward(rank, world):
    """How the output changes with samples and weights, in forward mode, also from a rough mean."""
    cut, results = cut_of(rank, world), {}
    for space, steps in ((PoincareBall(2), None), (PoincareBall(2), 1), (Euclidean(2), None)):
        c, weights = space.to_normal(samples(space, COUNT, 2)), 0.1 + drawn(COUNT, 2, seed=1) ** 2
        moves = [drawn(*a.shape, seed=2) for a in (c, weights)]
        found = []
        for own, group in ((slice(None), None), (cut, "world")):
            layer = GyroBN(
                space,
                channels=2,
                dtype=torch.float64,
                steps=steps,
                track_running_stats=False,
                process_group=group,
            )
            call = lambda c, w, M=space, layer=layer: M.to_normal(layer(M.from_normal(c), w))  # noqa: E731
            given = tuple(a[own] for a in (c, weights)), tuple(m[own] for m in moves)
            found.append(torch.func.jvp(call, *given)[1])
        results[f"{space!r}, steps {steps}"] = largest([gap(found[0][cut], found[1])])
    return results


def check_domains(rank, world):
    space = Product(PoincareBall(2), Sphere(2))
    x, slope = samples(space, COUNT), drawn(COUNT, *space.point_shape, seed=1)
    domains = torch.arange(COUNT) % 3 + torch.arange(COUNT) // 30  # 0 to 3; no rank has all
    cut = cut_of(rank, world)
    alone = DomainGyroBN(space, 5, dtype=torch.float64)
    together = DomainGyroBN(space, 5, dtype=torch.float64, process_group="world")
    errors = []
    for weights in (None, 0.1 + drawn(COUNT, seed=2) ** 2):
        whole, part = x.clone().requires_grad_(), x[cut].clone().requires_grad_()
        y = alone(whole, domains, weights)
        z = together(part, domains[cut], None if weights is None else weights[cut])
        (y * slope).sum().backward()
        (z * slope[cut]).sum().backward()
        errors += [gap(y[cut], z), gap(alone.running_mean, together.running_mean)]
        errors += [gap(alone.running_var, together.running_var), gap(whole.grad[cut], part.grad)]
    seen = torch.equal(alone.num_batches_tracked, together.num_batches_tracked)
    return {"largest": max(largest(errors)), "seen": seen}


def check_groups(rank, world):
    """Two groups of two ranks, each with a batch of its own; then rank 3 has a bad sample."""
    groups = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    space, own = PoincareBall(3), rank % 2
    batch = samples(space, COUNT, 2)[own * 20 : own * 20 + 20]
    cut = slice(0, 7) if rank < 2 else slice(7, 20)
    alone = GyroBN(space, channels=2, dtype=torch.float64)
    together = GyroBN(space, channels=2, dtype=torch.float64)
    together = GyroBN.convert_sync(together, process_group=groups[own])
    whole, part = batch.clone().requires_grad_(), batch[cut].clone().requires_grad_()
    y, z = alone(whole), together(part)
    (y**3).sum().backward()
    (z**3).sum().backward()
    errors = [gap(y[cut], z), gap(alone.running_var, together.running_var)]
    errors += [gap(alone.running_mean, together.running_mean), gap(whole.grad[cut], part.grad)]
    bad = batch[cut].clone()
    if rank == 3:
        bad[4, 0, 1] = torch.nan
    return {"largest": max(largest(errors)), "error": error_of(lambda: together(bad))}


class Net(nn.Module):
    """Vectors to the ball, normalized, and back."""

    def __init__(self):
        super().__init__()
        self.space = PoincareBall(3)
        self.first, self.last = nn.Linear(2, 3), nn.Linear(3, 1)
        self.norm = GyroBN(self.space, channels=1)  # fully_shard takes no scalar parameters

    def forward(self, x):
        x = self.first(x)
        x = x.float() if x.dtype == torch.bfloat16 else x
        x = self.norm(self.space.from_normal(x)[:, None])[:, 0]
        return self.last(self.space.to_normal(x).to(self.last.weight.dtype))


def trained(model, x, y, share, steps=50):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for k in range(steps):
        optimizer.zero_grad()
        batch = slice(8 * (k % 5), 8 * (k % 5) + 8)
        ((model(x[batch][share]) - y[batch][share]) ** 2).mean().backward()
        optimizer.step()
    return model


def check_training(rank, world):
    """Train with DistributedDataParallel, and in one process, from the same numbers."""
    x, y = drawn(40, 2), drawn(40, 1, seed=1)
    torch.manual_seed(0)
    alone, together = Net().double(), Net().double()
    together.load_state_dict(alone.state_dict())
    trained(alone, x, y, slice(None))
    model = GyroBN.convert_sync(together)
    assert model is together
    parallel = nn.parallel.DistributedDataParallel(model)
    trained(parallel, x, y, slice(rank * 8 // world, (rank + 1) * 8 // world))
    names = dict(alone.state_dict())
    gaps = {n: gap(v.double(), model.state_dict()[n].double()) for n, v in names.items()}
    own = torch.cat([v.double().flatten() for v in model.state_dict().values()])
    others = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(others, own)
    plain = Net().double()
    plain.load_state_dict(model.state_dict())  # a synchronised layer has no more in its state
    model.eval()
    with Counter() as sent:
        model(x)
    return {
        "gap": max(gaps.values()),
        "same": all(torch.equal(o, own) for o in others),
        "evaluation": len(sent.sizes),
    }


def check_sharded(rank, world):
    """FSDP2 with a policy of half precision; torch.compile."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    x = drawn(16, 2, dtype=torch.float32)
    alone = Net()
    together = Net()
    together.load_state_dict(alone.state_dict())
    GyroBN.convert_sync(together)
    share = slice(rank * 8, (rank + 1) * 8)
    expected = alone(x)
    mesh = dist.device_mesh.init_device_mesh("cpu", (world,))
    full = MixedPrecisionPolicy(param_dtype=torch.float32)
    fully_shard(together.norm, mesh=mesh, mp_policy=full)
    fully_shard(together, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    found = together(x[share])
    found.sum().backward()
    compiled = GyroBN(PoincareBall(3), process_group="world")
    plain = GyroBN(PoincareBall(3))
    points = samples(PoincareBall(3), 20, dtype=torch.float32)
    between = torch.compile(compiled, backend="eager")(points[rank * 10 : rank * 10 + 10])
    return {
        "sharded": gap(expected[share], found.float()),
        "statistics": str(together.norm.running_var.dtype),
        "variance": gap(alone.norm.running_var, together.norm.running_var),
        "compiled": gap(plain(points)[rank * 10 : rank * 10 + 10], between),
    }


def error_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def check_errors(rank, world):
    """Bad batches on one rank: every rank must end with an error that names it."""
    space = Hyperboloid(3)
    x = samples(space, 12)[rank * 4 : rank * 4 + 4]
    bad = x.clone()
    if rank == 1:
        bad[2, 1] = torch.nan
    layer = GyroBN(space, dtype=torch.float64, process_group="world")
    results = {"first batch, NaN": error_of(lambda: layer(bad))}
    layer(x)
    results["a later batch, NaN"] = error_of(lambda: layer(bad))
    off = x + (1.0 if rank == 2 else 0.0)
    other = GyroBN(space, dtype=torch.float64, process_group="world")
    results["off the manifold"] = error_of(lambda: other(off))
    shape = x if rank else x[:, :2]
    results["shape"] = error_of(lambda: other(shape))
    results["nothing at all"] = error_of(lambda: layer(x[:0]))
    domains = DomainGyroBN(space, 2, dtype=torch.float64, process_group="world")
    labels = torch.full((4,), 7 if rank == 0 else 1)
    results["domain"] = error_of(lambda: domains(x, labels))
    results["one sample of a domain"] = error_of(
        lambda: domains(x, torch.tensor([0, 0, 0, 1 if rank == 1 else 0]))
    )
    layer(x)  # the group still works
    return results


def check_death(rank, world):
    """Rank 1 ends without a word."""
    space = PoincareBall(3)
    x = samples(space, 12)[rank * 4 : rank * 4 + 4]
    layer = GyroBN(space, dtype=torch.float64, process_group="world")
    layer(x)
    if rank == 1:
        os._exit(3)
    begin = time.monotonic()
    return {"error": error_of(lambda: layer(x)), "seconds": time.monotonic() - begin}


def rank_alone(folder, world, rank, check):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=20 if check == "death" else 60),
    )
    results = globals()[f"check_{check}"](rank, world)
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(results, file)
    if check != "death":
        dist.barrier()
        dist.destroy_process_group()


def main():
    """Fork the ranks, so that torch is imported once, and print their exit codes."""
    folder, world, check = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    ranks = []
    for rank in range(world):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            code = 1
            try:
                rank_alone(folder, world, rank, check)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]))


if __name__ == "__main__":
    main()
