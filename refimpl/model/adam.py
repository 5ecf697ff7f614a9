"""Adam: every number has a step size of its own, its mean gradient over the root of its mean squared gradient.

    m <- beta1 m + (1 - beta1) g              mean of the last 1 / (1 - beta1) gradients
    v <- beta2 v + (1 - beta2) g^2            the same of their squares
    m' = m / (1 - beta1^t)                    both start at 0; divided so that their mean is right from step t = 1 on
    v' = v / (1 - beta2^t)
    w <- w (1 - rate decay) - rate m' / (sqrt(v') + epsilon)

(Kingma & Ba 2015, algorithm 1. Weight decay acts on w itself and does not pass through m and v: AdamW, Loshchilov &
Hutter 2019.) Nothing here looks at a neighbour: the update of a part is the part of the update, to the last bit. ZeRO
rests on that: a rank may hold m, v and w of any piece, flat or not.

m and v are two numbers for each parameter, in float32 or wider; of w the float32 master copy is updated, where the
model computes with 2 bytes (precision.py). So Adam holds 12 bytes a parameter in mixed precision. (Rajbhandari et al.
2020, section 3.1.)
"""

from dataclasses import dataclass
from typing import NamedTuple

from refimpl.arrays import array_namespace
from refimpl.model.config import is_bias
from refimpl.precision import wide


@dataclass(frozen=True)
class Adam:
    """The settings. ValueError for one that is out of range."""

    rate: float = 1e-3                 # the step size: how far a number moves at most, about, in one step
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    decay: float = 0.0                 # of weights, decoupled from the gradient

    def __post_init__(self):
        for name in ("rate", "decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)}: expected a finite number, 0 or more; nearest 0")
        for name, usual in (("beta1", 0.9), ("beta2", 0.999)):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 0 and less than 1; "
                                 f"nearest {0 if getattr(self, name) < 0 else usual}")
        if not 0 < self.epsilon < float("inf"):
            raise ValueError(f"epsilon={self.epsilon}: expected a finite number above 0, or 0/0 is the step of a "
                             "parameter that has had no gradient yet; nearest 1e-8")


class Moments(NamedTuple):
    """Adam's memory of one parameter: two arrays of its shape, which `update` changes in place."""

    m: object                          # mean gradient
    v: object                          # mean squared gradient


def moments(parameter):
    """Fresh ones, zeros: parameter (...) of any float dtype, uint16 too  ->  m and v (...), float32 or wider."""
    xp = array_namespace(parameter)
    dtype = xp.float32 if parameter.dtype.itemsize == 2 else parameter.dtype
    return Moments(xp.zeros(parameter.shape, dtype), xp.zeros(parameter.shape, dtype))


def update(parameter, gradient, moments, step, adam, decay=True):
    """One step, in place: parameter, m and v change.

    parameter (...) float32 or float64, the master copy    gradient (...), float16 and bfloat16 are widened
    moments    of shape (...), from `moments`               step       1, 2, ...: how often it is updated, with this
    adam       Adam, the settings                           decay      whether weight decay applies, see `decays`
    Raises ValueError, before anything changes, for shapes that differ, a step before 1, a parameter of 2 bytes or of
    integers.
    """
    _check(parameter, gradient, moments, step)
    xp = array_namespace(parameter, gradient, *moments)
    g, (m, v) = wide(gradient), moments
    m *= adam.beta1
    m += (1 - adam.beta1) * g
    v *= adam.beta2
    v += (1 - adam.beta2) * g * g
    mean, spread = m / (1 - adam.beta1**step), xp.sqrt(v / (1 - adam.beta2**step))
    if decay:
        parameter *= 1 - adam.rate * adam.decay
    parameter -= adam.rate * (mean / (spread + adam.epsilon))


def decays(name):
    """Whether weight decay applies to the parameter of this name: to matrices and tables, not to norms and biases."""
    return not (is_bias(name) or "norm" in name)


def _check(parameter, gradient, moments, step):
    shapes = {"gradient": gradient.shape, "m": moments.m.shape, "v": moments.v.shape}
    for name, shape in shapes.items():
        if shape != parameter.shape:
            raise ValueError(f"{name} has shape {shape}, its parameter {parameter.shape}: expected the same")
    if step < 1:
        raise ValueError(f"step={step}: Adam counts its steps from 1, since it divides by 1 - beta^step; nearest 1")
    if parameter.dtype.itemsize >= 4 and parameter.dtype.kind != "f":
        raise ValueError(f"the parameter has dtype {parameter.dtype}: expected float32 or float64")
    if parameter.dtype.itemsize < 4:
        raise ValueError(f"the parameter has dtype {parameter.dtype}: a step is often smaller than its last bit, so "
                         "update a float32 master copy instead, and store it with narrow(master, dtype)")
