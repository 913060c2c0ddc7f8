"""Training of models to an accuracy: recipes, the training loop, checkpoints, losses, decoding."""
