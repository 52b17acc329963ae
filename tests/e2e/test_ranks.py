"""Several ranks under `rota serve`: the answers of one process, and nothing left behind, whatever ends them."""
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import harness
import ranks
from ranks import alive, shared_memory, stat_of

MODEL = harness.GOLDENS / "gptoss-mxfp4-h160"
FLAGS = ("--dtype", "float32", "--max-model-len", 256, "--kv-cache-memory-bytes", 32 << 20, "--max-num-seqs", 8,
         "--max-num-batched-tokens", 64, "--generation-config", "vllm")
PROMPTS = ([1, 2, 3], [7, 5, 9, 11, 2], [4] * 20)


class RanksServer(ranks.RanksServer):
    def __init__(self, *flags, model=None):
        super().__init__(model or MODEL_WITH_TEXT, *FLAGS, *flags)

    def answers(self):
        """Tokens and logprobs of every prompt, greedy and sampled."""
        found = []
        for prompt in PROMPTS:
            for extra in ({"temperature": 0}, {"temperature": 0.8, "seed": 5}):
                choice = self.json("POST", "/v1/completions", {
                    "model": "demo", "prompt": prompt, "max_tokens": 8, "logprobs": 3, "ignore_eos": True,
                    **extra})["choices"][0]
                found.append((choice["text"], choice["logprobs"]))
        return found


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.before = shared_memory()
        with RanksServer("--threads", 1) as server:
            cls.expected = server.answers()
            topology = server.topology()
        assert len(topology["ranks"]) == 1 and topology["transport"] == "no_dp_ep", topology
        assert server.left == [], server.left

    def assert_gone(self, server, pids):
        deadline = time.monotonic() + 10
        while any(map(alive, pids)) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual([pid for pid in pids if alive(pid)], [])
        self.assertEqual(server.left, [])
        self.assertEqual(shared_memory() - self.before, set())

    def assert_same(self, answers, exactly):
        for (text, logprobs), (expected_text, expected) in zip(answers, self.expected):
            self.assertEqual(text, expected_text)
            if exactly:
                self.assertEqual(logprobs, expected)
            self.assertEqual(logprobs["tokens"], expected["tokens"])
            for one, other in zip(logprobs["token_logprobs"], expected["token_logprobs"]):
                self.assertAlmostEqual(one, other, delta=1e-3)

    def serve_and_compare(self, flags, count, transport, exactly):
        with RanksServer("--check-collectives", *flags) as server:
            answers = server.answers()
            topology = server.topology()
            pids = server.rank_pids()
            log = "".join(server.log)
            metrics = server.request("GET", "/metrics").body.decode()
        for name in ("step_seconds", "communication_seconds", "communication_bytes", "header_seconds"):
            values = re.findall(rf'^rota:{name}_total{{.*rank="(\d+)".*}} (\S+)$', metrics, re.MULTILINE)
            self.assertEqual([int(rank) for rank, _ in values], list(range(count)), name)
            self.assertTrue(all(float(value) > 0 for _, value in values), (name, values))
        self.assert_same(answers, exactly)
        self.assertEqual([it["rank"] for it in topology["ranks"]], list(range(count)))
        self.assertEqual(len(set(pids)), count)
        self.assertEqual(topology["transport"], transport)
        self.assertGreater(topology["payload_bytes_a_token"], 0)
        self.assertEqual({it["threads"] >= 1 for it in topology["ranks"]}, {True})
        self.assertIn(f"rank {count - 1} (data ", log)
        self.assertEqual(server.process.returncode, 0)
        self.assert_gone(server, pids)
        return topology

    def test_two_data_parallel_ranks_with_experts_dealt(self):
        topology = self.serve_and_compare(("-dp", 2, "-ep"), 2, "allgather_reducescatter", exactly=True)
        experts = [it["experts"] for it in topology["ranks"]]
        self.assertEqual(sorted(experts[0] + experts[1]), list(range(len(experts[0]) + len(experts[1]))))

    def test_two_tensor_parallel_ranks(self):
        self.serve_and_compare(("-tp", 2), 2, "no_dp_ep", exactly=False)

    def test_four_ranks_low_latency(self):
        self.serve_and_compare(("-dp", 4, "-ep", "--all2all-backend", "low_latency",
                                "--expert-placement-strategy", "round_robin"), 4, "low_latency", exactly=True)

    def test_experts_move_and_no_answer_changes(self):
        with RanksServer("-dp", 4, "-ep", "--enable-eplb", "--num-redundant-experts", 4, "--eplb-window-size", 5,
                         "--eplb-step-interval", 5, "--check-collectives") as server:
            pids = server.rank_pids()
            for _ in range(2):  # before and after
                self.assert_same(server.answers(), exactly=True)
            deadline = time.monotonic() + 60
            while server.metric("rota:eplb_moves_total") == 0 and time.monotonic() < deadline:
                time.sleep(0.1)  # the figures of the last step come a little later
            self.assertGreater(server.metric("rota:eplb_moves_total"), 0)
            self.assertGreaterEqual(server.metric("rota:expert_load_imbalance"), 1)
            page = server.request("GET", "/metrics").body.decode()
            topology = server.topology()
        for rank in range(4):
            self.assertRegex(page, rf'rota:rank_expert_tokens_total{{.*expert="\d+".*rank="{rank}".*}} [1-9]')
        experts = len({e for it in topology["ranks"] for e in it["experts"]})
        self.assertEqual(sum(len(it["experts"]) for it in topology["ranks"]), experts + 4)
        self.assertTrue(all(it["expert_tokens_served"] > 0 for it in topology["ranks"]))
        # Every layer has as many slots on a rank as at the start; after the moves others lie in them.
        for rank in topology["ranks"]:
            for held in (rank["experts"], *rank["experts_of_layers"]):
                self.assertEqual(held, sorted(held))
            self.assertEqual({len(held) for held in rank["experts_of_layers"]}, {len(rank["experts"])})
        for held in zip(*(it["experts_of_layers"] for it in topology["ranks"])):
            self.assertEqual({e for experts in held for e in experts}, set(range(experts)))
        self.assertTrue(any(held != it["experts"] for it in topology["ranks"] for held in it["experts_of_layers"]))
        self.assertGreater(topology["expert_balance"]["moves"], 0)
        self.assertEqual(topology["expert_balance"]["redundant_experts"], 4)
        self.assert_gone(server, pids)

    def test_a_killed_rank_brings_the_engine_down_and_up_again(self):
        with RanksServer("-dp", 2, "-ep", "--rank-timeout", 20) as server:
            first = server.rank_pids()
            mpirun = stat_of(first[1])[2]
            os.kill(first[1], signal.SIGKILL)
            deadline = time.monotonic() + 60
            while server.request("GET", "/health").status == 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            server.wait_ready(60)
            second = server.rank_pids()
            self.assertEqual(set(first) & set(second), set())
            self.assertEqual([pid for pid in [*first, mpirun] if alive(pid)], [])
            self.assertEqual(len(list(pathlib.Path(server.runtime.name).iterdir())), 1)
            # mpirun itself: its ranks do not outlive it.
            os.kill(stat_of(second[0])[2], signal.SIGKILL)
            while server.request("GET", "/health").status == 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            server.wait_ready(60)
            third = server.rank_pids()
            self.assertEqual([pid for pid in second if alive(pid)], [])
            self.assert_same(server.answers()[:2], exactly=True)
        self.assert_gone(server, [*first, *second, *third])

    def test_a_rank_that_stops_while_it_starts_or_loads_is_missed_soon(self):
        for delay in (0.05, 0.15):  # in MPI's start, about when it loads
            server = RanksServer("-dp", 3, "-ep", "--rank-timeout", 1)
            server.start()
            self.assertTrue(ranks.wait_until(lambda: 1 in server.loading_ranks(), 30, 0.002))
            time.sleep(delay)
            os.kill(server.loading_ranks()[1], signal.SIGSTOP)
            # 3 s of silence (30 s before its first sign of life), its end, and another start.
            self.assertTrue(ranks.wait_until(server.is_ready, 120), "".join(server.log))
            pids = server.rank_pids()
            self.assert_same(server.answers(), exactly=True)
            log = "".join(server.log)
            self.assertRegex(log, "rank 1 (gave no sign of life|was not there)|a rank was lost or fell out of step")
            server.stop()
            self.assert_gone(server, pids)

    def test_a_killed_front_leaves_no_process(self):
        server = RanksServer("-dp", 2, "-ep")
        server.start()
        server.wait_ready()
        pids = server.rank_pids()
        mpirun = stat_of(pids[0])[2]
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 10
        while any(map(alive, [*pids, mpirun])) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual([pid for pid in [*pids, mpirun] if alive(pid)], [])
        server.stop()
        self.assertEqual(shared_memory() - self.before, set())

    def test_a_second_signal_while_the_ranks_end_leaves_nothing(self):
        for gap in (0, 0.05):
            with RanksServer("-dp", 3, "-ep") as server:
                pids = list(server.processes())
                server.process.send_signal(signal.SIGTERM)
                time.sleep(gap)
                server.process.send_signal(signal.SIGTERM)
                server.process.wait(40)
            self.assertEqual(server.process.returncode, 0, gap)
            self.assert_gone(server, pids)

    def test_the_second_signal_ends_what_runs(self):
        with RanksServer("-dp", 2, "-ep", "--max-model-len", 4096) as server:
            pids = list(server.processes())
            answers = []
            body = {"model": "demo", "prompt": [1, 2, 3], "max_tokens": 4000, "ignore_eos": True}
            asking = threading.Thread(
                target=lambda: answers.append(server.request("POST", "/v1/completions", body).status))
            asking.start()
            self.assertTrue(ranks.wait_until(lambda: server.metric("vllm:num_requests_running") == 1, 30))
            for _ in range(2):
                server.process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            server.process.wait(40)
            asking.join()
        self.assertEqual(answers, [503])
        self.assertEqual(server.process.returncode, 0)
        self.assert_gone(server, pids)

    def test_what_the_ranks_refuse_is_told_once_and_ends(self):
        with tempfile.TemporaryDirectory() as folder:
            damaged = pathlib.Path(folder)
            for source in MODEL_WITH_TEXT.iterdir():
                if source.suffix != ".safetensors":
                    os.symlink(source.resolve(), damaged / source.name)
            (damaged / "model.safetensors").write_bytes(b"no weights")
            self.refused_with("-tp", 2, model=damaged, message="model.safetensors")

    def test_a_width_that_no_row_of_the_transport_holds_is_told_before_a_rank_starts(self):
        with tempfile.TemporaryDirectory() as folder:
            model = harness.with_tokenizer(harness.ROOT / "tests/data/gpt-oss-20b", pathlib.Path(folder) / "wide")
            done = harness.rota("serve", model, "--load-format", "dummy", "--hf-overrides", '{"hidden_size": 8256}',
                                "-dp", 2, "-ep", "--all2all-backend", "low_latency", "--port", 0, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("rows of at most 8192 elements", done.stderr)
        self.assertNotIn("ranks by", done.stderr)

    def test_a_thread_that_a_rank_cannot_start_is_told(self):
        server = RanksServer("-dp", 2, "-ep", "--threads", 1000)
        # A thread's stack takes 8 MB of what a process may address.
        server.command = ["sh", "-c", 'ulimit -s 8192 && ulimit -v 4000000 && exec "$@"', "sh", *server.command]
        server.start()
        said = "rota: a thread could not be started"
        self.assertTrue(ranks.wait_until(lambda: any(line.startswith(said) for line in server.log), 60), server.log)
        server.stop()
        self.assertNotIn("terminate called", "".join(server.log))
        self.assertEqual(server.process.returncode, 0)
        self.assertEqual(server.left, [])

    def refused_with(self, *flags, model, message):
        server = RanksServer(*flags, model=model)
        server.start()
        deadline = time.monotonic() + 60
        while not any("cannot be served" in line for line in server.log) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual(server.process.wait(30), 1)
        log = "".join(server.log)
        server.stop()
        self.assertIn(message, log)
        self.assertEqual(log.count("ranks by"), 1)
        self.assertEqual(server.left, [])

    def test_commands_that_look_into_one_process_refuse_several_ranks(self):
        ids = harness.OUTPUT / "ranks-ids.json"
        ids.write_text('{"a": [1, 2, 3]}')
        out = ("--ids-file", ids, "--out", harness.OUTPUT / "ranks-out.safetensors")
        for command, flags, named in (("bench", (), "bench"), ("score", out, "score --out")):
            done = harness.rota(command, MODEL, "-dp", 2, *flags, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn(f"--data-parallel-size 2: `rota {named}` runs in one process", done.stderr)
        done = harness.rota("score", MODEL, *out, "--json", check=False)
        self.assertIn("give either --out FILE", done.stderr)


class Commands(unittest.TestCase):
    """Other commands start ranks of their own: the same bits, and nothing is left behind."""

    def over_ranks(self, *command):
        """What a command prints in one process, and over ranks."""
        command = [*command[:1], MODEL_WITH_TEXT, *command[1:], *FLAGS]
        alone = harness.rota(*command, "--threads", 1).stdout
        before = shared_memory()
        with tempfile.TemporaryDirectory() as runtime:
            ranks = harness.rota(*command, *self.RANKS, env={**os.environ, "XDG_RUNTIME_DIR": runtime})
            self.assertEqual(os.listdir(runtime), [])
        self.assertEqual(shared_memory() - before, set())
        self.assertIn("2 ranks by", ranks.stderr)
        return alone, ranks.stdout

    RANKS = ("-dp", 2, "-ep", "--check-collectives")

    def test_generate(self):
        for flags in (("--temperature", 0), ("--temperature", 0.9, "--seed", 3)):
            alone, ranks = self.over_ranks("generate", "--prompt-ids", "7,5,9", "--max-tokens", 12, "--ignore-eos",
                                           "--json", *flags)
            self.assertEqual(ranks, alone)
            self.assertIn('"token_ids":[', alone)

    def test_prompt_logprobs(self):
        ids = harness.OUTPUT / "ranks-prompts.json"
        # Longer than a step, one token alone, and more of them than run at once.
        prompts = {f"p{i}": [(7 * i + j) % 100 for j in range(length)]
                   for i, length in enumerate((150, 1, 2, 40, 64, 65, 9, 3, 3, 31, 5, 6, 7, 8, 90, 10, 11, 12, 13))}
        ids.write_text(json.dumps(prompts))
        alone, ranks = self.over_ranks("score", "--ids-file", ids, "--json")
        self.assertEqual(ranks, alone)
        scored = json.loads(alone)
        self.assertEqual({name: it["token_ids"] for name, it in scored.items()}, prompts)
        for it in scored.values():
            self.assertEqual(len(it["logprobs"]), len(it["token_ids"]))
            self.assertIsNone(it["logprobs"][0])
            self.assertTrue(all(value < 0 for value in it["logprobs"][1:]))
        one_by_one = harness.rota("score", MODEL, *FLAGS, "--ids-file", ids, "--json", "--alone").stdout
        self.assertEqual(one_by_one, alone)

    def test_ctrl_c_ends_the_ranks_first(self):
        before = shared_memory()
        for moment in ("while they start", "while they answer"):
            with tempfile.TemporaryDirectory() as runtime:
                process = subprocess.Popen(
                    [harness.ROTA, "generate", str(MODEL_WITH_TEXT), "--prompt", "a", "--max-tokens", "4000",
                     "--ignore-eos", *map(str, FLAGS), "--max-model-len", "4096", *map(str, self.RANKS)],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                    env={**os.environ, "XDG_RUNTIME_DIR": runtime})
                with process:
                    if moment == "while they start":
                        self.assertTrue(any("2 ranks by" in line for line in process.stderr))
                    else:
                        self.assertTrue(process.stdout.read(1))
                    process.send_signal(signal.SIGINT)
                    process.communicate(timeout=30)
                self.assertEqual(process.returncode, 128 + signal.SIGINT, moment)
                self.assertEqual(os.listdir(runtime), [], moment)
        self.assertEqual(shared_memory() - before, set())

    def test_a_model_that_cannot_be_cut_is_refused_once(self):
        done = harness.rota("generate", MODEL, "-tp", 3, "--prompt-ids", "1,2", check=False)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"rota: .*sizes that work for this model: 1, 2, 4")
        self.assertLessEqual(done.stderr.count("ranks by"), 1)


if __name__ == "__main__":
    harness.OUTPUT.mkdir(parents=True, exist_ok=True)
    MODEL_WITH_TEXT = harness.with_tokenizer(MODEL, harness.OUTPUT / "ranks-model")
    harness.main()
