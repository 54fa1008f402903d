"""What the docstrings of the layers share, with the words of each framework."""

import inspect
from typing import TypeVar

_Documented = TypeVar("_Documented")


def documented(thing: _Documented) -> _Documented:
    """Fill ``%(name)s`` in the docstring of a class or function with the shared paragraphs.

    Their words are those of the framework in whose package the class or function is defined.
    """
    if thing.__doc__:
        text = inspect.cleandoc(thing.__doc__)
        while "%(" in text:  # paragraphs name others
            text = text % (_SHARED | _WORDS[thing.__module__.split(".")[1]])
        thing.__doc__ = text
    return thing


_WORDS = {
    "torch": {
        "eps": "eps",
        "affine": "affine",
        "array": "Parameter",
        "overrule": "It can be set later.",
        "set_dtype": """device, dtype
    Of the parameters. Input in half precision is computed in float32 and rounded back.""",
    },
    "flax": {
        "eps": "epsilon",
        "affine": "use_bias, use_scale",
        "array": "nnx.Param",
        "overrule": "It can be set later.",
        "set_dtype": """param_dtype
    Of the parameters. The computation is in the wider dtype of the layer and the input, and in
    float32 at least; half precision in gives half precision out.
rngs
    Not used, since nothing starts at random; every Flax layer accepts it.""",
    },
    "equinox": {
        "eps": "eps",
        "affine": "use_bias, use_scale",
        "array": "array",
        "overrule": "The call can overrule it.",
        "set_dtype": """dtype
    Of the parameters; JAX's default by default. The computation is in the wider dtype of the
    layer and the input, and in float32 at least; half precision in gives half precision out.""",
    },
}
"""What differs in the shared paragraphs."""


def _attributes(bias: str, scale: str, meaning: str = "Standard deviation s of a set.") -> str:
    """Return the attributes of a layer, with the shapes of its bias and scale."""
    return f"""Attributes
----------
bias : %(array)s of shape {bias}, or None
    Normal coordinates b of the bias.
scale : %(array)s of shape {scale}, or None
    {meaning}
raw_curvature : %(array)s, or None
    See :attr:`manifold`."""


_PER_CHANNEL = "(*channels, dim)", "(*channels,), or (*channels, blocks)"
_FOR_ALL = "(dim,)", "() or (blocks,)"

