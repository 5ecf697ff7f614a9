"""A stand-in for PyTorch, as far as a tensor that speaks DLPack goes: for machines that have none."""

import sys

import numpy as np


class Tensor:
    """A few operators, and the words that NumPy and PyTorch do not share."""

    def __init__(self, values, requires_grad=False):
        self.values, self.requires_grad = values, requires_grad

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: f"torch.{self.values.dtype}")
    T = property(lambda self: Tensor(self.values.T, self.requires_grad))
    device = "cpu"

    def __matmul__(self, other):
        return Tensor(self.values @ other.values, self.requires_grad or other.requires_grad)

    def detach(self):
        return Tensor(self.values)

    def requires_grad_(self):
        self.requires_grad = True
        return self

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return self.values

    def __array__(self, *args, **keywords):
        raise TypeError("by way of DLPack, please")

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.values.__dlpack__(**options)


def from_dlpack(x):
    """A tensor that shares the memory of x."""
    return Tensor(np.from_dlpack(x))


sys.modules.setdefault("fake_torch", sys.modules[__name__])
Tensor.__module__ = "fake_torch"
