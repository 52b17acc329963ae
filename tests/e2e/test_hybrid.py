"""A hybrid of Mamba2, attention and mixtures behind HTTP: streams side by side, prefix cache, an engine that dies."""
import concurrent.futures
import json
import os
import pathlib
import signal
import tempfile
import unittest

import harness


class Hybrid(unittest.TestCase):
    MODELS = ("nemotron-bf16-h336", "nemotron-nvfp4-h112", "nemotron-latent-mixed-h112")

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.temporary.cleanup()

    def server(self, name, *flags):
        folder = harness.with_tokenizer(harness.GOLDENS / name, pathlib.Path(self.temporary.name) / name)
        return harness.Server(folder, "--dtype", "float32", "--max-model-len", 1024, "--kv-cache-memory-bytes",
                              64 << 20, *flags)

    @staticmethod
    def body(ids, tokens=32, **more):
        return {"model": "demo", "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, **more}

    def streamed(self, server, ids):
        answer = server.request("POST", "/v1/completions", self.body(ids, stream=True))
        self.assertEqual(answer.status, 200)
        events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: {")]
        return [token for event in events for choice in json.loads(event)["choices"]
                for token in choice.get("token_ids") or []]

    def test_streams_side_by_side_are_the_goldens(self):
        for name in self.MODELS:
            prompts = json.loads((harness.GOLDENS / name / "golden.json").read_text())["prompts"].values()
            with self.subTest(model=name), self.server(name, "--max-num-seqs", 4) as server:
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    answers = pool.map(lambda prompt: self.streamed(server, prompt["ids"]), list(prompts) * 2)
                    for prompt, answer in zip(list(prompts) * 2, answers):
                        self.assertEqual(answer, prompt["greedy"])

    def test_a_prompt_that_came_before_goes_on_from_its_snapshot(self):
        with self.server(self.MODELS[0]) as server:
            ids = [(7 * i) % 500 for i in range(200)]

            def ask(ids):
                answer = server.json("POST", "/v1/completions", self.body(ids))
                details = answer["usage"].get("prompt_tokens_details") or {}
                return answer["choices"][0]["token_ids"], details.get("cached_tokens", 0)
            cold, none = ask(ids)
            warm, cached = ask(ids)
            self.assertEqual((none, cached), (0, 192))
            self.assertEqual(warm, cold)
            _, cached = ask(ids + [1, 2, 3])
            self.assertEqual(cached, 192)
            # A state cannot be cut: what ends within the snapshot's tokens begins anew.
            _, cached = ask(ids[:150])
            self.assertEqual(cached, 0)
            self.assertGreater(server.metric("vllm:prefix_cache_hits_total"), 0)

    def test_an_engine_that_is_killed_comes_back_with_the_same_answers(self):
        with self.server(self.MODELS[1]) as server:
            ids = list(range(5, 105))
            before = self.streamed(server, ids)
            engine = server.engine_pid()
            os.kill(engine, signal.SIGKILL)
            self.assertEqual(self.streamed(server, ids), before)  # it waits for the next one
            server.wait_ready()
            self.assertNotEqual(server.engine_pid(), engine)
            self.assertEqual(self.streamed(server, ids), before)


if __name__ == "__main__":
    harness.main()
