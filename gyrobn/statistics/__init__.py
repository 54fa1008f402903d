"""The Fréchet mean and variance, of samples in memory, in chunks or on several ranks."""
