"""The options that memory, traffic, step and plan share, and what they stand for: a model, a `Training`, a machine.

    add_model(parser)      --model NAME | --config FILE | --layers ... one by one; a size beside a name changes it
    add_layout(parser)     --dp --tp ... --zero ... --micro-batch --global-batch --recompute --dtype --grad-dtype
    add_machine(parser)    --gpu NAME, --machines FILE, --gpus N
    add_output(parser)     --json --explain
    model(args), training(args, model), machine(args)           ValueError for what does not fit

`notes(args, ...)` says what was assumed where an option was left out. Nothing is imported before it is needed: every
command's options are built whenever one of them runs.
"""

import argparse
import math

SIZES = (("layers", "N", "transformer layers"), ("hidden", "N", "features of a token"), ("heads", "N", "query heads"),
         ("kv-heads", "N", "key-value heads (default: as heads)"), ("ffn", "N", "features inside the MLP"),
         ("vocab", "N", "tokens of the vocabulary"), ("seq", "N", "positions of a sequence (default: the model's own)"),
         ("experts", "N", "experts of a layer"), ("top-k", "N", "experts that a token goes to"),
         ("expert-ffn", "N", "features inside an expert (default: as ffn)"),
         ("shared-experts", "N", "experts that every token goes to"))
FIELDS = {"vocab": "vocabulary", "seq": "sequence"}                    # our names, where the options' are shorter
NEEDED = ("layers", "hidden", "heads", "vocab")
FEW, MANY = 10_000, 10**6                  # at most: what is gone through one by one, layers say; and everything else


def add_model(parser, parameters=False):
    """Options that name a model. parameters: also --params, for a model of which nothing else is known."""
    which = parser.add_argument_group("model")
    which.add_argument("--model", metavar="NAME", help="gpt3-175b, llama3-70b, mixtral-8x7b, deepseek-v3 ...")
    which.add_argument("--config", metavar="FILE", help="a Hugging Face config.json")
    if parameters:
        which.add_argument("--params", type=amount, metavar="N", help="only so many parameters, such as 7.5e9")
    for name, metavar, what in SIZES:
        number = few if name == "layers" else few_or_none if name in ("experts", "shared-experts") else size
        which.add_argument(f"--{name}", type=number, metavar=metavar, help=what)
    for name, what in (("gated", "an MLP of three matrices, SwiGLU"), ("tied", "one table for input and output")):
        which.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, default=None, help=what)


def add_layout(parser):
    """Options that say how a model is cut, and what happens in a step."""
    cut = parser.add_argument_group("layout")
    for name, what in (("dp", "data-parallel ranks (default 1, or what --gpus leaves)"),
                       ("tp", "tensor-parallel ranks"), ("pp", "pipeline ranks"), ("cp", "context-parallel ranks"),
                       ("ep", "expert-parallel ranks"),
                       ("expert-tp", "ranks that share an expert: tp (default) or 1")):
        cut.add_argument(f"--{name}", type=few if name == "pp" else count, metavar="N", help=what)
    cut.add_argument("--order", default="tp-cp-dp-pp", metavar="AXES", help="fastest first (default tp-cp-dp-pp)")
    cut.add_argument("--sp", action=argparse.BooleanOptionalAction, default=False,
                     help="sequence-parallel: with tp, cut norms and residuals along the sequence")
    cut.add_argument("--cp-kind", default="zigzag", metavar="KIND",
                     help="zigzag (default), ring, striped, gather, ulysses or hybrid")
    cut.add_argument("--ulysses", type=count, metavar="N", help="of hybrid: cp ranks that exchange heads")
    cut.add_argument("--zero", type=int, default=0, metavar="0-3",
                     help="shard optimizer, gradients, weights (default 0)")
    cut.add_argument("--chunks", type=few, metavar="V", help="stages on each pipeline rank (default 1)")
    cut.add_argument("--schedule", metavar="NAME", help="pipeline schedule (default 1f1b; interleaved with chunks)")
    cut.add_argument("--micro-batch", type=count, default=1, metavar="N", help="sequences at once (default 1)")
    cut.add_argument("--global-batch", type=count, metavar="N",
                     help="sequences of a step (default: fills the pipeline)")
    cut.add_argument("--recompute", default="none", metavar="WHAT", help="none (default), selective or full")
    cut.add_argument("--flash", action=argparse.BooleanOptionalAction, default=False,
                     help="attention in blocks, which keeps no probabilities")
    cut.add_argument("--dtype", default="bfloat16", metavar="T", help="of weights and activations (default bfloat16)")
    cut.add_argument("--grad-dtype", metavar="T", help="of gradients (default: as --dtype; both: a copy of each)")


def add_machine(parser):
    """Options that name a machine."""
    machine_ = parser.add_argument_group("machine")
    machine_.add_argument("--gpu", metavar="NAME", help="a100-80gb, h100-sxm, h200, b200, gb200-nvl72, mi300x ...")
    machine_.add_argument("--machines", metavar="FILE", help="a TOML file with machines of your own")
    machine_.add_argument("--gpus", type=count, metavar="N", help="how many there are: the layout must use them all")


