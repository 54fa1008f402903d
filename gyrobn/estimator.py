r"""GyroBN for scikit-learn: ``fit`` finds the mean and variance, ``transform`` applies Algorithm 1.

The estimator checks its input, holds the statistics and calls :func:`~gyrobn.frechet`,
:func:`~gyrobn.normalize` and :func:`~gyrobn.denormalize`; the mathematics is there.
"""

from typing import Any, Self

import array_api_compat as compat
import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.frechet import frechet
from gyrobn.gyrospace import GyroSpace
from gyrobn.manifolds import REGISTRY
from gyrobn.normalize import Stats, denormalize, normalize

__all__ = ["GyroBN"]


class GyroBN(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Normalize data on a manifold to a given mean and variance.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    with the Fréchet mean :math:`\mu` and variance :math:`v^2` that ``fit`` saw. On those samples
    the output has mean :math:`\beta` and variance :math:`s^2 v^2/(v^2 + \epsilon)`, exactly.

    X has shape ``(N, *channels, *point_shape)``; each channel is normalized on its own. Lists,
    data frames and NumPy arrays give NumPy arrays; arrays of torch, JAX, CuPy, or another library
    that follows the Array API standard, give arrays of that library, on the same device. float32
    stays float32.

    Parameters
    ----------
    manifold : GyroSpace or str, default="euclidean"
        The geometry of the points, or its name in ``gyrobn.manifolds.REGISTRY``, with the sizes
        taken from X.
    bias : array-like of shape point_shape or (*channels, *point_shape), default=None
        Where the mean goes, a point :math:`\beta` of the manifold. The identity by default.
    scale : float or array-like of the shape of var_, default=1.0
        Standard deviation s of the output.
    eps : float, default=1e-5
        Added to the variance, so that samples that are all equal stay finite.
    tol : float, default=None
        Tolerance of the mean, relative to the standard deviation; 8 ulp by default.
    max_iter : int, default=64
        Most iterations for the mean. A :class:`~gyrobn.FrechetWarning` tells when they do not
        suffice.
    on_invalid : {"raise", "project"}, default="raise"
        What to do with samples that are not on the manifold: raise an error that names the first,
        or move them to a point near by (``manifold.project``). NaN and infinity always raise.

    Attributes
    ----------
    manifold_ : GyroSpace
        The geometry, with its sizes.
    mean_ : array of shape (*channels, *point_shape)
        Fréchet mean :math:`\mu`, in the library and on the device of X.
    var_ : array of shape channels
        Fréchet variance :math:`v^2`; of shape (*channels, blocks) on a geometry with several blocks
        (a product has one a factor, correlation matrices one a row of their Cholesky factor).
    n_iter_ : int, or array of shape channels
        Iterations that the mean took.
    converged_ : bool, or array of shape channels
        Whether the mean met the tolerance.
    n_samples_seen_ : int
        Number of samples N.
    n_features_in_ : int
        Length of the second axis of X: the number of columns where X is a table.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, where X is a data frame whose columns all have string names.

    See Also
    --------
    normalize : The same as a function, for statistics at hand.

    Notes
    -----
    Gradients flow through ``transform`` to X; the statistics are constants. In a traced function
    (``jax.jit``, ``vmap``) values cannot be looked at, so only shapes and dtypes are checked.

    Examples
    --------
    >>> import numpy as np
    >>> from gyrobn import GyroBN, PoincareBall
    >>> M = PoincareBall(2)
    >>> X = M.add(np.asarray([0.3, 0.4]), M.random(100, rng=0))
    >>> bn = GyroBN("poincare_ball", scale=0.5).fit(X)
    >>> bn.manifold_, bn.converged_
    (PoincareBall(n=2, curvature=-1.0), True)
    >>> Y = bn.transform(X)
    >>> again = GyroBN(M).fit(Y)
    >>> bool(np.linalg.norm(again.mean_) < 1e-12), round(float(again.var_), 4)
    (True, 0.25)
    >>> bool(np.allclose(bn.inverse_transform(Y), X))
    True
    >>> bn.transform([[0.1, 0.2], [0.8, 0.9]])  # doctest: +NORMALIZE_WHITESPACE
    Traceback (most recent call last):
        ...
    ValueError: X is off PoincareBall(n=2, curvature=-1.0) by 0.204 in 1 of 2 samples, the first at
    index 1: on_invalid='project' moves such samples onto it
    """

    def __init__(
        self,
        manifold: GyroSpace | str = "euclidean",
        bias: Any = None,
        scale: Any = 1.0,
        eps: float = 1e-5,
        tol: float | None = None,
        max_iter: int = 64,
        on_invalid: str = "raise",
    ) -> None:
        self.manifold = manifold
        self.bias = bias
        self.scale = scale
        self.eps = eps
        self.tol = tol
        self.max_iter = max_iter
        self.on_invalid = on_invalid

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the Fréchet mean and variance of the samples.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            The samples.
        y : None
            Ignored; here for scikit-learn.
        sample_weight : array-like of shape (N,) or (N, *channels), default=None
            Non-negative weights. A weight of two counts as the sample given twice.

        Returns
        -------
        self
        """
        if self.on_invalid not in ("raise", "project"):
            raise ValueError(f"on_invalid must be 'raise' or 'project', got {self.on_invalid!r}")
        if not 0 <= self.eps < float("inf"):
            raise ValueError(f"eps must be finite and not negative, got {self.eps!r}")
        X = self._as_array(X, "fit")
        if backend_of(X).hides_values(X):
            raise TypeError(
                "GyroBN.fit() keeps what it finds, which in a traced function has no value: "
                "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
            )
        X = backend_of(X).stop_gradient(X)
        manifold = self._geometry(tuple(X.shape))
        X = self._on_manifold(manifold, X)
        xp = namespace_of(X)
        self._affine(manifold, X)
        if sample_weight is not None:
            sample_weight = _like(sample_weight, X)
            if not bool(xp.any(sample_weight != 0)):
                raise ValueError("sample_weight is zero for every sample: there is no mean")
        with np.errstate(all="ignore"):  # what goes wrong is said below
            found = frechet(manifold, X, sample_weight, tol=self.tol, max_iter=self.max_iter)
        if not bool(xp.all(xp.isfinite(found.variance + found.residual))):
            raise ValueError("GyroBN.fit() finds no mean of these samples. " + _reason(manifold, X))

        self.manifold_ = manifold
        self.mean_, self.var_ = found.mean, found.variance
        channels = found.iterations.ndim > 0
        self.n_iter_ = found.iterations if channels else int(found.iterations)
        self.converged_ = found.converged if channels else bool(found.converged)
        self.n_samples_seen_ = int(X.shape[0])
        return self

    def transform(self, X: Any) -> Array:
        r"""Normalize: :math:`\beta \oplus (s/\sqrt{v^2+\epsilon} \odot (\ominus\mu \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Samples, in the library and on the device of those given to ``fit``.

        Returns
        -------
        array of the shape and dtype of X
        """
        return self._apply(X, "transform")

    def inverse_transform(self, X: Any) -> Array:
        r"""Undo: :math:`\mu \oplus (\sqrt{v^2+\epsilon}/s \odot (\ominus\beta \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Normalized samples, in the library and on the device of those given to ``fit``.

        Returns
        -------
        array of the shape and dtype of X
        """
        return self._apply(X, "inverse_transform")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags

    # ------------------------------------------------------------------ the call

    def _apply(self, X: Any, method: str) -> Array:
        check_is_fitted(self)
        manifold = self.manifold_
        X = self._on_manifold(manifold, self._as_array(X, method))
        xp = namespace_of(X)
        stats = Stats(*(xp.astype(a, X.dtype, copy=False) for a in (self.mean_, self.var_)))
        bias, scale = self._affine(manifold, X)
        target = xp.broadcast_to(manifold.origin(X) if bias is None else bias, X.shape[1:])
        function, centre, name = normalize, stats.mean, "mean"
        if method == "inverse_transform":
            if not np.all(_host(self.scale)):
                raise ValueError(
                    f"scale={self.scale!r} takes all samples to one point, which cannot be undone: "
                    "inverse_transform needs a scale other than 0"
                )
            function, centre, name = denormalize, target, "bias"
        with np.errstate(all="ignore"):  # what fails is named below
            out = function(manifold, X, stats, bias, scale, self.eps)
            if backend_of(X).hides_values(out):
                return out
            good = manifold.contains(out)
            if bool(xp.all(good)):
                return out
            what, i = _describe(good)
            x, c, m, b = X[(*i, ...)], *(a[(*i[1:], ...)] for a in (centre, stats.mean, target))
            raise ValueError(
                f"GyroBN.{method}() finds no point of {manifold!r} for {what}, at distance "
                f"{float(manifold.dist(c, x)):.4g} from the {name}; from the identity, the mean "
                f"is at {float(manifold.norm(m)):.4g}, the bias at {float(manifold.norm(b)):.4g}. "
                + _reason(manifold, X)
            )

    # ------------------------------------------------------------------ checks

    def _as_array(self, X: Any, method: str) -> Array:
        """Return X as an array, after checking all that does not depend on values."""
        given = X
        if not compat.is_array_api_obj(X) or compat.is_numpy_array(X):
            options = {"dtype": [np.float64, np.float32], "allow_nd": True, "input_name": "X"}
            # NaN and infinity are looked for later, to say where they are
            X = check_array(X, ensure_all_finite=False, estimator=self, **options)
        xp = namespace_of(X)
        if X.dtype not in (xp.float32, xp.float64):
            raise TypeError(
                f"GyroBN takes float32 and float64 arrays of {_library(X)}, got {X.dtype}: "
                "convert X first, for example with xp.astype(X, xp.float32)"
            )
        shape = tuple(X.shape)
        if len(shape) < 2 or 0 in shape:
            raise ValueError(
                f"expected X of shape (N, *channels, *point_shape), no length 0, got {shape}"
            )
        if method != "fit":
            got, wanted = ((_library(a), device_of(a)) for a in (X, self.mean_))
            if got != wanted:
                raise ValueError(
                    f"Inputs passed to GyroBN.{method}() must use the same namespace and the same "
                    f"device as those passed to fit(): got {got[0]} (device {got[1]}), fitted to "
                    f"{wanted[0]} (device {wanted[1]}); convert X, or fit to arrays like X"
                )
            seen = tuple(self.mean_.shape)
            table = method == "transform" and len(shape) == 2 and len(seen) == 1
            if shape[1:] != seen and not table:  # of a table, scikit-learn says it below
                raise ValueError(
                    f"GyroBN.{method}() expects samples of shape {seen}, as fit() saw them, "
                    f"got X of shape {shape}"
                )
        if method != "inverse_transform":  # whose input need not carry the names of the columns
            validate_data(self, given, reset=method == "fit", skip_check_array=True)
        return X

    def _geometry(self, shape: tuple[int, ...]) -> GyroSpace:
        """Return the geometry, with sizes from the shape of X where only its name is given."""
        manifold = self.manifold
        known = f"a geometry such as gyrobn.PoincareBall(2), or a name out of {sorted(REGISTRY)}"
        if isinstance(manifold, str):
            if manifold not in REGISTRY:
                raise ValueError(f"unknown manifold {manifold!r}: give {known}")
            try:
                manifold = REGISTRY[manifold].for_shape(shape[1:])
            except ValueError as error:
                raise ValueError(
                    f"X of shape {shape}, with {shape[-1]} feature(s), holds no points of "
                    f"{self.manifold}: {error}"
                ) from error
        if not isinstance(manifold, GyroSpace):
            raise TypeError(f"manifold must be {known}, got {manifold!r}")
        points = manifold.point_shape
        if len(shape) <= len(points) or shape[len(shape) - len(points) :] != points:
            raise ValueError(
                f"{manifold!r} expects X of shape (N, *channels, *{points}), got {shape}"
            )
        return manifold

    def _on_manifold(self, manifold: GyroSpace, x: Array, name: str = "X") -> Array:
        """Return ``x`` with all its points on the manifold, or say which one is not."""
        xp = namespace_of(x)
        project = self.on_invalid == "project" and name == "X"
        advice = "on_invalid='project' moves such samples onto it"
        if name != "X":
            advice = "manifold.project gives a point near by"
        with np.errstate(all="ignore"):  # what overflows is off the manifold
            if backend_of(x).hides_values(x):
                return manifold.project(x) if project else x
            good = manifold.contains(x)
            if bool(xp.all(good)):
                return x
            finite = xp.all(xp.isfinite(x), axis=tuple(range(-len(manifold.point_shape), 0)))
            if not bool(xp.all(finite)):
                what, i = _describe(finite)
                kind = "NaN" if bool(xp.any(xp.isnan(x[(*i, ...)]))) else "inf"
                raise ValueError(f"{name} has {kind} in {what}: drop or impute NaN and inf first")
            if project:
                points = (None,) * len(manifold.point_shape)
                x = xp.where(good[(..., *points)], x, manifold.project(x))
                good = manifold.contains(x)
                if bool(xp.all(good)):
                    return x
                advice = "it could not be projected either"
            what, i = _describe(good)
            off = float(manifold.violation(x)[i])
        raise ValueError(f"{name} is off {manifold!r} by {off:.3g} in {what}: {advice}")

    def _affine(self, manifold: GyroSpace, X: Array) -> tuple[Any, Any]:
        """Return bias and scale, ready to meet X."""
        shape, points = tuple(X.shape[1:]), manifold.point_shape
        wanted, each = shape[: len(shape) - len(points)], "one a channel"
        if len(manifold.blocks) > 1:
            wanted, each = (*wanted, len(manifold.blocks)), "one a channel and block"
        scale = _host(self.scale)
        if scale.shape not in ((), wanted) or not np.all(np.isfinite(scale)):
            raise ValueError(
                f"scale must be a finite number, or an array of them, {each}, of shape "
                f"{wanted}; got {self.scale!r}"
            )
        factor = float(scale) if scale.ndim == 0 else _like(scale, X)
        if self.bias is None:
            return None, factor
        bias = _like(self.bias, X)
        if tuple(bias.shape) not in (points, shape):
            raise ValueError(
                f"bias must be a point of {manifold!r}, shape {points}, or one a channel, "
                f"shape {shape}; got shape {tuple(bias.shape)}"
            )
        return self._on_manifold(manifold, bias, "bias"), factor


def _host(value: Any) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return numbers, from whatever library, as a NumPy array."""
    if compat.is_array_api_obj(value):
        value = backend_of(value).to_numpy(value)
    return np.array(value, dtype=np.float64)


def _like(value: Any, x: Array) -> Array:
    """Return numbers, from whatever library, in the library, dtype and device of ``x``."""
    return backend_of(x).from_numpy(_host(value), x)


def _library(x: Array) -> str:
    return str(namespace_of(x).__name__).removeprefix("array_api_compat.").split(".")[0]


def _describe(good: Array) -> tuple[str, tuple[int, ...]]:
    """Say how many entries are not good and which is the first; also return its index."""
    xp = namespace_of(good)
    bad = xp.astype(xp.reshape(xp.logical_not(good), (-1,)), xp.int32)
    i = tuple(int(k) for k in np.unravel_index(int(xp.argmax(bad)), tuple(good.shape)))
    if not i:
        return "its one point", i
    what = f"{int(xp.sum(bad))} of {bad.shape[0]} samples, the first at index "
    return what + str(i[0] if len(i) == 1 else i), i


def _reason(manifold: GyroSpace, x: Array) -> str:
    """Say what makes the arithmetic fail on points of the manifold."""
    if manifold.convexity_radius < float("inf"):
        return (
            f"Points {2 * manifold.convexity_radius:.4g} apart are opposite, and no one direction "
            "leads from one to the other: drop such samples, and keep the mean (by rotating the "
            "data) and the bias away from the point opposite to the identity"
        )
    return f"Numbers leave the range of {x.dtype}: rescale the data, or give a larger eps"
