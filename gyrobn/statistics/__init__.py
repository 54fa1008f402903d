"""Fréchet mean and variance: the loop, its samples, and whether the mean is unique."""
