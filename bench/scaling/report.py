#!/usr/bin/env python3
"""Writes the tables of docs/scaling.md, and docs/scaling.svg, from what measure.py has measured.

    bench/scaling/report.py [--measured bench/scaling/measured.json] [--rota build/release/bin/rota] [--print]
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

from calibrate import CONTEXT, NO_LINK, Calibration
from machine import Machine
from measured import Measured
from model import Model, Shape
from plot import bars
from scenarios import NETWORKS, SIZES, Scenarios, parts_table, prefill_table, skew_table, transport_table
from simulate import OPERATIONS, Step, simulate

ROOT = pathlib.Path(__file__).resolve().parents[2]
SAME_THREADS = "two_threads"  # what several ranks are compared with


def demo_model(layout):
    made = subprocess.run([sys.executable, str(ROOT / "tools/make_demo_model.py"), "--format", layout], check=True,
                          stdout=subprocess.PIPE, text=True)
    return made.stdout.strip().splitlines()[-1]


def table(rows):
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def setup_label(name):
    return {"one_thread": "one process, one thread", "two_threads": "DP 1: one process, two threads",
            "dp2": "DP 2, experts cut"}.get(name) or re.sub(r"^ep(\d)_(\w+?)(_one_core)?$", r"EP \1, \2", name)


def ratio(measured, name, value):
    """How much faster a setup is than one process with as many threads: of medians."""
    return measured.median(SAME_THREADS, value) / measured.median(name, value)


def throughput_table(measured):
    batches = list(map(str, measured.batches(SAME_THREADS)))
    rows = [["served as", *(f"decode, {batch} sequences" for batch in batches), "prefill"]]
    for name, setup in measured.setups.items():
        if setup["format"] != measured.setups[SAME_THREADS]["format"] or (setup["cores"] == 1 and setup["ranks"] > 1):
            continue
        figures = [ratio(measured, name, lambda it, batch=batch: it["decode"][batch]["seconds"])
                   for batch in batches]
        figures.append(ratio(measured, name, lambda it: it["prefill"]["seconds"]))
        rows.append([setup_label(name), *(f"{figure:.2f}" for figure in figures)])
    return rows


def share_of_step(figures):
    """Of the rank that spends least and of the one that spends most."""
    shares = [part / whole for part, whole in zip(figures["communication_seconds"], figures["step_seconds"])]
    return min(shares), max(shares)


def payload(calibration, ranks, transport, batch):
    """Simulated bytes that all ranks send one another in a step."""
    return sum(sum(flow.sent) for flow in calibration.flows(calibration.model(ranks, transport), batch))


def payload_table(calibration):
    """What the communicator has counted beside what is simulated: of random tokens, where the recorded ones are text."""
    rows = [["served as", "sequences", "counted, MB a step", "simulated, MB"]]
    for ranks in (2, 4):
        for transport in OPERATIONS:
            name = f"ep{ranks}_{transport}"
            batch = calibration.measured.batches(name)[-1]
            counted = calibration.measured.median(
                name, lambda it, batch=batch: sum(it["decode"][str(batch)]["communication_bytes"]))
            simulated = payload(calibration, ranks, transport, batch)
            rows.append([setup_label(name), str(batch), f"{counted * 1e-6:.2f}", f"{simulated * 1e-6:.2f}"])
    return rows


def communication_table(measured):
    batches = list(map(str, measured.batches(SAME_THREADS)))
    rows = [["served as", *(f"decode, {batch} sequences" for batch in batches), "prefill", "operations a step"]]
    for name, setup in measured.setups.items():
        if setup["ranks"] == 1 or setup["cores"] == 1:
            continue
        rounds = measured.rounds(name)
        columns = [[it["decode"][batch] for it in rounds] for batch in batches] + [[it["prefill"] for it in rounds]]
        cells = []
        for column in columns:
            least, most = (statistics.median(values) for values in zip(*map(share_of_step, column)))
            cells.append(f"{100 * least:.0f}-{100 * most:.0f} %")
        last = columns[0][0]
        operations = last["communication_operations"][0] / last["rank_steps"][0]
        rows.append([setup_label(name), *cells, f"{operations:.0f}"])
    return rows


def calibration_table(calibration):
    speed = calibration.measured.speed
    rows = [["what", "value", "from"]]
    for what, rates, source in (("all but the experts, BF16", calibration.rates, "two ranks, two cores"),
                                ("experts, BF16", calibration.expert_rates, "two ranks, two cores"),
                                ("experts, MXFP4", calibration.mxfp4_rates, "one thread")):
        for how, unit, cost, limit in (("reading", "GB/s", rates.per_byte, speed["gb_per_second"]),
                                       ("arithmetic", "GFLOP/s", rates.per_flop, speed["gflop_per_second"])):
            value = f"{1e-9 / cost:.1f} {unit}, {100e-9 / cost / limit:.0f} % of one thread's" if cost > 0 else "hidden"
            rows.append([f"{what}: {how}", value, source])
    for transport in OPERATIONS:
        link = calibration.links[transport]
        cost = f"{(link.latency + link.message) * 1e6:.0f} us"
        if transport == "low_latency":
            cost = f"{link.latency * 1e6:.0f} us, and {link.message * 1e6:.2f} us a put"
        elif link.local_bytes_per_second < float("inf"):
            cost += f", and {link.local_bytes_per_second * 1e-9:.1f} GB/s"
        rows.append([f"an operation of {transport}", cost, "two ranks, two cores"])
        rows.append(["... more, where two ranks share a core", f"{calibration.switch[transport] * 1e6:.0f} us",
                     "two ranks, one core"])
    return rows


def comparison(calibration, name, ranks, batch, transport, cores):
    """Measured and predicted seconds of a decode step."""
    if ranks == 1:
        model = Model.planned(calibration.rota, calibration.path, Shape())
        machine = Machine(calibration.rates, calibration.expert_rates, NO_LINK)
        step = simulate(model, machine, calibration.routing, Step([batch], CONTEXT))
    else:
        step = calibration.predicted(ranks, transport, batch, cores)
    return calibration.measured.decode_seconds(name, batch), step.seconds


def prediction_table(calibration):
    rows = [["setup", "sequences", "measured, ms", "simulated, ms", "error", ""]]
    cases = [("one_thread", 1, None, 1)]
    for ranks, cores in ((2, 2), (2, 1), (4, 2)):
        cases += [(f"ep{ranks}_{it}" + ("_one_core" if cores == 1 else ""), ranks, it, cores) for it in OPERATIONS]
    for name, ranks, transport, cores in cases:
        for batch in calibration.measured.batches(name):
            measured, simulated = comparison(calibration, name, ranks, batch, transport, cores)
            where = f", {cores} core{'s' if cores > 1 else ''}" if ranks > 1 else ""
            rows.append([setup_label(name) + where, str(batch), f"{measured * 1e3:.1f}", f"{simulated * 1e3:.1f}",
                         f"{100 * (simulated / measured - 1):+.0f} %", "fitted" if ranks == 2 else "**predicted**"])
    return rows


def routing_table(calibration):
    """How uneven the demo's experts are loaded, were they dealt to ranks: the fullest over the mean."""
    model = Model.planned(calibration.rota, calibration.path, Shape())
    rows = [["ranks", "fullest rank over the mean, of all recorded tokens", "of 16 tokens"]]
    for ranks in (2, 4, 8):
        cells = []
        for count in (len(calibration.routing.tokens), 16):
            ratios = []
            for layer in range(model.moe_layers):
                loads = [0] * ranks
                tokens = calibration.routing.tokens if count > 16 else None
                chosen = [it[layer] for it in tokens] if tokens else calibration.routing.draw(layer, count)
                for expert in (expert for experts in chosen for expert in experts):
                    loads[expert * ranks // model.experts] += 1
                ratios.append(max(loads) * ranks / sum(loads))
            cells.append(f"{statistics.mean(ratios):.2f}")
        rows.append([str(ranks), *cells])
    return rows


def fill(text, tables):
    for name, rows in tables.items():
        block = f"<!-- begin {name} -->\n{table(rows)}\n<!-- end {name} -->"
        text, found = re.subn(rf"<!-- begin {name} -->.*?<!-- end {name} -->", lambda _: block, text, flags=re.DOTALL)
        if found != 1:
            sys.exit(f"docs/scaling.md: {found} places for the table \"{name}\", expected one")
    return text


def draw(scenarios):
    groups = []
    for name in scenarios.paths:
        for network in NETWORKS:
            groups.append((f"{name}, {network}", [(f"{ranks} ranks", scenarios.step(name, ranks, network=network))
                                                  for ranks in SIZES]))
    return bars(groups)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=pathlib.Path, default=ROOT / "bench/scaling/measured.json")
    parser.add_argument("--rota", default=os.environ.get("ROTA_BIN", str(ROOT / "build/release/bin/rota")))
    parser.add_argument("--print", action="store_true", help="the tables; nothing is written")
    args = parser.parse_args()
    measured = Measured(json.loads(args.measured.read_text()))
    demo, demo_mxfp4 = demo_model("gpt-oss-bf16"), demo_model("gpt-oss-mxfp4")
    calibration = Calibration(measured, args.rota, demo, demo_mxfp4)
    scenarios = Scenarios(calibration, args.rota, demo, measured.speed["gb_per_second"] * 1e9)
    tables = {"throughput": throughput_table(measured), "communication": communication_table(measured),
              "payload": payload_table(calibration),
              "calibration": calibration_table(calibration), "prediction": prediction_table(calibration),
              "routing": routing_table(calibration), "parts": parts_table(scenarios), "skew": skew_table(scenarios),
              "transports": transport_table(scenarios), "prefill": prefill_table(scenarios)}
    if args.print:
        for name, rows in tables.items():
            print(f"{name}\n{table(rows)}\n")
        return
    page = ROOT / "docs/scaling.md"
    page.write_text(fill(page.read_text(), tables))
    (ROOT / "docs/scaling.svg").write_text(draw(scenarios))


if __name__ == "__main__":
    main()
