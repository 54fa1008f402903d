r"""The paper's definitions in 60 digits, and how far a floating-point result is from them.

Nothing here knows how gyrobn computes. The stereographic models use Möbius addition and the
paper's table, the radius models Exp, Log and parallel transport with
:math:`x \oplus y = \operatorname{Exp}_x(PT_{e \to x}(\operatorname{Log}_e y))`, the Klein model
Einstein addition and the theorem's formulas, and normalization is composed from those. Sixty
digits make the cancellations of these forms harmless: at radius 13 they cost 12.

**What a float means.** An input is the exact value of its floats. A float vector is not exactly
on a curved surface, so on the hyperboloid the spatial part is exact and the time follows from it
(tangent vectors likewise), and on the sphere the vector is divided by its exact length.

**What an error is.** For a point, the geodesic distance to the exact result; for a tangent vector,
the Riemannian norm of the difference; for a number, the difference. A point of the hyperboloid is
read in two ways, from its spatial part and through the stereographic projection, which uses its
time: the worse one counts, so neither can be wrong. On the sphere the length counts as well.

**What could be asked at most.** The *limit* of a case is the larger of two errors that no
algorithm is to blame for: that of half a unit in the last place of the result, which is what
rounding the exact result to the dtype may cost, and that of half a unit in the last place of each
input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from mpmath import MPContext

mp = MPContext()  # of our own: the digits of the global one belong to others
mp.dps = 60

Vector = list  # of mpf


# ---------------------------------------------------------------------- vectors of mpf


def dot(x: Vector, y: Vector):
    return mp.fdot(x, y)


def length(x: Vector):
    return mp.sqrt(dot(x, x))


def times(a, x: Vector) -> Vector:
    return [a * v for v in x]


def plus(x: Vector, y: Vector) -> Vector:
    return [u + v for u, v in zip(x, y, strict=True)]


def minus(x: Vector, y: Vector) -> Vector:
    return [u - v for u, v in zip(x, y, strict=True)]


def unit(x: Vector) -> Vector:
    """Divide by the length; zero stays zero."""
    size = length(x)
    return times(1 / size, x) if size else x


def exactly(row) -> Vector:
    """Return the values of floats (or mpf) as they are."""
    return [mp.mpf(a if isinstance(a, mp.mpf) else float(a)) for a in row]


def rounded(x: Vector, dtype) -> np.ndarray:
    """Round every coordinate to ``dtype``."""
    return np.asarray([float(a) for a in x], dtype=np.float64).astype(dtype)


# ---------------------------------------------------------------------- the models


class Model:
    """A model of constant curvature K: what follows from the operations of the subclasses."""

    def __init__(self, n: int, curvature: float):
        self.n, self.K = n, mp.mpf(curvature)
        self.k = mp.sqrt(abs(self.K))
        hyperbolic = self.K < 0
        self.hyperbolic = hyperbolic
        self.sin, self.cos = (mp.sinh, mp.cosh) if hyperbolic else (mp.sin, mp.cos)
        self.tan, self.atan = (mp.tanh, mp.atanh) if hyperbolic else (mp.tan, mp.atan)

    def acos(self, b):
        """Inverse cosine; the last of the 60 digits may not take it out of its domain."""
        if self.hyperbolic:
            return mp.acosh(max(b, mp.one))
        return mp.acos(min(max(b, -mp.one), mp.one))

    def normalize(self, x, mean, bias, factor):
        r"""Algorithm 1: :math:`\beta \oplus (t \odot (\ominus\mu \oplus x))`."""
        return self.add(bias, self.scale(factor, self.add(self.neg(mean), x)))

    def gyration(self, x, y, z):
        return self.add(self.neg(self.add(x, y)), self.add(x, self.add(y, z)))

    def point(self, row) -> Vector:
        """Return the point that floats stand for."""
        return exactly(row)

    def tangent(self, x: Vector, row) -> Vector:
        """Return the tangent vector at x that floats stand for."""
        return exactly(row)

    def error(self, row, exact: Vector):
        """Return how far the computed point ``row`` is from the exact one."""
        if not np.all(np.isfinite(np.asarray(row, dtype=float))) or not self.inside(row):
            return mp.inf
        return self.dist(self.point(row), exact)

    def inside(self, row) -> bool:
        return not self.hyperbolic or -self.K * dot(exactly(row), exactly(row)) < 1

    def tangent_error(self, x: Vector, row, exact: Vector):
        """Return the Riemannian norm at x of the error of the computed tangent vector ``row``."""
        if not np.all(np.isfinite(np.asarray(row, dtype=float))):
            return mp.inf
        return self.norm_at(x, minus(self.tangent(x, row), exact))


class Stereographic(Model):
    """Poincaré ball and projected hypersphere: Möbius addition, and the paper's table."""

    def add(self, x, y):
        K, xx, yy, xy = self.K, dot(x, x), dot(y, y), dot(x, y)
        return times(
            1 / (1 - 2 * K * xy + K**2 * xx * yy),
            plus(times(1 - 2 * K * xy - K * yy, x), times(1 + K * xx, y)),
        )

    def neg(self, x):
        return times(-1, x)

    def scale(self, t, x):
        return times(self.tan(t * self.atan(self.k * length(x))) / self.k, unit(x))

    def conformal(self, x):
        return 2 / (1 + self.K * dot(x, x))

    def dist(self, x, y):
        return 2 / self.k * self.atan(self.k * length(self.add(self.neg(x), y)))

    def log(self, x, y):
        gap = self.add(self.neg(x), y)
        return times(2 / (self.k * self.conformal(x)) * self.atan(self.k * length(gap)), unit(gap))

    def exp(self, x, v):
        step = self.tan(self.k * self.conformal(x) * length(v) / 2) / self.k
        return self.add(x, times(step, unit(v)))

    def transport(self, x, y, v):
        """By gyr[y, ⊖x], which is linear: for K < 0 the vector is made short enough for a point."""
        size = 4 * (1 + length(v)) * (1 + self.k)
        z, back = times(1 / size, v), self.neg(x)
        turned = self.add(self.neg(self.add(y, back)), self.add(y, self.add(back, z)))
        return times(size * self.conformal(x) / self.conformal(y), turned)

    def norm_at(self, x, v):
        return self.conformal(x) * length(v)

    def from_normal(self, c):
        return self.exp([mp.zero] * self.n, times(mp.mpf(1) / 2, c))  # the metric at 0 is 4I


