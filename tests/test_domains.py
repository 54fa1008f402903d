"""Statistics a domain: each is normalized as if alone, and what is unseen is dealt with as said."""

import contextlib
import importlib
import pickle

import numpy as np
import pandas as pd
import pytest
import sklearn
from conftest import EAGER
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GroupKFold,
    LeaveOneGroupOut,
    cross_val_predict,
    cross_val_score,
)
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

from gyrobn import (
    REGISTRY,
    SPD,
    Euclidean,
    FrechetWarning,
    GyroBN,
    PoincareBall,
    Sphere,
    Stats,
    batch_stats,
    frechet,
    normalize,
    update_stats,
)
from gyrobn.backends import backend_of, namespace_of
from gyrobn.normalization.domains import (
    domain_stats,
    places_of,
)

M = PoincareBall(2)
LABELS = np.asarray(["b", "a", "c", "a", "b", "c", "b", "a", "c", "b", "a", "c"])
GEOMETRIES = [
    pytest.param(manifold, id=repr(manifold))
    for family in REGISTRY.values()
    for manifold in family.examples()
]


def host(x):
    return np.asarray(backend_of(x).to_numpy(x))


@pytest.fixture(params=[*EAGER, "jax"])
def to(request):
    """NumPy arrays to those of a library."""
    name = request.param
    xp = importlib.import_module("jax.numpy" if name == "jax" else name)
    with contextlib.ExitStack() as stack:
        if name == "jax":
            stack.enter_context(importlib.import_module("jax").enable_x64(True))
        yield lambda a: xp.asarray(np.array(a))


def samples(manifold, labels=LABELS, channels=(), spread=0.3):
    """Each domain about a point of its own, and wider or narrower than the others."""
    dtype = complex if manifold.complex_points else float
    X = np.zeros((len(labels), *channels, *manifold.point_shape), dtype)
    for k, label in enumerate(np.unique(labels)):
        at = np.nonzero(labels == label)[0]
        own = manifold.random(len(at), *channels, rng=10 + k, spread=spread / (1 + k))
        X[at] = manifold.add(manifold.random(rng=50 + k, spread=0.4), own)
    return X


# ---------------------------------------------------------------------- each domain on its own


def assert_near(actual, expected):
    """Compare what was computed together with what was computed alone: sums round otherwise."""
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("manifold", GEOMETRIES)
def test_a_domain_is_normalized_as_if_alone(manifold):
    X, bias = samples(manifold), manifold.random(rng=7, spread=0.3)
    bn = GyroBN(manifold, bias=bias, scale=0.4, eps=0.01, unseen="adapt")
    Y = bn.fit_transform(X, domains=LABELS)
    np.testing.assert_array_equal(bn.domains_, ["a", "b", "c"])
    assert bn.mean_.shape == (3, *manifold.point_shape)
    assert bn.n_iter_.shape == bn.converged_.shape == (3,)
    assert bn.converged_.all()
    assert bn.n_samples_seen_ == len(X)
    for k, label in enumerate("abc"):
        at = label == LABELS
        one = GyroBN(manifold, bias=bias, scale=0.4, eps=0.01).fit(X[at])
        assert_near(bn.mean_[k], one.mean_)
        assert_near(bn.var_[k], one.var_)
        assert bn.n_iter_[k] == one.n_iter_
        assert_near(Y[at], one.transform(X[at]))
    back = bn.inverse_transform(Y, domains=LABELS)
    assert manifold.dist(back, X).max() < 1e-11

    # an unseen domain: the average of the three, a tenth of the way towards its samples
    new = samples(manifold, np.asarray(["e", "d", "e", "d", "d", "e", "b", "e"]))
    labels = np.asarray(["e", "d", "e", "d", "d", "e", "b", "e"])
    Z = bn.transform(new, domains=labels)
    centre = frechet(manifold, bn.mean_).mean
    for label in "de":
        at = label == labels
        own = batch_stats(manifold, new[at])
        mean = manifold.project(manifold.geodesic(centre, own.mean, 0.1))
        stats = Stats(mean, 0.9 * bn.var_.mean(axis=0) + 0.1 * own.var)
        expected = normalize(manifold, new[at], stats, bias, 0.4, 0.01)
        np.testing.assert_allclose(Z[at], expected, rtol=1e-9, atol=1e-11)
    at = labels == "b"
    assert_near(Z[at], bn.transform(new[at], domains=labels[at]))


