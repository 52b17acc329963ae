"""The speeds of this machine, from what one rank and two ranks were measured to take: never from more.

    found = Calibration(Measured(data), rota, demo, demo_mxfp4)
    found.machine(ranks=4, transport="alltoallv")      # what four ranks on two cores shall be predicted with

Two ranks that run side by side give the rates of compute, by what each spends outside of communication; their steps, what an
operation and a byte cost beside that; two ranks on one core, what an operation costs more there. One thread gives the
rates of MXFP4 experts.
"""
import itertools
import statistics

from machine import Link, Machine, Rates
from model import Cost, Model, Shape
from routing import Recorded
from simulate import OPERATIONS, Step, route, simulate

CONTEXT = 18  # tokens of a sequence, in the mean of the measured steps
NO_LINK = Link(0.0, 0.0, float("inf"), float("inf"))
FREE = Rates(0.0, 0.0)
# An operation between two ranks has one message: of its cost one half is taken as paid for each further rank too.
MESSAGE_SHARE = 0.5


def solve(rows, values):
    """rows . x = whole - known for each (whole, known) of values. Least squares of the error relative to the whole, unknowns
    >= 0: the best of all subsets that may be positive. Rows are few."""
    wanted = [(whole - known) / whole for whole, known in values]
    scaled = [[x / whole for x in row] for row, (whole, _) in zip(rows, values)]
    unknowns = len(rows[0])
    best, found = sum(want ** 2 for want in wanted), [0.0] * unknowns
    for size in range(1, unknowns + 1):
        for subset in itertools.combinations(range(unknowns), size):
            part = least_squares([[row[i] for i in subset] for row in scaled], wanted)
            if part is None or min(part) < 0:
                continue
            error = sum((sum(row[i] * x for i, x in zip(subset, part)) - want) ** 2 for row, want in zip(scaled, wanted))
            if error < best - 1e-12:
                best, found = error, [dict(zip(subset, part)).get(i, 0.0) for i in range(unknowns)]
    return found


def least_squares(rows, wanted):
    """Of rows . x = wanted, by Gauss on the normal equations; None where they do not say."""
    size = len(rows[0])
    scale = [max(abs(row[i]) for row in rows) or 1.0 for i in range(size)]
    rows = [[x / s for x, s in zip(row, scale)] for row in rows]
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(size)] +
              [sum(row[i] * want for row, want in zip(rows, wanted))]
              for i in range(size)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda j: abs(matrix[j][i]))
        if abs(matrix[pivot][i]) < 1e-9:
            return None
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for j in range(size):
            if j != i:
                factor = matrix[j][i] / matrix[i][i]
                matrix[j] = [a - factor * b for a, b in zip(matrix[j], matrix[i])]
    return [matrix[i][size] / matrix[i][i] / scale[i] for i in range(size)]


