"""Training: the operators put together, on one device and on many ranks."""
