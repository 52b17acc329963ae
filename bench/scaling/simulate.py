"""The time of a step of many ranks that meet in every mixture layer.

    step = simulate(model, machine, routing, Step(tokens=[16] * 64, context=1024))
    step.seconds, step.limits()

A layer lasts as long as its slowest rank's attention, then the dispatch, then the slowest rank's experts, then the way
home; ranks wait for one another at each of these (lockstep). Shared experts, which the program computes while tokens
travel, count as attention, and nothing else is taken to overlap.
"""
import dataclasses

import routing as routings
from model import Cost

SAMPLED_LAYERS = 6  # of a large model; all are alike but for what tokens choose


@dataclasses.dataclass(frozen=True)
class Step:
    tokens: list             # of each rank
    context: int = 256       # of each token's sequence
    rows: list = None        # of logits; None: one for each token
    redundant_experts: int = 0
    balance: bool = False    # experts where EPLB would put them; else one after another


@dataclasses.dataclass
class StepTime:
    """Seconds by what they are spent on; their sum is the step."""
    compute: float = 0.0    # of the mean rank
    lockstep: float = 0.0   # waiting for the rank with most tokens
    imbalance: float = 0.0  # waiting for the rank with most work in its experts
    latency: float = 0.0
    bandwidth: float = 0.0

    @property
    def seconds(self):
        return sum(dataclasses.astuple(self))

    def limits(self):
        """What takes most of it, by name."""
        return max(dataclasses.fields(self), key=lambda field: getattr(self, field.name)).name

    @property
    def communication(self):
        return self.latency + self.bandwidth


@dataclasses.dataclass
class Flow:
    """What one layer's tokens do: [ranks] each, and bytes between hosts."""
    loads: list       # {expert: tokens}
    sent: list        # bytes to ranks on the same host
    messages: list    # puts, where they are one-sided
    host_out: list    # [hosts] bytes that leave
    host_in: list


def simulate(model, machine, routing, step):
    out = StepTime()
    ranks = len(step.tokens)
    rates = machine.rates
    dense = [rates.seconds(model.dense(tokens, step.rows[rank] if step.rows else tokens, step.context))
             for rank, tokens in enumerate(step.tokens)]
    add_work(out, "lockstep", machine, dense, 1)
    layers = range(min(SAMPLED_LAYERS, model.moe_layers)) if ranks > 8 else range(model.moe_layers)
    share = model.moe_layers / len(layers)
    for layer in layers:
        flow = route(model, machine, routing, step, layer)
        experts = [expert_seconds(model, machine.expert_rates, loads) for loads in flow.loads]
        add_work(out, "imbalance", machine, experts, share)
        if ranks > 1:
            latency, bandwidth = communication(model, machine, flow)
            out.latency += latency * share
            out.bandwidth += bandwidth * share
    return out


def add_work(out, waiting, machine, seconds, share):
    """Work of all ranks between two meetings. Of ranks that share a core the mean is that of the core."""
    mean = sum(seconds) / len(seconds) * machine.ranks_on_core()
    whole = max(machine.together(seconds), mean)
    out.compute += mean * share
    setattr(out, waiting, getattr(out, waiting) + (whole - mean) * share)


def expert_seconds(model, rates, loads):
    return sum(rates.seconds(Cost(model.expert.bytes, model.expert.flop * tokens)) for tokens in loads.values())


def place(model, routing, step, layer):
    ranks = len(step.tokens)
    if step.balance:
        return routings.balanced(routing.popularity(layer), ranks, step.redundant_experts)
    return routings.linear(model.experts, ranks)


def route(model, machine, routing, step, layer):
    """Every token of every rank to its experts and home again."""
    ranks = len(step.tokens)
    hosts = machine.host_of(ranks - 1) + 1
    flow = Flow([{} for _ in range(ranks)], [0.0] * ranks, [0] * ranks, [0.0] * hosts, [0.0] * hosts)
    if model.shape.expert_parallel or ranks == 1:
        route_whole(model, machine, routing.draw(layer, sum(step.tokens)), place(model, routing, step, layer),
                    step, flow)
    else:
        route_cut(model, machine, routing.draw(layer, sum(step.tokens)), step, flow)
    return flow


def send(machine, flow, source, target, size):
    if source == target:
        return
    here, there = machine.host_of(source), machine.host_of(target)
    if here == there:
        flow.sent[source] += size
    else:
        flow.host_out[here] += size
        flow.host_in[there] += size


def route_whole(model, machine, chosen, holders, step, flow):
    transfer, transport = model.transfer, model.shape.transport
    turns = [0] * model.experts  # its copies take turns
    tokens = iter(chosen)
    for home, count in enumerate(step.tokens):
        for _ in range(count):
            owners = []
            for expert in next(tokens):
                copies = holders[expert]
                owner = copies[turns[expert] % len(copies)]
                turns[expert] += 1
                owners.append(owner)
                flow.loads[owner][expert] = flow.loads[owner].get(expert, 0) + 1
                send(machine, flow, owner, home, transfer.home)
                flow.messages[owner] += owner != home
            if transport == "low_latency":
                for owner in owners:
                    send(machine, flow, home, owner, transfer.out)
                    flow.messages[home] += owner != home
            elif transport == "alltoallv":
                for owner in set(owners):
                    send(machine, flow, home, owner, transfer.out)
    if transport == "allgather_reducescatter":
        send_to_all(machine, step.tokens, transfer.out, flow)


def route_cut(model, machine, chosen, step, flow):
    """Every rank has a part of each expert: it gets all tokens, and sends each home what it makes of it."""
    loads = {}
    for experts in chosen:
        for expert in experts:
            loads[expert] = loads.get(expert, 0) + 1
    flow.loads[:] = [dict(loads) for _ in step.tokens]
    send_to_all(machine, step.tokens, model.transfer.out, flow)
    for home, count in enumerate(step.tokens):
        for rank in range(len(step.tokens)):
            send(machine, flow, rank, home, model.transfer.home * count)


def send_to_all(machine, tokens, size, flow):
    """Each rank's tokens to each other rank, host by host."""
    on_host = [0] * len(flow.host_out)
    for rank in range(len(tokens)):
        on_host[machine.host_of(rank)] += 1
    for rank, count in enumerate(tokens):
        here = machine.host_of(rank)
        flow.sent[rank] += size * count * (on_host[here] - 1)
        flow.host_out[here] += size * count * (len(tokens) - on_host[here])
        for host, ranks in enumerate(on_host):
            if host != here:
                flow.host_in[host] += size * count * ranks


# Meetings of the ranks in a layer: what Communicator::traffic() counts as operations.
OPERATIONS = {"allgather_reducescatter": 2, "alltoallv": 3, "low_latency": 2}


def communication(model, machine, flow):
    """Seconds of latency and of bandwidth, of one layer."""
    link, ranks = machine.link, len(flow.loads)
    operations = OPERATIONS[model.shape.transport]
    # One-sided: a message for each put, and a barrier in log2(ranks) turns; else one to each other rank.
    if model.shape.transport == "low_latency":
        messages = max(flow.messages) + operations * (ranks - 1).bit_length()
    else:
        messages = operations * (ranks - 1)
    latency = operations * (link.latency + machine.switch * (machine.ranks_on_core() - 1)) + link.message * messages
    across = max(flow.host_out + flow.host_in) / link.bytes_per_second if len(flow.host_out) > 1 else 0.0
    local = max(flow.sent) * machine.ranks_on_core() / link.local_bytes_per_second
    return latency, max(across, local)
