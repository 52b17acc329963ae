"""Ranks die, stop and crash under load, in every phase: requests end with the tokens of an undisturbed run."""
import dataclasses
import os
import random
import resource
import signal
import statistics
import time
import unittest

import harness
import stacks
from asked import PATIENCE, Asked
from ranks import RanksServer, alive, shared_memory, stat_of, wait_until

RANKS = 3
TOKENS = 8  # of each answer
# Ranks are more than cores, and the machine has other work.
FLAGS = ("--max-model-len", 1024, "--max-num-seqs", 8, "--max-num-batched-tokens", 32,
         "--kv-cache-memory-bytes", 64 << 20)
RANKED = ("-dp", RANKS, "-ep", "--rank-timeout", 10, "--max-failures", 1000)
PHASES = ("idle", "prefill", "decode", "dispatch", "loading")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)


@dataclasses.dataclass(frozen=True)
class Death:
    phase: str
    signal: int
    rank: int

    def __str__(self):
        return f"{signal.Signals(self.signal).name} of rank {self.rank}, {self.phase}"


def deaths():
    """Five that meet each phase, each signal, and rank 0 stopped; and fifteen drawn so that all pairs are there."""
    few = [Death("decode", signal.SIGKILL, 2), Death("prefill", signal.SIGSTOP, 1), Death("dispatch", signal.SIGSEGV, 0),
           Death("loading", signal.SIGKILL, 1), Death("idle", signal.SIGSTOP, 0)]
    draw = random.Random(5)
    had = {(it.phase, it.signal) for it in few}
    pairs = [(phase, it) for phase in PHASES for it in SIGNALS if (phase, it) not in had]
    pairs += [("dispatch", signal.SIGSTOP), *((draw.choice(PHASES), draw.choice(SIGNALS)) for _ in range(4))]
    draw.shuffle(pairs)
    return few, [Death(phase, it, draw.randrange(RANKS)) for phase, it in pairs]


def requests():
    """Greedy and sampled, streamed and not; the last two have prompts of many steps."""
    draw = random.Random(7)
    prompts = [[draw.randrange(1000, 20000) for _ in range(length)] for length in (3, 8, 5, 12, 560, 600)]
    return [{"model": "demo", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "logprobs": 1,
             "stream": index % 2 == 0, **({"temperature": 0} if index % 4 < 2 else {"temperature": 0.9, "seed": index})}
            for index, prompt in enumerate(prompts)]