class Radius(Model):
    """Hyperboloid and sphere: Exp, Log, parallel transport at general points, and their sum."""

    def inner(self, x, y):
        return dot(x, y) - (2 * x[0] * y[0] if self.hyperbolic else 0)

    def norm_at(self, x, v):
        return mp.sqrt(max(self.inner(v, v), mp.zero))

    @property
    def origin(self):
        return [1 / self.k] + [mp.zero] * self.n

    def dist(self, x, y):
        return self.acos(self.K * self.inner(x, y)) / self.k

    def log(self, x, y):
        b = self.K * self.inner(x, y)
        sine = mp.sqrt(max(mp.sign(self.K) * (1 - b**2), mp.zero))
        return times(self.acos(b) / sine if sine else mp.zero, minus(y, times(b, x)))

    def exp(self, x, v):
        a = self.k * self.norm_at(x, v)
        return plus(times(self.cos(a), x), times(self.sin(a) / a if a else mp.one, v))

    def transport(self, x, y, v):
        a = self.K * self.inner(y, v) / (1 + self.K * self.inner(x, y))
        return minus(v, times(a, plus(x, y)))

    def add(self, x, y):
        e = self.origin
        return self.exp(x, self.transport(e, x, self.log(e, y)))

    def scale(self, t, x):
        return self.exp(self.origin, times(t, self.log(self.origin, x)))

    def neg(self, x):
        return self.scale(-1, x)

    def from_normal(self, c):
        return self.exp(self.origin, [mp.zero, *c])

    def point(self, row):
        x = exactly(row)
        if self.hyperbolic:
            return [mp.sqrt(dot(x[1:], x[1:]) - 1 / self.K), *x[1:]]
        return times(1 / self.k, unit(x))

    def tangent(self, x, row):
        v = exactly(row)
        if self.hyperbolic:
            return [dot(x[1:], v[1:]) / x[0], *v[1:]]
        return minus(v, times(self.K * dot(x, v), x))

    def inside(self, row):
        return not self.hyperbolic or row[0] > 0

    def error(self, row, exact):
        error = super().error(row, exact)
        if not mp.isfinite(error):
            return error
        if not self.hyperbolic:
            return max(error, abs(length(exactly(row)) - 1 / self.k))
        ball = Stereographic(self.n, self.K)
        seen = self.project(exactly(row))
        return max(error, ball.error(seen, self.project(exact)))

    def project(self, x):
        """Stereographic projection: the paper's isometry to the ball."""
        return times(1 / (1 + self.k * x[0]), x[1:])

    def tangent_error(self, x, row, exact):
        error = super().tangent_error(x, row, exact)
        if not mp.isfinite(error):
            return error
        off = minus(exactly(row), exact)
        if not self.hyperbolic:
            return length(off)
        w = 1 + self.k * x[0]  # the differential of the stereographic projection
        seen = minus(times(1 / w, off[1:]), times(self.k * off[0] / w**2, x[1:]))
        return max(error, Stereographic(self.n, self.K).norm_at(self.project(x), seen))


