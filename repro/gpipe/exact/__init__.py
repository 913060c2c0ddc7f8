"""What makes bits equal for every K, and a refused step leave nothing behind."""
