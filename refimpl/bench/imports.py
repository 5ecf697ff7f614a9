"""What `import refimpl` costs beside `import numpy`: fresh interpreters, side by side."""

import subprocess
import sys
import time

from refimpl.bench.timing import median

SIZES, ALLOWED_MS = None, 60


def bench(_, rounds):
    """Rows of statement and median_s, and above_numpy_ms: the median of the paired differences."""
    times = {statement: [] for statement in ("import numpy", "import refimpl")}
    for _ in range(rounds):
        for statement, seconds in times.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            seconds.append(time.perf_counter() - began)
    pairs = zip(times["import refimpl"], times["import numpy"], strict=True)
    return {"rows": [{"statement": s, "median_s": median(t)} for s, t in times.items()],
            "above_numpy_ms": 1e3 * median([ours - theirs for ours, theirs in pairs])}


def describe(result):
    """The figures as text."""
    lines = [f"{row['statement']:16} {row['median_s'] * 1e3:>7.1f} ms" for row in result["rows"]]
    lines.append(f"{'difference':16} {result['above_numpy_ms']:>+7.1f} ms, at most {ALLOWED_MS} are allowed")
    return "\n".join(lines)
