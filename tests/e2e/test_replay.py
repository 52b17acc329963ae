"""The engine is killed under streams of the openai client: they pause, go on, and say what an undisturbed run says."""
import os
import random
import signal
import threading
import time
import unittest

import harness
import openai


class Streams(unittest.TestCase):
    ASKED = [{"temperature": 0, "logprobs": True, "top_logprobs": 2},
             {"temperature": 0.9, "seed": 7},
             {"temperature": 0.9, "frequency_penalty": 0.6, "presence_penalty": 0.2, "seed": 8},
             {"temperature": 0.7, "top_p": 0.9, "seed": 9, "n": 2}]

    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(harness.demo_model("gpt-oss-bf16"), "--max-failures", 1000).__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def stream(self, options, said):
        """What a stream says of each of its choices, put into `said` as it comes."""
        events = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Tell me about Paris."}], max_tokens=150, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True}, **options)
        for event in events:
            if event.usage:
                said["tokens"] = event.usage.completion_tokens
            for choice in event.choices:
                one = said.setdefault(choice.index, {"text": "", "logprobs": [], "finished": []})
                delta = choice.delta
                one["text"] += (getattr(delta, "reasoning_content", None) or "") + (delta.content or "")
                if choice.logprobs and choice.logprobs.content:
                    one["logprobs"] += [(entry.token, entry.logprob) for entry in choice.logprobs.content]
                if choice.finish_reason:
                    one["finished"].append(choice.finish_reason)

    def all_streams(self):
        said = [{} for _ in self.ASKED]
        threads = [threading.Thread(target=self.stream, args=pair) for pair in zip(self.ASKED, said)]
        for thread in threads:
            thread.start()
        return threads, said

    @staticmethod
    def length(said):
        return sum(len(one["text"]) for stream in list(said) for key, one in list(stream.items()) if key != "tokens")

    def test_killed_at_random_moments_every_stream_says_the_same(self):
        threads, expected = self.all_streams()
        for thread in threads:
            thread.join()
        whole = self.length(expected)
        self.assertGreater(whole, 400)
        for stream in expected:
            self.assertEqual(stream[0]["finished"], ["length"])

        draw = random.Random(5)
        threads, said = self.all_streams()
        restarts = 0
        for _ in range(3):
            goal = self.length(said) + draw.randrange(1, whole // 5)
            while self.length(said) < goal and any(thread.is_alive() for thread in threads):
                time.sleep(0.005)
            pid = self.server.engine_pid()
            os.kill(pid, signal.SIGKILL)
            restarts += 1
            while self.server.engine_pid() in (pid, None):
                time.sleep(0.01)
        for thread in threads:
            thread.join(300)
            self.assertFalse(thread.is_alive(), "".join(self.server.log))
        self.assertEqual(said, expected)
        self.assertEqual(self.server.metric("rota:engine_restarts_total"), restarts)
        self.assertGreater(self.server.metric("rota:replayed_requests_total"), 0)


if __name__ == "__main__":
    harness.main()
