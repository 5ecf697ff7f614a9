"""A stage: some layers of the model, as the three functions that a schedule calls.

    y, saved    = forward(x)                    saved: what backward will want again
    dx, pending = backward_input(dy, saved)     now: the stage before waits for dx
    gradients   = backward_weight(pending)      later: {name: array}, of this micro-batch alone

    x --[ layer ]--[ layer ]--> y
    dx <------------------------ dy             each layer leaves its own half of the weight gradient behind

Any object with these three will do for the runner. `Layers` makes one of layers that have the same three functions.
A stage must not change an array that it was given or has returned: it may still be on its way to another rank.
"""


class Layers:
    """A stage made of layers, one after the other.

    layers    [(name, module, parameters)]: module.forward(x, parameters), module.backward_input(dy, saved) and
              module.backward_weight(pending) -> {key: array}, as in `refimpl.model.mlp`
    Its gradients are called name.key.
    """

    def __init__(self, layers):
        self.layers = list(layers)

    def forward(self, x):
        """x  ->  y, saved: one entry a layer"""
        saved = []
        for _, module, parameters in self.layers:
            x, kept = module.forward(x, parameters)
            saved.append(kept)
        return x, saved

    def backward_input(self, dy, saved):
        """dy, saved  ->  dx, pending: one entry a layer, last layer first"""
        pending = []
        for (name, module, _), kept in zip(reversed(self.layers), reversed(saved)):
            dy, half = module.backward_input(dy, kept)
            pending.append((name, module, half))
        return dy, pending

    def backward_weight(self, pending):
        """pending  ->  {name.key: gradient}"""
        return {f"{name}.{key}": gradient for name, module, half in pending
                for key, gradient in module.backward_weight(half).items()}
