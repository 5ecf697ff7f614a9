"""The bench of the tensor-parallel layer: what it measures; how fast it is, only a quiet machine can say."""

import pytest

from refimpl import Ledger, run
from refimpl.bench import tensor_parallel
from refimpl.cost import traffic

SMALL = {"hidden": 24, "heads": 6, "batch": 2, "sequence": 12}


def test_the_ceiling_sends_nothing_and_the_others_what_a_layer_sends():
    """One warm-up and 2 rounds of each; then their times are shared."""
    log = Ledger()
    results = run(lambda comm: tensor_parallel.bench(comm, rounds=2, **SMALL), 3, ledger=log)
    for result in results:
        assert [row["variant"] for row in result["rows"]] == ["ceiling", "plain", "sequence"]
        assert result["share_of_ceiling"] == result["rows"][1]["share_of_ceiling"] > 0
        assert result["rows"][0]["share_of_ceiling"] == 1
    for rank in range(3):
        plain, sequential = (12 * sum(traffic.tensor_parallel_block(2, 12, 24, 3, rank, sp).values()) for sp in (0, 1))
        sent = {name: log.bytes_sent(rank, collective=name) for name in ("all_reduce", "all_gather", "reduce_scatter")}
        assert sent["all_gather"] + sent["reduce_scatter"] == sequential          # 3 layers, 4 bytes each
        assert 0 <= sent["all_reduce"] - plain < 500                              # and 9 times, in float64


def test_its_report_names_the_claim():
    [result] = run(lambda comm: tensor_parallel.bench(comm, rounds=1, **SMALL), 1)
    shown = tensor_parallel.describe(result).splitlines()
    assert len(shown) == 5 and "100%" in shown[1] and "80% of the ceiling" in shown[-1]


def test_a_sequence_that_does_not_divide_is_named():
    """Else the sequence-parallel layer would be measured on fewer positions than the plain one."""
    with pytest.raises(ValueError, match="ranks=3: .* of 6 heads, and of 13 positions; expected 1; nearest 1"):
        run(lambda comm: tensor_parallel.bench(comm, **SMALL | {"sequence": 13}), 3)
