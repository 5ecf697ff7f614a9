"""The options of `train` and `verify`, and the `Setup` and `Plan` that they stand for.

    add(parser)          every option has a default: a plain `train` trains
    setup(args)          ValueError for what does not fit together, before a rank starts

Three small models, so that a laptop trains them: what matters here is how they are cut, not how large they are.
Nothing is imported before it is needed: every command's options are built whenever one of them runs.
"""

MODELS = {
    "gpt2": {"family": "gpt2", "dropout": 0.1},
    "llama": {"family": "llama"},
    "moe": {"family": "llama", "experts": 8, "top_k": 2, "balance": 0.01},
}
MOST = 100_000                                        # of any size: a run of this course is small


def add(parser):
    """Add all options."""
    _add_model(parser.add_argument_group("model"))
    _add_batch(parser.add_argument_group("batch and optimizer"))
    add_layout(parser.add_argument_group("layout"))
    _add_run(parser.add_argument_group("run"))


def _add_model(group):
    whole = dict(type=int, metavar="N")
    group.add_argument("--model", choices=MODELS, default="gpt2",
                       help="gpt2 (default), llama, or moe: llama with experts")
    group.add_argument("--layers", **whole, default=8, help="transformer layers (default 8)")
    group.add_argument("--heads", **whole, default=8, help="query heads (default 8)")
    group.add_argument("--kv-heads", **whole, help="key-value heads (default: as many)")
    group.add_argument("--hidden", **whole, default=64, help="features of a token (default 64)")
    group.add_argument("--ffn", **whole, help="features inside the MLP (default 4 or 8/3 of hidden)")
    group.add_argument("--experts", **whole, help="experts of a layer (moe: 8)")
    group.add_argument("--top-k", **whole, help="experts that a token uses (moe: 2)")
    group.add_argument("--seq", **whole, default=64, help="positions of a sequence (default 64)")
    group.add_argument("--dropout", type=float, metavar="P", help="(gpt2: 0.1)")
    group.add_argument("--attention", choices=("naive", "blockwise"), default="naive", help="(default naive)")
    group.add_argument("--recompute", choices=("none", "selective", "full"), default="none",
                       help="what backward computes again instead of keeping it (default none)")


def _add_batch(group):
    whole = dict(type=int, metavar="N")
    group.add_argument("--global-batch", **whole, default=16, help="sequences a step, over all ranks (default 16)")
    group.add_argument("--micro-batch", **whole, help="sequences of a rank at once (default: 2 micro-batches a stage)")
    group.add_argument("--rate", type=float, default=1.5e-3, metavar="R", help="learning rate of Adam (default 0.0015)")
    group.add_argument("--decay", type=float, default=0.0, metavar="D", help="weight decay (default 0)")
    group.add_argument("--clip", type=float, default=1.0, metavar="C",
                       help="largest gradient norm, 0 for any (default 1)")
    group.add_argument("--dtype", choices=("float64", "float32", "float16", "bfloat16"), default="float64",
                       help="of parameters and activations (default float64)")
    group.add_argument("--grad-dtype", choices=("float64", "float32", "float16", "bfloat16"),
                       help="of gradients as they are summed (default: as --dtype)")
    group.add_argument("--seed", **whole, default=0, help="of weights, batches and dropout (default 0)")
    group.add_argument("--text", metavar="FILE", help="train on this file (default: the text that Python ships)")


def add_layout(group):
    """Options that say how the run is cut."""
    whole = dict(type=int, metavar="N")
    for name, what in (("dp", "data-parallel ranks"), ("pp", "pipeline ranks"), ("cp", "context-parallel ranks"),
                       ("tp", "tensor-parallel ranks"), ("ep", "expert-parallel ranks")):
        group.add_argument(f"--{name}", **whole, default=1, help=f"{what} (default 1)")
    group.add_argument("--expert-tp", **whole, help="ranks that share an expert: tp (default) or 1")
    group.add_argument("--order", default="tp-cp-dp-pp", metavar="AXES", help="fastest first (default tp-cp-dp-pp)")
    group.add_argument("--node-size", **whole, default=8, help="ranks a node (default 8)")
    group.add_argument("--sp", action="store_true", help="sequence-parallel: with tp, cut norms along the sequence")
    group.add_argument("--cp-kind", default="zigzag", metavar="KIND",
                       help="ring, zigzag (default), striped, gather, ulysses or hybrid")
    group.add_argument("--ulysses", **whole, help="with --cp-kind hybrid: ranks that exchange heads")
    group.add_argument("--schedule", default="1f1b", metavar="NAME", help="of the pipeline (default 1f1b)")
    group.add_argument("--chunks", **whole, help="stages on each pipeline rank")
    group.add_argument("--zero", type=int, choices=range(4), default=0, help="shard optimizer, gradients, weights")


