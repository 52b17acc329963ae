"""Ranks on two hosts (network namespaces): the answers of one process, and just the bytes that `rota plan` predicts."""
import json
import os
import signal
import tempfile
import unittest

import harness
import two_hosts
from asked import Asked
from ranks import RanksServer, alive, wait_until

MODEL_FLAGS = ("--dtype", "float32", "--max-model-len", 256, "--max-num-batched-tokens", 64, "--max-num-seqs", 8)
SERVE_FLAGS = ("--kv-cache-memory-bytes", 32 << 20, "--generation-config", "vllm", "--no-enable-prefix-caching",
               "--threads", 1)
REFUSED = two_hosts.refuse()


def bodies():
    return [{"model": "demo", "prompt": list(range(3, 3 + length)), "max_tokens": 9, "ignore_eos": True, "logprobs": 2,
             "stream": False, **extra} for length, extra in
            ((5, {"temperature": 0}), (40, {"temperature": 0}), (3, {"temperature": 0.9, "seed": 4}))]


def answers(server):
    found = []
    for body in bodies():
        asked = Asked(server, body)
        asked.join()
        found.append(asked.said())
    return found


@unittest.skipIf(REFUSED, REFUSED)
class TwoHosts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = harness.with_tokenizer(harness.GOLDENS / "gptoss-mxfp4-h160", harness.OUTPUT / "ranks-model")
        with RanksServer(cls.model, *MODEL_FLAGS, *SERVE_FLAGS) as server:
            cls.expected = answers(server)

    def figures(self, server, tokens):
        """What the ranks have counted, once all `tokens` are in it."""
        def counted():
            info = server.json("GET", "/rota/info")
            self.ranks, self.chosen = server.topology()["ranks"], info["expert_tokens"]
            return (len(self.chosen) == info["moe_layers"] and  # none before the first sign of life
                    sum(it["tokens"] for it in self.ranks) == tokens and
                    len({it["steps"] + it["dummy_steps"] for it in self.ranks}) == 1 and
                    sum(map(sum, self.chosen)) == tokens * info["moe_layers"] * info["top_k"])
        self.assertTrue(wait_until(counted, 60), f"{tokens} tokens: {self.ranks}, {self.chosen}")
        return {"tokens": [it["tokens"] for it in self.ranks], "chosen": self.chosen,
                "payload": sum(it["payload_bytes"] for it in self.ranks),
                "steps": self.ranks[0]["steps"] + self.ranks[0]["dummy_steps"]}

    def predicted(self, plan, transport, before, after):
        """Bytes of one request by rota plan's figures: it ran on one rank, and so did its tokens' experts' counts grow."""
        grown = [now - then for now, then in zip(after["tokens"], before["tokens"])]
        self.assertEqual(min(grown), 0, "one request is on one rank")
        elsewhere = self.ranks[grown.index(0)]["experts"]
        slots = sum(now[expert] - then[expert] for now, then in zip(after["chosen"], before["chosen"])
                    for expert in elsewhere)
        layers, transfer = plan["moe_layers"], plan["transfer"]
        out = {"allgather_reducescatter": sum(grown) * layers, "low_latency": slots}[transport]
        passes = (after["steps"] - before["steps"]) * layers
        # Both ranks hold as many experts, so that what each sends in a pass is as long.
        return out * transfer["out_bytes"] + slots * transfer["home_bytes"] + passes * 2 * transfer["pass_bytes"]

    def ask_and_count(self, server, hosts, transport):
        shown = harness.rota("plan", self.model, *MODEL_FLAGS, "-dp", 2, "-ep", "--all2all-backend", transport, "--json")
        plan = json.loads(shown.stdout)
        figures = first = self.figures(server, 0)
        wire = hosts.sent()
        tokens = 0
        for body, expected in zip(bodies(), self.expected):
            asked = Asked(server, body)
            asked.join()
            self.assertEqual(asked.said(), expected)
            tokens += len(body["prompt"]) + body["max_tokens"] - 1
            before, figures = figures, self.figures(server, tokens)
            payload = figures["payload"] - before["payload"]
            self.assertGreater(payload, 0)
            self.assertEqual(payload, self.predicted(plan, transport, before, figures))
        wire = [now - then for now, then in zip(hosts.sent(), wire)]
        payload = figures["payload"] - first["payload"]
        self.assertGreater(sum(wire), payload)
        print(f"{transport}: {tokens} tokens in {figures['steps']} steps, payload {payload} bytes as predicted; "
              f"the interfaces sent {wire[0]} and {wire[1]}", flush=True)

    def serve(self, transport):
        with tempfile.TemporaryDirectory() as folder, two_hosts.TwoHosts(folder) as hosts:
            with RanksServer(self.model, *MODEL_FLAGS, *SERVE_FLAGS, "-dp", 2, "-ep", "--all2all-backend", transport,
                             "--hostfile", hosts.hostfile, env=hosts.env) as server:
                self.assertEqual(len({it["host"] for it in server.topology()["ranks"]}), 2)
                self.ask_and_count(server, hosts, transport)
                self.lose_the_other_host(server)
            self.assertEqual(server.left, [])
            self.assertTrue(wait_until(lambda: not server.processes(), 20), server.processes())

    def lose_the_other_host(self, server):
        pids = server.rank_pids()
        os.kill(pids[1], signal.SIGKILL)
        self.assertTrue(wait_until(lambda: not server.is_ready(), 60), "".join(server.log))
        server.wait_ready(120)
        self.assertEqual(answers(server), self.expected)
        self.assertFalse(any(map(alive, pids)))

    def test_all_tokens_to_both(self):
        self.serve("allgather_reducescatter")

    def test_rows_put_one_sided(self):
        self.serve("low_latency")


if __name__ == "__main__":
    harness.main()
