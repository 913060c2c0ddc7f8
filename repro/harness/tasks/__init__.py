"""What is done for a run: train, fit, calibrate, roofline, simulate, emulate, check."""