def _add_run(group):
    group.add_argument("--steps", type=int, default=150, metavar="N", help="training steps (default 150)")
    group.add_argument("--save", metavar="DIR", help="write checkpoints into this folder")
    group.add_argument("--every", type=int, default=1, metavar="N", help="steps between checkpoints (default 1)")
    group.add_argument("--resume", metavar="DIR", help="go on from the newest checkpoint there, of whatever layout")
    group.add_argument("--crash-at", metavar="STEP:RANK", help="let a rank die, to see what becomes of the others")
    group.add_argument("--detect-anomaly", action="store_true", help="stop at the first NaN and say where it was")


def setup(args):
    """The `Setup`."""
    from refimpl.layout import Layout
    from refimpl.model import text
    from refimpl.model.adam import Adam
    from refimpl.model.config import Config
    from refimpl.precision import LossScale, Precision
    from refimpl.train.setup import Setup
    from refimpl.train.single import Recipe

    for option in ("layers", "heads", "kv_heads", "hidden", "ffn", "experts", "top_k", "seq", "global_batch", "chunks",
                   "dp", "pp", "cp", "tp", "ep"):
        if (getattr(args, option) or 0) > MOST:                        # else tables of that length come first
            raise ValueError(f"--{option.replace('_', '-')} {getattr(args, option)}: expected at most {MOST}; "
                             f"nearest {MOST}")
    chosen = dict(MODELS[args.model])
    for option, field in (("kv_heads", "kv_heads"), ("ffn", "ffn"), ("experts", "experts"), ("top_k", "top_k"),
                          ("dropout", "dropout")):
        if getattr(args, option) is not None:
            chosen[field] = getattr(args, option)
    config = Config(vocabulary=text.VOCABULARY, hidden=args.hidden, layers=args.layers, heads=args.heads,
                    context=max(args.seq, 1), attention=args.attention, recompute=args.recompute, **chosen)
    layout = Layout(args.dp, args.pp, args.cp, args.tp, args.ep, args.expert_tp, args.order, args.node_size)
    if layout.world > MOST:
        raise ValueError(f"{layout.world} ranks: expected at most {MOST}")
    recipe = Recipe(Adam(rate=args.rate, decay=args.decay), Precision(args.dtype, args.grad_dtype), args.clip or None,
                    LossScale() if args.dtype == "float16" else None, seed=args.seed)
    return Setup(config, layout, args.seq, args.global_batch, args.micro_batch, args.schedule, args.chunks, args.sp,
                 args.cp_kind, args.ulysses, args.zero, recipe)


def plan(args, world):
    """The `Plan`, for a run of so many ranks."""
    from refimpl.train.run import Plan

    crash_at = None
    if args.crash_at is not None:
        step, _, rank = args.crash_at.partition(":")
        if not (step.isdigit() and rank.isdigit() and int(step) >= 1 and int(rank) < world):
            raise ValueError(f"--crash-at {args.crash_at}: expected STEP:RANK, a step from 1 and a rank from 0 to "
                             f"{world - 1}, such as 3:{world - 1}")
        crash_at = int(step), int(rank)
    return Plan(args.steps, args.save, args.every, args.resume, crash_at, args.detect_anomaly, keep=args.check)


def network(path, layout):
    """The `Network` that a TOML file describes.

    [intra] and, for several nodes, [inter] with alpha (seconds) and bandwidth (bytes per second, each way); flops (per
    second and rank); node_size, the layout's unless given; nics_per_node. ValueError for what it cannot be.
    """
    import tomllib

    from refimpl.world.network import Link, Network

    try:
        with open(path, "rb") as opened:
            table = tomllib.load(opened)
    except OSError as error:
        raise ValueError(f"cannot read network {path!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"network {path!r} is no TOML: {error}") from None
    known = {"intra", "inter", "flops", "node_size", "nics_per_node"}
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"network {path!r} has {', '.join(unknown)}; expected {', '.join(sorted(known))}")
    if "intra" not in table:
        raise ValueError(f"network {path!r} lacks [intra]; expected alpha (seconds) and bandwidth (bytes per second)")
    links = {name: Link(*_link(path, name, table[name])) for name in ("intra", "inter") if name in table}
    size = table.get("node_size", layout.node_size) if "inter" in table else None
    return Network(links["intra"], links.get("inter"), size, table.get("nics_per_node"), table.get("flops"))


def _link(path, name, table):
    try:
        return table["alpha"], 1 / table["bandwidth"]
    except (KeyError, TypeError, ZeroDivisionError):
        raise ValueError(f"network {path!r}: [{name}] is {table!r}; expected alpha (seconds) and bandwidth (bytes per "
                         "second, above 0)") from None