def spread(batch, ranks):
    """Sequences of each rank, as the front deals them."""
    return [batch // ranks + (rank < batch % ranks) for rank in range(ranks)]


def own_compute(figures):
    """Seconds of a step in which a rank does not communicate, of the mean rank."""
    return statistics.mean(whole - part for whole, part in zip(figures["step_seconds"], figures["communication_seconds"]))


class Calibration:
    def __init__(self, measured, rota, path, mxfp4_path):
        self.measured, self.rota, self.path = measured, rota, path
        self.routing = Recorded.of_texts(measured.routing, Model.planned(rota, path, Shape()).experts)
        self.rates, self.expert_rates = self.fit_rates()
        self.mxfp4_rates = self.fit_mxfp4_rates(Model.planned(rota, mxfp4_path, Shape()))
        self.links, self.switch = {}, {}
        self.fit_links()
        for transport in OPERATIONS:
            self.switch[transport] = self.fit_switch(transport)

    def flows(self, model, batch):
        ranks = model.shape.dp
        machine = Machine(FREE, FREE, NO_LINK, ranks_per_host=ranks)
        step = Step(spread(batch, ranks), CONTEXT)
        return [route(model, machine, self.routing, step, layer) for layer in range(model.moe_layers)]

    def experts_cost(self, model, batch):
        """Of the mean rank."""
        cost = Cost()
        for flow in self.flows(model, batch):
            for loads in flow.loads:
                cost += Cost(model.expert.bytes * len(loads), model.expert.flop * sum(loads.values()))
        return cost * (1 / model.shape.dp)

    def fit_rates(self):
        """Of everything but the experts, and of them. Their arithmetic is alike, their weights lie otherwise."""
        rows, values = [], []
        for transport in OPERATIONS:
            model, setup = self.model(2, transport), f"ep2_{transport}"
            for batch in self.measured.batches(setup):
                dense, experts = model.dense(batch / 2, batch / 2, CONTEXT), self.experts_cost(model, batch)
                rows.append([dense.bytes, experts.bytes, dense.flop + experts.flop])
                values.append((self.measured.median(setup, lambda it, batch=batch: own_compute(it["decode"][str(batch)])), 0.0))
        dense, experts, flop = solve(rows, values)
        return Rates(dense, flop), Rates(experts, flop)

    def fit_mxfp4_rates(self, model):
        """Of MXFP4 experts: everything else of that model is as in the BF16 one."""
        rows, values = [], []
        for batch in self.measured.batches("one_thread_mxfp4"):
            cost = self.experts_cost(model, batch)
            rows.append([cost.bytes, cost.flop])
            values.append((self.measured.decode_seconds("one_thread_mxfp4", batch),
                           self.rates.seconds(model.dense(batch, batch, CONTEXT))))
        return Rates(*solve(rows, values))

    def model(self, ranks, transport):
        return Model.planned(self.rota, self.path, Shape(dp=ranks, transport=transport))

    def fit_links(self):
        """What the ranks' work does not explain. Unknowns: seconds a byte, an operation of each transport, a put."""
        rows, values = [], []
        for index, transport in enumerate(OPERATIONS):
            model, setup = self.model(2, transport), f"ep2_{transport}"
            for batch in self.measured.batches(setup):
                work = simulate(model, self.machine(2), self.routing, Step(spread(batch, 2), CONTEXT)).seconds
                row, flows = [0.0] * 5, self.flows(model, batch)
                row[1 + index] = OPERATIONS[transport] * model.moe_layers
                if transport == "low_latency":
                    row[4] = sum(max(flow.messages) for flow in flows)  # bytes are in it: all puts are alike
                else:
                    row[0] = sum(max(flow.sent) for flow in flows)
                rows.append(row)
                values.append((self.measured.decode_seconds(setup, batch), work))
        byte, *operations, put = solve(rows, values)
        local = 1 / byte if byte > 0 else float("inf")
        for transport, operation in zip(OPERATIONS, operations):
            if transport == "low_latency":
                self.links[transport] = Link(operation, put, float("inf"), float("inf"))
            else:
                self.links[transport] = Link(operation * (1 - MESSAGE_SHARE), operation * MESSAGE_SHARE, float("inf"), local)

    def fit_switch(self, transport):
        model = self.model(2, transport)
        setup = f"ep2_{transport}_one_core"
        machine = self.machine(2, transport, cores=1)
        steps = {batch: simulate(model, machine, self.routing, Step(spread(batch, 2), CONTEXT))
                 for batch in self.measured.batches(setup)}
        extra = [self.measured.decode_seconds(setup, batch) - step.seconds for batch, step in steps.items()]
        return max(0.0, statistics.median(extra) / (OPERATIONS[transport] * model.moe_layers))

    def machine(self, ranks, transport=None, cores=2):
        """This machine, with so many ranks on it."""
        return Machine(self.rates, self.expert_rates, self.links.get(transport, NO_LINK), ranks_per_host=ranks,
                       cores_per_host=cores, switch=self.switch.get(transport, 0.0))

    def predicted(self, ranks, transport, batch, cores=2):
        return simulate(self.model(ranks, transport), self.machine(ranks, transport, cores), self.routing,
                        Step(spread(batch, ranks), CONTEXT))
