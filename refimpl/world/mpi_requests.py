"""Messages under MPI on their way: what `isend` and `irecv` return, until somebody waits for it.

    sending      header and payload, at once
    receiving    the header; when it has come, the payload that it announces: see `announced`
    bare         the payload alone, where both sides know what comes
"""

from refimpl.world.communicator import Request
from refimpl.world.payload import library, misfit
from refimpl.world.wire import decode, deliver, incoming


class SendingMPI(Request):
    """A message on its way out; keeps its buffers alive until MPI is done with them."""

    def __init__(self, comm, dst, buffers, requests):
        self.comm, self.dst, self.buffers, self.requests = comm, dst, buffers, requests
        comm.job.sending.add(self)

    def wait(self):
        """Block until the array may be changed again."""
        if self.requests:
            self.comm._wait(self.requests, self.dst, "to be received by")
            self.comm.job.sending.discard(self)
            self.requests = self.buffers = None


class ReceivingBare(Request):
    """A payload without header on its way into a buffer."""

    def __init__(self, comm, src, out, buffer, requests):
        self.comm, self.src, self.out, self.buffer, self.requests = comm, src, out, buffer, requests

    def wait(self):
        """`out`, once filled."""
        if self.requests:
            self.comm._wait(self.requests, self.src, "for a message from")
            deliver(self.buffer, library(self.out), self.out)
            self.requests = self.buffer = None
        return self.out


class ReceivingMPI(Request):
    """A header on its way in, and then the payload that it announces."""

    payload = None                                    # MPI requests, once the header has come
    done = False

    def __init__(self, comm, src, out, header, request):
        self.comm, self.src, self.out, self.header, self.request = comm, src, out, header, request
        comm.job.posted.append(self)

    def announced(self):
        """The header is here: start to receive the payload. What is wrong with it, `wait` says."""
        comm, job, out = self.comm, self.comm.job, self.out
        dtype, shape, self.kind, number, self.agreement = decode(self.header)
        self.misfit = out is not None and misfit(out, shape, dtype, self.kind, self.src, comm.name)
        if self.misfit:
            self.payload = []
            return
        self.buffer = incoming(shape, dtype, self.kind, out, job.direct)
        self.payload = comm._pieces(comm.mpi.Irecv, self.buffer, self.src, 2 * number + 3) if self.buffer.size else []
        job.receiving.add(self)

    def wait(self):
        """The array: a new one, or `out` once filled."""
        if self.done:
            return self.out
        comm, job = self.comm, self.comm.job
        if self.payload is None:
            job.posted.remove(self)
            comm._wait([self.request], self.src, "for a message from")
            self.announced()
        comm._check(self.agreement, self.src)
        if self.misfit:
            raise ValueError(self.misfit)
        comm._wait(self.payload, self.src, "for a message from")
        self.out = deliver(self.buffer, self.kind, self.out)
        self.done = True
        job.receiving.discard(self)
        job.received[comm.ranks[self.src]] += 1
        return self.out
