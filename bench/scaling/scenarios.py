"""What is predicted for machines that are not here, and the tables of it.

A rank is a host of 32 cores, each as fast as the measured ones, with 300 GB/s of memory. Of that the demo's weights use as
large a share as was measured here, the published models' the share that was measured at their widths (docs/benchmarks.md).
16 sequences decode on each rank, give or take 4 (ranks are never equally full), 1024 tokens long.
"""
import dataclasses
import pathlib
import random

from machine import Link, Machine, Rates
from model import Model, Shape
from routing import Zipf
from simulate import OPERATIONS, Step, simulate

ROOT = pathlib.Path(__file__).resolve().parents[2]
SIZES = (8, 64, 512)
CORES, BYTES_PER_SECOND = 32, 300e9
SHARE = 0.6  # of the read bandwidth, at the widths of gpt-oss-20b and of Nemotron-3 Nano
SEQUENCES, MORE_OR_LESS, CONTEXT = 16, 4, 1024
SKEW = 0.6  # exponent
PREFILL = 512
NETWORKS = {"100 Gbit/s, RDMA": Link(latency=3e-6, message=0.5e-6, bytes_per_second=12.5e9),
            "10 Gbit/s, TCP": Link(latency=30e-6, message=5e-6, bytes_per_second=1.25e9)}
FAST, SLOW = NETWORKS
MODELS = {"gpt-oss-120b MXFP4": ROOT / "tests/data/gpt-oss-120b",
          "Nemotron-3 Nano NVFP4": ROOT / "tests/data/nemotron-3-nano-30b-a3b-nvfp4"}


def server_rates(rates, share):
    return Rates(1 / (share * BYTES_PER_SECOND), rates.per_flop / CORES)


def share_of(rates, bandwidth):
    """Of the bandwidth of one thread, in bytes a second, that was used where the rates were measured."""
    return min(1.0, 1 / (rates.per_byte * bandwidth)) if rates.per_byte > 0 else 1.0


def tokens_of(ranks):
    draw = random.Random(ranks)
    return [SEQUENCES + draw.randint(-MORE_OR_LESS, MORE_OR_LESS) for _ in range(ranks)]


@dataclasses.dataclass
class Scenarios:
    """Everything that the tables ask, by name of the model."""
    calibration: object
    rota: str
    demo_path: str
    bandwidth: float

    def __post_init__(self):
        found = self.calibration
        self.demo_rates = [server_rates(it, share_of(it, self.bandwidth)) for it in (found.rates, found.expert_rates)]
        self.rates = [server_rates(it, SHARE) for it in (found.rates, found.mxfp4_rates)]
        self.paths = {"demo (recorded routing)": self.demo_path, **MODELS}

    def model(self, name, ranks, transport):
        return Model.planned(self.rota, self.paths[name], Shape(dp=ranks, transport=transport))

    def routing(self, name, model, exponent):
        if name not in MODELS:
            return self.calibration.routing
        return Zipf(model.experts, model.top_k, exponent)

    def step(self, name, ranks, transport="alltoallv", network=FAST, exponent=SKEW, balance=False, tokens=None, rows=None):
        model = self.model(name, ranks, transport)
        # Copies fill the ranks: as many slots as the next multiple of the ranks, and at least one more of each rank's share.
        slots = -(-model.experts // ranks) * ranks
        redundant = (slots if slots > model.experts else slots + ranks) - model.experts
        step = Step(tokens or tokens_of(ranks), CONTEXT, rows=rows, balance=balance, redundant_experts=redundant)
        machine = Machine(*(self.rates if name in MODELS else self.demo_rates), NETWORKS[network])
        return simulate(model, machine, self.routing(name, model, exponent), step)


def percent(part, whole):
    return f"{100 * part / whole:.0f} %"


def parts_table(scenarios):
    """Rows: model, network, ranks, step, share of each part, what is largest."""
    rows = [["model", "network", "ranks", "step, ms", "tokens/s", "compute", "lockstep", "imbalance", "latency", "bandwidth",
             "limits first"]]
    for name in scenarios.paths:
        for network in NETWORKS:
            for ranks in SIZES:
                step = scenarios.step(name, ranks, network=network)
                rows.append([name, network, str(ranks), f"{step.seconds * 1e3:.1f}",
                             f"{sum(tokens_of(ranks)) / step.seconds:.0f}",
                             *(percent(value, step.seconds) for value in dataclasses.astuple(step)), step.limits()])
    return rows


def skew_table(scenarios, exponents=(0.0, 0.6, 1.0)):
    rows = [["model", "ranks", *(f"exponent {exponent:g}" for exponent in exponents),
             *(f"{exponent:g} with EPLB" for exponent in exponents[1:])]]
    for name in MODELS:
        for ranks in SIZES:
            even = scenarios.step(name, ranks, exponent=exponents[0]).seconds
            others = [scenarios.step(name, ranks, exponent=exponent).seconds for exponent in exponents[1:]]
            balanced = [scenarios.step(name, ranks, exponent=exponent, balance=True).seconds for exponent in exponents[1:]]
            rows.append([name, str(ranks), f"{even * 1e3:.1f} ms", *(f"x {it / even:.2f}" for it in others + balanced)])
    return rows


def transport_table(scenarios):
    rows = [["model", "network", "ranks", *(f"{transport}, ms" for transport in OPERATIONS)]]
    for name in MODELS:
        for network in NETWORKS:
            for ranks in SIZES:
                steps = [scenarios.step(name, ranks, transport, network) for transport in OPERATIONS]
                rows.append([name, network, str(ranks), *(f"{step.seconds * 1e3:.1f}" for step in steps)])
    return rows


def prefill_table(scenarios):
    """A step in which one rank reads a prompt's chunk beside its sequences: all others wait for it."""
    rows = [["model", "ranks", "decode step, ms", f"with {PREFILL} tokens of a prompt on one rank"]]
    for name in MODELS:
        for ranks in SIZES:
            tokens = tokens_of(ranks)
            plain = scenarios.step(name, ranks)
            longer = [tokens[0] + PREFILL, *tokens[1:]]
            mixed = scenarios.step(name, ranks, tokens=longer, rows=tokens)
            rows.append([name, str(ranks), f"{plain.seconds * 1e3:.1f}", f"{mixed.seconds * 1e3:.1f} ms"])
    return rows
