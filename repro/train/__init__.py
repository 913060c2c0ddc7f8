"""What the experiments train with: recipes, the training loop, losses, evaluation, decoding."""
