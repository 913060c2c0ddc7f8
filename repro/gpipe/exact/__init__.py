"""Guards: equal bits for every K, and no trace of a refused step."""
