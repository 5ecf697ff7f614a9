"""A pipeline stage: some layers of the model on one rank, with every other dimension inside. Composed, not rewritten.

    stage 0     embed, layers                        tokens (b, s_c)  ->  x (b, s_c, h), sequence-parallel (b, s_ct, h)
    others      layers                               x                ->  x
    the last    layers, head                         x                ->  logits (b, s_c, V_r)

    tp, sp      in embed, layers and head                parallel/transformer.py, block.py
    cp          in attention's core, positions           Place, parallel/context.py
    ep          in the MLP of a layer                    parallel/expert.py
    dp, zero    where weights come from and gradients go weights.py

The parts of a model have names, as their parameters do: "embedding", "blocks.0", "blocks.1", ..., "head". Each borrows
its weights, forward and backward, and hands over its gradients itself as soon as it has them, so nothing is left for
the pipeline's runner to add up. Letters: b micro-batch, s_c a cp rank's positions, s_ct those of a tp rank among them.
"""

from refimpl.model.config import is_bias, of_block
from refimpl.parallel import block, transformer
from refimpl.parallel.expert_groups import is_expert


def parts_of(setup, stage):
    """The names of a stage's parts, in the order in which forward goes through them."""
    first = ["embedding"] if stage == 0 else []
    last = ["head"] if stage == len(setup.layers) - 1 else []
    return [*first, *(f"blocks.{layer}" for layer in setup.layers[stage]), *last]


class Stage:
    """The three functions that a schedule calls, for stage number `stage` of a `Setup`.

    mesh         the rank's communicators
    weights      `Weights`, to borrow from, and to hand gradients over to
    place_of     place_of(k): the `Place` of micro-batch k in this step
    buffers      dict by name of what the model keeps that no optimizer touches (model/moe.py)
    watch        watch(part, what, array) sees what a part computes: "output", "input gradient", "gradient of NAME"
    scale        set before each step: what the total loss is multiplied by, for experts' auxiliary losses

    kept         what is kept for backward at present, by micro-batch
    look         look(), called after each part's work, if it is not None
    routed       what became of the tokens in layers with experts, in this step: [(part, moe.Routed)]
    """

    def __init__(self, setup, stage, mesh, weights, place_of, buffers=(), watch=None):
        self.setup, self.mesh, self.weights, self.place_of = setup, mesh, weights, place_of
        self.buffers, self.watch = dict(buffers), watch
        self.parts = parts_of(setup, stage)
        self.kept, self.routed, self.scale, self.look = {}, [], 1.0, None

    def forward(self, x, k):
        """tokens or x, and the number of the micro-batch  ->  x or logits, saved"""
        saved = self.kept[k] = []
        for part, following in zip(self.parts, [*self.parts[1:], None]):
            with self.weights.lent(part, prefetch=following) as parameters, self.mesh.comm.phase("forward"):
                work = flops(part, parameters, self.setup, x.shape[0])
                x, kept = self._forward(part, x, parameters, self.place_of(k))
                self._did(part, {"output": x}, work["matrices"] + work["core"])
                saved.append((self.weights.put_away(kept), work))
        return x, (k, saved)

    def backward_input(self, dy, saved):
        """dy as the stage's output  ->  dx as its input (None before the embedding), pending"""
        k, saved = saved
        pending = []
        for part, (kept, work), following in zip(reversed(self.parts), reversed(saved),
                                                 [*reversed(self.parts[:-1]), None]):
            with self.weights.lent(part, prefetch=following), self.mesh.comm.phase("backward"):
                dy, half = self._backward_input(part, dy, self.weights.fetched(kept))
                self._did(part, {} if dy is None else {"input gradient": dy},
                          work["matrices"] + 2 * work["core"] + work["again"])
                pending.append((part, self.weights.put_away(half), work))
        self.kept[k] = pending
        return dy, (k, pending)

    def backward_weight(self, pending):
        """pending  ->  nothing that is left to add up: the gradients are handed over, part by part"""
        k, pending = pending
        with self.mesh.comm.phase("backward"):
            for part, half, work in pending:
                gradients = self._backward_weight(part, half)
                self._did(part, {f"gradient of {name}": g for name, g in gradients.items()}, work["matrices"])
                self.weights.hand_over(part, gradients)
        del self.kept[k]
        return {}

    # One part

    def _forward(self, part, x, parameters, place):
        setup, tp = self.setup, self.mesh.tp
        if part == "embedding":
            return transformer.embed(x, parameters, setup.config, tp, place, setup.sequence_parallel)
        if part == "head":
            return transformer.head(x, parameters, setup.config, tp, setup.sequence_parallel)
        layer = int(part.partition(".")[2])
        mine = of_block(parameters | self.buffers, layer)
        x, saved = block.forward(x, mine, setup.config, tp, layer, place, setup.sequence_parallel)
        if setup.config.experts:
            self.routed.append((part, block.routed(saved)))
        return x, saved

    def _backward_input(self, part, dy, saved):
        if part == "embedding":                          # nothing below waits for it, so it is all done here
            return None, transformer.embed_backward(dy, saved)
        if part == "head":
            return transformer.head_backward_input(dy, saved)
        return block.backward_input(dy, saved, self.scale)

    def _backward_weight(self, part, pending):
        if part == "embedding":
            return pending
        if part == "head":
            return transformer.head_backward_weight(pending)
        return {f"{part}.{name}": gradient for name, gradient in block.backward_weight(pending).items()}

    def _did(self, part, computed, work):
        """Let time pass on the virtual clock, and whoever watches look at what was computed: {what: array}."""
        self.mesh.comm.compute(work, "matmul")
        if self.watch is not None:
            for what, x in computed.items():
                self.watch(part, what, x)
        if self.look is not None:
            self.look()


def flops(part, parameters, setup, b):
    """Floating-point operations of a part's forward, for b sequences: {"matrices", "core", "again"}.

    matrices    products with the rank's own weights; backward needs as many for its input, and as many for its weights
    core        attention's scores and mixing, all pairs; backward twice as many. With cp its operators declare them
    again       what backward computes once more (recomputation)
    Of experts a rank computes what it was sent: as much as all tokens choose, evenly spread, is declared.
    """
    config, layout, tokens = setup.config, setup.layout, b * len(setup.positions(0))
    size = 0
    for name, p in parameters.items():
        if part != "embedding" and not is_bias(name) and "norm" not in name:
            size += p.size * config.top_k * layout.ep / config.experts if is_expert(name) else p.size
    core = 0
    if part.startswith("blocks") and layout.cp == 1:
        core = 4 * tokens * setup.sequence * parameters[f"{part}.attention.wo"].shape[0]
    matrices = 2 * tokens * size
    again = {"none": 0, "selective": core, "full": matrices + core}[config.recompute] if part != "head" else 0
    return {"matrices": matrices, "core": core, "again": again}
