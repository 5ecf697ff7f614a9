"""An MLP whose hidden features are cut over the ranks, inside the brackets of block.py: w1 by columns, w2 by rows.

    x --f--> column-parallel w1 --> activation --> row-parallel w2 --g--> y        f, g: tensor.py's, or sequence.py's

The MLP of a layer, and the shared experts of a mixture. Sends what its f and g send. Mirrors model/mlp.py.
"""

from refimpl.model import mlp


def forward(x, parameters, comm, linear, activation):
    """y = activation(x w1 + b1) w2 + b2.

    x (b, s, h), the same on every rank    parameters: the rank's own, from tensor.shard_mlp; biases may be missing
    linear       tensor, or sequence: then x is (b, s_r, h), and so is y    activation: its name, see model/mlp.py
    ->           y as x, saved
    """
    function, function_backward = mlp.activation_pair(activation)
    a, saved1 = linear.column_parallel(x, parameters["w1"], parameters.get("b1"), comm)
    a, saved_activation = function(a)
    y, saved2 = linear.row_parallel(a, parameters["w2"], parameters.get("b2"), comm)
    return y, (saved1, function_backward, saved_activation, saved2, linear)


def backward_input(dy, saved):
    """The urgent half: dy as y  ->  dx as x, pending: for mlp.backward_weight, which sends nothing"""
    saved1, function_backward, saved_activation, saved2, linear = saved
    da, pending2 = linear.row_parallel_backward_input(dy, saved2)
    da = function_backward(da, saved_activation)
    dx, pending1 = linear.column_parallel_backward_input(da, saved1)
    return dx, (pending1, pending2)
