"""Messages across stage boundaries, and their transports."""
