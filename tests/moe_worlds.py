"""Mixtures of experts on ranks, for the tests of expert parallelism: who has which tokens, and the whole again."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from backends import device_array
from tp_models import on_device, on_host

from refimpl import Layout, Mesh
from refimpl.collectives import bounds
from refimpl.cost import moe as cost
from refimpl.model import moe
from refimpl.model.config import Config, expert_shapes
from refimpl.parallel import expert, expert_groups, sequence, shards
from refimpl.testing import REPLICATED, compare

BASE = Config("llama", vocabulary=11, hidden=12, layers=2, heads=6, ffn=7, experts=5, top_k=2, expert_ffn=5)
B, S, SCALE = 3, 8, 0.37                                 # sequences, positions (4 chunks for zigzag), loss scale

LIMITS = {"dropless": {}, "position": {"capacity_factor": 0.75},
          "probability": {"capacity_factor": 1, "drop": "probability"}}
LOSSES = {"no loss": {}, "auxiliary": {"balance": 0.3}, "bias": {"bias_rate": 0.1, "shared_experts": 1}}


def mixture(kind, limit, loss, **more):
    """A config with this router, limit and loss."""
    return replace(BASE, router=kind, **LIMITS[limit] | LOSSES[loss] | more)


def by_ranks(some):
    """The mark of a test that takes `ranks`."""
    return pytest.mark.parametrize("ranks", some, ids=str)


@dataclass(frozen=True)
class Ranks:
    """A layout, and whether it is sequence-parallel."""

    layout: Layout
    sequence_parallel: bool = False

    def __str__(self):
        sizes = {name: getattr(self.layout, name) for name in ("dp", "cp", "tp", "ep", "expert_tp")}
        return "-".join(f"{n}{k}" for n, k in sizes.items()) + ("-sp" if self.sequence_parallel else "")

    def sequences(self, rank, b=B):
        """Which of b sequences the rank has: a range, perhaps empty."""
        at, cut = self.layout.coordinates(rank)["dp"], bounds(b, self.layout.dp)
        return range(cut[at], cut[at + 1])

    def group_positions(self, rank, s=S):
        """Which of s positions the rank's tp group has, in zigzag over cp: a list."""
        at, cut = self.layout.coordinates(rank)["cp"], bounds(s, 2 * self.layout.cp)
        if self.layout.cp == 1:
            return list(range(s))
        return [p for chunk in (at, 2 * self.layout.cp - 1 - at) for p in range(cut[chunk], cut[chunk + 1])]

    def positions(self, rank, s=S):
        """Which of them the rank has itself."""
        mine = self.group_positions(rank, s)
        if not self.sequence_parallel:
            return mine
        return mine[sequence.own(len(mine), self.layout.coordinates(rank)["tp"], self.layout.tp)]

    def part(self, x, rank):
        """The rank's part of an array (b, s, ...)."""
        return x[np.ix_(self.sequences(rank, x.shape[0]), self.positions(rank, x.shape[1]))].copy()

    def joined(self, parts, b=B, s=S):
        """All ranks' parts (b_r, s_r, ...) as one; what several have must agree to the last bit."""
        whole = np.full((b, s, *parts[0].shape[2:]), np.nan, np.float64)
        for rank, part in enumerate(parts):
            place = np.ix_(self.sequences(rank, b), self.positions(rank, s))
            known = ~np.isnan(whole[place])
            np.testing.assert_array_equal(part[known], whole[place][known])
            whole[place] = part
        return whole.astype(parts[0].dtype)


def example(config, dtype="float64", b=B, s=S, seed=0):
    """x, dy (b, s, h) and one mixture's parameters by name, perhaps with a bias, on the host."""
    rng = np.random.default_rng(seed)
    p = {name: (rng.standard_normal(shape) * shape[-2] ** -0.5).astype(dtype)
         for name, shape in expert_shapes(config).items()}
    if config.bias_rate:
        p["bias"] = 0.2 * rng.standard_normal(config.experts).astype(dtype)
    x, dy = rng.standard_normal((2, b, s, config.hidden)).astype(dtype)
    return x, dy, p


def on_one_device(config, x, dy, parameters):
    """The truth: outputs and gradients by name, and what was saved."""
    y, saved = moe.forward(x, parameters, config)
    dx, gradients = moe.backward(dy, saved, SCALE)
    report = {name: np.asarray(a) for name, a in zip(saved.routed._fields, saved.routed, strict=True)}
    return {"y": y, "dx": dx} | report | {f"d{name}": g for name, g in gradients.items()}, saved


def on_rank(comm, xp, ranks, config, x, dy, parameters):
    """The same layer on a rank of `ranks`, from whole arrays: a dict of what it has of it."""
    mesh = Mesh(comm, ranks.layout)
    groups, sp = expert_groups.of_mesh(mesh), ranks.sequence_parallel
    whole = {f"blocks.0.moe.{name}": p for name, p in on_device(xp, parameters).items()}
    mine = shards.shard(whole, config, mesh.tp.rank, mesh.tp.size, share=groups.share)
    mine = {name.removeprefix("blocks.0.moe."): p for name, p in mine.items()}
    x, dy = (device_array(xp, ranks.part(a, comm.rank)) for a in (x, dy))
    with comm.phase("forward"):
        y, saved = expert.forward(x, mine, config, mesh.tp, groups, ranks.positions(comm.rank, S), sp)
    with comm.phase("backward"):
        dx, pending = expert.backward_input(dy, saved, SCALE)
    with comm.phase("weight"):
        gradients = {f"blocks.0.moe.{name}": g for name, g in expert.backward_weight(pending).items()}
    with comm.phase("finish"):
        gradients = shards.finish(gradients, mesh.tp, None, sp)
        gradients = expert_groups.sum_over_replicas(gradients, mesh.dp_cp, mesh.expert_dp)
    return {"y": y, "dx": dx} | on_host(saved.routed._asdict()), on_host(gradients), groups.share