class Kills(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        cls.model = harness.demo_model("gpt-oss-bf16")
        cls.in_dispatch = stacks.Functions(harness.ROTA, r"(AllGather|AllToAllV|LowLatency).*(start|finish)_dispatch")
        with RanksServer(cls.model, "--threads", 1, *FLAGS) as server:
            asked = [Asked(server, body) for body in requests()]
            for it in asked:
                it.join(PATIENCE)
            cls.expected = [it.said() for it in asked]
        for status, _, tokens, logprobs, ends in cls.expected:
            assert (status, len(tokens), len(logprobs), ends) == (200, TOKENS, TOKENS, ["length"]), cls.expected

    def setUp(self):
        self.shared_memory = shared_memory()

    def log(self):
        return "".join(self.server.log)

    def starts_again(self):
        return sum("engine: starting it again" in line for line in self.server.log)

    def wait(self, condition, what):
        self.assertTrue(wait_until(condition, PATIENCE, 0.005), f"{self.death}: {what}\n{self.log()}")

    # How a rank is met in a phase.

    def in_idle(self):
        self.wait(lambda: self.server.metric("vllm:num_requests_running") == 0, "requests end")
        return []

    def in_prefill(self):
        asked = [Asked(self.server, body) for body in requests()]
        time.sleep(self.draw.uniform(0.02, 0.12))  # of many times that
        self.assertEqual([it.tokens for it in asked[4:]], [[], []], "long prompts take many steps")
        return asked

    def in_decode(self):
        asked = [Asked(self.server, body) for body in requests()]
        goal = self.draw.randrange(1, TOKENS - 2)
        self.wait(lambda: len(asked[0].tokens) >= goal, "tokens come")
        return asked

    def stop_in_dispatch(self, pid):
        def stopped_there():
            os.kill(pid, signal.SIGSTOP)
            self.wait(lambda: stat_of(pid)[1] == "T", "it stops")
            if self.in_dispatch.any_thread_of(pid):
                return True
            os.kill(pid, signal.SIGCONT)
            time.sleep(self.draw.uniform(0, 0.002))
            return False
        self.wait(stopped_there, "a step's dispatch is met")

    def kill_loading(self, asked):
        """A rank of an engine that has died is killed, and then one of the next engine while it loads."""
        first = self.server.loading_ranks()
        os.kill(first[0], signal.SIGKILL)
        self.wait(lambda: self.starts_again() == self.died + 1, "the first death is noticed")

        def next_one():
            pid = self.server.loading_ranks().get(self.death.rank)
            return pid is not None and pid not in first.values() and pid
        self.wait(next_one, "the next engine starts")
        time.sleep(self.draw.uniform(0, 0.2))
        pid = next_one()
        self.assertFalse(self.server.is_ready(), "it loads")
        self.died += 1
        os.kill(pid, self.death.signal)
        return asked

    def strike(self):
        phase = self.death.phase
        if phase == "loading":
            return self.kill_loading(self.in_decode())
        asked = {"idle": self.in_idle, "prefill": self.in_prefill}.get(phase, self.in_decode)()
        pid = self.server.loading_ranks()[self.death.rank]
        if phase == "dispatch":
            self.stop_in_dispatch(pid)
        os.kill(pid, self.death.signal)
        if phase == "dispatch" and self.death.signal != signal.SIGSTOP:
            os.kill(pid, signal.SIGCONT)
        return asked

    # What must hold after each death.

    def recovery_seconds(self):
        """From the death noticed to /health 200; less the pause that comes before repeated starts."""
        self.wait(lambda: self.starts_again() > self.died, "the death is noticed")
        noticed = time.monotonic()
        line = [line for line in self.server.log if "engine: starting it again in" in line][-1]
        pause = float(line.split("again in ")[1].split()[0])
        self.wait(self.server.is_ready, "ready again")
        self.died = self.starts_again()
        return time.monotonic() - noticed - pause

    def assert_only_the_living(self, before):
        """Of the lives before nothing is there: no process, stopped or not, and no folder."""
        self.assertTrue(wait_until(lambda: not any(map(alive, before)), 20), f"{self.death}: {before} live on")
        self.assertTrue(wait_until(lambda: len(self.server.processes()) == self.as_many, 20),
                        f"{self.death}: {self.server.processes().keys()}")
        self.assertEqual(len(os.listdir(self.server.runtime.name)), 1, str(self.death))

    def die(self, death):
        self.death = death
        ranks = self.server.loading_ranks()
        before = [stat_of(ranks[0])[2], *ranks.values()]  # mpirun and its ranks
        asked = self.strike() or [Asked(self.server, body) for body in requests()]
        seconds = self.recovery_seconds()
        for it in asked:
            it.join(PATIENCE)
        self.assertEqual([it.said() for it in asked], self.expected, f"{death}\n{self.log()}")
        self.assert_only_the_living(before)
        print(f"{death}: ready again after {seconds:.2f} s", flush=True)
        return seconds

    def survive(self, all_deaths):
        self.draw = random.Random(11)
        self.died = 0
        self.server = RanksServer(self.model, *FLAGS, *RANKED)
        with self.server:
            self.as_many = len(self.server.processes())
            seconds = [self.die(death) for death in all_deaths]
            pids = list(self.server.processes())
            self.assertGreater(self.server.metric("rota:replayed_requests_total"), 0)
            self.assertEqual(self.server.metric("rota:engine_restarts_total"), self.died)
        self.assertEqual(self.server.left, [])
        self.assertTrue(wait_until(lambda: not any(map(alive, pids)), 20))
        self.assertEqual(shared_memory() - self.shared_memory, set())
        print(f"ready again: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s")

    def test_five_deaths(self):
        self.survive(deaths()[0])

    @unittest.skipUnless(os.environ.get("ROTA_FULL"), "ROTA_FULL=1")
    def test_fifteen_more(self):
        more = deaths()[1]
        for first in range(0, len(more), 5):
            self.survive(more[first:first + 5])


if __name__ == "__main__":
    harness.main()