class Klein(Model):
    """Beltrami–Klein ball: Einstein addition, and the theorem "Beltrami–Klein by Einstein"."""

    def gamma(self, x):
        return 1 / mp.sqrt(1 + self.K * dot(x, x))

    def add(self, x, y):
        g, xy = self.gamma(x), dot(x, y)
        return times(
            1 / (1 - self.K * xy),
            plus(times(1 - self.K * g / (1 + g) * xy, x), times(1 / g, y)),
        )

    def neg(self, x):
        return times(-1, x)

    def scale(self, t, x):
        return times(mp.tanh(t * mp.atanh(self.k * length(x))) / self.k, unit(x))

    def dist(self, x, y):
        r = length(self.add(self.neg(x), y))
        return 2 / self.k * mp.atanh(self.k * r / (1 + mp.sqrt(1 + self.K * r**2)))

    def from_normal(self, v):
        return times(mp.tanh(self.k * length(v)) / self.k, unit(v))

    def exp(self, x, v):
        w = 1 + self.K * dot(x, x)
        turn = self.K * dot(x, v) / ((1 + mp.sqrt(w)) * w)
        return self.add(x, self.from_normal(minus(times(1 / mp.sqrt(w), v), times(turn, x))))

    def log(self, x, y):
        gap = self.add(self.neg(x), y)
        v = times(mp.atanh(self.k * length(gap)) / self.k, unit(gap))
        p = times(1 / (1 + mp.sqrt(1 + self.K * dot(x, x))), x)  # x in the Poincaré ball
        w = 1 - self.K * dot(p, p)
        pushed = plus(times(2 / w, v), times(4 * self.K * dot(p, v) / w**2, p))
        return times((1 + self.K * dot(p, p)) / 2, pushed)

    def transport(self, x, y, v):
        """As on the hyperboloid: (t, s) = γ(1, x), and the tangent vector follows it."""

        def lift(z):
            return times(self.gamma(z), [1 / self.k, *z])

        g = self.gamma(x)
        rate = -self.K * g**3 * dot(x, v)  # of γ
        lifted = [rate / self.k, *plus(times(g, v), times(rate, x))]
        time, *space = Radius(self.n, self.K).transport(lift(x), lift(y), lifted)
        return times(1 / self.gamma(y), minus(space, times(self.k * time, y)))

    def norm_at(self, x, v):
        w = 1 + self.K * dot(x, x)
        return mp.sqrt(dot(v, v) / w - self.K * dot(x, v) ** 2 / w**2)


MODELS = {
    "PoincareBall": Stereographic,
    "ProjectedHypersphere": Stereographic,
    "Hyperboloid": Radius,
    "Sphere": Radius,
    "Klein": Klein,
}


def model_of(manifold) -> Model:
    """Return the oracle of a gyrobn geometry."""
    return MODELS[type(manifold).__name__](manifold.n, manifold.curvature)


# ---------------------------------------------------------------------- the operations

SAMPLES = 6
SCALE, EPS = 1.25, 1e-5  # of the normalization


@dataclass(frozen=True)
class Operation:
    """One operation: which inputs it gets, and what it is."""

    operands: str
    """One letter an input: p a point, v a tangent vector at the first, t a number."""
    result: str
    """p, v or t; w is a tangent vector at the second input."""
    inputs: Callable
    """(model, radius, directions) to exact operands of one sample."""
    exact: Callable
    """(model, *operands) to the exact result."""


def _at(model, radius, u):
    return model.from_normal(times(mp.mpf(radius), u))


def _pair(model, radius, u, w, _):
    return _at(model, radius, u), _at(model, 1, w)


def _close(model, radius, u, w, _):
    x = _at(model, radius, u)
    return x, model.add(x, _at(model, "0.01", w))


def _carried(model, radius, y, u, w):
    """A point, another, and a tangent vector of length 1 at the first: Log of one at distance 1."""
    x = _at(model, radius, u)
    return x, y, model.log(x, model.add(x, _at(model, 1, w)))