def whole_of(ranks, results, config, b=B, s=S):
    """The ranks' results as those of one device; what ranks have alike must agree to the last bit."""
    found = {name: ranks.joined([on_host(r)[name] for r, _, _ in results], b, s) for name in ("y", "dx")}
    others = [rank for rank in range(len(results))             # of tp ranks with the same tokens one counts
              if ranks.sequence_parallel or ranks.layout.coordinates(rank)["tp"] == 0]
    found |= {name: sum(results[rank][0][name] for rank in others) for name in moe.Routed._fields}
    return found | gradients_of(ranks, [(g, share) for _, g, share in results], config)


def gradients_of(ranks, results, config):
    """{"d" + name: whole gradient} from each rank's finished ones and its share of the experts."""
    by_share, by_tp = {}, {}
    for rank, (gradients, share) in enumerate(results):
        first = by_share.setdefault(share, gradients)
        alike = by_tp.setdefault(ranks.layout.coordinates(rank)["tp"], gradients)
        for name, g in gradients.items():
            np.testing.assert_array_equal(g, (first if expert_groups.is_expert(name) else alike)[name], err_msg=name)
    whole = shards.unshard([by_tp[tp] for tp in range(ranks.layout.tp)], config, by_share)
    return {"d" + name.removeprefix("blocks.0.moe."): g for name, g in whole.items()}


def assert_same(found, expected):
    """Whole arrays against whole arrays, gradients among themselves."""
    expected = {name: np.asarray(a) for name, a in expected.items()}
    found = {name: np.asarray(a) for name, a in found.items()}
    compare([found], expected, dict.fromkeys(expected, REPLICATED), {name for name in expected if name[0] == "d"})


def rows_between(ranks, config, taken, group):
    """counts[r][d]: choices that the r-th rank of an ep group dispatches to the d-th, from the truth."""
    owner = np.searchsorted(bounds(config.experts, len(group)), np.arange(config.experts), side="right") - 1
    counts = []
    for rank in group:
        whole_group = ranks.layout.expert_tp > 1
        positions = ranks.group_positions(rank) if whole_group else ranks.positions(rank)
        chosen = taken[np.ix_(ranks.sequences(rank, taken.shape[0]), positions)]
        counts.append(np.bincount(owner[chosen[chosen < config.experts]], minlength=len(group)).tolist())
    return counts


def check_bytes(ranks, config, log, taken, item, weight_item=None):
    """What every rank sent in every phase but "finish" against the formulas: taken (b, s, k), the truth's choices.

    item, weight_item    bytes of an activation, and of a weight; the same unless given
    """
    weight_item = item if weight_item is None else weight_item
    layout, h, k = ranks.layout, config.hidden, config.top_k
    for rank in range(layout.world):
        at, group = layout.coordinates(rank), layout.group("ep", rank)
        b, sent = len(ranks.sequences(rank, taken.shape[0])), lambda *phase, rank=rank: log.bytes_sent(rank, *phase)
        counts = rows_between(ranks, config, taken, group)
        rows = cost.all_to_alls(counts, group.index(rank), h)
        for phase, elements in rows.items():
            assert sent(phase) == item * elements, (phase, rank)
        known_before = 8 * cost.expert_counts(config.experts, layout.ep, group.index(rank))
        assert sent("expert counts") == known_before
        tp = layout.tp if ranks.sequence_parallel else 1
        statistics, limits = 0, config.capacity_factor is not None
        if limits or config.balance:
            known = lambda b, k: cost.sequence_statistics(b, S, k, layout.cp, at["cp"], tp, at["tp"])  # noqa: B023
            weights = known(b, k) - known(b, 0) if limits and config.drop == "probability" else 0
            statistics = 8 * known(b, k) + weight_item * weights
        assert sent(expert.STATISTICS) == statistics, rank
        features = 0
        if layout.expert_tp > 1:
            legs = cost.expert_tensor_parallel(b, S // layout.cp, h, k, layout.tp, at["tp"], ranks.sequence_parallel)
            features = sum(item * leg["x"] + weight_item * leg["weights"] + 8 * leg["choices"] for leg in legs.values())
        assert sent(expert.FEATURES) == features, rank
        shared = {"forward": 0, "backward": 0}
        if config.shared_experts:
            shared = cost.shared_experts(b, S // layout.cp, h, layout.tp, at["tp"], ranks.sequence_parallel)
        in_all = item * (sum(rows.values()) + sum(shared.values())) + known_before + statistics + features
        assert sent("forward") + sent("backward") == in_all, rank
        assert sent("weight") == 0
