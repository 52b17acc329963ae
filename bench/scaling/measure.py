#!/usr/bin/env python3
"""Runs the demo model as one process and as several ranks, in turn, and writes down what was measured.

    bench/scaling/measure.py [--rounds 3] [--out bench/scaling/measured.json] [--rota build/release/bin/rota]

Every setup is a `rota serve` of its own. The time of a decode step is that of a long answer less that of a short one, so
that prefill, start and end are not in it; what the ranks did meanwhile is the difference of their counters in /metrics.
Setups take turns, round by round, as a virtual machine may be slowed from outside for a while; who reads it takes medians.
"""
import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import harness
from routing import Recorded

VOCABULARY = 49152
TRANSPORTS = ("allgather_reducescatter", "alltoallv", "low_latency")
PROMPT, SHORT, LONG = 4, 2, 26  # tokens
PREFILL = 384
TICK = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Setup:
    """How a model is served. cores: of this machine that it may use."""
    name: str
    flags: tuple
    ranks: int
    cores: int
    batches: tuple
    format: str = "gpt-oss-bf16"  # of the demo model


def experts_dealt(ranks, cores, transport, batches):
    name = f"ep{ranks}_{transport}" + ("" if cores == 2 else "_one_core")
    return Setup(name, ("-dp", ranks, "-ep", "--all2all-backend", transport, "--threads", 1), ranks, cores, batches)


def setups():
    batches = (4, 16, 64)
    found = [Setup("one_thread", ("--threads", 1), 1, 1, (1, *batches)),
             Setup("one_thread_mxfp4", ("--threads", 1), 1, 1, (1, *batches), "gpt-oss-mxfp4"),
             Setup("two_threads", ("--threads", 2), 1, 2, batches),
             Setup("dp2", ("-dp", 2, "--threads", 1), 2, 2, batches)]
    for transport in TRANSPORTS:
        found.append(experts_dealt(2, 2, transport, batches))
        found.append(experts_dealt(2, 1, transport, batches))
        found.append(experts_dealt(4, 2, transport, batches))
    return found


class Counters:
    """What the ranks have counted so far, and the CPU time that their processes have taken."""

    NAMES = ("rank_steps", "step_seconds", "communication_seconds", "communication_operations", "communication_bytes",
             "header_seconds")

    def __init__(self, server, pids):
        page = server.request("GET", "/metrics").body.decode()
        self.values = {name: [float(value) for value in
                              re.findall(rf"^rota:{name}_total{{.*\brank=.*}} (\S+)$", page, re.MULTILINE)]
                       for name in self.NAMES}
        self.values["cpu_seconds"] = [cpu_seconds(pid) for pid in pids]

    def since(self, before):
        return {name: [now - then for now, then in zip(values, before.values[name])]
                for name, values in self.values.items()}


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Session:
    """A server and the workloads that it is given. No two prompts begin alike: nothing is found in the prefix cache."""

    def __init__(self, server, seed):
        self.server, self.random = server, random.Random(seed)
        topology = server.json("GET", "/v1/rota/topology")
        self.pids = [rank["pid"] for rank in topology["ranks"]]

    def prompts(self, count, tokens):
        return [[self.random.randrange(3, VOCABULARY) for _ in range(tokens)] for _ in range(count)]

    def run(self, count, prompt, tokens):
        """Wall time and counters of `count` requests at once."""
        body = {"model": "demo", "prompt": self.prompts(count, prompt), "max_tokens": tokens, "temperature": 0,
                "ignore_eos": True}
        self.settle()
        before, start = Counters(self.server, self.pids), time.perf_counter()
        answer = self.server.json("POST", "/v1/completions", body)
        seconds = time.perf_counter() - start
        self.settle()
        assert answer["usage"]["completion_tokens"] == count * tokens, answer["usage"]
        return seconds, Counters(self.server, self.pids).since(before)

    @staticmethod
    def settle():
        time.sleep(0.25)  # ranks without work report at once

    def decode(self, batch):
        short_seconds, short = self.run(batch, PROMPT, SHORT)
        long_seconds, long = self.run(batch, PROMPT, LONG)
        steps = LONG - SHORT
        figures = {name: [(b - a) / steps for a, b in zip(short[name], long[name])] for name in short}
        return {"seconds": (long_seconds - short_seconds) / steps, **figures}

    def prefill(self, count):
        seconds, figures = self.run(count, PREFILL, 1)
        return {"seconds": seconds, "tokens": count * PREFILL, **figures}