# JAX, which would compile every operation for every number of samples, is traced below
@pytest.mark.parametrize("to", EAGER, indirect=True)
@pytest.mark.parametrize("manifold", [M, SPD(2)], ids=str)
def test_every_library(manifold, to):
    X, labels = samples(manifold, channels=(2,)), np.where(LABELS == "c", "d", LABELS)
    reference = GyroBN(manifold, scale=[0.5, 2.0], unseen="adapt").fit(X, domains=LABELS)
    bn = GyroBN(manifold, scale=[0.5, 2.0], unseen="adapt").fit(to(X), domains=LABELS)
    kind = namespace_of(to(X))
    for name in ("mean_", "var_", "n_iter_", "converged_"):
        assert namespace_of(getattr(bn, name)) is kind
        assert getattr(bn, name).shape[:2] == (3, 2)
    np.testing.assert_allclose(host(bn.mean_), reference.mean_, rtol=1e-11, atol=1e-12)
    Y = bn.transform(to(X), domains=LABELS)
    assert namespace_of(Y) is kind
    close = {"rtol": 1e-9, "atol": 1e-10}
    np.testing.assert_allclose(host(Y), reference.transform(X, domains=LABELS), **close)
    np.testing.assert_allclose(host(bn.inverse_transform(Y, domains=LABELS)), X, **close)
    for unseen in ("adapt", "refit"):
        expected = reference.set_params(unseen=unseen).transform(X, domains=labels)
        Z = bn.set_params(unseen=unseen).transform(to(X), domains=labels)
        np.testing.assert_allclose(host(Z), expected, **close)


def test_labels_of_any_kind(to):
    X, numbers = samples(M), np.unique(LABELS, return_inverse=True)[1] * 7 - 3
    Y = GyroBN(M).fit_transform(X, domains=LABELS)
    of_integers = [(labels, numbers) for labels in (numbers.tolist(), to(numbers), numbers)]
    for labels, values in (*of_integers, (pd.Series(numbers), numbers), (numbers == 4,) * 2):
        bn = GyroBN(M).fit(X, domains=labels)
        np.testing.assert_array_equal(bn.domains_, np.unique(values))
        if len(bn.domains_) == 3:
            np.testing.assert_array_equal(bn.transform(X, domains=numbers), Y)
    frame = pd.Series(LABELS, index=range(100, 112))
    for labels in (LABELS.tolist(), tuple(LABELS), LABELS.astype(object), frame):
        bn = GyroBN(M).fit(X, domains=labels)
        assert bn.domains_.tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(bn.transform(X, domains=labels), Y)
    longer = np.where(LABELS == "a", "aardvark", LABELS)  # not cut to the width of the known ones
    with pytest.raises(ValueError, match="did not see domain 'aardvark'"):
        bn.transform(X, domains=longer)


@pytest.mark.parametrize("to", EAGER, indirect=True)
def test_float32_stays_float32(to):
    X = to(samples(M).astype(np.float32))
    bn = GyroBN(M, unseen="adapt").fit(X, domains=LABELS)
    Y = bn.transform(X, domains=np.where(LABELS == "a", "z", LABELS))
    assert bn.mean_.dtype == bn.var_.dtype == Y.dtype == X.dtype
    wide = GyroBN(M, unseen="adapt").fit(to(samples(M)), domains=LABELS)
    assert wide.transform(X, domains=["z"] * len(LABELS)).dtype == X.dtype


