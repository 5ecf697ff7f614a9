"""Pictures of the lessons as files, for pages without a kernel: lessons/pictures/NN_name.svg. And the README's.

    python -m refimpl.course.widgets.stills          write them all anew; a test compares them with what is stored

A lesson shows one with ![what it shows](pictures/NN_name.svg) in a cell of text, GitHub as well as JupyterLab.
"""

from pathlib import Path

from refimpl.course.widgets.all_reduce_stepper import draw_all_reduce
from refimpl.course.widgets.alpha_beta_explorer import draw_alpha_beta
from refimpl.course.widgets.attention_grid import draw_grid
from refimpl.course.widgets.bucket_explorer import draw_buckets
from refimpl.course.widgets.context_memory import draw_memory
from refimpl.course.widgets.course_map import draw_map
from refimpl.course.widgets.deadlock_playground import draw_deadlock
from refimpl.course.widgets.expert_layout import PRESETS, draw_experts
from refimpl.course.widgets.fact_check import draw_claim
from refimpl.course.widgets.memory_bar import draw_footprint
from refimpl.course.widgets.mesh_explorer import draw_mesh
from refimpl.course.widgets.partition_map import draw_partition
from refimpl.course.widgets.pipeline_explorer import draw_pipelines
from refimpl.course.widgets.pipeline_stepper import draw_moment
from refimpl.course.widgets.planner_explorer import draw_plan
from refimpl.course.widgets.restart_explorer import draw_restarts
from refimpl.course.widgets.router_heat_map import draw_routing
from refimpl.course.widgets.schedule_playground import draw_played
from refimpl.course.widgets.sequence_map import draw_sequence
from refimpl.course.widgets.split import draw_split
from refimpl.course.widgets.statements import draw_statements
from refimpl.course.widgets.token_exchange import draw_exchange
from refimpl.course.widgets.what_if import draw_what_if

FOLDER = Path(__file__).parents[3] / "lessons" / "pictures"
README = FOLDER.parents[1] / "docs" / "three_statements.svg"
STILLS = {                                               # file: what draws its picture
    "01_ring_step.svg": lambda: draw_all_reduce(4, 2),
    "01_alpha_beta.svg": draw_alpha_beta,
    "01_deadlock.svg": draw_deadlock,
    "02_buckets.svg": draw_buckets,
    "02_small_buckets.svg": lambda: draw_buckets(K=64),
    "03_memory.svg": draw_footprint,
    "04_partition.svg": lambda: draw_partition(3, 4, 2),
    "05_split.svg": draw_split,
    "08_pipelines.svg": draw_pipelines,
    "08_moment.svg": lambda: draw_moment("1f1b", 4, 6, 9),
    "08_playground.svg": draw_played,
    "07_grid.svg": lambda: draw_grid(step=1),
    "07_memory.svg": draw_memory,
    "09_router.svg": draw_routing,
    "09_exchange.svg": draw_exchange,
    "09_layout.svg": lambda: draw_experts(**PRESETS["tp fills the node, experts whole"]),
    "10_mesh.svg": draw_mesh,
    "11_planner.svg": draw_plan,
    "11_what_if.svg": lambda: draw_what_if(tp=4, chunks=6),
    "12_restarts.svg": draw_restarts,
    "13_claim.svg": lambda: draw_claim("h", "right"),
    "06_sequence.svg": draw_sequence,
    "00_map.svg": draw_map,
}


def write(folder=FOLDER):
    """Write every still into `folder`; the paths."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    for name, draw in STILLS.items():
        draw().save(folder / name)
    return [folder / name for name in STILLS]


if __name__ == "__main__":
    draw_statements().save(README)
    print(*write(), README, sep="\n")
