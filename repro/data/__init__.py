"""Small real data that needs no network: digits as images, made-up sentences as text."""
