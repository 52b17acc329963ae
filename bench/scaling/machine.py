"""The machine that is simulated: how fast a rank computes, how ranks share cores, and what lies between them.

    machine = Machine(rates, rates, Link(latency=3e-6, message=0.5e-6, bytes_per_second=12.5e9), ranks_per_host=2)
"""
import dataclasses


@dataclasses.dataclass(frozen=True)
class Rates:
    """Seconds that a rank needs. Reading and arithmetic add up: a rank does not have them all the time at once. What else a
    token costs (norms, rotations, sampling) grows as its arithmetic does, and is in per_flop."""
    per_byte: float
    per_flop: float

    def seconds(self, cost):
        return cost.bytes * self.per_byte + cost.flop * self.per_flop


@dataclasses.dataclass(frozen=True)
class Link:
    """An operation among P ranks takes latency + message * (messages of a rank) + bytes / bytes_per_second. The bandwidth
    is that of a host: its ranks share it. What stays on the host goes at local_bytes_per_second for each rank."""
    latency: float
    message: float
    bytes_per_second: float
    local_bytes_per_second: float = 10e9


@dataclasses.dataclass(frozen=True)
class Machine:
    rates: Rates
    expert_rates: Rates              # of the experts: their weights lie otherwise, and may be of another format
    link: Link
    ranks_per_host: int = 1
    cores_per_host: int = 0          # 0: as many as ranks, none is shared
    switch: float = 0.0              # an operation costs so much more for each further rank on a core

    def ranks_on_core(self):
        return max(1.0, self.ranks_per_host / self.cores_per_host) if self.cores_per_host else 1.0

    def together(self, seconds):
        """How long the slowest of ranks that work between two meetings takes, given what each needs alone."""
        if self.ranks_on_core() == 1:
            return max(seconds)
        hosts = [seconds[first:first + self.ranks_per_host] for first in range(0, len(seconds), self.ranks_per_host)]
        return max(max(max(host), sum(host) / min(self.cores_per_host, len(host))) for host in hosts)

    def host_of(self, rank):
        return rank // self.ranks_per_host