def _to_neighbour(model, radius, u, w, _):
    y = model.add(_at(model, radius, u), _at(model, "0.01", w[::-1]))
    return _carried(model, radius, y, u, w)


def _batch(variance):
    def inputs(model, radius, u, w, i):
        return *_pair(model, radius, u, w, i), _at(model, 1, w[::-1]), mp.mpf(variance(radius))

    return inputs


def _collapsed(model, radius, u, w, i):
    mean, x = _close(model, radius, u, w, i)
    return x, mean, _at(model, 1, w[::-1]), mp.mpf("1e-4")


def _normalize(model, x, mean, bias, variance):
    factor = mp.mpf(SCALE) / mp.sqrt(variance + mp.mpf(EPS))
    return model.normalize(x, mean, bias, factor)


def _scale(model, radius, u, w, i):
    return mp.mpf((0.3, -0.9)[i % 2]), _at(model, radius, u)


def _both(distance):
    """One point at radius R, and another at a distance from the identity, or R as well."""
    return lambda m, r, u, w, i: (_at(m, r, u), _at(m, distance or r, w))


def _to(distance):
    return lambda m, r, u, w, i: _carried(m, r, _at(m, distance or r, w[::-1]), u, w)


def _three(model, radius, u, w, i):
    return *_pair(model, radius, u, w, i), _at(model, 1, w[::-1])


def method(name: str) -> Callable:
    """Return the method of a model as a function."""
    return lambda model, *operands: getattr(model, name)(*operands)


OPERATIONS = {
    # x at radius R, the other point at distance 1 from the identity, in both orders
    "add": Operation("pp", "p", _pair, method("add")),
    "add_from_near": Operation("pp", "p", lambda *a: _pair(*a)[::-1], method("add")),
    "scale": Operation("tp", "p", _scale, method("scale")),
    # two points at radius R; two that are 0.01 apart; and one that is 0.01 from the identity
    "dist": Operation("pp", "t", _both(None), method("dist")),
    "dist_close": Operation("pp", "t", _close, method("dist")),
    "dist_inward": Operation("pp", "t", _both("0.01"), method("dist")),
    "log": Operation("pp", "v", _both(None), method("log")),
    "log_close": Operation("pp", "v", _close, method("log")),
    "log_inward": Operation("pp", "v", _both("0.01"), method("log")),
    # a step of length 1
    "exp": Operation("pv", "p", lambda *a: _to(1)(*a)[::2], method("exp")),
    "gyration": Operation("ppp", "p", _three, method("gyration")),
    # a vector of length 1, to a point 0.01 away, to one at distance 1 from e, and across
    "transport_close": Operation("ppv", "w", _to_neighbour, method("transport")),
    "transport": Operation("ppv", "w", _to(1), method("transport")),
    "transport_across": Operation("ppv", "w", _to(None), method("transport")),
    # mean and bias at distance 1; the factor is 0.88, or 1.25/R
    "normalize": Operation("pppt", "p", _batch(lambda r: 2.0), _normalize),
    "normalize_shrink": Operation("pppt", "p", _batch(lambda r: r**2), _normalize),
    # the mean at radius R, the data 0.01 away from it; the factor is 119
    "normalize_close": Operation("pppt", "p", _collapsed, _normalize),
}


def apply(name: str, manifold, arrays: list):
    """Run an operation of a gyrobn geometry on batches of operands."""
    operation = name.partition("_")[0]
    if operation != "normalize":
        return getattr(manifold, operation)(*arrays)
    from gyrobn import Stats, normalize

    x, mean, bias, variance = arrays  # a channel a sample, so that each has its own statistics
    return normalize(manifold, x[None], Stats(mean, variance), bias, SCALE, EPS)[0]


def directions(n: int, seed: int):
    """Pairs of unit vectors: random, parallel and opposite."""
    rng = np.random.default_rng(seed)
    for i in range(SAMPLES):
        u = unit(exactly(rng.standard_normal(n)))
        w = unit(exactly(rng.standard_normal(n)))
        yield u, (u if i == SAMPLES - 2 else times(-1, u) if i == SAMPLES - 1 else w)