def test_order_and_company_of_the_samples_do_not_matter():
    X, order = samples(M), np.random.default_rng(0).permutation(len(LABELS))
    bn = GyroBN(M).fit(X, domains=LABELS)
    Y = bn.transform(X, domains=LABELS)
    np.testing.assert_array_equal(bn.transform(X[order], domains=LABELS[order]), Y[order])
    for i in range(len(X)):
        one = bn.transform(X[i : i + 1], domains=LABELS[i : i + 1])
        np.testing.assert_allclose(one, Y[i : i + 1], rtol=1e-14)


def test_fit_without_domains_forgets_them():
    X = samples(M)
    bn = GyroBN(M).fit(X, domains=LABELS).fit(X)
    assert bn.domains_ is None
    np.testing.assert_array_equal(bn.transform(X), GyroBN(M).fit_transform(X))
    bn.fit(X, domains=LABELS)
    same = pickle.loads(pickle.dumps(bn))
    np.testing.assert_array_equal(
        same.transform(X, domains=LABELS), bn.transform(X, domains=LABELS)
    )
    assert not hasattr(clone(bn), "domains_")


# ---------------------------------------------------------------------- unseen domains

OTHERS = np.where(LABELS == "a", "z", LABELS)


def test_refit_is_fit_of_that_domain_and_keeps_nothing():
    X = samples(M)
    bn = GyroBN(M, scale=0.5, unseen="refit").fit(X[LABELS != "a"], domains=LABELS[LABELS != "a"])
    before = pickle.dumps(bn)
    Y = bn.transform(X, domains=OTHERS)
    assert pickle.dumps(bn) == before
    whole = GyroBN(M, scale=0.5).fit(X, domains=LABELS)
    assert_near(Y, whole.transform(X, domains=LABELS))
    some = np.nonzero(OTHERS == "z")[0][:3]  # the statistics are those of this call
    alone = GyroBN(M, scale=0.5).fit_transform(X[some])
    assert_near(bn.transform(X[some], domains=["z"] * 3), alone)


def test_adapt_goes_from_the_average_to_refit():
    X = samples(M)
    known = LABELS != "a"
    bn = GyroBN(M, unseen="adapt").fit(X[known], domains=LABELS[known])
    batch = batch_stats(M, X[~known])
    average = Stats(frechet(M, bn.mean_).mean, bn.var_.mean())
    for rate in (0.0, 0.1, 0.6, 1.0):
        Y = bn.set_params(adapt_rate=rate).transform(X[~known], domains=["z"] * 4)
        stats = update_stats(M, average, batch, rate)
        np.testing.assert_allclose(Y, normalize(M, X[~known], stats), rtol=1e-11, atol=1e-13)
    bn.set_params(unseen="refit")
    np.testing.assert_allclose(Y, bn.transform(X[~known], domains=["z"] * 4), rtol=1e-11)
    assert GyroBN().adapt_rate == 0.1


def test_gradients_reach_x_but_not_the_statistics():
    import torch

    X = torch.asarray(samples(M))
    bn = GyroBN(M, unseen="refit").fit(X.clone().requires_grad_(True), domains=LABELS)
    assert not bn.mean_.requires_grad
    new = X.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(bn.transform(new, domains=OTHERS).sum(), new)
    same = X.clone().requires_grad_(True)  # z's samples are a's, and so are its statistics
    (known,) = torch.autograd.grad(bn.transform(same, domains=LABELS).sum(), same)
    torch.testing.assert_close(slope, known)


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_transform_can_be_traced(unseen):
    import jax

    with jax.enable_x64(True):
        X = jax.numpy.asarray(samples(M))
        bn = GyroBN(M, unseen=unseen).fit(X, domains=LABELS)
        memory = GyroBN(M, unseen=unseen).fit(samples(M), domains=LABELS)
        np.testing.assert_allclose(bn.mean_, memory.mean_, rtol=1e-11, atol=1e-12)
        traced = jax.jit(lambda x: bn.transform(x, domains=OTHERS))(X)
        expected = memory.transform(samples(M), domains=OTHERS)
        np.testing.assert_allclose(traced, expected, rtol=1e-9, atol=1e-10)
        with pytest.raises(TypeError, match="traced function they have no values: give a NumPy"):
            jax.jit(lambda x, d: bn.transform(x, domains=d))(X, jax.numpy.zeros(12, int))


