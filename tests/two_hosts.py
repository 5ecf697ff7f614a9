"""Two hosts on one machine: a network and a host name of their own, a cable between them, and a real mpirun.

    alpha 10.99.0.1  |eth0 =========== veth ========== eth0|  10.99.0.2 beta
    core 0           |                                     |           core 1
    mpirun, ranks 0..n-1                       prted, ranks n..2n-1

Namespaces of the Linux kernel are what containers are made of; to MPI these are two machines. `mpirun` starts its
daemon on the other one by a launcher's agent, in place of ssh, with as little environment as ssh gives it. The cable is
slowed by `tc tbf` (a token bucket), each way. beta has processes and temporary files of its own: end its first process,
and the host has died. Traffic stays on this machine. Needs Linux, root, iproute2, util-linux: `missing()` says what is
not there.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from refimpl.world.mpirun import end_job, find_mpirun, mpirun_environment

ROOT = Path(__file__).resolve().parent.parent
ADDRESSES = {"alpha": "10.99.0.1", "beta": "10.99.0.2"}
# beta's, which may die: processes that end together, and files that go with them. alpha's processes and files are this
# machine's: mpirun tidies up after itself, and its ranks can be found here, and ended.
OWN = {"alpha": ([], "true"), "beta": (["--pid", "--mount", "--mount-proc"],
                                       "mount -t tmpfs none /dev/shm && mount -t tmpfs none /var/tmp")}
AGENT = """#!/bin/sh
# What mpirun calls in place of ssh: host, then the words of a command for that host's shell.
[ "$1" = {address} ] || {{ echo "no route to $1" >&2; exit 255; }}
shift
exec env -i PATH=/usr/bin:/bin TMPDIR=/var/tmp HOME="$HOME" USER=root SHELL=/bin/sh \\
    nsenter -t {pid} -n -u -m -p -- {core} sh -c "$*"
"""


def missing():
    """Why two hosts cannot be made here; "" if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {package}"
    if "open" not in subprocess.run([find_mpirun(), "--version"], capture_output=True, text=True).stdout.lower():
        return "the launcher's agent is written for Open MPI"
    tried = subprocess.run(["unshare", "--net", "sh", "-c", "ip link add veth0 type veth peer name veth1 && "
                            "tc qdisc add dev veth0 root tbf rate 1gbit burst 128kb latency 20ms"],
                           capture_output=True, text=True)
    return f"this kernel or container refuses: {tried.stderr.strip()}" if tried.returncode else ""


@contextlib.contextmanager
def two_hosts(folder, rate="1gbit"):
    """Make them; -> `Hosts`. folder: for the launcher's agent, seen by both        rate: of the cable, each way"""
    with contextlib.ExitStack() as up:
        hosts = Hosts(*[up.enter_context(host(name, *own)) for name, own in OWN.items()], Path(folder))
        hosts.connect()
        hosts.limit(rate)
        yield hosts


@contextlib.contextmanager
def host(name, own, first):
    """One of them; -> the PID here of its first process.

    own    namespaces that it has besides network and name        first    what it does first, for the shell
    """
    process = subprocess.Popen(
        ["unshare", "--net", "--uts", *own, "--fork", "--kill-child",
         "sh", "-c", f"hostname {name} && ip link set lo up && {first} && echo up && exec sleep infinity"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout.readline() != "up\n":
            raise RuntimeError(f"host {name} did not come up")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(children[0])
    finally:
        process.kill()                                # --kill-child: with unshare goes the first process of the host
        process.wait()
        process.stdout.close()


class Hosts:
    """Two hosts that are up: alpha, beta are the PIDs here of their first processes."""

    def __init__(self, alpha, beta, folder):
        self.pids = alpha, beta
        cores = sorted(os.sched_getaffinity(0))
        self.cores = [f"taskset -c {cores[k % len(cores)]}" for k in range(2)]        # each host one of the machine's
        self.agent = folder / "agent.sh"
        self.agent.write_text(AGENT.format(address=ADDRESSES["beta"], pid=beta, core=self.cores[1]))
        self.agent.chmod(0o755)

    def on(self, host, *words):
        """Run a command in the network of host 0 or 1."""
        subprocess.run(["nsenter", "-t", str(self.pids[host]), "-n", *words], check=True, capture_output=True)

    def connect(self):
        """Lay the cable."""
        self.on(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(self.pids[1]))
        for host, address in enumerate(ADDRESSES.values()):
            self.on(host, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.on(host, "ip", "link", "set", "eth0", "mtu", "9000", "up")
            self.on(host, "sysctl", "-q", "net.ipv4.tcp_congestion_control=reno",
                    "net.ipv4.tcp_slow_start_after_idle=0")

    def limit(self, rate):
        """Slow the cable, each way, to `rate` as tc writes it; None: as fast as this machine copies."""
        for host in range(2):
            if rate is None:
                self.on(host, "tc", "qdisc", "delete", "dev", "eth0", "root")
            else:
                self.on(host, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                        "burst", "128kb", "latency", "4ms")

    def unplug(self):
        """Pull the cable: nobody hears of it, as when a machine loses power."""
        self.on(0, "ip", "link", "set", "eth0", "down")

    def die(self):
        """beta's kernel goes: all its processes end at once, and its connections with them."""
        os.kill(self.pids[1], 9)

    def start(self, ranks, arguments, environment=None, timeout=100, **options):
        """Start `ranks` ranks a host of `python -m mpi4py *arguments`; the Popen of mpirun."""
        ours = {"OMPI_MCA_btl": "self,sm,tcp", "OMPI_MCA_pml": "ob1", "OMPI_MCA_mpi_yield_when_idle": "1",
                "PRTE_MCA_plm_ssh_agent": str(self.agent),
                "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                "REFIMPL_CHECK": "0", "REFIMPL_RENDEZVOUS": "0"} | (environment or {})
        settings = mpirun_environment(timeout) | ours
        exported = [word for name in [*ours, "REFIMPL_TIMEOUT"] if "MCA" not in name for word in ("-x", name)]
        command = ["nsenter", "-t", str(self.pids[0]), "-n", "-u", "--", *self.cores[0].split(), find_mpirun(),
                   "--host", ",".join(f"{address}:{ranks}" for address in ADDRESSES.values()),
                   "--map-by", f"ppr:{ranks}:node:oversubscribe", "--bind-to", "none", "-n", str(2 * ranks), *exported,
                   sys.executable, "-m", "mpi4py", *arguments]
        return subprocess.Popen(command, env=settings, cwd=ROOT, stdin=subprocess.DEVNULL, start_new_session=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def run(self, ranks, arguments, environment=None, timeout=100):
        """Start and wait: (exit status, stdout, stderr)."""
        job = self.start(ranks, arguments, environment, timeout)
        return finish(job, timeout)


def finish(job, timeout):
    """Wait for a job, and leave nothing of it: (exit status, stdout, stderr)."""
    try:
        output, errors = job.communicate(timeout=timeout + 10)
        return job.returncode, output, errors
    finally:
        end_job(job)
