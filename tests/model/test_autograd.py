"""A second opinion: the same models, written again with PyTorch's own layers, and differentiated by its autograd.

    python3 start.py test --all -m torch
"""

import numpy as np
import pytest
from drawing import draw, draw_integers, relative

from refimpl.model import transformer as T
from refimpl.model.dropout import ATTENTION, EMBEDDING, MLP, PROJECTION, keep_mask

pytestmark = pytest.mark.torch

B, S, V = 2, 7, 13
CONFIGS = {
    "gpt2": T.Config("gpt2", V, 24, 2, 4, context=9),
    "gpt2 with dropout": T.Config("gpt2", V, 24, 2, 4, context=9, dropout=0.3),
    "gpt2 grouped, blockwise": T.Config("gpt2", V, 24, 2, 4, kv_heads=2, context=9, attention="blockwise"),
    "llama": T.Config("llama", V, 24, 2, 4),
    "llama grouped, full recomputation": T.Config("llama", V, 24, 2, 4, kv_heads=2, ffn=10, recompute="full"),
    "llama one key head": T.Config("llama", V, 24, 2, 6, kv_heads=1),
}


class Model:
    """One of the two families, from torch.nn.functional alone. Parameters by our names, q k v gathered from wqkv."""

    def __init__(self, config, parameters, place):
        import torch
        self.torch, self.F, self.c, self.place = torch, torch.nn.functional, config, place
        self.p = {name: torch.tensor(p, requires_grad=True) for name, p in parameters.items()}

    def dropped(self, x, layer, site, *indices):
        if not self.c.dropout:
            return x
        mask = keep_mask(self.c.dropout, self.place.key(layer, site), indices, np.zeros(1))
        return x * self.torch.tensor(mask) / (1 - self.c.dropout)

    def norm(self, x, name):
        shape = (self.c.hidden,)
        if self.c.family == "gpt2":
            return self.F.layer_norm(x, shape, self.p[name + ".w"], self.p[name + ".b"], self.c.epsilon)
        return self.F.rms_norm(x, shape, self.p[name + ".w"], self.c.epsilon)

    def turned(self, x):
        """Complex numbers: pair i of d/2 times exp(i position base^(-2 i / d)).  x (b, heads, s, d)"""
        half = self.c.head // 2
        angle = self.torch.outer(self.torch.arange(S, dtype=self.torch.float64),
                                 self.c.rope_base ** (-self.torch.arange(half, dtype=self.torch.float64) / half))
        z = self.torch.complex(x[..., :half], x[..., half:]) * self.torch.polar(self.torch.ones_like(angle), angle)
        return self.torch.cat([z.real, z.imag], -1)

    def attention(self, x, layer):
        c, name = self.c, f"blocks.{layer}.attention."
        qkv = self.torch.einsum("bsh,hnpd->bnpsd", x, self.p[name + "wqkv"])
        if c.family == "gpt2":
            qkv = qkv + self.p[name + "bqkv"][:, :, None]
        q = qkv[:, :, :c.group].reshape(B, c.heads, S, c.head)
        k, v = (qkv[:, :, c.group + i].repeat_interleave(c.group, dim=1) for i in range(2))
        if c.family == "llama":
            q, k = self.turned(q), self.turned(k)
        if c.dropout:
            scores = q @ k.transpose(-1, -2) / c.head**0.5
            scores = scores.masked_fill(~self.torch.tril(self.torch.ones(S, S, dtype=bool)), -self.torch.inf)
            out = self.dropped(scores.softmax(-1), layer, ATTENTION, range(B), range(c.heads), range(S), range(S)) @ v
        else:
            out = self.F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(B, S, c.hidden) @ self.p[name + "wo"]
        return out + self.p[name + "bo"] if c.family == "gpt2" else out

    def mlp(self, x, layer):
        p = {name: self.p.get(f"blocks.{layer}.mlp.{name}") for name in ("w1", "b1", "w2", "b2")}
        if self.c.family == "gpt2":
            return self.F.gelu(x @ p["w1"] + p["b1"], approximate="tanh") @ p["w2"] + p["b2"]
        return self.F.silu(x @ p["w1"][:, 0]) * (x @ p["w1"][:, 1]) @ p["w2"]

    def loss(self, tokens, targets, smoothing):
        axes = range(B), range(S), range(self.c.hidden)
        x = self.F.embedding(self.torch.tensor(tokens), self.p["embedding.tokens"])
        if self.c.family == "gpt2":
            x = self.dropped(x + self.p["embedding.positions"][:S], 0, EMBEDDING, *axes)
        for layer in range(self.c.layers):
            x = x + self.dropped(self.attention(self.norm(x, f"blocks.{layer}.norm1"), layer), layer, PROJECTION, *axes)
            x = x + self.dropped(self.mlp(self.norm(x, f"blocks.{layer}.norm2"), layer), layer, MLP, *axes)
        table = self.p["embedding.tokens" if self.c.family == "gpt2" else "head.tokens"]
        logits = self.norm(x, "norm") @ table.T
        return self.F.cross_entropy(logits.reshape(-1, V), self.torch.tensor(targets).reshape(-1), ignore_index=-1,
                                    label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_pytorch_finds_the_same_loss_and_gradients(config, smoothing):
    p = {name: draw(np, *shape, seed=i, scale=0.3) + ("norm" in name and name[-1] == "w")
         for i, (name, shape) in enumerate(T.shapes(config).items())}
    tokens, targets = draw_integers(np, B, S, below=V), draw_integers(np, B, S, below=V + 1, seed=1) - 1
    assert (targets == -1).any()
    place = T.whole(tokens, config, seed=4, step=9)
    total, count, saved = T.loss(tokens, targets, p, config, place, smoothing=smoothing)
    gradients = T.loss_backward(1 / count, saved)
    model = Model(config, p, place)
    loss = model.loss(tokens, targets, smoothing)
    loss.backward()
    assert abs(total / count - loss.item()) < 1e-13
    theirs = {name: x.grad.numpy() for name, x in model.p.items()}
    every = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in theirs.values()))
    for name, mine in gradients.items():
        assert np.linalg.norm(mine - theirs[name]) < 1e-12 * max(np.linalg.norm(theirs[name]), 1e-3 * every), name
    assert relative(mine, theirs[name]) < 1e-12
