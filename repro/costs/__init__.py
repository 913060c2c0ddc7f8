"""Costs of a model before it runs: bytes, FLOPs and parameters, counted on fake tensors."""
