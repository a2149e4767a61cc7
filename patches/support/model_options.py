"""What the model drops in training, and models that have several outputs there."""

from .builder import max_depth, new_model, on_meta, takes
from .terminal import exit_with_error

# In training they give the scores of further heads, too, and the loss takes one tensor. With
# weights, torchvision makes them for images that are scaled once more; here they always are, for
# a checkpoint does not say so.
SEVERAL = ("googlenet", "inception_v3")
ALONE = {"aux_logits": False, "transform_input": True}


def add_options(parser):
    parser.add_argument(
        "--dropout",
        default=None,
        type=float,
        metavar="P",
        help="the probability of dropout in the model (default: the model's own)",
    )
    parser.add_argument(
        "--stochastic-depth",
        default=None,
        type=float,
        metavar="P",
        help="the probability with which training leaves out the last block of the model, and "
        "fewer the earlier ones (default: the model's own)",
    )


def check(args):
    """Settle what the builder of the model `args.arch` gets; one line if it has no such thing."""
    more = dict(getattr(args, "builder", {}))
    if args.arch in SEVERAL:
        more.update(ALONE)
    if args.dropout is not None:
        if not takes(args.arch, dropout=args.dropout):
            exit_with_error(f"--dropout {args.dropout}: {args.arch} takes none")
        more["dropout"] = args.dropout
    if args.stochastic_depth is not None:
        more.update(depth_of(args.arch, args.stochastic_depth))
    args.builder = more


def depth_of(arch: str, probability: float) -> "dict[str, float]":
    """What gives a new model this stochastic depth, for its builder or for `new_model`."""
    with on_meta():
        has_some = max_depth(new_model(arch, 1000)) > 0
    if not has_some:  # a builder may take the keyword, and forget it
        exit_with_error(f"--stochastic-depth {probability}: {arch} has none")
    if takes(arch, stochastic_depth_prob=probability):
        return {"stochastic_depth_prob": probability}
    return {"depth": probability}
