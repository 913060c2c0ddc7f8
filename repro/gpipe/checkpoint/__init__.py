"""Saving and loading weights and optimizer state for any K."""
