"""Algorithm 1, domains, the paper's baselines, and the call that every layer makes."""
