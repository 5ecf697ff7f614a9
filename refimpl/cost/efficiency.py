"""How much of what a data sheet promises is there: seconds of a product, of a kernel that moves bytes, of a link.

    a product (m, k) x (k, n)      2 m k n / (peak x e),  or its bytes / memory bandwidth, if that takes longer
                                   e = share x k/(k + depth) x waves/(waves + 1/2)

    k/(k + depth)       a tile of the output costs its k steps, and `depth` more to begin and to be written
    waves/(waves+1/2)   tiles of 128 x 256 are dealt out to the processors; of the last wave half is idle, on average
    everything else     bytes read and written / (share of memory bandwidth): norms, activations, softmax, dropout, Adam
    launch              seconds that each kernel loses while it begins and ends
    links               share of the bandwidth each way, and alpha a message: 128 MiB reach more of it than 32

The A100's constants are round numbers for what its parts reach by themselves: large products 80% of the peak, at the
clocks that 400 W allow; kernels that move bytes 80% of 2.0 TB/s; NCCL 220 to 230 of 300 GB/s inside a node, 21 of 25
over a network card; some microseconds between kernels. One set, for all models, layouts and sizes: no row of a table
is fitted, and what published runs took is what the model is compared with (published.py). Other GPUs have the same
shares but for their products, which throttle more; `source` says what is assumed.
"""

from dataclasses import dataclass
from math import ceil

TILE = 128, 256                                     # rows and columns of the output that a processor makes at once


@dataclass(frozen=True)
class Efficiency:
    """Shares of a GPU's numbers that are reached, by what is done.

    product       of the peak, by an endless matrix product       depth         see above
    processors    that tiles are dealt out to                     memory        of its bandwidth
    fabric        of the links inside a domain                    network       of the network card
    attention     of the peak, by attention in one kernel ("flash"): Dao 2023 has 50 to 70% of the A100's
    launch        seconds, see above
    beside        what messages take from work that hides them, of their own time: 20 of 132 processors (DeepSeek-V3,
                  section 3.2.2)
    """

    product: float = 0.80
    depth: int = 128
    processors: int = 108
    memory: float = 0.80
    fabric: float = 0.75
    network: float = 0.85
    attention: float = 0.55
    launch: float = 5e-6
    beside: float = 0.15
    source: str = "assumed to be those of the A100"


A100 = Efficiency(source="A100: products, kernels and NCCL by themselves, see cost/efficiency.py")
HOPPER = Efficiency(product=0.70, processors=132, attention=0.5,
                    source="H100: products throttle at 700 W; the rest assumed to be as the A100's")
BY_GPU = {"a100-80gb": A100, "a100-40gb": A100, "h100-sxm": HOPPER, "h100-pcie": HOPPER, "h200": HOPPER, "h800": HOPPER,
          "v100-32gb": Efficiency(processors=80), "b200": Efficiency(product=0.70, processors=148),
          "gb200-nvl72": Efficiency(product=0.70, processors=148), "mi300x": Efficiency(product=0.6, processors=304)}


def of(gpu):
    """The `Efficiency` of a `hardware.GPU`."""
    return BY_GPU.get(gpu.name, Efficiency())


def product(gpu, dtype, m, k, n, batch=1, item=2):
    """Seconds of `batch` products (m, k) x (k, n) of elements of `item` bytes; 0 where there is nothing to do."""
    if not (m and k and n and batch):
        return 0.0
    reached = of(gpu)
    waves = batch * ceil(m / TILE[0]) * ceil(n / TILE[1]) / reached.processors
    share = reached.product * k / (k + reached.depth) * waves / (waves + 0.5)
    computing = 2 * batch * m * k * n / (gpu.flops(dtype) * share)
    return max(computing, moving(gpu, batch * item * (m * k + k * n + m * n)))


def moving(gpu, nbytes):
    """Seconds in which a kernel reads and writes so many bytes."""
    return nbytes / (gpu.memory_bandwidth * of(gpu).memory)


def attention(gpu, dtype, flops):
    """Seconds of attention in one kernel, which keeps its scores to itself."""
    return flops / (gpu.flops(dtype) * of(gpu).attention)


def waited(seconds, meanwhile, least, share):
    """What messages of so many seconds make a step longer, if other work of `meanwhile` seconds runs beside them: at
    least `least` seconds are waited for, and of what is hidden a share, see `Efficiency.beside`."""
    late = max(seconds - meanwhile, least)
    return late + share * (seconds - late)


@dataclass(frozen=True)
class Way:
    """What a group of ranks talks over: `near` inside a domain, `far` to other nodes.

    ranks, nodes    of the group, and on how many nodes they are        each    of them on a node
    near, far       (alpha, bytes per second) of one GPU, as reached
    """

    ranks: int
    nodes: int
    near: tuple
    far: tuple

    @property
    def each(self):
        """Ranks of the group on one node."""
        return max(self.ranks // self.nodes, 1)

    def ring(self, messages, nbytes):
        """Seconds of ring collectives in which a rank sends so many messages and bytes.

        As NCCL does, the ranks of a node leave it through all their cards at once, each with its share; latencies add
        up inside a node and, of a tree, between nodes.
        """
        if self.nodes == 1:
            return messages * self.near[0] + nbytes / self.near[1]
        passes = messages / max(self.ranks - 1, 1)
        latency = passes * ((self.each - 1) * self.near[0] + ceil(self.nodes - 1).bit_length() * self.far[0])
        return latency + nbytes / min(self.near[1], self.each * self.far[1])

    def exchange(self, messages, nbytes):
        """Seconds of all-to-alls: what stays inside the node and what leaves it go at the same time."""
        away = 0 if self.nodes == 1 else (self.ranks - self.each) / (self.ranks - 1)
        near, far = (1 - away) * nbytes / self.near[1], away * nbytes / self.far[1]
        alpha = self.near[0] if self.nodes == 1 else self.far[0]
        return messages * min(alpha, 4e-6) + max(near, far)

    def hop(self, nbytes):
        """Seconds of one message to a neighbour in the group, over the farthest link on the way."""
        alpha, bandwidth = self.near if self.nodes == 1 else self.far
        return alpha + nbytes / bandwidth


def way(gpu, ranks):
    """The `Way` of a group of world ranks, rank r on the r-th GPU."""
    reached, span = of(gpu), gpu.span(ranks)
    size = gpu.domain_size if span == "domain" else max(gpu.node_size, gpu.domain_size if gpu.host is None else 1)
    nodes = 1 if span != "network" else len({rank // size for rank in ranks})
    near = gpu.link("domain" if span == "network" else span, len(ranks))
    return Way(len(ranks), nodes, (near.alpha, near.bandwidth * reached.fabric),
               (gpu.network.alpha, gpu.network.bandwidth * reached.network))
