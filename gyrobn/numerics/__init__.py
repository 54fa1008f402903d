"""Sums, scalar functions and matrix functions on the Array API, with derivatives."""
