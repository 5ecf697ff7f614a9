"""Is the library on the GPU what it is on the host? The checks behind `python -m refimpl gpu-check`."""
