r"""GyroBN for scikit-learn: ``fit`` finds the mean and variance, ``transform`` applies Algorithm 1.

The estimator checks its input, holds the statistics and calls :func:`~gyrobn.frechet`,
:func:`~gyrobn.normalize` and :func:`~gyrobn.denormalize`, with :mod:`gyrobn.domains` where there
are several domains; the mathematics is there.
"""

from typing import Any, Self

import array_api_compat as compat
import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from gyrobn.backends import Array, backend_of, device_of, namespace_of
from gyrobn.domains import adapt_stats, by_domain, places_of
from gyrobn.gyrospace import GyroSpace
from gyrobn.normalize import Stats, denormalize, normalize
from gyrobn.validation import (
    affine_for,
    check_given,
    check_policy,
    check_unseen,
    describe,
    found_for,
    geometry_for,
    host,
    labels_for,
    library,
    on_manifold,
    reason,
    weights_for,
)

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

    With ``domains`` (subjects, sessions, sites) each domain has a mean and variance of its own, and
    all are brought to the same bias and scale, whatever moved them.

    Parameters
    ----------
    manifold : GyroSpace or str, default="euclidean"
        The geometry of the points, or its name in ``gyrobn.manifolds.REGISTRY``, with the sizes
        taken from X.
    bias : array-like of shape point_shape or (*channels, *point_shape), default=None
        Where the mean goes, a point :math:`\beta` of the manifold. The identity by default.
    scale : float or array-like of the shape of var_ (of one domain), default=1.0
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
    unseen : {"error", "refit", "adapt"}, default="error"
        What ``transform`` does with a domain that ``fit`` did not see: raise an error; use the
        mean and variance of the samples of that domain in the call ("refit"); or use the average of
        the known domains, moved towards those ("adapt"). The last two look at the samples of the
        domain together, at least two, and keep nothing: another call starts anew.
    adapt_rate : float, default=0.1
        How far "adapt" moves: 0 is the average of the known domains, 1 is "refit".

    Attributes
    ----------
    manifold_ : GyroSpace
        The geometry, with its sizes.
    mean_ : array of shape (*channels, *point_shape)
        Fréchet mean :math:`\mu`, in the library and on the device of X. After ``fit`` with domains
        this and the next three have a leading axis of the domains, in the order of ``domains_``.
    var_ : array of shape channels
        Fréchet variance :math:`v^2`; of shape (*channels, blocks) on a geometry with several blocks
        (a product has one a factor, correlation matrices one a row of their Cholesky factor).
    n_iter_ : int, or array of shape channels
        Iterations that the mean took.
    converged_ : bool, or array of shape channels
        Whether the mean met the tolerance.
    domains_ : ndarray of shape (n_domains,), or None
        The labels of the domains, sorted; None after ``fit`` without domains.
    n_samples_seen_ : int
        Number of samples N, of all domains.
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

    In a pipeline the domains come by scikit-learn's metadata routing: with
    ``sklearn.set_config(enable_metadata_routing=True)``, ask for them with
    ``GyroBN(...).set_fit_request(domains=True).set_transform_request(domains=True)``.
    Cross-validation then needs the score of the pipeline itself (``scoring=None``): scikit-learn's
    named scorers and ``cross_val_predict`` hand no domains to ``predict``.

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

    Two subjects, the second about another point and half as wide:

    >>> domains = np.repeat(["Ada", "Bo"], 50)
    >>> X[50:] = M.add(np.asarray([-0.2, 0.5]), M.scale(0.5, X[50:]))
    >>> bn = GyroBN(M, unseen="refit").fit(X, domains=domains)
    >>> bn.domains_, bn.mean_.shape, bool(bn.var_[0] > 2 * bn.var_[1])
    (array(['Ada', 'Bo'], dtype='<U3'), (2, 2), True)
    >>> Y = bn.transform(X, domains=domains)
    >>> bool(np.allclose(GyroBN(M).fit(Y, domains=domains).mean_, 0.0))
    True
    >>> new = bn.transform(X[50:], domains=["Cy"] * 50)  # the same samples, by another name
    >>> bool(np.allclose(new, Y[50:]))
    True
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
        unseen: str = "error",
        adapt_rate: float = 0.1,
    ) -> None:
        self.manifold = manifold
        self.bias = bias
        self.scale = scale
        self.eps = eps
        self.tol = tol
        self.max_iter = max_iter
        self.on_invalid = on_invalid
        self.unseen = unseen
        self.adapt_rate = adapt_rate

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None) -> Self:
        """Find the Fréchet mean and variance of the samples, of each domain if they are given.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            The samples.
        y : None
            Ignored; here for scikit-learn.
        sample_weight : array-like of shape (N,) or (N, *channels), default=None
            Non-negative weights. A weight of two counts as the sample given twice.
        domains : array-like of shape (N,), default=None
            The domain of each sample, all integers or all strings. Each needs two samples.

        Returns
        -------
        self
        """
        if self.on_invalid not in ("raise", "project"):
            raise ValueError(f"on_invalid must be 'raise' or 'project', got {self.on_invalid!r}")
        if not 0 <= self.eps < float("inf"):
            raise ValueError(f"eps must be finite and not negative, got {self.eps!r}")
        check_policy(self.unseen, self.adapt_rate)
        X = self._as_array(X, "fit")
        if backend_of(X).hides_values(X):
            raise TypeError(
                "GyroBN.fit() keeps what it finds, which in a traced function has no value: "
                "call it outside, or use gyrobn.batch_stats and gyrobn.normalize"
            )
        X = backend_of(X).stop_gradient(X)
        manifold = geometry_for(self.manifold, tuple(X.shape))
        X = on_manifold(manifold, X, project=self.on_invalid == "project")
        affine_for(manifold, X, self.bias, self.scale)
        weights = weights_for(manifold, X, sample_weight)
        places = None
        if domains is not None:
            labels = labels_for(domains, X.shape[0])
            places = places_of(labels)
        options = {"tol": self.tol, "max_iter": self.max_iter}
        found = found_for(manifold, X, places, weights, "fit", **options)

        self.manifold_ = manifold
        self.domains_ = None if places is None else np.asarray(list(places), dtype=labels.dtype)
        self.mean_, self.var_ = found.mean, found.variance
        several = found.iterations.ndim > 0
        self.n_iter_ = found.iterations if several else int(found.iterations)
        self.converged_ = found.converged if several else bool(found.converged)
        self.n_samples_seen_ = int(X.shape[0])
        return self

    def fit_transform(
        self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> Array:
        """Find the statistics of the samples and normalize them: ``fit``, then ``transform``.

        Parameters
        ----------
        X, y, sample_weight, domains
            As in ``fit``.

        Returns
        -------
        array of the shape and dtype of X
        """
        return self.fit(X, y, sample_weight, domains).transform(X, domains)

    def transform(self, X: Any, domains: Any = None) -> Array:
        r"""Normalize: :math:`\beta \oplus (s/\sqrt{v^2+\epsilon} \odot (\ominus\mu \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Samples, in the library and on the device of those given to ``fit``.
        domains : array-like of shape (N,), default=None
            The domain of each sample, after ``fit`` with domains. What becomes of those it did not
            see is said by ``unseen``.

        Returns
        -------
        array of the shape and dtype of X
        """
        return self._apply(X, domains, "transform")

    def inverse_transform(self, X: Any, domains: Any = None) -> Array:
        r"""Undo: :math:`\mu \oplus (\sqrt{v^2+\epsilon}/s \odot (\ominus\beta \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Normalized samples, in the library and on the device of those given to ``fit``.
        domains : array-like of shape (N,), default=None
            The domain of each sample, after ``fit`` with domains, and one that it saw: of others
            no statistics are kept.

        Returns
        -------
        array of the shape and dtype of X
        """
        return self._apply(X, domains, "inverse_transform")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags

    # ------------------------------------------------------------------ the call

    def _apply(self, X: Any, domains: Any, method: str) -> Array:
        check_is_fitted(self)
        manifold = self.manifold_
        X = self._as_array(X, method)
        X = on_manifold(manifold, X, project=self.on_invalid == "project")
        xp = namespace_of(X)
        places, stats = self._statistics(X, domains, method)
        bias, scale = affine_for(manifold, X, self.bias, self.scale)
        function = normalize
        if method == "inverse_transform":
            if not np.all(host(self.scale)):
                raise ValueError(
                    f"scale={self.scale!r} takes all samples to one point, which cannot be undone: "
                    "inverse_transform needs a scale other than 0"
                )
            function = denormalize

        def apply(x: Array, own: Stats) -> Array:
            return function(manifold, x, own, bias, scale, self.eps)

        with np.errstate(all="ignore"):  # what fails is named below
            out = apply(X, stats[0]) if places is None else by_domain(apply, X, places, stats)
            if backend_of(X).hides_values(out):
                return out
            good = manifold.contains(out)
            if bool(xp.all(good)):
                return out
            what, i = describe(good)
            k = 0 if places is None else next(k for k, at in enumerate(places) if i[0] in at)
            target = xp.broadcast_to(manifold.origin(X) if bias is None else bias, X.shape[1:])
            x, m, b = X[(*i, ...)], *(a[(*i[1:], ...)] for a in (stats[k].mean, target))
            c, name = (m, "mean") if method == "transform" else (b, "bias")
            raise ValueError(
                f"GyroBN.{method}() finds no point of {manifold!r} for {what}, at distance "
                f"{float(manifold.dist(c, x)):.4g} from the {name}; from the identity, the mean "
                f"is at {float(manifold.norm(m)):.4g}, the bias at {float(manifold.norm(b)):.4g}. "
                + reason(manifold, X)
            )

    def _statistics(
        self, X: Array, domains: Any, method: str
    ) -> tuple[list[Any] | None, list[Stats]]:
        """Return the samples of each domain, None if there are no domains, and its statistics."""
        xp = namespace_of(X)
        known = Stats(*(xp.astype(a, X.dtype, copy=False) for a in (self.mean_, self.var_)))
        check_given(self.domains_, domains, method)
        if self.domains_ is None:
            return None, [known]
        labels = labels_for(domains, X.shape[0])
        places, index = places_of(labels), {d: k for k, d in enumerate(self.domains_.tolist())}
        new = {d: at for d, at in places.items() if d not in index}
        stats = {d: Stats(*(a[index[d], ...] for a in known)) for d in places if d in index}
        if new:
            check_policy(self.unseen, self.adapt_rate)
            check_unseen(self.domains_, labels, list(new), self.unseen, method)
            options: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter}
            X = backend_of(X).stop_gradient(X)
            found = found_for(self.manifold_, X, new, None, method, **options)
            batch = Stats(found.mean, found.variance)
            if self.unseen == "adapt":
                batch = adapt_stats(self.manifold_, known, batch, self.adapt_rate, **options)
            stats |= {d: Stats(*(a[k, ...] for a in batch)) for k, d in enumerate(new)}
        return list(places.values()), [stats[d] for d in places]

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
                f"GyroBN takes float32 and float64 arrays of {library(X)}, got {X.dtype}: "
                "convert X first, for example with xp.astype(X, xp.float32)"
            )
        shape = tuple(X.shape)
        if len(shape) < 2 or 0 in shape:
            raise ValueError(
                f"expected X of shape (N, *channels, *point_shape), no length 0, got {shape}"
            )
        if method != "fit":
            got, wanted = ((library(a), device_of(a)) for a in (X, self.mean_))
            if got != wanted:
                raise ValueError(
                    f"Inputs passed to GyroBN.{method}() must use the same namespace and the same "
                    f"device as those passed to fit(): got {got[0]} (device {got[1]}), fitted to "
                    f"{wanted[0]} (device {wanted[1]}); convert X, or fit to arrays like X"
                )
            seen = tuple(self.mean_.shape)[0 if self.domains_ is None else 1 :]
            table = method == "transform" and len(shape) == 2 and len(seen) == 1
            if shape[1:] != seen and not table:  # of a table, scikit-learn says it below
                raise ValueError(
                    f"GyroBN.{method}() expects samples of shape {seen}, as fit() saw them, "
                    f"got X of shape {shape}"
                )
        if method != "inverse_transform":  # whose input need not carry the names of the columns
            validate_data(self, given, reset=method == "fit", skip_check_array=True)
        return X