def record_routing(server, tokens):
    """Experts of each generated token: [tokens][layers][k], of answers to different prompts."""
    prompts = ("The capital of France is", "def fibonacci(n):", "Once upon a time", "Water boils at", "1, 2, 3,",
               "Dear Sir or Madam,", "The three laws of", "SELECT name FROM")
    found = []
    for prompt in prompts:
        answer = server.json("POST", "/v1/completions", {
            "model": "demo", "prompt": prompt, "max_tokens": tokens // len(prompts), "temperature": 0.8, "seed": 1,
            "ignore_eos": True, "return_routed_experts": True})
        found += [token["experts"] for token in answer["choices"][0]["routed_experts"]]
    return found


def speed(model):
    """Read bandwidth and peak arithmetic of one thread of this machine."""
    plan = json.loads(harness.rota("plan", model, "--json", "--measure", "--threads", 1).stdout)["roofline"]
    return {"gb_per_second": plan["bandwidth_gb_per_second"], "gflop_per_second": plan["peak_gflop_per_second"]}


def measure(setup, model, seed, quick):
    batches = setup.batches[-1:] if quick else setup.batches
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:setup.cores])  # what is started has the same
    try:
        server = harness.Server(model, *setup.flags, "--max-model-len", 512, "--max-num-seqs", 64,
                                "--kv-cache-memory-bytes", 1 << 30, "--generation-config", "vllm")
        with server:
            session = Session(server, seed)
            session.run(8, PROMPT, SHORT)  # pages and buffers are touched
            return {"decode": {str(batch): session.decode(batch) for batch in batches},
                    "prefill": session.prefill(4)}
    finally:
        os.sched_setaffinity(0, all_cores)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/scaling/measured.json")
    parser.add_argument("--rota", help="the program (default: $ROTA_BIN, or the release build's)")
    parser.add_argument("--only", default="", help="setups whose name contains this")
    parser.add_argument("--quick", action="store_true", help="the largest batch alone: to try the script")
    args = parser.parse_args()
    harness.ROTA = args.rota or harness.ROTA
    chosen = [setup for setup in setups() if args.only in setup.name]
    models = {format: harness.demo_model(format) for format in {setup.format for setup in setups()}}
    model = models[Setup.format]
    out = {"setups": {setup.name: {"ranks": setup.ranks, "cores": setup.cores, "format": setup.format, "rounds": []}
                                            for setup in chosen}}
    with harness.Server(model, "--max-model-len", 512, "--generation-config", "vllm") as server:
        out["routing"] = Recorded.texts(record_routing(server, 64 if args.quick else 256))
    out["speed"] = []
    for turn in range(args.rounds):
        for setup in chosen:
            out["speed"].append(speed(model))
            figures = measure(setup, models[setup.format], 1000 * turn + 1, args.quick)
            out["setups"][setup.name]["rounds"].append(figures)
            last = figures["decode"][max(figures["decode"], key=int)]
            print(f"round {turn + 1}  {setup.name:34} decode step {last['seconds'] * 1e3:8.2f} ms, "
                  f"prefill {figures['prefill']['tokens'] / figures['prefill']['seconds']:8.0f} tokens/s", flush=True)
        args.out.write_text(json.dumps(out, indent=0) + "\n")


if __name__ == "__main__":
    main()