# ---------------------------------------------------------------------- errors


def test_domains_in_one_and_not_in_the_other():
    X = samples(M)
    with_domains, without = GyroBN(M).fit(X, domains=LABELS), GyroBN(M).fit(X)
    for method in ("transform", "inverse_transform"):
        message = (
            rf"fitted with domains \('a', 'b', 'c'\): give {method}\(X, domains=\.\.\.\), too; in "
            rf"a pipeline, by metadata routing and set_{method}_request\(domains=True\)"
        )
        with pytest.raises(ValueError, match=message):
            getattr(with_domains, method)(X)
        message = rf"fitted without domains: leave them out of {method}\(\), or give them to fit"
        with pytest.raises(ValueError, match=message):
            getattr(without, method)(X, domains=LABELS)


@pytest.mark.parametrize(
    ("domains", "error", "message"),
    [
        (LABELS[:-1], ValueError, r"one label per sample, shape \(12,\), got shape \(11,\)"),
        (LABELS[:, None], ValueError, r"shape \(12,\), got shape \(12, 1\)"),
        ("a", ValueError, r"shape \(12,\), got shape \(\)"),
        ([*LABELS[:-1], 3], TypeError, "all integers or all strings, got 3 at index 11"),
        ([*range(10), None, 3], TypeError, "all integers or all strings, got None at index 10"),
        (np.ones(12), TypeError, r"all integers or all strings, got 1\.0 at index 0"),
        (pd.Series([1] * 11 + [None]), TypeError, r"got 1\.0 at index 0"),
        (pd.Series(["a"] * 11 + [None]), TypeError, "got (None|nan) at index 11"),
    ],
)
def test_bad_labels(domains, error, message):
    X = samples(M)
    with pytest.raises(error, match=message):
        GyroBN(M).fit(X, domains=domains)
    with pytest.raises(error, match=message):
        GyroBN(M, unseen="refit").fit(X, domains=LABELS).transform(X, domains=domains)


def test_unseen_is_an_error_by_default():
    X = samples(M)
    bn = GyroBN(M).fit(X, domains=LABELS)
    message = r"did not see domain 'z' \(it saw 'a', 'b', 'c'\), .*: fit to it, .*'refit' or"
    with pytest.raises(ValueError, match=message):
        bn.transform(X, domains=OTHERS)
    many = GyroBN(M).fit(np.tile(X, (2, 1)), domains=np.tile(np.arange(12), 2))
    with pytest.raises(ValueError, match=r"domain 12 \(it saw 0, 1, .*, 9 and 2 more\)"):
        many.transform(X, domains=np.arange(1, 13))


