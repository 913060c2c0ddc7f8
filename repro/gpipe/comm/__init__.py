"""What crosses stage boundaries, and how."""
