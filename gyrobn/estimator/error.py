"""How far the mean of an estimator is from the Fréchet mean of samples."""

from typing import Any

from sklearn.utils.validation import check_is_fitted

from gyrobn.backends import backend_of, namespace_of
from gyrobn.data.chunks import take
from gyrobn.estimator.applying import in_dtype_of
from gyrobn.estimator.labels import check_given, labels_for
from gyrobn.estimator.validation import as_array, weights_for
from gyrobn.normalization.domains import places_of
from gyrobn.normalization.normalize import Stats
from gyrobn.statistics.mean_error import MeanError, measured
from gyrobn.statistics.points import on_manifold
from gyrobn.statistics.samples import arrange


class ErrorMixin:
    """The method ``mean_error`` of the estimator."""

    def mean_error(self, X: Any, sample_weight: Any = None, domains: Any = None) -> MeanError:
        """Return how far ``mean_`` is from the Fréchet mean of samples.

        With the samples given to ``fit``, it is the error of ``mean="centroid"``, or what
        ``tol`` and ``max_iter`` have left. After ``partial_fit``, give all samples. See
        :func:`gyrobn.mean_error`, which has the formulas.

        Parameters
        ----------
        X, sample_weight, domains
            As in ``fit``, in memory. Only domains that ``fit`` saw.

        Returns
        -------
        MeanError
            Distance, variance (the part by which the mean squared distance from ``mean_`` is too
            large), sure. With domains they have a leading axis of those in X, sorted.

        Examples
        --------
        >>> from gyrobn import GyroBN, PoincareBall
        >>> M = PoincareBall(2)
        >>> X = M.random(100, rng=0)
        >>> off = GyroBN(M, mean="centroid").fit(X).mean_error(X)
        >>> bool(off.distance < 0.1), bool(off.sure)
        (True, True)
        """
        check_is_fitted(self)
        bn: Any = self
        X, manifold = as_array(bn, X, "mean_error"), bn.manifold_
        check_given(bn.domains_, domains, "mean_error")
        X = on_manifold(manifold, X, project=bn.on_invalid == "project")
        weights = weights_for(X.shape[: X.ndim - len(manifold.point_shape)], X, sample_weight)
        mean, _ = in_dtype_of(manifold, Stats(bn.mean_, bn.var_), X)
        mean = backend_of(mean).stop_gradient(mean)
        if domains is None:
            samples, w = arrange(manifold, X, weights, 0)
            return measured(manifold, samples, w, at=mean)
        labels = labels_for(domains, X.shape[0])
        places, known = places_of(labels), bn.domains_.tolist()
        new = [label for label in places if label not in known]
        if new:
            raise ValueError(
                f"fit() did not see domain {new[0]!r}, so there is no mean to compare its samples "
                "with: fit to it, too, or leave them out"
            )
        each = []
        for label, at in places.items():
            own = None if weights is None else take(weights, at)
            samples, w = arrange(manifold, take(X, at), own, 0)
            each.append(measured(manifold, samples, w, at=mean[known.index(label), ...]))
        return MeanError(*map(namespace_of(X).stack, zip(*each, strict=True)))