@pytest.mark.parametrize("unseen", ["error", "refit", "adapt"])
def test_what_was_not_kept_cannot_be_undone(unseen):
    X = samples(M)
    bn = GyroBN(M, unseen=unseen).fit(X, domains=LABELS)
    message = r"domain 'z' \(it saw 'a', 'b', 'c'\), .* fit to it, .* are not kept"
    with pytest.raises(ValueError, match=message):
        bn.inverse_transform(X, domains=OTHERS)
    numbered = GyroBN(M, unseen=unseen).fit(X, domains=[1, 2] * 6)
    with pytest.raises(
        ValueError, match=r"saw domains 1, 2, .* come '1', '2': give labels of the sa"
    ):
        numbered.transform(X, domains=["1", "2"] * 6)


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_one_sample_has_no_variance(unseen):
    X = samples(M)
    bn = GyroBN(M, unseen=unseen).fit(X, domains=LABELS)
    labels = np.where(np.arange(12) == 5, "z", LABELS)
    message = r"transform\(\) needs at least 2 samples of domain 'z' .* got 1 sample: give mo"
    with pytest.raises(ValueError, match=message):
        bn.transform(X, domains=labels)
    with pytest.raises(
        ValueError, match=r"fit\(\) needs at least 2 samples of domain 'z' .* got 1 sample"
    ):
        bn.fit(X, domains=labels)
    for weights, count in ((LABELS != "b", 0), ((LABELS != "b") | (np.arange(12) == 0), 1)):
        with pytest.raises(ValueError, match=rf"domain 'b' \(with a weight .* got {count} sample"):
            bn.fit(X, sample_weight=weights, domains=LABELS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unseen": "ignore"}, "unseen must be 'error', 'refit', 'adapt' or 'online', got 'ig"),
        ({"adapt_rate": 1.5}, r"adapt_rate must be a finite number from 0 to 1, got 1\.5"),
        ({"prior_strength": -1}, "prior_strength must be a finite number of at least 0, got -1"),
        ({"adapt_rate": np.nan}, "adapt_rate must be a finite number from 0 to 1, got nan"),
    ],
)
def test_bad_policies(options, message):
    X = samples(M)
    with pytest.raises(ValueError, match=message):
        GyroBN(M, **options).fit(X)
    bn = GyroBN(M).fit(X, domains=LABELS).set_params(**options)
    bn.transform(X, domains=LABELS)
    with pytest.raises(ValueError, match=message):
        bn.transform(X, domains=OTHERS)


def test_bad_weights_and_samples():
    X = samples(M)
    with pytest.raises(ValueError, match=r"weights must have the shape .*\(12,\).* got \(11,\)"):
        GyroBN(M).fit(X, sample_weight=np.ones(11), domains=LABELS)
    with pytest.raises(ValueError, match="non-negative"):
        GyroBN(M).fit(X, sample_weight=-np.ones(12), domains=LABELS)
    bad = X.copy()
    bad[8] = 2.0
    with pytest.raises(ValueError, match="1 of 12 samples, the first at index 8"):
        GyroBN(M).fit(X, domains=LABELS).transform(bad, domains=LABELS)
    with pytest.raises(ValueError, match=r"expects samples of shape \(2,\), as fit\(\) saw them"):
        GyroBN(M).fit(X, domains=LABELS).transform(X[:, None], domains=LABELS)
    with pytest.raises(ValueError, match="3 features, but GyroBN is expecting 2"):
        GyroBN(M).fit(X, domains=LABELS).transform(np.zeros((12, 3)), domains=LABELS)


@pytest.mark.filterwarnings("ignore::gyrobn.FrechetWarning")
def test_what_fails_is_named_by_domain_and_place():
    X = np.ones((6, 1))
    X[[1, 3]] = [[1e200], [-1e200]]
    with pytest.raises(ValueError, match=r"fit\(\) finds no mean of domain 'q'\. Numbers leave"):
        GyroBN().fit(X, domains=list("pqpqpp"))
    bn = GyroBN(unseen="refit").fit(np.asarray([[1.0], [3.0]] * 2), domains=list("rrss"))
    with pytest.raises(ValueError, match=r"transform\(\) finds no mean of domain 'q'"):
        bn.transform(X, domains=list("rqrqrr"))
    bn = GyroBN(eps=0.0).fit([[1.0], [3.0], [5.0], [5.0]], domains=[0, 0, 1, 1])
    message = r"1 of 3 samples, the first at index 1, at distance 1 from the mean; .* mean is at 5,"
    with pytest.raises(ValueError, match=message):
        bn.transform([[1.0], [6.0], [3.0]], domains=[0, 1, 0])


# ---------------------------------------------------------------------- in a pipeline


