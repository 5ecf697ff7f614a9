"""Finite differences: the gradient without calculus, to check the one with it.

    df/dx  ~  (f(x + h) - f(x - h)) / 2h            for one element of x at a time, the others held

Two errors pull at h: truncation h^2 f'''/6 and rounding eps |f| / h. Their sum is least near h = eps^(1/3), 6e-6 in
float64, and then about eps^(2/3) = 4e-11 of f: ten good digits, where a wrong formula has none. In float32 only four
would be left, so checks run in float64. (Press et al., Numerical Recipes, section 5.7.) Costs two calls per element.
"""

import numpy as np

from refimpl.arrays import to_host

STEP = np.finfo(np.float64).eps ** (1 / 3)


def numerical_gradients(function, inputs):
    """Central differences of function(**inputs) with respect to every element of every input.

    function   returns a loss: a number, or an array ()
    inputs     dict of float64 arrays of any shapes, host or device; restored, bit for bit, when done
    ->         dict of host float64 arrays of the same shapes
    Raises ValueError if an input is not float64.
    """
    gradients = {}
    for name, x in inputs.items():
        if x.dtype != np.float64:
            raise ValueError(f"{name} is {x.dtype}; finite differences need float64: {name}.astype('float64')")
        gradients[name] = np.zeros(x.shape)
        for place in np.ndindex(*x.shape):
            value = float(to_host(x[place]))
            step = STEP * max(1.0, abs(value))
            above, below = value + step, value - step
            losses = []
            for moved in (above, below):
                x[place] = moved
                losses.append(_number(function(**inputs)))
            x[place] = value
            gradients[name][place] = (losses[0] - losses[1]) / (above - below)       # the step as rounded, not as meant
    return gradients


def check_gradients(function, inputs, gradients, tolerance=1e-8):
    """Raise AssertionError unless `gradients` are those of function(**inputs), in float64.

    gradients   dict: for some or all of the inputs, the array that a backward computed, host or device
    tolerance   on the norm of the difference, relative to the norm of the numerical gradient; a gradient that is truly
                zero is measured against a thousandth of all of them together
    """
    expected = numerical_gradients(function, inputs)
    every = np.sqrt(sum(np.sum(expected[name] ** 2) for name in gradients))
    for name, gradient in gradients.items():
        got, want = to_host(gradient), expected[name]
        if got.shape != want.shape:
            raise AssertionError(f"gradient of {name} has shape {got.shape}; {name} has {want.shape}")
        error = np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-3 * every, np.finfo(np.float64).tiny)
        if not error <= tolerance:                                                   # NaN fails too
            place = np.unravel_index(np.argmax(np.nan_to_num(abs(got - want), nan=np.inf)), got.shape)
            raise AssertionError(
                f"gradient of {name} is off by {error:.1e} of its norm (tolerance {tolerance:.0e}); worst at "
                f"{tuple(map(int, place))}: {got[place]:.9g}, finite differences give {want[place]:.9g}")


def _number(loss):
    return float(loss if isinstance(loss, float | int) else to_host(loss))
