"""Machines: the traps in vendors' numbers, which link a group talks over, machines of your own."""

import math

import pytest

from refimpl.cost import hardware
from refimpl.cost.hardware import DTYPES, GPUS, Link, find, read
from refimpl.layout import Layout

GB = 1e9
MINE = """
[mine]
memory = 48e9
memory_bandwidth = 864e9
peak = { bfloat16 = 181e12, float32 = 91e12 }
fabric = { alpha = 5.7e-6, bandwidth = 25e9 }
network = { alpha = 14e-6, bandwidth = 12.5e9 }
node_size = 4
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "own.toml").write_text(text)
        return tmp_path / "own.toml"

    return write


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_machine_has_a_source_and_sizes_that_can_be(gpu):
    assert "data sheet" in gpu.source or "report" in gpu.source
    assert 30e9 < gpu.memory < 210e9 and gpu.memory / gpu.memory_bandwidth < 0.05
    assert set(gpu.peak) <= set(DTYPES) and gpu.flops("float16") > gpu.flops("float32") > gpu.flops("float64") * 0.9
    assert gpu.network.bandwidth < gpu.fabric.bandwidth and gpu.network.alpha > gpu.fabric.alpha


@pytest.mark.parametrize(("name", "both_ways", "gigabits", "dense"), [
    ("v100", 300, 50, 125), ("a100-40gb", 600, 200, 312), ("a100", 600, 200, 312), ("h100", 900, 400, 989),
    ("h100-pcie", 600, 400, 756), ("h200", 900, 400, 989), ("h800", 400, 400, 989), ("b200", 1800, 400, 2250),
    ("gb200", 1800, 400, 2500)])
def test_links_are_each_way_in_bytes_and_peaks_are_dense(name, both_ways, gigabits, dense):
    """NVLink is sold by both ways, networks by bits, tensor cores by sparse matrices."""
    gpu = find(name)
    assert gpu.fabric.bandwidth == both_ways / 2 * GB
    assert gpu.network.bandwidth == gigabits / 8 * GB
    assert gpu.flops("float16") == dense * 1e12 and gpu.peak.get("bfloat16", dense * 1e12) == dense * 1e12


def test_80_GB_are_what_the_driver_says():
    assert find("h100").memory == 81559 * 2**20 and f"{find('h100').memory / 1e9:.1f}" == "85.5"


def test_a_mesh_uses_only_the_links_to_those_it_talks_to():
    """MI300X: two GPUs get one of seven links, which is why TP 2 is slow there."""
    mi300x, h100 = find("mi300x"), find("h100")
    assert [mi300x.link("domain", ranks).bandwidth / GB for ranks in (2, 3, 8)] == [64, 128, 448]
    assert mi300x.link("domain").bandwidth == 448 * GB and mi300x.link("domain", 1).bandwidth == 64 * GB
    assert h100.link("domain", 2) == h100.link("domain", 8) == h100.fabric


@pytest.mark.parametrize(("name", "ranks", "span", "link"), [
    ("h100", range(8), "domain", "fabric"), ("h100", [0, 8], "network", "network"),
    ("h100", [7, 8], "network", "network"), ("h100", [], "domain", "fabric"), ("h100-pcie", [0, 1], "domain", "fabric"),
    ("h100-pcie", [1, 2], "node", "host"), ("gb200", range(72), "domain", "fabric"),
    ("gb200", [0, 4], "domain", "fabric"), ("gb200", [0, 72], "network", "network")])
def test_a_group_talks_over_the_slowest_link_that_it_needs(name, ranks, span, link):
    gpu = find(name)
    assert gpu.span(ranks) == span and gpu.link(span) == getattr(gpu, link)


def test_A29_the_order_of_the_axes_decides_who_crosses_nodes():
    """facebookresearch/fairscale #1189, huggingface/picotron #17: 16 ranks, all sizes 2, nodes of 8."""
    gpu, spans = find("a100"), {}
    for order in ("tp-cp-dp-pp", "tp-cp-pp-dp"):
        layout = Layout(tp=2, cp=2, dp=2, pp=2, order=order)
        spans[order] = {axis: {gpu.span(group) for group in layout.groups(axis)} for axis in ("tp", "cp", "dp", "pp")}
    inside, across = {"domain"}, {"network"}
    assert spans["tp-cp-dp-pp"] == {"tp": inside, "cp": inside, "dp": inside, "pp": across}
    assert spans["tp-cp-pp-dp"] == {"tp": inside, "cp": inside, "pp": inside, "dp": across}


