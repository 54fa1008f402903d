"""The paper's experiments on this library: one module per table, one file of results each."""
