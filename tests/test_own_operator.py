"""The page "Check your own operator in ten lines": its code runs, and says what the page says."""

import re
import sys
from pathlib import Path

import fake_cupy
import fake_torch
import numpy as np
import pytest

from refimpl.testing import assert_sharded_equal, on_host

PAGE = Path(__file__).resolve().parents[1] / "docs" / "check_your_own_operator.md"
BLOCK = re.compile(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL)


def blocks():
    """[(code, what it must say)] of the page, in order."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def run_page(monkeypatch, libraries):
    """Run all blocks, one after the other, in one namespace; what each says, or ""."""
    for name, module in libraries.items():
        monkeypatch.setitem(sys.modules, name, module)
    namespace, said = {}, []
    for code, _ in blocks():
        try:
            exec(compile(code, str(PAGE), "exec"), namespace)
            said.append("")
        except AssertionError as error:
            said.append(f"{error}\n")
    return said


def test_every_block_of_the_page_runs_and_says_what_stands_below_it(monkeypatch):
    """With the stand-ins for CuPy and PyTorch; with PyTorch itself below, where it is installed."""
    said = run_page(monkeypatch, {"cupy": fake_cupy, "torch": fake_torch})
    assert said == [says for _, says in blocks()]
    for words in ("missing all-reduce", "3 times too large", "shards in the wrong order", "traffic is not"):
        assert sum(words in text for text in said) == 1                                 # one example of each kind
    assert len(blocks()[0][0].strip().splitlines()) <= 16


@pytest.mark.torch
def test_the_page_runs_with_pytorch_too(monkeypatch):
    torch = pytest.importorskip("torch")
    assert run_page(monkeypatch, {"cupy": fake_cupy, "torch": torch}) == [says for _, says in blocks()]


def test_a_tensor_that_is_part_of_a_graph_is_given_and_taken_as_such():
    seen = []

    def program(comm, x):
        seen.append((type(x), x.requires_grad, x.shape))
        return {"y": x, "dx": x}

    x = fake_torch.Tensor(np.arange(10.0).reshape(2, 5), requires_grad=True)
    assert_sharded_equal(program, lambda x: {"y": x, "dx": x}, {"x": x}, ranks=3, shard={"x": 1, "y": 1})
    assert seen == [(fake_torch.Tensor, True, (2, width)) for width in (1, 2, 2)]


def test_a_wrong_tensor_is_told_as_a_wrong_array_is():
    x = fake_torch.from_dlpack(np.arange(1, 7.0))
    with pytest.raises(AssertionError, match=r"(?s)^dx of rank 0 of 2 .*2 times too large"):
        assert_sharded_equal(lambda comm, x: {"y": x, "dx": fake_torch.Tensor(2 * x.values)},
                             lambda x: {"y": x, "dx": x}, {"x": x}, ranks=2, shard={"x": 0, "y": 0})


def test_a_dtype_that_numpy_lacks_is_said_with_what_to_do():
    with pytest.raises(ValueError, match=r"y has dtype torch.bfloat16, which NumPy cannot take: .*; compare y.float"):
        on_host(Strange(), "y")


class Strange:
    dtype = "torch.bfloat16"

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        raise BufferError("bfloat16 is not supported")
