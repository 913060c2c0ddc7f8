"""One adapter per peer library; what is fragile in a peer stays in its adapter."""
