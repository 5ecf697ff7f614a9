"""What machines can do: memory, arithmetic and links of one GPU, and how GPUs are grouped.

    GPU ==fabric==> GPU ... domain      NVLink or xGMI: 8 GPUs on most boards, 72 in an NVL72 rack, 2 on a PCIe bridge
        ==host====> GPU ... node        PCIe, for those of a node that the fabric does not join
        ==network=> another node        this GPU's share of its node's network cards

Every bandwidth is bytes per second and GPU *each way*. Vendors print other numbers for the same thing, and four traps
follow: NVLink "900 GB/s" counts both ways (450); "400 Gb/s" are bits (50 GB/s); "1979 TFLOP/s" assume that half of the
weights are zero (989 dense); a card of "80 GB" shows its driver 81559 MiB, which are 85.5e9 bytes.

alpha is the latency of one step of a ring: 3.4 us over NVLink, 5.7 over PCIe, 14 over a network (NCCL's tuning tables,
`hwLat`, ring, simple protocol). Peaks are dense; "float32" is without tensor cores, "tf32" with.
Machines of your own: a TOML file, see `read`.
"""

import difflib
import math
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

NVLINK, PCIE, NETWORK = 3.4e-6, 5.7e-6, 14e-6                  # seconds, see above
SPANS = ("domain", "node", "network")
DTYPES = ("float8", "float16", "bfloat16", "tf32", "float32", "float64")
MIB, GB, TB, TERA = 2**20, 1e9, 1e12, 1e12


class Link(NamedTuple):
    """alpha (seconds a message) and bandwidth (bytes per second, one way)."""

    alpha: float
    bandwidth: float

    @property
    def beta(self):
        """Seconds per byte."""
        return 1 / self.bandwidth

    def seconds(self, nbytes, messages=1):
        """alpha-beta time of `messages` messages of `nbytes` bytes in all, one after the other."""
        return messages * self.alpha + nbytes / self.bandwidth


