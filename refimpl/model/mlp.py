"""MLP: two linear layers with an activation between them.

    x (..., I) --w1,b1--> a (..., H) --activation--> h (..., H) --w2,b2--> y (..., O)

    dx <--w1-- da <--activation'-- dh <--w2-- dy        backward_input: the chain that the layer below waits for
               da, x give dw1      dy, h give dw2       backward_weight: each needs only what is left on its own layer

A gated MLP (Llama's: "swiglu", without biases) has two first matrices, fused into one product, and then a is 2 H wide:

    w1 (I, 2, H)    w1[:, 0] makes the gates, w1[:, 1] what they let through       a = [g0 .. g(H-1) | u0 .. u(H-1)]

so a cut along the last axis of w1 gives a rank the gates that belong to its ups. A plain cut of the 2 H columns in two
would give one rank all the gates and the other none.

Parameters and their gradients are dicts with the keys w1 (I, H) or (I, 2, H), b1 (H,) or (2, H), w2 (H, O), b2 (O,);
biases may be missing. Forward costs 2 T H (I + O) FLOPs, gated 2 T H (2 I + O), and each half of backward as much; T is
the product of the leading axes. Kept: x, a and h, in bytes of float16 2 T (I + 2 H), gated 2 T (I + 3 H).
"""

import difflib
import math

from refimpl.arrays import array_namespace
from refimpl.model import activations, layers

ACTIVATIONS = {
    "gelu": (activations.gelu, activations.gelu_backward),
    "relu": (activations.relu, activations.relu_backward),
    "swiglu": (activations.swiglu, activations.swiglu_backward),
}


def init(rng, inputs, hidden, outputs=None, dtype="float64", bias=True, activation="gelu"):
    """Fresh parameters, host arrays: normal weights of variance 1/(rows of w), so that y is about as large as x; b = 0.

    rng      numpy.random.Generator; the same one gives the same parameters on every rank and every library
    inputs, hidden, outputs      I, H, O (O = I unless given)
    ->       dict w1 (I, H), or (I, 2, H) for "swiglu", w2 (H, O), and with bias b1 (H,) or (2, H), b2 (O,)
    """
    outputs = inputs if outputs is None else outputs
    activation_pair(activation)
    for name, size in {"inputs": inputs, "hidden": hidden, "outputs": outputs}.items():
        if size < 1:
            raise ValueError(f"{name}={size}: expected 1 or more features; nearest 1")
    shapes = [(inputs, 2, hidden) if activation == "swiglu" else (inputs, hidden), (hidden, outputs)]
    parameters = {}
    for k, shape in enumerate(shapes, start=1):
        w = rng.standard_normal(shape) / math.sqrt(shape[0])
        parameters[f"w{k}"] = w.astype(dtype)
        if bias:
            parameters[f"b{k}"] = array_namespace(w).zeros(shape[1:], dtype)
    return parameters


def activation_pair(name):
    """(forward, backward) of the activation "gelu", "relu" or "swiglu"; ValueError for any other name."""
    if name not in ACTIVATIONS:
        nearest = difflib.get_close_matches(str(name), ACTIVATIONS, n=1, cutoff=0.0)[0]
        known = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"activation={name!r}: expected one of {known}; nearest {nearest!r}")
    return ACTIVATIONS[name]


def check_names(parameters):
    """ValueError unless both weights are among the parameters."""
    for name in ("w1", "w2"):
        if name not in parameters:
            raise ValueError(f"{name} is missing; expected w1 and w2, and b1 and b2 where there are biases, not "
                             f"{', '.join(parameters) or 'nothing'}")


def forward(x, parameters, activation="gelu"):
    """y = activation(x w1 + b1) w2 + b2.

    x (..., I)    activation "gelu", "relu" or "swiglu"    ->  y (..., O), saved
    Raises ValueError for an unknown activation, a missing weight or shapes that do not fit.
    """
    check_names(parameters)
    function, function_backward = activation_pair(activation)
    a, saved1 = layers.linear(x, parameters["w1"], parameters.get("b1"))
    h, saved_activation = function(a)
    y, saved2 = layers.linear(h, parameters["w2"], parameters.get("b2"))
    return y, (saved1, function_backward, saved_activation, saved2)


def backward_input(dy, saved):
    """The urgent half: dy (..., O)  ->  dx (..., I), pending"""
    saved1, function_backward, saved_activation, saved2 = saved
    dh, pending2 = layers.linear_backward_input(dy, saved2)
    da = function_backward(dh, saved_activation)
    dx, pending1 = layers.linear_backward_input(da, saved1)
    return dx, (pending1, pending2)


def backward_weight(pending):
    """The half that can wait: pending  ->  gradients, a dict with the keys and shapes of the parameters"""
    gradients = {}
    for k, half in enumerate(pending, start=1):
        dw, db = layers.linear_backward_weight(half)
        gradients |= {f"w{k}": dw} if db is None else {f"w{k}": dw, f"b{k}": db}
    return gradients


def backward(dy, saved):
    """Both halves at once: dy (..., O)  ->  dx (..., I), gradients"""
    dx, pending = backward_input(dy, saved)
    return dx, backward_weight(pending)
