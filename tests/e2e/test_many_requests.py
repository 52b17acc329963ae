"""Clients come, go and disconnect at random, on four ranks: none waits for ever, every answer is that of one process."""
import os
import random
import time
import unittest

import harness
from asked import PATIENCE, Asked
from ranks import RanksServer, alive, wait_until

COUNT = 300 if os.environ.get("ROTA_FULL") else 80
AT_ONCE = 24
FLAGS = ("--dtype", "float32", "--max-model-len", 256, "--kv-cache-memory-bytes", 32 << 20, "--max-num-seqs", 8,
         "--max-num-batched-tokens", 64, "--generation-config", "vllm", "--threads", 1)


def requests():
    draw = random.Random(21)
    return [{"model": "demo", "prompt": [draw.randrange(500) for _ in range(draw.choice((1, 3, 9, 30, 90)))],
             "max_tokens": draw.randrange(1, 14), "ignore_eos": True, "logprobs": 2, "stream": draw.random() < 0.6,
             "temperature": draw.choice((0, 0.8)), "seed": index} for index in range(COUNT)]


class ManyRequests(unittest.TestCase):
    @staticmethod
    def ask_all(server, leaves):
        """Arrivals in bunches and with pauses. leaves: whether some clients disconnect."""
        draw = random.Random(22)
        asked = []
        for body in requests():
            while sum(it.is_alive() for it in asked) >= AT_ONCE:
                time.sleep(0.005)
            if draw.random() < 0.3:
                time.sleep(draw.uniform(0, 0.05))
            patience = {}
            # After so many tokens, whenever they come; of an answer in one piece, where it takes long.
            if leaves and draw.random() < 0.3:
                patience = ({"leave_after": draw.randrange(0, 5)} if body["stream"] else
                            {"leave_within": draw.uniform(0.005, 0.3)})
            asked.append(Asked(server, body, **patience))
        for it in asked:
            it.join(PATIENCE)
        return asked

    @staticmethod
    def steps_of_ranks(server):
        return [rank["steps"] + rank["dummy_steps"] for rank in server.topology()["ranks"]]

    def test_of_four_ranks(self):
        model = harness.with_tokenizer(harness.GOLDENS / "gptoss-mxfp4-h160", harness.OUTPUT / "ranks-model")
        with RanksServer(model, *FLAGS) as server:
            expected = [it.said() for it in self.ask_all(server, leaves=False)]
        with RanksServer(model, *FLAGS, "-dp", 4, "-ep", "--rank-timeout", 120, "--check-collectives") as server:
            asked = self.ask_all(server, leaves=True)
            self.assertEqual([it for it in asked if it.is_alive()], [], "".join(server.log))
            self.assertTrue(wait_until(lambda: server.metric("vllm:num_requests_running") == 0, PATIENCE))
            self.assertTrue(wait_until(lambda: server.metric("vllm:kv_cache_usage_perc") == 0, PATIENCE))
            self.assertTrue(server.is_ready())
            self.assertEqual(server.metric("rota:engine_restarts_total"), 0)
            # All take part in as many steps; what each has done is told a little later.
            self.assertTrue(wait_until(lambda: len(set(self.steps_of_ranks(server))) == 1, 20), server.topology())
            ranks = server.topology()["ranks"]
        left = [it for it in asked if it.left]
        print(len(left), "of", COUNT, "clients left")
        self.assertGreater(len(left), COUNT // 20)
        self.assertGreater(len(asked) - len(left), COUNT // 2)
        for it, (_, text, tokens, logprobs, ends) in zip(asked, expected):
            if it.left:
                self.assertEqual(it.tokens, tokens[:len(it.tokens)])
                self.assertEqual(it.logprobs, logprobs[:len(it.logprobs)])
            else:
                self.assertEqual(it.said(), (200, text, tokens, logprobs, ends))
        self.assertTrue(all(rank["steps"] > 0 for rank in ranks), ranks)
        self.assertTrue(wait_until(lambda: not any(alive(rank["pid"]) for rank in ranks), 20))


if __name__ == "__main__":
    harness.main()