def test_a_link_takes_alpha_a_message_and_beta_a_byte():
    link = Link(2e-6, 50e9)
    assert math.isclose(link.seconds(1e6, 3), 3 * 2e-6 + 1e6 * link.beta) and link.beta == 2e-11


@pytest.mark.parametrize(("name", "found"), [
    ("A100", "a100-80gb"), ("h100", "h100-sxm"), ("H100 SXM", "h100-sxm"), ("gb200", "gb200-nvl72"),
    ("mi300x", "mi300x")])
def test_machines_have_more_than_one_name(name, found):
    assert find(name) is GPUS[found]


def test_aliases_lead_somewhere():
    assert set(hardware.ALIASES.values()) <= GPUS.keys() and not hardware.ALIASES.keys() & GPUS.keys()


@pytest.mark.parametrize(("name", "says"), [
    ("h1000", "there is no GPU 'h1000': nearest h100"), ("a10", "nearest a100"),
    ("tpu", "there are v100-32gb, a100-40gb"), (None, "there is no GPU None")])
def test_an_unknown_machine_is_answered_with_the_nearest(name, says):
    with pytest.raises(ValueError, match=says):
        find(name)


def test_an_unknown_dtype_or_span_is_answered_with_those_that_are_known():
    with pytest.raises(ValueError, match="v100-32gb has no peak for dtype 'bfloat16': there is one for float16, float"):
        find("v100").flops("bfloat16")
    with pytest.raises(ValueError, match="span='rack': expected one of domain, node, network"):
        find("h100").link("rack")


def test_your_own_machines_are_read_and_come_first(file):
    path = file(MINE + MINE.replace("[mine]", "[h200]"))
    gpu = find("mine", path)
    assert (gpu.memory, gpu.flops("bfloat16"), gpu.fabric) == (48e9, 181e12, Link(5.7e-6, 25e9))
    assert (gpu.node_size, gpu.domain_size, gpu.host, gpu.peers) == (4, 4, None, None)
    assert find("h200", path).memory == 48e9 and find("h100", path) is GPUS["h100-sxm"]


@pytest.mark.parametrize(("change", "says"), [
    (("48e9", '"80GB"'), "own.toml: mine: memory = '80GB': expected a number of bytes, more than 0, without a unit"),
    (("48e9", "-1"), "memory = -1: expected"), (("48e9", "0"), "memory = 0"), (("48e9", "nan"), "memory = nan"),
    (("48e9", "true"), "memory = True"),
    (("node_size = 4", "node_size = 4.5"), "node_size = 4.5: expected a number of GPUs"),
    (("memory = 48e9", ""), "memory is missing"), (("network = { alpha = 14e-6, bandwidth = 12.5e9 }", ""),
                                                  "network is missing"),
    (("node_size", "node_sise"), "there is no key 'node_sise'; nearest 'node_size'"),
    (("bfloat16", "bf16"), "peak: there is no key 'bf16'; nearest 'bfloat16'"),
    (("alpha = 14e-6, ", ""), "network.alpha = None: expected a number of seconds"),
    (("{ alpha = 5.7e-6, bandwidth = 25e9 }", "25e9"), "fabric: expected a table of alpha, bandwidth, not 25000000000"),
    (("[mine]", "[mine"), "cannot be read as TOML"), ((MINE, ""), "expected a table for each machine"),
    ((MINE, "memory = 3"), "expected a table for each machine")])
def test_what_is_wrong_in_a_file_is_named_with_its_place(file, change, says):
    with pytest.raises(ValueError, match="own.toml") as error:
        read(file(MINE.replace(*change)))
    assert says in str(error.value) and "\n" not in str(error.value).split("cannot be read")[0]


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere.toml: cannot be read as TOML"):
        find("mine", tmp_path / "nowhere.toml")
