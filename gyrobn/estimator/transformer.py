r"""GyroBN for scikit-learn: ``fit`` finds the mean and variance, ``transform`` applies Algorithm 1.

The estimator holds the statistics. :mod:`gyrobn.estimator.fitting` finds them, and
:mod:`gyrobn.estimator.applying` normalizes samples with them.
"""

import inspect
from collections.abc import Iterator
from os import PathLike
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import Array
from gyrobn.estimator import applying
from gyrobn.estimator import validation as check
from gyrobn.estimator.fitting import learn
from gyrobn.estimator.validation import UNDO, geometry_options
from gyrobn.manifolds.gyrospace import GyroSpace
from gyrobn.normalization.online import OnlineStats


class GyroBN(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Normalize data on a manifold to a given mean and variance.

    .. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
              (\ominus\mu \oplus x_i)\Bigr)

    with the Fréchet mean :math:`\mu` and variance :math:`v^2` that ``fit`` saw. On those samples
    the output has mean :math:`\beta` and variance :math:`s^2 v^2/(v^2 + \epsilon)`, exactly.

    X has shape ``(N, *channels, *point_shape)``; each channel is normalized on its own. Lists,
    data frames and NumPy arrays give NumPy arrays; arrays of torch, JAX, CuPy, or another library
    that follows the Array API standard, give arrays of that library, on the same device. float32
    stays float32. Of a Dask array, ``fit`` computes statistics in the library of its blocks, and
    ``transform`` is lazy.

    With ``domains`` (subjects, sessions, sites) each domain has a mean and variance of its own, and
    all are brought to the same bias and scale, whatever moved them.

    Parameters
    ----------
    manifold : GyroSpace or str, default="euclidean"
        The geometry of the points; or its name in ``gyrobn.manifolds.REGISTRY``, which takes the
        sizes from X and the parameters below.
    bias : array-like of shape point_shape or (*channels, *point_shape), default=None
        Where the mean goes, a point :math:`\beta` of the manifold. The identity, or the reference,
        by default.
    scale : float, "sqrt_dim", None, or array-like of the shape of var_ (of one domain), default=1.0
        Standard deviation s of the output, not negative. "sqrt_dim" is the root of the dimension
        (of each block): a variance of one per normal coordinate, as most classifiers expect. For
        matrices larger than about 20 × 20, combine it with ``output="coordinates"``. None centres
        only: the factor is 1, and distances stay as they are.
    eps : float, default=1e-5
        Added to the variance, so that samples that are all equal stay finite.
    tol : float, default=None
        Tolerance of the mean, relative to the standard deviation; 8 ulp by default.
    max_iter : int, default=64
        Maximum number of iterations of the mean. If the mean has not converged by then, there is
        a :class:`~gyrobn.FrechetWarning`.
    on_invalid : {"raise", "project", "drop"}, default="raise"
        What to do with samples that are not on the manifold: raise an error that names the first;
        move them to a point near by (``manifold.project``; NaN and infinity still raise); or, with
        a warning that counts them, leave them out of ``fit`` and return NaN for them from
        ``transform``, where samples keep their places ("drop"; not for ``fit`` to Dask arrays, and
        ``transform`` with ``unseen="online"`` raises).
    unseen : {"error", "refit", "adapt", "online"}, default="error"
        What ``transform`` does with a domain that ``fit`` did not see: raise an error; use the
        mean and variance of its samples in the call ("refit"); or use the average of the known
        domains, moved towards those ("adapt"). These two need at least two samples of the domain,
        and keep nothing for the next call. "online" takes one sample after the other, each with
        the statistics of those up to itself. It needs one sample, and goes on in the next call:
        ``transform`` then changes ``online_``.
    adapt_rate : float, default=0.1
        How far "adapt" moves: 0 is the average of the known domains, 1 is "refit".
    prior_strength : float, default=4.0
        For "online", the number of samples that the average of the known domains counts as:
        :func:`~gyrobn.normalization.online.online_stats` has the formulas.
    output : {"points", "coordinates"}, default="points"
        What ``transform`` returns. "coordinates" is for a classifier: the scaled normal coordinates
        :math:`s/\sqrt{v^2+\epsilon}\, \operatorname{Log}_e(\ominus\mu \oplus x)`, a table of
        shape (N, dim), or (N, channels · dim), with names for its columns. They are what
        ``manifold.to_normal`` returns for the points, but no point is made of them: with
        ``scale="sqrt_dim"`` the points of high-dimensional geometries are beyond the range of
        floating-point numbers. ``bias`` must be None.
    without_domains : {"error", "new"}, default="error"
        What ``transform`` does without ``domains`` after ``fit`` with them: raise an error; or take
        X as one new domain, for which ``unseen`` must be "refit" or "adapt". With "new", scorers
        and ``cross_val_predict`` of scikit-learn work if each fold leaves out one domain.
    reference : None, "fit", or array-like like bias, default=None
        The point from which the geometry is seen, in place of the identity: a point, or "fit", the
        mean of the samples of ``fit`` (of the means of the domains). Means and variances do not
        depend on it. If the mean is close to the cut locus of the identity (where a sphere has its
        antipode, a subspace a principal angle of 90°, a rotation an angle of 180°), small errors of
        the mean turn the output a lot, and there is a warning: then choose "fit". The default bias
        is the reference.
    **options
        The options of a geometry, by name: ``metric`` of "spd" and "correlation", ``theta``,
        ``alpha`` and ``beta`` of "spd", ``curvature`` of a space of constant curvature, and
        ``representation`` of "grassmannian" (the traces of projectors give their rank). They are
        parameters, for a grid search by name: ``GridSearchCV(GyroBN("spd"), {"metric": [...]})``.
        None, the default, leaves the geometry's own value; an option that the geometry lacks is an
        error.

    Attributes
    ----------
    manifold_ : GyroSpace
        The geometry, with its sizes.
    mean_ : array of shape (*channels, *point_shape)
        Fréchet mean :math:`\mu`, in the library and on the device of X. After ``fit`` with domains
        this and the next four have a leading axis of the domains, in the order of ``domains_``.
    var_ : array of shape channels
        Fréchet variance :math:`v^2`; of shape (*channels, blocks) on a geometry with several blocks
        (a product has one per factor, correlation matrices one per row of their Cholesky factor).
    reference_ : array of shape point_shape or (*channels, *point_shape), or None
        The reference, in the library and on the device of X. ``partial_fit`` keeps the first one.
    n_iter_ : int, or array of shape channels
        Iterations that the mean took.
    converged_ : bool, or array of shape channels
        Whether the mean met the tolerance.
    domains_ : ndarray of shape (n_domains,), or None
        The labels of the domains, sorted; None after ``fit`` without domains.
    online_ : dict
        Count, mean and variance (:class:`~gyrobn.normalization.online.OnlineStats`) of each domain
        that ``unseen="online"`` follows, by label. ``fit``, ``partial_fit`` and ``reset_online``
        empty it. A pickle and a file of ``save`` keep it, a clone does not.
    n_samples_seen_ : int
        Number of samples N, of all domains.
    n_projected_ : int
        Number of points that ``fit`` moved onto the manifold (``on_invalid="project"``).
    weight_sum_ : array of shape channels
        Sum of the weights of the samples, for ``partial_fit``.
    n_features_in_ : int
        Length of the second axis of X: the number of columns if X is a table.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the columns, if X is a data frame whose columns all have string names.

    See Also
    --------
    normalize : The same as a function, for given statistics.

    Notes
    -----
    Gradients flow through ``transform`` to X; the statistics are constants. In a traced function
    (``jax.jit``, ``vmap``) values are not known, so only shapes and dtypes are checked.

    A pipeline passes domains on to ``fit``: ``pipeline.fit(X, y, gyrobn__domains=domains)``, and in
    a cross-validation ``params={"gyrobn__domains": domains}``. To ``transform`` it passes them by
    metadata routing only: with ``sklearn.set_config(enable_metadata_routing=True)``, request them
    with ``GyroBN(...).set_fit_request(domains=True).set_transform_request(domains=True)``.
    scikit-learn's named scorers and ``cross_val_predict`` pass no domains to ``predict`` even then:
    choose ``without_domains="new"`` and leave out one domain at a time.

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

    Trials of a new subject that come one by one:

    >>> bn.set_params(unseen="online").transform(X[50:51], domains=["Cy"]).shape
    (1, 2)
    >>> bn.online_["Cy"].count
    1
    """

    online_: dict[Any, OnlineStats]

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
        prior_strength: float = 4.0,
        output: str = "points",
        without_domains: str = "error",
        reference: Any = None,
        **options: Any,
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
        self.prior_strength = prior_strength
        self.output = output
        self.without_domains = without_domains
        self.reference = reference
        for name in options.keys() - geometry_options():
            raise TypeError(f"GyroBN() got an unexpected keyword argument {name!r}")
        self.__dict__.update(options)

    @classmethod
    def _get_param_names(cls) -> list[str]:
        return sorted({*super()._get_param_names(), *geometry_options()})

    def __getattr__(self, name: str) -> Any:
        """Return None for an option of a geometry that was not given."""
        if name[0] != "_" != name[-1] and name in geometry_options():
            return None
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None) -> Self:
        """Find the Fréchet mean and variance of the samples, of each domain if they are given.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape), or Chunks, or a Dask array
            The samples. A memory map, a zarr array, an iterable of arrays, a function that returns
            one, or :class:`~gyrobn.Chunks`, is read in chunks, in several passes: the result is the
            same, and memory need not hold all samples.
        y : None
            Ignored; scikit-learn passes the labels of classes here. Labels of domains (subjects,
            sessions) in this place would have no effect: give them as ``domains``, by name.
        sample_weight : array-like of shape (N,) or (N, *channels), default=None
            Non-negative weights. A weight of two counts as the sample given twice.
        domains : array-like of shape (N,), default=None
            The domain of each sample, all integers or all strings. Each needs two samples.

        Returns
        -------
        self
        """
        learn(self, X, y, sample_weight, domains, "fit")
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, domains: Any = None
    ) -> Self:
        r"""Add samples to the statistics, without reading the earlier ones again.

        With the share :math:`\eta` of the new samples in all, by number or weight,

        .. math:: \mu \leftarrow \mu \oplus (\eta \odot (\ominus\mu \oplus \mu_b)), \qquad
                  v^2 \leftarrow (1-\eta) v^2 + \eta v_b^2 + \eta(1-\eta)\, d^2(\mu, \mu_b) .

        On a flat geometry that is what ``fit`` finds in all samples together. On a curved one it is
        close, and depends on the order. See :func:`~gyrobn.merge_stats`.

        Parameters
        ----------
        X, y, sample_weight, domains
            As in ``fit``; a domain may be new, or have only one sample.

        Returns
        -------
        self
        """
        learn(self, X, y, sample_weight, domains, "partial_fit")
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
        array of the shape and dtype of X, or table of coordinates of shape (N, n_columns)
        """
        return self.fit(X, y, sample_weight, domains).transform(X, domains)

    def transform(self, X: Any, domains: Any = None) -> Array:
        r"""Normalize: :math:`\beta \oplus (s/\sqrt{v^2+\epsilon} \odot (\ominus\mu \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Samples, in the library and on the device of those given to ``fit``.
        domains : array-like of shape (N,), default=None
            The domain of each sample, after ``fit`` with domains. ``unseen`` says what to do with
            domains that ``fit`` did not see. With "online" the order of the samples matters: one
            call per sample gives the same as one call with all of them.

        Returns
        -------
        array of the shape and dtype of X, or table of coordinates of shape (N, n_columns)
        """
        return applying.apply(self, X, domains, "transform")

    def inverse_transform(self, X: Any, domains: Any = None) -> Array:
        r"""Undo: :math:`\mu \oplus (\sqrt{v^2+\epsilon}/s \odot (\ominus\beta \oplus x))`.

        Parameters
        ----------
        X : array-like of shape (N, *channels, *point_shape)
            Normalized samples, in the library and on the device of those given to ``fit``;
            coordinates of shape (N, n_columns) with ``output="coordinates"``.
        domains : array-like of shape (N,), default=None
            The domain of each sample, after ``fit`` with domains; only domains that ``fit`` saw.

        Returns
        -------
        array of the shape of the samples and of the dtype of X
        """
        return applying.apply(self, X, domains, UNDO)

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
            As in ``transform``, for all samples. If ``unseen`` allows new domains, their samples
            are read before the first chunk is returned.
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
        >>> big = Chunks(X, size=300)  # or np.load("big.npy", mmap_mode="r")
        >>> bn = GyroBN(SPD(3)).fit(big)
        >>> [len(chunk) for chunk in bn.transform_chunks(big)]
        [300, 300, 300, 100]
        """
        return applying.apply_chunks(self, X, domains, UNDO if inverse else "transform")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator to a file, completely or not at all, for :meth:`load`.

        The file is a ``.npz`` without pickle: arrays, and a header in JSON with the version of the
        format, the geometry and the parameters.

        Parameters
        ----------
        path : str or path
            Name of the file, used as it is. What was there is replaced.
        """
        from gyrobn.estimator import files

        check_is_fitted(self)
        files.write(self, path)

    @classmethod
    def load(cls, path: str | PathLike[str], like: Array | None = None) -> Self:
        """Return an estimator that was saved.

        No code in the file is run. A file that is damaged, truncated, of another program or of a
        newer version is refused.

        Parameters
        ----------
        path : str or path
            A file that :meth:`save` wrote, from arrays of any library.
        like : array, default=None
            The statistics get its library, dtype and device. By default they are NumPy arrays in
            their former dtype.

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
        from gyrobn.estimator import files

        bn: Self = files.read(cls, path, like)
        return bn

    def reset_online(self) -> Self:
        """Forget the new domains that ``unseen="online"`` has followed; each starts anew.

        Returns
        -------
        self
        """
        check_is_fitted(self)
        self.online_ = {}
        return self

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the columns that ``transform`` returns.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Names of the columns of X, if ``fit`` saw a table without names.

        Returns
        -------
        ndarray of str
            The names of the columns of X; those of coordinates are "gyrobn0", "gyrobn1" and so on,
            with several channels "gyrobn0_0": channel, coordinate. Points that are not rows of a
            table have no names: an error says so.
        """
        check_is_fitted(self)
        check.check_table(self, check.sample_shape(self), names=True)
        if len(check.sample_shape(self)) == 1:
            names = super().get_feature_names_out(input_features)  # compares them with those of X
            if self.output == "points":
                return names
        channels = ["".join(f"{k}_" for k in at) for at in np.ndindex(check.channels_of(self))]
        word, each = type(self).__name__.lower(), range(self.manifold_.dim)
        return np.asarray([f"{word}{c}{k}" for c in channels for k in each], dtype=object)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle; parameters that its version did not have take their defaults."""
        super().__setstate__(GyroBN().get_params(deep=False) | state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.array_api_support = True
        return tags


_parameters = dict(inspect.signature(GyroBN.__init__).parameters)
del _parameters["options"]
_kind = inspect.Parameter.KEYWORD_ONLY
vars(GyroBN.__init__)["__signature__"] = inspect.Signature(  # for help(): with all options
    [
        *_parameters.values(),
        *(inspect.Parameter(n, _kind, default=None) for n in sorted(geometry_options())),
    ]
)