_SHARED = {
    # ---------------------------------------------------------------- formulas
    "centred": r""".. math:: \tilde x_i = \beta \oplus \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot
          (\ominus\mu \oplus x_i)\Bigr)""",
    "algorithm": r"""%(centred)s

In training :math:`\mu` and :math:`v^2` are the Fréchet mean and variance of the batch; in
evaluation they are the running ones. The bias is :math:`\beta = \operatorname{Exp}_e(b)` with an
unconstrained parameter b of ``manifold.dim`` numbers per channel, so any optimizer works.""",
    "sets": r"""%(centred)s

with the Fréchet mean :math:`\mu` and variance :math:`v^2` of the set that :math:`x_i`
belongs to. Every set of the output has the mean :math:`\beta = \operatorname{Exp}_e(b)` and the
variance :math:`s^2 v^2/(v^2 + \epsilon)`. A set of a single point moves to :math:`\beta`.""",
    # ---------------------------------------------------------------- options
    "manifold": """manifold
    The geometry of the points. Its parameters must be plain numbers.""",
    "alone": """Training and evaluation are the same, without running statistics: a set never needs
the rest of the batch.

Parameters
----------
%(manifold)s""",
    "variance": """%(eps)s
    Added to the variance.
%(affine)s
    Whether bias and scale are learnt, one of each""",
    "points": """%(manifold)s
channels
    Shape of the channels, which are normalized separately: the input has shape ``(batch,
    *channels, *point_shape)``.""",
    "search": """mean_gradient
    ``"implicit"`` for the exact derivative of the mean, ``"detach"`` to hold it constant.
steps
    Number of Newton steps for the mean; until convergence by default. With 0 the mean is the
    centroid, in one pass over the batch; :func:`gyrobn.frechet` has a bound of its error.""",
    "factor": r"""learn_curvature
    Whether the curvature is a parameter. It keeps its sign; on ``Stereographic`` it is free.
clamp
    Largest size of the factor :math:`s/\sqrt{v^2+\epsilon}`, if any.""",
    "tolerance": """tol, max_iter
    As in :func:`gyrobn.frechet`.""",
    "check": """check_input
    True to check every batch, in training and evaluation, for samples that are not on the
    manifold, and raise ValueError; ``"first"`` to check the first batch only, False for none.""",
    "check_mean": """%(check)s The first
    batch is also checked for a second mean, with a warning, unless it is False.""",
    "hidden": """In compiled and vectorized functions
    (``torch.compile``, ``jit``, ``vmap``) no error can be raised: with True, the output of a sample
    that is not on the manifold is NaN, and the others do not depend on it.
    %(overrule)s""",
    "options": """axis
    The batch axis, or axes; the other leading axes are the channels.
%(search)s
%(factor)s
%(tolerance)s
%(check_mean)s %(hidden)s""",
    "set_options": """%(search)s
%(factor)s
%(tolerance)s
%(check_mean)s %(hidden)s
%(set_dtype)s""",
    # ---------------------------------------------------------------- attributes
    "attributes": _attributes(*_PER_CHANNEL, "Standard deviation s of the output."),
    "instance_attributes": _attributes(*_PER_CHANNEL),
    "layer_attributes": _attributes(*_FOR_ALL),
    "group_attributes": _attributes("(groups, dim)", "(groups,), or (groups, blocks)"),
    "rms_attributes": _attributes(*_FOR_ALL, "Root mean square distance s of a set from the bias."),
    # ---------------------------------------------------------------- layers of sets
    "layer_norm": """%(sets)s

%(alone)s
axis
    The axis of a set, or axes, among those in front of a point; negative ones count from the
    point. By default all but the first: one set per sample. On ``(batch, tokens, heads,
    *point_shape)``, ``axis=-1`` normalizes the heads of each token.
%(variance)s for all sets.
%(set_options)s

%(layer_attributes)s""",
    "instance_norm": r"""%(sets)s

By default training and evaluation are the same, and a set never needs the rest of
the batch. With ``track_running_stats`` evaluation takes :math:`\mu` and :math:`v^2` from running
statistics, one of each per channel. In training each set still has its own. The running ones move
towards the average set of the batch, with the Fréchet mean of the means and the mean of the
variances, as in :func:`gyrobn.update_stats`. Sets without weight do not count. If a batch lies on
several processes or devices, each learns from its own samples.

Parameters
----------
%(manifold)s
channels
    Shape of the channels: the input has shape ``(batch, *channels, *positions,
    *point_shape)``, with at least one axis of positions.
%(variance)s per channel.""",
    "group_norm": """%(sets)s

%(alone)s
groups
    Number of groups of consecutive channels, of equal size.
channels
    Number of channels: the input has shape ``(batch, channels, *positions, *point_shape)``.
%(variance)s per group. (Group
    normalization of vectors has one per channel, but then the mean and variance of a group do not
    follow from its parameters.)
%(set_options)s

%(group_attributes)s""",
    "rms_norm": r""".. math:: \tilde x_i = \beta \oplus
          \Bigl(\frac{s}{\sqrt{v^2 + \epsilon}} \odot x_i\Bigr), \qquad
          v^2 = \sum_j w_j\, d^2(e, x_j)

with the mean over the set that :math:`x_i` belongs to. The points of a set keep their directions
from the identity and the ratios of their distances. In the output the mean square of the distances
from :math:`\beta = \operatorname{Exp}_e(b)` is :math:`s^2 v^2/(v^2 + \epsilon)`, per block. There
is no mean to search, so this is the fastest normalization, and the one for sets of a single point.

%(alone)s
axis
    The axis of a set, or axes, as in :class:`GyroLayerNorm`; by default one set per sample.
    ``axis=()`` scales every point by itself, to distance s.
%(eps)s
    Added to the mean square of the distances.
%(affine)s
    Whether bias and scale are learnt, one of each for all sets.
%(factor)s
%(check)s %(hidden)s
%(set_dtype)s

%(rms_attributes)s""",
    # ---------------------------------------------------------------- the rest
    "jax_tokens": """>>> import jax.numpy as jnp
>>> from gyrobn import PoincareBall
>>> M = PoincareBall(2)
>>> tokens = M.random(2, 4, rng=0, like=jnp.zeros((), jnp.float32))
>>> mask = jnp.asarray([[True] * 4, [True] * 3 + [False]])
>>> GyroLayerNorm(M)(tokens, weights=mask).shape
(2, 4, 2)""",
    "axis_name": """axis_name
    Name or names of the axes (of ``vmap``, ``pmap``, ``shard_map``) over which the batch is
    distributed. The statistics are those of the whole batch. Each evaluation of the mean is
    one ``psum`` of a few numbers per channel, and no samples are sent.""",
    "axis_index_groups": """axis_index_groups
    Groups of indices of that axis, as in Flax's ``nnx.BatchNorm``: the devices of each group
    share one batch. JAX supports them in ``pmap``, and in ``shard_map`` with
    ``check_vma=False``.""",
    "momentum": """momentum
    Fraction of the running statistics to keep at a new batch (one minus torch's ``momentum``).
    They start at the identity and one.""",
    "dtype": """The
    statistics are in float32 at least. The computation is in the wider dtype of the layer and the
    input, and in float32 at least; half precision in gives half precision out.""",
    "call": """Parameters
----------
x
    Points, shape ``(batch, *channels, *point_shape)``.
weights
    Weights of the samples in the statistics of the batch, as in :func:`gyrobn.frechet`.""",
    "set_call": """Parameters
----------
x
    Points, shape ``(batch, *channels, *positions, *point_shape)``.
weights
    Weights of the points in the statistics of their set, or a mask of booleans: an array of the
    shape of the points, ``(batch, *channels, *positions)``, in which axes may have length one. A
    point without weight is normalized with its set; padding that is no point, such as NaN, is
    returned as it came, and so is a set without weight.""",
    "bn": """Parameters
----------
bn
    The estimator, fitted without domains.
**options
    Other arguments of the layer; eps (or epsilon), tol and max_iter are the estimator's by
    default.""",
}
"""Paragraphs that the docstrings of several layers share."""
