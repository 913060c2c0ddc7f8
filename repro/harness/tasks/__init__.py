"""What is done for a run: train, fit, calibrate, simulate, check."""
