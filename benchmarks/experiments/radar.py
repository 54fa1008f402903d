r"""Simulated radar echoes of three kinds of drones, in place of the Radar data of the paper.

Those are 3,000 simulated echoes of three classes, too. Here an echo is that of a body, which moves
with a random speed, and of the blades of rotors, whose phases oscillate:

.. math:: z_t = e^{i(\nu t + \phi)} + \sum_j a\, e^{i(h \sin(\omega t + \theta_j) + \psi_j)}
          + \text{noise}

The classes differ in the rate ω, the depth h and the number of blades; within a class all of them
vary, so that the classes overlap.
"""

import numpy as np
from numpy.typing import NDArray

from gyrobn import covariance_to_correlation

COUNT, SECTIONS, LENGTH, SIZE = 3000, 7, 100, 20
"""Number of echoes, sections of an echo, samples in a section, and rows of a matrix."""
BLADES, RATES, DEPTHS = (4, 6, 8), (0.1, 0.2, 0.3), (2.0, 3.0, 4.0)
VARIATION, NOISE = 0.1, 1.0
"""Relative standard deviation of rates and depths within a class, and the size of the noise."""


def echoes(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.complex128]:
    """Return echoes of the classes y, shape (N, time)."""
    count, t = len(y), np.arange(SECTIONS * LENGTH)

    def around(values: tuple[float, ...]) -> NDArray[np.float64]:
        varied = np.asarray(values)[y] * np.exp(VARIATION * rng.standard_normal(count))
        return np.asarray(varied[:, None])

    rate, depth = around(RATES), around(DEPTHS)
    phases = 2 * np.pi * rng.random((2, max(BLADES) + 1, count, 1))
    z = np.exp(1j * (0.3 * rng.standard_normal((count, 1)) * t + phases[1, -1]))
    for j in range(max(BLADES)):
        blade = np.exp(1j * (depth * np.sin(rate * t + phases[0, j]) + phases[1, j]))
        z += 0.5 * (j < np.asarray(BLADES)[y])[:, None] * blade
    noise = rng.standard_normal((2, *z.shape))
    return np.asarray(z + NOISE * (noise[0] + 1j * noise[1]))


def correlations(seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return correlation matrices (N, sections, size, size) of samples that follow each other."""
    rng = np.random.default_rng(seed)
    y = np.arange(COUNT) % len(RATES)
    z = echoes(y, rng).reshape(COUNT, SECTIONS, LENGTH)
    rows = np.lib.stride_tricks.sliding_window_view(z, SIZE, axis=-1)
    S = np.stack([(np.swapaxes(echo, -1, -2).conj() @ echo).real for echo in rows])
    return np.asarray(covariance_to_correlation(S)), y
