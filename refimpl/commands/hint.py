"""python -m refimpl hint NAME: the next hint for an exercise, one more explicit each time."""

from refimpl.world.launch import is_root

HELP = "give the next hint for an exercise"


def add_arguments(parser):
    """Options of the command."""
    parser.add_argument("name", metavar="NAME", help="an exercise, by its name, number or file")


def main(args):
    """Print the next hint; the exit status."""
    from refimpl.course.exercises import learner

    if is_root():
        print(learner.hint(args.name))
    return 0
