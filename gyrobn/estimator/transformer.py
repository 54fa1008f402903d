r"""GyroBN for scikit-learn: ``fit`` finds the mean and variance, ``transform`` applies Algorithm 1.

The estimator checks its input, holds the statistics and calls :func:`~gyrobn.frechet`,
:func:`~gyrobn.normalize` and :func:`~gyrobn.denormalize`; where there are several domains, through
:mod:`gyrobn.normalization.domains`.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array, backend_of, namespace_of
from gyrobn.data.chunks import Chunks
from gyrobn.estimator.files import read, write
from gyrobn.estimator.fitting import Fitted, by_label, find, merge, stacked
from gyrobn.estimator.labels import check_given, check_policy, check_unseen, labels_for
from gyrobn.estimator.models import of_estimator, settle, to_estimator
from gyrobn.estimator.validation import (
    Moved,
    affine_for,
    as_array,
    check_around,
    check_output,
    found_for,
    host,
    on_manifold,
)
from gyrobn.manifolds.centred import Centred
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.domains import adapt_stats, by_domain, places_of
from gyrobn.normalization.normalize import Stats, denormalize, normalize, route
from gyrobn.numerics.arrays import blockwise

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
        taken from X and the parameters below.
    bias : array-like of shape point_shape or (*channels, *point_shape), default=None
        Where the mean goes, a point :math:`\beta` of the manifold. The identity by default.
    scale : float, "sqrt_dim", or array-like of the shape of var_ (of one domain), default=1.0
        Standard deviation s of the output. "sqrt_dim" is the root of the dimension, of each block:
        a variance of one per normal coordinate, which is what a classifier behind expects.
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
    metric : str, default=None
        Metric of "spd" or "correlation". This and the next three are the parameters of a geometry,
        so that a name and a grid search suffice: ``GridSearchCV(GyroBN("spd"), {"metric": [...]})``
        needs no size. None is what the geometry has; one that the geometry lacks is an error.
    curvature : float, default=None
        Curvature of a space of constant curvature.
    theta : float, default=None
        Power deformation of "spd".
    representation : {"basis", "projector"}, default=None
        What the points of "grassmannian" are. The rank of projectors is read off their traces.

    Attributes
    ----------
    manifold_ : GyroSpace
        The geometry, with its sizes.
    mean_ : array of shape (*channels, *point_shape)
        Fréchet mean :math:`\mu`, in the library and on the device of X. After ``fit`` with domains
        this and the next four have a leading axis of the domains, in the order of ``domains_``.
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
    n_projected_ : int
        Number of points that were off the manifold and moved onto it (``on_invalid="project"``),
        of those that were fitted to.
    weight_sum_ : array of shape channels
        Sum of the weights of the samples, which ``partial_fit`` goes by.
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
        metric: str | None = None,
        curvature: Any = None,
        theta: float | None = None,
        representation: str | None = None,
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
        self.metric = metric
        self.curvature = curvature
        self.theta = theta
        self.representation = representation

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None) -> Self:
        """Find the Fréchet mean and variance of the samples, of each domain if they are given.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape), or Chunks
            The samples. Those of a memory map, a zarr array, an iterable of arrays, a function that
            returns one, or :class:`~gyrobn.Chunks`, are read a chunk at a time, in several passes:
            the answer is the same, and there may be more of them than memory holds.
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
        self._keep(*find(self, X, sample_weight, domains, "fit")[:4])
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> Self:
        r"""Add samples to what was learnt, without a look back at those before.

        With the share :math:`\eta` of the new samples in all, by number or weight,

        .. math:: \mu \leftarrow \mu \oplus (\eta \odot (\ominus\mu \oplus \mu_b)), \qquad
                  v^2 \leftarrow (1-\eta) v^2 + \eta v_b^2 + \eta(1-\eta)\, d^2(\mu, \mu_b) .

        On a flat geometry that is what ``fit`` finds in all samples together; on a curved one it is
        near, and depends on the order. See :func:`~gyrobn.merge_stats`.

        Parameters
        ----------
        X, y, sample_weight, domains
            As in ``fit``; a domain may be new, or have one sample only.

        Returns
        -------
        self
        """
        manifold, new, count, moved, *_ = find(self, X, sample_weight, domains, "partial_fit")
        if hasattr(self, "mean_"):
            moved += self.n_projected_
            old = by_label(self.domains_, self._fitted)
            both = {d: merge(manifold, old[d], new[d]) for d in new if d in old}
            new, count = old | new | both, count + self.n_samples_seen_
        self._keep(manifold, new, count, moved)
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
        found = find(self, X, sample_weight, domains, "fit")
        samples = found.samples
        self._keep(*found[:4])
        if isinstance(samples, Chunks):
            return self.transform(X, domains)  # which says what takes chunks
        self._check_container(samples, "transform")
        labels, stats = self._statistics(samples, domains, "transform")
        return self._move(samples, labels, stats, "transform", view=found.view)

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

    def transform_chunks(
        self, X: Any, domains: Any = None, inverse: bool = False
    ) -> Iterator[Array]:
        """Normalize more samples than memory holds: what ``transform`` returns, chunk by chunk.

        Parameters
        ----------
        X : Chunks, or what they are made of
            A memory map, a zarr array, an iterable of arrays, a function that returns one; without
            domains also a generator.
        domains
            As in ``transform``, of all samples. A domain that ``fit`` did not see is looked at as a
            whole, if ``unseen`` allows it, before the first chunk is returned.
        inverse
            Whether to undo the normalization.

        Returns
        -------
        iterator of arrays

        Examples
        --------
        >>> import numpy as np
        >>> from gyrobn import SPD, Chunks, GyroBN
        >>> X = SPD(3).random(1000, rng=0)
        >>> np.save("big.npy", X)  # doctest: +SKIP
        >>> big = np.load("big.npy", mmap_mode="r")  # doctest: +SKIP
        >>> big = Chunks(X, size=300)
        >>> bn = GyroBN(SPD(3)).fit(big)
        >>> [len(chunk) for chunk in bn.transform_chunks(big)]
        [300, 300, 300, 100]
        """
        check_is_fitted(self)
        method = "inverse_transform" if inverse else "transform"
        if isinstance(X, Iterator) and domains is None:  # one reading is enough
            X = Chunks(X.__iter__)
        raw = X if isinstance(X, Chunks) else Chunks(X)
        chunks = raw.map(lambda x, rows: self._checked(x, method, int(rows[0])))
        labels, stats = self._statistics(chunks, domains, method)

        def results() -> Iterator[Array]:
            moved = Moved()
            last = raw.map(lambda x, rows: self._checked(x, method, int(rows[0]), moved))
            for rows, x in last.numbered():
                own = None if labels is None else labels[rows]
                yield self._move(x, own, stats, method, int(rows[0]))
            moved.warn(self.manifold_, self.mean_, method, 3)

        return results()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted estimator to a file, whole or not at all, for :meth:`load`.

        The file is a ``.npz`` without pickle: arrays, and a header in JSON with the version of the
        format, the geometry and the parameters.

        Parameters
        ----------
        path : str or path
            Name of the file, used as it is. What was there is replaced.
        """
        check_is_fitted(self)
        write(of_estimator(self), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], like: Array | None = None) -> Self:
        """Return an estimator that was saved.

        Nothing of the file is run. One that is damaged, cut off, of another program or of a newer
        version is refused with an error that says so.

        Parameters
        ----------
        path : str or path
            A file that :meth:`save` wrote, whatever the library of the arrays was.
        like : array, default=None
            The statistics get its library, dtype and device. By default they are NumPy arrays, in
            the dtype they had.

        Returns
        -------
        GyroBN
            Fitted, with the parameters it had.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from gyrobn import GyroBN, Sphere
        >>> path = Path(tempfile.mkdtemp()) / "model.npz"
        >>> X = Sphere(2).random(20, rng=0, spread=0.5)
        >>> bn = GyroBN(Sphere(2)).fit(X)
        >>> bn.save(path)
        >>> bool((GyroBN.load(path).transform(X) == bn.transform(X)).all())
        True
        """
        return to_estimator(cls, read(path), like)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags

    # ------------------------------------------------------------------ learning

    @property
    def _fitted(self) -> Fitted:
        found = (self.n_iter_, self.converged_)
        return Fitted(self.mean_, self.var_, self.weight_sum_, *found)

    def _keep(self, manifold: GyroSpace, known: dict[Any, Fitted], count: int, moved: int) -> None:
        labels, fitted = stacked(known)
        self.manifold_, self.domains_ = manifold, labels
        self.mean_, self.var_, self.weight_sum_ = fitted[:3]
        several = fitted.mean.ndim > len(manifold.point_shape)
        self.n_iter_ = fitted.iterations if several else int(fitted.iterations)
        self.converged_ = fitted.converged if several else bool(fitted.converged)
        self.n_samples_seen_ = count
        self.n_projected_ = moved

    # ------------------------------------------------------------------ the call

    def _apply(self, X: Any, domains: Any, method: str) -> Array:
        check_is_fitted(self)
        moved = Moved()
        X = self._checked(X, method, moved=moved)
        moved.warn(self.manifold_, X, method, 5)
        self._check_container(X, method)
        labels, stats = self._statistics(X, domains, method)
        return self._move(X, labels, stats, method)

    def _checked(self, X: Any, method: str, first: int = 0, moved: Moved | None = None) -> Array:
        X, project = as_array(self, X, method), self.on_invalid == "project"
        return on_manifold(self.manifold_, X, project=project, first=first, moved=moved)

    def _check_container(self, X: Array, method: str) -> None:
        """Refuse to make a table of what is none; scikit-learn does so after ``transform``."""
        own = getattr(self, "_sklearn_output_config", {}).get("transform")
        wanted = own or get_config()["transform_output"]
        if method == "transform" and wanted != "default" and X.ndim > 2:
            raise ValueError(
                f"set_output(transform={wanted!r}) makes a table with a column a feature, and "
                f"samples of shape {tuple(X.shape[1:])} fill none: leave it at "
                "set_output(transform='default'), and set it on a step that returns vectors"
            )

    def _statistics(
        self, X: Array | Chunks, domains: Any, method: str
    ) -> tuple[Any, dict[Any, Stats]]:
        """Return the labels of the samples, and the statistics of each that occurs."""
        check_given(self.domains_, domains, method)
        known = {d: Stats(*f[:2]) for d, f in by_label(self.domains_, self._fitted).items()}
        if self.domains_ is None:
            return None, known
        labels = labels_for(domains, X.count if isinstance(X, Chunks) else X.shape[0])
        new = {d: at for d, at in places_of(labels).items() if d not in known}
        if new:
            check_policy(self.unseen, self.adapt_rate)
            check_unseen(self.domains_, labels, list(new), self.unseen, method)
            options: dict[str, Any] = {"tol": self.tol, "max_iter": self.max_iter}
            X = X if isinstance(X, Chunks) else backend_of(X).stop_gradient(X)
            found, _ = found_for(self.manifold_, X, new, None, method, **options)
            batch = Stats(found.mean, found.variance)
            if self.unseen == "adapt":
                seen = _in_dtype(self.manifold_, Stats(self.mean_, self.var_), found.mean)
                batch = adapt_stats(self.manifold_, seen, batch, self.adapt_rate, **options)
            known |= {d: Stats(*(a[k, ...] for a in batch)) for k, d in enumerate(new)}
        return labels, known

    def _move(
        self,
        X: Array,
        labels: Any,
        stats: dict[Any, Stats],
        method: str,
        first: int = 0,
        view: Centred | None = None,
    ) -> Array:
        """Normalize, or undo it, samples that are numbered from ``first`` on.

        ``view`` are the samples seen from their mean, if they are at hand.
        """
        manifold = self.manifold_
        bias, scale = affine_for(manifold, X, self.bias, self.scale)
        inverse = method == "inverse_transform"
        if inverse and not np.all(host(scale)):
            raise ValueError(
                f"scale={self.scale!r} takes all samples to one point, which cannot be undone: "
                "inverse_transform needs a scale other than 0"
            )
        closed, squares = manifold.convexity_radius < float("inf"), []

        def apply(x: Array, own: Stats) -> Array:
            if closed or view is not None:
                out, there = _carried(manifold, x, own, bias, scale, self.eps, inverse, view)
                if closed:
                    squares.append(there())
                return out
            function = denormalize if inverse else normalize
            return function(manifold, x, own, bias, scale, self.eps)

        places = {None: None} if labels is None else places_of(labels)
        own = [_in_dtype(manifold, stats[d], X) for d in places]
        at = None if labels is None else list(places.values())
        with np.errstate(all="ignore"):  # what fails is named by the check
            if at is None:
                out = blockwise(lambda x: apply(x, own[0]), X)
            else:
                out = by_domain(apply, X, at, own)
            if not backend_of(X).hides_values(out):
                check_output(manifold, X, out, own, at, bias, method, first)
                most = (2.0 * manifold.convexity_radius) ** 2  # nothing within it comes around
                if closed and not all(float(square) <= most for square in squares):
                    options = bias, scale, self.eps, method, first
                    check_around(manifold, X, out, own, at, *options)
        return out


def _carried(
    manifold: GyroSpace,
    x: Array,
    stats: Stats,
    bias: Array | None,
    scale: Any,
    eps: float,
    inverse: bool,
    view: Centred | None,
) -> tuple[Array, Callable[[], Array]]:
    """Return what ``normalize`` or ``denormalize`` does, and what returns how far it takes points.

    That is the square of the largest distance from where the mean goes, if no point comes back from
    the other side.
    """
    centre, factor, target = route(manifold, x, stats, bias, scale, eps, None, inverse)
    if view is None:
        view = manifold.inside.centred(manifold.to_inside(centre), manifold.to_inside(x))
    there = None if target is None else manifold.to_inside(target)
    out = manifold.from_inside(view.standardize(factor, there))

    def farthest() -> Array:
        t = manifold.expand_blocks(factor)
        xp = namespace_of(x)
        return xp.max(xp.sum(t * t * view.squares, axis=-1))

    return out, farthest


def _in_dtype(manifold: GyroSpace, stats: Stats, x: Array) -> Stats:
    if stats.mean.dtype == x.dtype:
        return stats
    mean, var = (namespace_of(x).astype(a, x.dtype) for a in stats)
    return Stats(settle(manifold, mean), var)
