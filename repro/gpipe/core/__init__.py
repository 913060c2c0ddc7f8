"""The engine: stages, micro-batches, losses, replicas."""
