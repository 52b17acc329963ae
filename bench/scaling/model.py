"""What a model's step costs on each rank and what travels, as `rota plan --json` says it: no formula of the program is
written again here.

    model = Model.planned(rota, "tests/data/gpt-oss-120b", Shape(dp=64, transport="alltoallv"))
    model.dense(tokens=16, rows=16, context=2048)   # Cost: bytes that are read, FLOP
"""
import dataclasses
import functools
import json
import subprocess


@dataclasses.dataclass(frozen=True)
class Cost:
    """Memory that is read, and arithmetic."""
    bytes: float = 0.0
    flop: float = 0.0

    def __add__(self, other):
        return Cost(self.bytes + other.bytes, self.flop + other.flop)

    def __mul__(self, count):
        return Cost(self.bytes * count, self.flop * count)


@dataclasses.dataclass(frozen=True)
class Shape:
    """dp ranks; experts dealt whole to them, or each cut over all. One rank has no transport."""
    dp: int = 1
    expert_parallel: bool = True
    transport: str = "allgather_reducescatter"

    def flags(self):
        flags = ["-dp", str(self.dp), "--all2all-backend", self.transport]
        return flags + (["-ep"] if self.expert_parallel else [])


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Bytes that leave a rank in a mixture layer; docs/plan.md says for what each is paid."""
    out: int = 0
    home: int = 0
    once: int = 0


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    shape: Shape
    layers: int
    moe_layers: int
    experts: int
    top_k: int
    expert: Cost          # of one expert's part on a rank, in one layer: bytes once, FLOP for each token
    transfer: Transfer
    work: dict            # of the fullest rank, as planned

    @staticmethod
    def of_plan(plan, shape):
        work, transfer = plan["work"], plan["transfer"]
        return Model(name=plan["model"], shape=shape, layers=plan["layers"], moe_layers=plan["moe_layers"],
                     experts=plan["experts"], top_k=plan["top_k"],
                     expert=Cost(work["expert_bytes"], work["expert_flop"]),
                     transfer=Transfer(transfer["out_bytes"], transfer["home_bytes"], transfer["pass_bytes"]), work=work)

    @staticmethod
    @functools.cache
    def planned(rota, path, shape):
        done = subprocess.run([rota, "plan", str(path), "--json", *shape.flags()], check=True, capture_output=True,
                              text=True)
        return Model.of_plan(json.loads(done.stdout), shape)

    def dense(self, tokens, rows, context):
        """Everything but the experts, of all layers: `tokens` of sequences `context` long, `rows` of logits."""
        cost = Cost()
        for part in self.work["dense"]:
            count = rows if part["last_only"] else tokens
            if count > 0:
                cost += Cost(part["step_bytes"] + part["token_bytes"] * count, part["token_flop"] * count)
        for group in self.work["attention"]:
            seen = min(group["window"] or context, context)
            cost += Cost(group["token_bytes"], group["token_flop"]) * (seen * tokens)
        return cost + Cost(self.work["state_bytes"], self.work["state_flop"]) * tokens
