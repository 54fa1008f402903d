"""Layer, instance, group and root mean square normalization: the core of GyroBN on other axes.

A set is some of the points of one sample: all of them (layer), those of one channel (instance), or
those of a group of channels (group). Each set has its own mean and variance, and no set depends on
the rest of the batch. Bias and scale are one per channel or group, and the same for all points of a
set: only then is the mean of the set the bias, and its variance the square of the scale.

Training and evaluation are the same, unless an instance normalization keeps running statistics:
those of the average set of a channel, with which it normalizes in evaluation.

:func:`gyrobn.normalization.layers.forward` with ``SetSettings`` computes all of this;
``forward_sets`` is another name for it.
"""

from gyrobn.normalization.layers import forward as forward_sets

__all__ = ["forward_sets"]
