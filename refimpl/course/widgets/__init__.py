"""Things to play with: pictures that are a pure function of a few controls, drawn as SVG in a few milliseconds.

    from refimpl.course.widgets import AllReduceStepper
    AllReduceStepper()                         in a notebook; every widget is in a file of its own

theme.py has colours for light and dark, svg.py and axes.py the shapes, interactive.py ties controls to a picture.
"""

from refimpl.course.widgets.all_reduce_stepper import AllReduceStepper
from refimpl.course.widgets.alpha_beta_explorer import AlphaBetaExplorer
from refimpl.course.widgets.attention_grid import AttentionGrid
from refimpl.course.widgets.axes import Axes
from refimpl.course.widgets.bucket_explorer import BucketExplorer
from refimpl.course.widgets.context_memory import ContextMemory
from refimpl.course.widgets.course_map import CourseMap
from refimpl.course.widgets.deadlock_playground import DeadlockPlayground
from refimpl.course.widgets.expert_layout import ExpertLayout
from refimpl.course.widgets.fact_check import FactCheck
from refimpl.course.widgets.interactive import Explorer, option, round_numbers, stops, switch, whole, words_area
from refimpl.course.widgets.memory_bar import MemoryBar
from refimpl.course.widgets.mesh_explorer import MeshExplorer
from refimpl.course.widgets.partition_map import PartitionMap
from refimpl.course.widgets.pipeline_explorer import PipelineExplorer
from refimpl.course.widgets.pipeline_stepper import PipelineStepper
from refimpl.course.widgets.planner_explorer import PlannerExplorer
from refimpl.course.widgets.restart_explorer import RestartExplorer
from refimpl.course.widgets.router_heat_map import RouterHeatMap
from refimpl.course.widgets.schedule_playground import SchedulePlayground
from refimpl.course.widgets.sequence_map import SequenceMap
from refimpl.course.widgets.split import SplitExplorer
from refimpl.course.widgets.svg import Picture, picture
from refimpl.course.widgets.token_exchange import TokenExchange
from refimpl.course.widgets.what_if import WhatIf

WIDGETS = (                                              # all of them, for what is done with every one
    AllReduceStepper, AlphaBetaExplorer, AttentionGrid, BucketExplorer, ContextMemory, CourseMap, DeadlockPlayground,
    ExpertLayout, FactCheck, MemoryBar, MeshExplorer, PartitionMap, PipelineExplorer, PipelineStepper, PlannerExplorer,
    RestartExplorer, RouterHeatMap, SchedulePlayground, SequenceMap, SplitExplorer, TokenExchange, WhatIf)

__all__ = [
    "AllReduceStepper", "AlphaBetaExplorer", "AttentionGrid", "Axes", "BucketExplorer", "ContextMemory", "CourseMap",
    "DeadlockPlayground", "ExpertLayout", "Explorer", "FactCheck", "MemoryBar", "MeshExplorer", "PartitionMap",
    "Picture", "PipelineExplorer", "PipelineStepper", "PlannerExplorer", "RestartExplorer", "RouterHeatMap",
    "SchedulePlayground", "SequenceMap", "SplitExplorer", "TokenExchange", "WIDGETS", "WhatIf", "option", "picture",
    "round_numbers", "stops", "switch", "whole", "words_area",
]