def add_output(parser):
    """Options that say what is printed."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--explain", action="store_true", help="the formula behind every line")


# Numbers


def count(text):
    """A whole number, 1 or more, without a unit."""
    return _whole(text, 1, MANY)


def index(text):
    """A place among them, from 0."""
    return _whole(text, 0, MANY)


def few(text):
    """The same of what there are not many of: layers, chunks, pipeline ranks."""
    return _whole(text, 1, FEW)


def few_or_none(text):
    """And what there may be none of: experts."""
    return _whole(text, 0, FEW)


def size(text):
    """A size of a model, such as positions of a sequence."""
    return _whole(text, 1, 100 * MANY)


def _whole(text, least, most):
    try:
        number = int(text)
    except ValueError:
        number = _plain(text, "a whole number")
        if number != int(number):
            raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number; nearest {round(number)}") from None
    if number < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {least} or more; nearest {least}")
    if number > most:
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most {most}; nearest {most}")
    return int(number)


def amount(text):
    """A number above 0, without a unit: 7.5e9."""
    number = _plain(text, "a number")
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected 1 or more; nearest 1")
    return number


def _plain(text, what):
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if math.isfinite(number):
        return number
    digits = text.rstrip("kKmMgGtTiIbB ")
    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}.get(text[len(digits):].strip().lower()[:1])
    hint = "such as 7.5e9" if what == "a number" else "such as 8"
    if scale is not None and digits.replace(".", "", 1).isdigit():
        hint = f"such as {float(digits) * scale:g}"
    raise argparse.ArgumentTypeError(f"{text!r}: expected {what} without a unit, {hint}")


# What the options stand for


def model(args):
    """The `Model` that the options name, and the fields of its config.json that were not understood."""
    from refimpl.cost import huggingface, models

    left_out = []
    if args.model is not None and args.config is not None:
        raise ValueError(f"--model {args.model} --config {args.config}: give one of the two")
    sizes = {FIELDS.get(name, name.replace("-", "_")): getattr(args, name.replace("-", "_")) for name, _, _ in SIZES}
    sizes = {name: value for name, value in (sizes | {"gated": args.gated, "tied": args.tied}).items()
             if value is not None}
    if args.model is not None:
        found = models.find(args.model)
    elif args.config is not None:
        found, left_out = huggingface.read(args.config)
    else:
        missing = [f"--{name}" for name in NEEDED if getattr(args, name) is None]
        if missing:
            raise ValueError(f"which model? Give --model NAME, --config FILE, or sizes, of which {', '.join(missing)} "
                             f"{'are' if len(missing) > 1 else 'is'} missing")
        return models.custom(**sizes), left_out
    if found.positions and sizes.get("sequence", 0) > found.positions:
        sizes["positions"] = sizes["sequence"]                 # it learns as many as it has to
    return models.change(found, **sizes) if sizes else found, left_out


def training(args, of):
    """The `Training` of this model that the options describe."""
    from refimpl.cost.training import Training

    cut = layout(args)
    chunks = args.chunks or 1
    schedule = (args.schedule or ("interleaved" if chunks > 1 else "1f1b")).lower().replace("-", "_")
    return Training(of, cut, args.seq, args.micro_batch, microbatches(args, cut), schedule, args.chunks, args.sp,
                    args.cp_kind, args.ulysses, args.zero, args.recompute, args.flash, args.dtype, args.grad_dtype)


def layout(args):
    """The `Layout`; its node is the machine's. ValueError unless it has as many ranks as there are GPUs."""
    from refimpl.layout import Layout

    sizes = {axis: getattr(args, axis) or 1 for axis in ("tp", "pp", "cp", "ep")}
    rest = sizes["tp"] * sizes["pp"] * sizes["cp"]
    dp = args.dp
    if args.gpus is not None and (dp or 1) * rest != args.gpus and (dp is not None or args.gpus % rest):
        words = " x ".join(f"{axis} {size}" for axis, size in (("dp", dp or 1), *list(sizes.items())[:3]))
        works = f"dp may be {args.gpus // rest}" if args.gpus % rest == 0 else (
            f"{args.gpus // rest * rest or rest} or {(args.gpus // rest + 1) * rest} GPUs work")
        raise ValueError(f"{words} = {(dp or 1) * rest} ranks on --gpus {args.gpus}: {works} (ep does not multiply)")
    if dp is None:
        dp = 1 if args.gpus is None else args.gpus // rest
    gpu = machine(args)
    node = {} if gpu is None else {"node_size": gpu.node_size}
    return Layout(dp=dp, **sizes, expert_tp=args.expert_tp, order=args.order, **node)


def microbatches(args, cut):
    """Micro-batches of a step: what the global batch leaves, or 1, or with a pipeline 4 a stage."""
    if args.global_batch is None:
        return 1 if cut.pp == 1 else 4 * cut.pp
    each = cut.dp * args.micro_batch
    if args.global_batch % each:
        below = args.global_batch // each * each
        works = f"{below} or {below + each}" if below else f"{each}"
        raise ValueError(f"--global-batch {args.global_batch} does not divide into micro-batches of {args.micro_batch} "
                         f"on dp={cut.dp} ranks; {works} sequences work")
    return args.global_batch // each


def machine(args):
    """The `GPU`, or None where none is named."""
    from refimpl.cost import hardware

    if args.gpu is None and args.machines is not None:
        raise ValueError(f"--machines {args.machines} without --gpu: name one of its machines")
    return None if args.gpu is None else hardware.find(args.gpu, args.machines)


def notes(args, run):
    """What was assumed because it was not said, a sentence each."""
    found = []
    if args.global_batch is None and run.layout.pp > 1:
        found.append(f"{run.microbatches} micro-batches, 4 a stage, as --global-batch was not given")
    if args.seq is None:
        found.append(f"{run.sequence} positions, the model's own, as --seq was not given")
    return found
