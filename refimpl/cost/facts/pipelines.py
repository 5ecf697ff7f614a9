"""Claims about pipelines and scaling."""

from refimpl.cost import pipeline
from refimpl.cost.facts import claim, close, verdict

TWO_WAYS = "Huang et al. 2019, section 2.3: of the total; Narayanan et al. 2021, section 2.2.1: of the ideal time"


def bubble(name, p, m, v=1):
    """Bubble over ideal time, and over total time, for F = I = W."""
    idle, ideal = pipeline.bubble(name, p, m, v), m * 3.0
    return idle / ideal, idle / (ideal + idle)


@claim("c", "p = 8, m = 64: a bubble of 7/70 = 10%", TWO_WAYS)
def seven_seventieths():
    """Neither of the two."""
    of_ideal, of_total = bubble("1f1b", 8, 64)
    return (verdict(close(7 / 70, of_ideal, 1e-3) or close(7 / 70, of_total, 1e-3)), of_total, "of the total time",
            f"p-1 = 7 slots idle beside m = 64 that work: 7/64 = {of_ideal:.2%} of the ideal time, "
            f"7/71 = {of_total:.2%} of the total. There is no 70 in it")


@claim("d", "In 1F1B more micro-batches cost more activation memory", "Narayanan et al. 2021, section 2.2.1; Qi et al. "
       "2023, table 4: constant in m")
def more_microbatches():
    """At most p in flight."""
    few, many = (pipeline.in_flight("1f1b", 8, m) for m in (8, 64))
    gpipe = pipeline.in_flight("gpipe", 8, 64)
    return (verdict(many > few), many, "micro-batches at once on the first rank, p = 8, m = 64",
            f"min(m, p - rank): {few:g} for m = 8, {many:g} for m = 64. GPipe keeps all {gpipe:g}. And of a given "
            "global batch more micro-batches are smaller ones")


@claim("j", "A pipeline sends once per step", "Narayanan et al. 2021, section 3.2")
def sends():
    """Once for each micro-batch and boundary."""
    plain, chunks = pipeline.messages("1f1b", 8, 64), pipeline.messages("interleaved", 8, 64, 2)
    return (verdict(plain == 1), plain, "messages each way, p = 8, m = 64",
            f"one for each micro-batch, boundary and direction: m (p-1) = {plain} forward and as many backward; with 2 "
            f"chunks m (p v - 1) = {chunks}")


@claim("m", "The bubble is (p-1)/(m+p-1), or (p-1)/m", TWO_WAYS)
def two_denominators():
    """Both."""
    of_ideal, of_total = bubble("1f1b", 8, 64)
    return (verdict(of_total == 7 / 71 and of_ideal == 7 / 64 and close(of_ideal / (1 + of_ideal), of_total, 1e-12)),
            of_total, "of the total time, p = 8, m = 64",
            f"the first is of the total time, {of_total:.2%}; the second of the ideal, {of_ideal:.2%}. x of the ideal "
            "is x/(1+x) of the total: say which")


@claim("q", "Tensor and pipeline parallelism differ by two orders of magnitude in how often they communicate",
       "Narayanan et al. 2021, sections 2.2 and 2.3")
def frequency():
    """2 L/p."""
    ratio = lambda layers, p: 4 * layers / p / 2
    few, many = ratio(96, 8), ratio(80, 2)
    return (verdict(30 < many < 300, 30 < few < 300), few, "TP messages for each of PP's, L = 96, p = 8",
            f"per micro-batch and stage 4 L/p all-reduces to 2 messages, one each way: 2 L/p is {few:g} for L = 96, p "
            f"= 8 and {many:g} for L = 80, p = 2")


@claim("t", "Efficiency stays near linear for arbitrarily many GPUs", "Narayanan et al. 2021, table 1: 44% to 52% of "
       "peak from 32 to 3072 GPUs, with batch and model growing")
def scaling():
    """With the batch growing, yes; with a given batch m shrinks."""
    p, batch = 8, 1536
    busy = lambda dp, sequences: 1 / (1 + bubble("1f1b", p, sequences // dp)[0])
    start, weak, strong = busy(16, batch), busy(192, 12 * batch), busy(192, batch)
    return (verdict(close(weak, start), close(strong, start)), strong, "of the time busy, on 12 times the GPUs",
            f"p = {p}, {batch} sequences: m = {batch // 16} on DP 16, busy {start:.1%}. 12 times the ranks with 12 "
            f"times the batch: {weak:.1%}; with the same batch m = {batch // 192}, the bubble (p-1)/m grows: "
            f"{strong:.1%}")


def _example(p, m, v, printed):
    of_ideal, of_total = bubble("interleaved" if v > 1 else "1f1b", p, m, v)
    value, unit = (of_ideal, "of the ideal time") if v > 1 else (of_total, "of the total time")
    return (verdict(f"{value:.1%}" == printed), value, unit,
            f"(p-1)/(v m) = {p - 1}/{v * m} = {of_ideal:.1%} of the ideal time, (p-1)/(v m + p-1) = "
            f"{p - 1}/{v * m + p - 1} = {of_total:.1%} of the total")


@claim("bubble-4-8", "p = 4, m = 8: 3/11 = 27.3% of the time idle", TWO_WAYS)
def small_example():
    """3/11."""
    return _example(4, 8, 1, "27.3%")


@claim("bubble-8-32", "p = 8, m = 32: 7/39 = 17.9% of the time idle", TWO_WAYS)
def middle_example():
    """7/39."""
    return _example(8, 32, 1, "17.9%")


@claim("bubble-8-32-4", "p = 8, m = 32 with 4 chunks: 7/128 = 5.5% of the ideal time", "Narayanan et al. 2021, "
       "section 2.2.2")
def interleaved_example():
    """7/128."""
    return _example(8, 32, 4, "5.5%")
