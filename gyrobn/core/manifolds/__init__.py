"""The geometries."""