class Recorder(ClassifierMixin, BaseEstimator):
    """Nearest neighbours that remember what they were asked."""

    asked: list = []  # noqa: RUF012

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.inner_ = KNeighborsClassifier(3).fit(X, y)
        return self

    def predict(self, X):
        self.asked.append(X)
        return self.inner_.predict(X)


def subjects(count=6, each=40):
    """Two classes, the same for all subjects but for a motion of the whole of each subject."""
    rng = np.random.default_rng(0)
    who, y = np.repeat(np.arange(count), each), np.tile([0, 1], count * each // 2)
    centre = np.where(y[:, None] == 0, [0.25, 0.0], [-0.25, 0.0])
    X = M.add(centre, M.random(len(y), rng=1, spread=0.15))
    return M.add(M.random(count, rng=rng, spread=1.0)[who], X), y, who


def test_cross_validation_by_subject_through_metadata_routing():
    X, y, who = subjects()
    cv = GroupKFold(3)
    with sklearn.config_context(enable_metadata_routing=True):
        plain = make_pipeline(GyroBN(M), KNeighborsClassifier(3))
        before = cross_val_score(plain, X, y, cv=cv, params={"groups": who})
        bn = GyroBN(M, unseen="refit").set_fit_request(domains=True)
        model = make_pipeline(bn.set_transform_request(domains=True), Recorder())
        Recorder.asked.clear()
        params = {"groups": who, "domains": who}
        after = cross_val_score(model, X, y, cv=cv, params=params, error_score="raise")
        assert after.min() > 0.95 > before.mean() + 0.1

        # what each fold saw is, subject for subject, what the subject alone gives: nothing leaks
        folds = [test for _, test in cv.split(X, y, who)]
        assert len(Recorder.asked) == len(folds)
        for seen, test in zip(Recorder.asked, folds, strict=True):
            for k in np.unique(who[test]):
                own = test[who[test] == k]
                assert_near(seen[who[test] == k], GyroBN(M).fit_transform(X[own]))
        strict = clone(model).set_params(gyrobn__unseen="error")
        with pytest.raises(ValueError, match="did not see domain"):
            cross_val_score(strict, X, y, cv=cv, params=params, error_score="raise")

        fitted = model.fit(X, y, domains=who)
        Z = fitted[:-1].transform(X, domains=who)
        np.testing.assert_array_equal(Z, GyroBN(M).fit_transform(X, domains=who))
        with pytest.raises(ValueError, match=r"set_transform_request\(domains=True\)"):
            fitted[:-1].transform(X)
        half = bn.__sklearn_clone__().set_inverse_transform_request(domains=True)
        steps = make_pipeline(half).fit(X, domains=who)
        np.testing.assert_allclose(steps.inverse_transform(Z, domains=who), X, rtol=1e-9)


@pytest.mark.parametrize("unseen", ["refit", "adapt"])
def test_scorers_and_cross_val_predict_leave_out_one_subject(unseen):
    """The line of a user of MOABB, whose metadata are a data frame; no routing is needed."""
    X, y, who = subjects()
    meta = pd.DataFrame({"subject": who, "session": "0"})
    y = np.asarray(["left_hand", "right_hand"])[y]
    bn = GyroBN(M, unseen=unseen, adapt_rate=0.9, without_domains="new", output="coordinates")
    pipeline = make_pipeline(bn, LogisticRegression())
    folds = {"cv": LeaveOneGroupOut(), "groups": meta.subject}
    folds["params"] = {"gyrobn__domains": meta.subject}
    for scoring in "roc_auc", "balanced_accuracy", None:
        after = cross_val_score(pipeline, X, y, scoring=scoring, **folds, error_score="raise")
        assert after.min() > 0.95
    predicted = cross_val_predict(pipeline, X, y, **folds)
    assert np.mean(predicted == y) > 0.95

    # each fold is what labels give
    train, test = who != 2, who == 2
    fitted = pipeline[:-1].fit(X[train], gyrobn__domains=who[train])
    expected = fitted[0].transform(X[test], domains=who[test])
    np.testing.assert_array_equal(fitted.transform(X[test]), expected)


def test_samples_without_domains_are_one_new_domain_only_if_asked(to):
    X = to(samples(M))
    plain, bn = (
        GyroBN(M, unseen="refit", without_domains=word).fit(X, domains=LABELS)
        for word in ("error", "new")
    )
    own = to(samples(M, np.repeat(["d"], 9)))
    with pytest.raises(ValueError, match="or choose without_domains='new'"):
        plain.transform(own)
    expected = host(plain.transform(own, domains=["d"] * 9))
    assert_near(host(bn.transform(own)), expected)
    chunks = bn.transform_chunks([own[:5, :], own[5:, :]])
    assert_near(np.concatenate([host(part) for part in chunks]), expected)
    with pytest.raises(ValueError, match="give inverse_transform"):
        bn.inverse_transform(own)
    with pytest.raises(ValueError, match=r"transform.* needs at least 2 samples .* give more$"):
        bn.transform(own[:1, :])
    with pytest.raises(ValueError, match="choose unseen='refit' or 'adapt'"):
        bn.set_params(unseen="online").transform(own)
    with pytest.raises(TypeError, match="can be read only once"):
        bn.transform_chunks(iter([own[:5, :], own[5:, :]]))
    if type(own) is np.ndarray:
        import dask.array as da

        lazy = bn.set_params(unseen="adapt").transform(da.from_array(own, chunks=(4, 2)))
        wanted = plain.set_params(unseen="adapt").transform(own, domains=["d"] * 9)
        assert_near(lazy.compute(), host(wanted))
    fit = GyroBN(M, unseen="refit", without_domains="new").fit(X)  # no domains to tell apart
    assert_near(host(fit.transform(own)), host(GyroBN(M).fit(X).transform(own)))


def test_fit_transform_is_fit_then_transform_with_routing_and_frames():
    X = pd.DataFrame(samples(M), columns=["a", "b"], index=range(5, 17))
    bn = GyroBN(M).set_output(transform="pandas")
    Y = bn.fit_transform(X, domains=LABELS)
    pd.testing.assert_frame_equal(Y, bn.transform(X, domains=LABELS))
    assert Y.index.equals(X.index)
    with sklearn.config_context(enable_metadata_routing=True):
        bn = GyroBN(M).set_fit_request(domains=True).set_transform_request(domains=True)
        np.testing.assert_array_equal(bn.fit_transform(X, domains=LABELS), Y)


# ---------------------------------------------------------------------- the functions


def test_large_numbers_are_labels():
    """NumPy would make floats of them, and two of one label."""
    M, labels = Euclidean(2), np.asarray([1, 2**63 + 5] * 10, dtype=np.uint64)
    X = M.random(20, rng=0)
    bn = GyroBN(M).partial_fit(X, domains=labels).partial_fit(X, domains=labels.tolist())
    assert bn.domains_.dtype == np.uint64
    assert bn.domains_.tolist() == [1, 2**63 + 5]
    assert bn.weight_sum_.tolist() == [20.0, 20.0]
    assert bn.transform(X, domains=labels).shape == X.shape
    with pytest.raises(ValueError, match=r"at most 64 bits, got -1 to 9223372036854775808"):
        bn.fit(X, domains=[-1, 2**63] * 10)
    with pytest.raises(ValueError, match=r"at most 64 bits, got -1 to"):
        bn.partial_fit(X, domains=[-1] * 20)
    assert bn.domains_.tolist() == [1, 2**63 + 5]  # as it was


# ---------------------------------------------------------------------- all domains together

SIZES = (2, 41, 3, 40, 5, 2, 17)
SIDES = np.random.default_rng(3).permutation(np.repeat(np.arange(len(SIZES)), SIZES))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("manifold", [family.examples()[0] for family in REGISTRY.values()])
def test_domains_of_any_size_are_found_as_if_alone(manifold, weighted):
    """Mean, variance and how they were found, with channels, weights of zero and NaN in those."""
    X, places = samples(manifold, SIDES, channels=(2,)), places_of(SIDES)
    weights = None
    if weighted:
        weights = np.random.default_rng(4).uniform(0.5, 2.0, X.shape[:2])
        for k in (1, 3, 4):
            weights[places[k][0]] = 0.0
            X[places[k][0]] = np.nan
    found = domain_stats(manifold, X, places, weights)
    for k, at in places.items():
        alone = frechet(manifold, X[at], None if weights is None else weights[at])
        assert_near(found.variance[k], alone.variance)
        assert manifold.dist(found.mean[k], alone.mean).max() < 1e-12
        assert np.all(found.converged[k] == alone.converged)
        assert np.all(abs(found.iterations[k] - alone.iterations) <= 1)  # which rounding may decide
        assert found.residual[k].shape == alone.residual.shape == (2,)


def test_domains_are_solved_and_normalized_in_a_few_calls(monkeypatch):
    """As many as there are groups of similar size: not one per domain."""
    module, solved, moved = importlib.import_module("gyrobn.normalization.domains"), [], []
    inner, outer = module.locate, PoincareBall.standardize
    monkeypatch.setattr(module, "locate", lambda *a, **k: solved.append(a) or inner(*a, **k))
    monkeypatch.setattr(PoincareBall, "standardize", lambda *a: moved.append(a) or outer(*a))
    who = np.repeat(np.arange(60), np.r_[np.full(30, 4), np.full(20, 3), np.full(10, 9)])
    X = samples(M, who)
    bn = GyroBN(M).fit(X, domains=who)
    bn.transform(X, domains=who)
    assert len(solved) == len(moved) == 2
    sizes = [a[1].shape[0] * a[1].shape[1] for a in solved]
    assert sum(sizes) <= 2 * len(X)  # padding at most doubles the work


def test_a_domain_with_nan_leaves_the_others_alone():
    X, places = samples(SPD(2), SIDES), places_of(SIDES)
    X[places[3][1]] = np.nan
    said = pytest.warns(FrechetWarning, match="mean of domain 3 on .* 1 of 40 samples are not on")
    with said, np.errstate(all="ignore"):
        found = domain_stats(SPD(2), X, places)
    assert np.isnan(found.mean[3]).all()
    assert list(found.converged) == [k != 3 for k in range(len(SIZES))]


def test_the_opposite_of_another_domain_has_its_mean():
    """The smaller one is padded by samples of its own: from its mean, others may be NaN."""
    S = Sphere(2)
    point = S.random(rng=1, spread=0.5)
    near = S.shift(point, 0.1 * np.eye(2))
    x = np.stack([point, *near, -point, -point])
    found = domain_stats(S, x, [np.arange(3), np.arange(3, 5)])
    np.testing.assert_allclose(found.mean[1], -point, atol=1e-12)
    np.testing.assert_allclose(found.variance[1], 0.0, atol=1e-12)


def test_warnings_name_the_domain():
    labels = np.asarray([f"day {k}" for k in SIDES])
    X, places = samples(M, SIDES), places_of(labels)
    alike = {label: places[label] for label in ("day 1", "day 3")}
    with pytest.warns(FrechetWarning, match="of domains 'day 1', 'day 3' on .* did not converge"):
        domain_stats(M, X, alike, max_iter=1)
    bad = int(places["day 4"][-1])
    X[bad] = 2.0
    with pytest.warns(FrechetWarning, match=rf"domain 'day 4' .* 1 of 5 .* at index {bad};"):
        domain_stats(M, X, places)

    S = Sphere(2)
    X = S.random(len(labels), rng=0, spread=0.2)
    far = labels == "day 1"
    X[far] = S.random(int(far.sum()), rng=0, spread=1.2)
    with pytest.warns(FrechetWarning, match="samples of domain 'day 1' on Sphere.* need a ball"):
        GyroBN(S).fit(X, domains=labels)