@dataclass(frozen=True)
class GPU:
    """One GPU and its surroundings. Frozen.

    memory             bytes that the driver reports: all that the context, the allocator and tensors share
    memory_bandwidth   bytes per second
    peak               {dtype: dense operations per second}
    fabric             Link to the others of its domain; through a switch, unless `peers` is given
    network            Link to other nodes: the share of one GPU
    node_size          GPUs in a node          domain_size    GPUs that the fabric joins: may be more, or fewer
    host               Link to those of the node that the fabric does not reach; None where it reaches all
    peers              of a fabric without switch: how many direct neighbours a GPU has, each at fabric.bandwidth
    source             where the numbers come from; [U] marks what no second source confirmed
    """

    name: str
    memory: float
    memory_bandwidth: float
    peak: dict = field(hash=False)
    fabric: Link
    network: Link
    node_size: int = 8
    domain_size: int = 8
    host: Link | None = None
    peers: int | None = None
    source: str = ""

    def flops(self, dtype):
        """Dense operations per second with this dtype. ValueError names the ones that are known."""
        if dtype not in self.peak:
            raise ValueError(f"{self.name} has no peak for dtype {dtype!r}: there is one for {', '.join(self.peak)}")
        return self.peak[dtype]

    def span(self, ranks):
        """How far a group of ranks reaches, rank r on the r-th GPU: "domain", "node" or "network"."""
        for span, size in (("domain", self.domain_size), ("node", self.node_size)):
            if len({rank // size for rank in ranks}) <= 1:
                return span
        return "network"

    def link(self, span, ranks=None):
        """The `Link` of one GPU to a group that reaches so far; the slowest on the way.

        ranks    GPUs of the group, which matters without a switch: only the links to them carry anything;
                 None: as many as it takes to use them all
        """
        if span not in SPANS:
            raise ValueError(f"span={span!r}: expected one of {', '.join(SPANS)}")
        if span == "network":
            return self.network
        if span == "node" and self.host is not None:
            return self.host
        if self.peers is None:
            return self.fabric
        used = self.peers if ranks is None else min(max(ranks - 1, 1), self.peers)
        return Link(self.fabric.alpha, used * self.fabric.bandwidth)


def _hopper(**others):
    return {"float8": 1979e12, "float16": 989e12, "bfloat16": 989e12, "tf32": 495e12, "float32": 67e12,
            "float64": 34e12} | others


def _nvidia(name, mebibytes, bandwidth, peak, nvlink, nic, source, **others):
    """A GPU with NVLink and its share of the network cards, both in GB/s each way."""
    return GPU(name, mebibytes * MIB, bandwidth * TB, peak, Link(NVLINK, nvlink * GB), Link(NETWORK, nic * GB),
               source=source, **others)


GUIDE = "ml-engineering (Bekman), accelerator and network chapters"
DRIVER = "memory: nvidia-smi [U]"
GPUS = {gpu.name: gpu for gpu in (
    _nvidia("v100-32gb", 32510, 0.9, {"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12}, 150, 6.25,
            f"NVIDIA V100 data sheet [U]; {GUIDE} (NVLink 2, 6 links); node of 8 with four 100 Gb/s cards; {DRIVER}"),
    _nvidia("a100-40gb", 40536, 1.555, {"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12,
                                        "float64": 9.7e12}, 300, 25,
            f"NVIDIA A100 data sheet; {GUIDE} (NVLink 3, 12 links; DGX A100: eight 200 Gb/s cards); {DRIVER}"),
    _nvidia("a100-80gb", 81251, 2.039, {"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12,
                                        "float64": 9.7e12}, 300, 25,
            f"NVIDIA A100 data sheet; {GUIDE} (NVLink 3, 12 links; DGX A100: eight 200 Gb/s cards); {DRIVER}"),
    _nvidia("h100-sxm", 81559, 3.35, _hopper(), 450, 50,
            f"NVIDIA H100 data sheet; {GUIDE} (NVLink 4, 18 links; 81559 MiB; DGX H100: eight 400 Gb/s cards)"),
    _nvidia("h100-pcie", 81559, 2.0, {"float8": 1513e12, "float16": 756e12, "bfloat16": 756e12, "tf32": 378e12,
                                      "float32": 51e12, "float64": 26e12}, 300, 50,
            f"NVIDIA H100 data sheet; {GUIDE} (NVLink bridges join pairs; PCIe 5 x16 to the others)",
            domain_size=2, host=Link(PCIE, 63 * GB)),
    _nvidia("h200", 143771, 4.8, _hopper(), 450, 50, f"NVIDIA H200 data sheet; {GUIDE}; {DRIVER}"),
    _nvidia("h800", 81559, 3.35, _hopper(float64=1e12), 200, 50,
            "NVLink 200 GB/s, memory and peaks [U]; DeepSeek-V3 report, section 3.2.2: 160 GB/s usable, network 50"),
    _nvidia("b200", 183359, 8.0, {"float8": 4500e12, "float16": 2250e12, "bfloat16": 2250e12, "tf32": 1120e12,
                                  "float32": 75e12, "float64": 37e12}, 900, 50,
            f"NVIDIA DGX B200 data sheet; {GUIDE} (NVLink 5; node: 400 GB/s to the network); {DRIVER}"),
    _nvidia("gb200-nvl72", 189471, 8.0, {"float8": 5000e12, "float16": 2500e12, "bfloat16": 2500e12, "tf32": 1250e12,
                                         "float32": 80e12, "float64": 40e12}, 900, 50,
            f"NVIDIA GB200 NVL72 data sheet; {GUIDE} (72 GPUs in one NVLink domain, 4 to a tray); {DRIVER}",
            node_size=4, domain_size=72),
    GPU("mi300x", 196592 * MIB, 5.3 * TB, {"float8": 2614e12, "float16": 1307e12, "bfloat16": 1307e12, "tf32": 653e12,
                                           "float32": 163e12, "float64": 81e12},
        Link(3.6e-6, 64 * GB), Link(NETWORK, 50 * GB), peers=7,
        source=f"AMD MI300X data sheet [U]; {GUIDE} (xGMI: 64 GB/s to each of 7 peers, 448 in all); alpha: RCCL's "
               "tuning table [U]; memory: rocm-smi [U]"),
)}
ALIASES = {"v100": "v100-32gb", "a100": "a100-80gb", "a100-40": "a100-40gb", "a100-80": "a100-80gb", "h100": "h100-sxm",
           "h100-80gb": "h100-sxm", "h200-sxm": "h200", "gb200": "gb200-nvl72", "b200-sxm": "b200"}


def find(name, file=None):
    """The `GPU` of this name, of `file` first where one is given. ValueError with the nearest names."""
    known = GPUS | ALIASES | (read(file) if file is not None else {})
    word = str(name).strip().lower().replace("_", "-").replace(" ", "-")
    found = known.get(name, known.get(word))
    if found is None:
        near = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
        raise ValueError(f"there is no GPU {name!r}: " + (f"nearest {', '.join(near)}" if near else
                                                         f"there are {', '.join(list(known)[:len(GPUS)])}"))
    return GPUS[found] if isinstance(found, str) else found


KEYS = {"memory": "bytes", "memory_bandwidth": "bytes per second", "node_size": "GPUs", "domain_size": "GPUs",
        "peers": "GPUs", "peak": None, "fabric": None, "network": None, "host": None, "source": None}
LINK_KEYS = {"alpha": "seconds", "bandwidth": "bytes per second, one way"}


def read(file):
    """The machines of a TOML file, {name: GPU}, a table for each.

        [my-gpu]
        memory = 48e9                                          # bytes
        memory_bandwidth = 864e9                               # bytes per second
        peak = { bfloat16 = 181e12, float32 = 91e12 }          # dense operations per second
        fabric = { alpha = 5.7e-6, bandwidth = 25e9 }          # each way
        network = { alpha = 14e-6, bandwidth = 12.5e9 }
        node_size = 4                                          # and, where they differ, domain_size, host, peers

    Raises ValueError, which names file, machine and key, for what is missing, unknown or not a number.
    """
    try:
        with open(Path(file), "rb") as opened:
            tables = tomllib.load(opened)
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read as TOML: {error}") from None
    if not tables or not all(isinstance(table, dict) for table in tables.values()):
        raise ValueError(f"{file}: expected a table for each machine, such as [my-gpu] memory = 48e9 ...")
    return {name: _machine(f"{file}: {name}", name, table) for name, table in tables.items()}


def _machine(where, name, table):
    _only(where, table, KEYS)
    for key in ("memory", "memory_bandwidth", "peak", "fabric", "network"):
        if key not in table:
            raise ValueError(f"{where}: {key} is missing")
    options = {key: _number(f"{where}: {key}", value, KEYS[key], KEYS[key] == "GPUs")
               for key, value in table.items() if KEYS[key]}
    for key in ("fabric", "network", "host"):
        if key in table:
            options[key] = _link(f"{where}: {key}", table[key])
    _only(f"{where}: peak", table["peak"], DTYPES)
    options["peak"] = {dtype: _number(f"{where}: peak.{dtype}", value, "operations per second")
                       for dtype, value in table["peak"].items()}
    options.setdefault("domain_size", options.get("node_size", 8))
    return GPU(name, **options, source=str(table.get("source", where)))


def _link(where, table):
    _only(where, table, LINK_KEYS)
    numbers = {key: _number(f"{where}.{key}", table.get(key), unit) for key, unit in LINK_KEYS.items()}
    return Link(**numbers)


def _only(where, table, known):
    if not isinstance(table, dict):
        raise ValueError(f"{where}: expected a table of {', '.join(known)}, not {table!r}")
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ValueError(f"{where}: there is no key {key!r}; nearest {near!r}")


def _number(where, value, unit, whole=False):
    right = isinstance(value, int) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not right or not math.isfinite(value) or value <= 0:
        raise ValueError(f"{where} = {value!r}: expected a number of {unit}, more than 0, without a unit")
    return value