class Case:
    """Inputs of an operation in a dtype, with the exact results and their limits."""

    def __init__(self, name: str, manifold, radius: float, dtype, seed: int = 0):
        self.name, self.manifold, self.operation = name, manifold, OPERATIONS[name]
        self.model, self.dtype = model_of(manifold), dtype
        self.rows = [
            self._floats(self.operation.inputs(self.model, mp.mpf(radius), u, w, i))
            for i, (u, w) in enumerate(directions(manifold.n, seed))
        ]
        self.exact = [self._exact(row) for row in self.rows]

    def arrays(self) -> list[np.ndarray]:
        """Return the operands, each a batch of SAMPLES."""
        return [np.stack(operand) for operand in zip(*self.rows, strict=True)]

    def errors(self, result) -> list[float]:
        """Return the error of each computed result."""
        return [
            float(self._error(*sample))
            for sample in zip(self.rows, result, self.exact, strict=True)
        ]

    def worst(self, result) -> float:
        """Return the largest error."""
        return max(self.errors(result))

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The largest error of half a last place of the results, and of the inputs."""
        results = max(self._rounding(*sample) for sample in zip(self.rows, self.exact, strict=True))
        inputs = max(
            mp.fsum(self._effect(row, exact, i) for i in range(len(row)))
            for row, exact in zip(self.rows, self.exact, strict=True)
        )
        return float(results), float(inputs)

    def _rounding(self, row, exact):
        """Return what half a unit in the last place of the result is worth."""
        if self.operation.result == "t":
            return abs(_half_ulp_off(rounded([exact], self.dtype), exact=[exact])[0] - exact)
        near = rounded(exact, self.dtype)
        shifts = [_half_ulp_off(near, signs, exact) for signs in (OUTWARD, INWARD, ACROSS)]
        errors = [self._error(row, shifted, exact) for shifted in shifts]
        return max(error for error in errors if mp.isfinite(error))  # outward may be outside

    def _effect(self, row, exact, i: int):
        """Return what half a unit in the last place of operand i does to the exact result."""
        shifts = [_half_ulp_off(row[i], signs) for signs in (OUTWARD, ACROSS)]
        moved = [self._exact([*row[:i], shifted, *row[i + 1 :]]) for shifted in shifts]
        return max(self._distance(row, result, exact) for result in moved)

    def _floats(self, operands) -> list:
        """Round operands to the dtype; a point of the hyperboloid gets the time of its floats."""
        row = []
        for kind, a in zip(self.operation.operands, operands, strict=True):
            if kind == "t":
                row.append(np.asarray(float(a), dtype=self.dtype))
            elif kind == "p":
                row.append(rounded(self.model.point(rounded(a, self.dtype)), self.dtype))
            else:
                x = self.model.point(row[0])
                row.append(rounded(self.model.tangent(x, rounded(a, self.dtype)), self.dtype))
        return row

    def _exact(self, row):
        return self.operation.exact(self.model, *self._read(row))

    def _read(self, row):
        operands: list = []
        for kind, a in zip(self.operation.operands, row, strict=True):
            if kind == "t":
                operands.append(mp.mpf(a if isinstance(a, mp.mpf) else float(a)))
            elif kind == "p":
                operands.append(self.model.point(a))
            else:
                operands.append(self.model.tangent(operands[0], a))
        return operands

    def _error(self, row, computed, exact):
        if self.operation.result == "t":
            error = abs(mp.mpf(float(computed)) - exact)
            return error if mp.isfinite(error) else mp.inf
        if self.operation.result == "p":
            return self.model.error(computed, exact)
        return self.model.tangent_error(self._foot(row), computed, exact)

    def _foot(self, row):
        """Return the point at which the resulting vector is a tangent one."""
        return self.model.point(row[1 if self.operation.result == "w" else 0])

    def _distance(self, row, moved, exact):
        if self.operation.result == "t":
            return abs(moved - exact)
        if self.operation.result == "p":
            return self.model.dist(moved, exact)
        x = self._foot(row)
        return self.model.norm_at(x, self.model.tangent(x, minus(moved, exact)))


OUTWARD, INWARD, ACROSS = (1, 1), (-1, -1), (1, -1)  # signs of coordinates, in turn


def _half_ulp_off(a: np.ndarray, signs=OUTWARD, exact=None):
    """Move floats, or the exact values behind them, by half a unit in the last place."""
    half = np.copysign(np.spacing(np.abs(a)), a).astype(float) / 2
    if a.ndim == 0:
        return mp.mpf(float(a)) + signs[0] * mp.mpf(float(half))
    move = [signs[i % 2] * mp.mpf(h) for i, h in enumerate(half)]
    return plus(exactly(a) if exact is None else exact, move)
