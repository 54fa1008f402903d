"""Arrays, and functions of numbers and matrices: what the mathematics is written with."""
