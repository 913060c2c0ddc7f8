"""Safe input and output; pure Python, so that every other part of the project may use it."""
