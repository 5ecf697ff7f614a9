"""Bytes of a parameter: the weight, its gradient, and what Adam remembers of it. Three conventions, all in use.

                         weights   gradients   optimizer        sum   ZeRO 1, 2, 3 over N ranks
    float16 gradients       2          2       12 = 4 + 4 + 4   16    4 + 12/N    2 + 14/N    16/N    the paper
    float32 gradients       2          4       12               18    6 + 12/N    2 + 16/N    18/N    Megatron
    both at once            2        2 + 4     12               20    8 + 12/N    2 + 18/N    20/N    DeepSpeed

The 12 are a float32 copy of the weight, which Adam updates, and its two moments. Wider weights need no copy: float32
has 4 + 4 + 8 = 16, too, float64 8 + 8 + 16. "4x, 8x less" is what ZeRO 1 and 2 save of 16 bytes when N is infinite.
(Rajbhandari et al. 2020, section 3.1; Megatron-LM, dist_optimizer.md; DeepSpeed, estimate_zero2_model_states_mem_needs)
"""

import difflib
from dataclasses import dataclass

ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
BOTH = "both"


@dataclass(frozen=True)
class States:
    """Which dtypes, and what ZeRO cuts. Frozen. ValueError for what does not fit.

    dtype    of weights      grad_dtype    of gradients as they are added up; None: as dtype; "both": a copy in each
    """

    dtype: str = "bfloat16"
    grad_dtype: str | None = None
    zero: int = 0

    def __post_init__(self):
        for name, known in (("dtype", tuple(ITEM)), ("grad_dtype", (*ITEM, BOTH))):
            value = getattr(self, name)
            if value not in known and (value is not None or name == "dtype"):
                near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.0)[0]
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(known)}; nearest {near!r}")
        if self.gradients < self.item:
            raise ValueError(f"grad_dtype={self.grad_dtype} is narrower than dtype={self.dtype}; expected {self.dtype}")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero}: expected 0, 1, 2 or 3; nearest {min(max(self.zero, 0), 3)}")

    @property
    def item(self):
        """Bytes of a weight."""
        return ITEM[self.dtype]

    @property
    def gradients(self):
        """Bytes of a gradient."""
        return self.item + 4 if self.grad_dtype == BOTH else ITEM[self.grad_dtype or self.dtype]

    @property
    def optimizer(self):
        """Bytes of Adam's memory: two moments in float32 or wider, and a float32 copy of narrow weights."""
        return 2 * max(4, self.item) + (4 if self.item < 4 else 0)

    @property
    def bytes(self):
        """Bytes of a parameter that is not sharded."""
        return self.item + self.gradients + self.optimizer

    @property
    def kinds(self):
        """[(kind, bytes of a parameter, whether ZeRO cuts it)]."""
        return [("weights", self.item, self.zero >= 3), ("gradients", self.gradients, self.zero >= 2),
                ("optimizer", self.optimizer, self.zero >= 1)]

    @property
    def convention(self):
        """In words: "16 bytes a parameter: bfloat16 weights 2, bfloat16 gradients 2, optimizer 12 (...)"."""
        copy = "float32 copy and two moments" if self.item < 4 else "two moments"
        what = f"{self.dtype} and float32" if self.grad_dtype == BOTH else self.grad_dtype or self.dtype
        return (f"{self.bytes} bytes a parameter: {self.dtype} weights {self.item}, {what} gradients {self.gradients}, "
                f"optimizer {self.optimizer} ({copy})")

    def per_parameter(self, ranks):
        """Bytes of a parameter on each of so many ranks that share it, in the mean."""
        return sum(item / ranks if cut else item for _, item, cut in self.kinds)
