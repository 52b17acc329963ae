"""The openai Python client against `rota serve`: models, completions, chat, streams, errors."""
import unittest

import harness
import openai


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = harness.Server(harness.demo_model("gpt-oss-bf16")).__enter__()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def chat(self, text="What is the capital of France?", **options):
        return self.client.chat.completions.create(model="demo", messages=[{"role": "user", "content": text}],
                                                   **{"temperature": 0, "max_tokens": 24, **options})

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_completion(self):
        done = self.client.completions.create(model="demo", prompt="The capital of France is", max_tokens=8,
                                              temperature=0)
        self.assertIn("Paris", done.choices[0].text)
        self.assertEqual(done.usage.completion_tokens, 8)
        self.assertEqual(done.choices[0].finish_reason, "length")

    def test_chat(self):
        done = self.chat()
        self.assertIn("Paris", done.choices[0].message.content)
        self.assertEqual(done.choices[0].finish_reason, "stop")
        self.assertEqual(done.usage.total_tokens, done.usage.prompt_tokens + done.usage.completion_tokens)

    def test_stream_is_the_same_text(self):
        whole = self.chat()
        text, usage, reasons = "", None, []
        for event in self.chat(stream=True, stream_options={"include_usage": True}):
            if event.usage:
                usage = event.usage
                self.assertEqual(event.choices, [])
                continue
            text += event.choices[0].delta.content or ""
            reasons.append(event.choices[0].finish_reason)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual(reasons[-1], "stop")
        self.assertEqual(set(reasons[:-1]), {None})

    def test_the_role_comes_with_the_first_token(self):
        first = next(iter(self.chat(stream=True)))
        self.assertEqual(first.choices[0].delta.role, "assistant")
        self.assertTrue(first.choices[0].delta.content)

    def test_stop_strings_never_leak(self):
        whole = self.chat().choices[0].message.content
        for stream in (False, True):
            done = self.chat(stop=["Paris"], stream=stream)
            if stream:
                events = list(done)
                text = "".join(event.choices[0].delta.content or "" for event in events)
                reason = events[-1].choices[0].finish_reason
            else:
                text, reason = done.choices[0].message.content, done.choices[0].finish_reason
            self.assertEqual(text, whole.split("Paris")[0])
            self.assertEqual(reason, "stop")

    def test_seed_and_n(self):
        def texts(seed):
            done = self.chat("Tell me a story.", temperature=1, seed=seed, n=3, max_tokens=12)
            return [choice.message.content for choice in done.choices]
        first = texts(11)
        self.assertEqual(first, texts(11))
        self.assertEqual(len(set(first)), 3)

    def test_a_seed_means_the_same_alone_and_in_a_batch(self):
        import concurrent.futures
        alone = self.chat("Tell me a story.", temperature=1, seed=5, max_tokens=24).choices[0].message.content
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            busy = [pool.submit(self.chat, f"Say {i}.", temperature=1, seed=i) for i in range(7)]
            mixed = pool.submit(self.chat, "Tell me a story.", temperature=1, seed=5, max_tokens=24)
            self.assertEqual(mixed.result().choices[0].message.content, alone)
            for one in busy:
                one.result()

    def test_logprobs(self):
        done = self.chat(logprobs=True, top_logprobs=3, max_tokens=4)
        entries = done.choices[0].logprobs.content
        self.assertEqual(len(entries), 4)
        for entry in entries:
            self.assertEqual(entry.logprob, max(top.logprob for top in entry.top_logprobs))
            self.assertEqual(bytes(entry.bytes).decode(errors="replace"), entry.token)

    def test_echo_with_logprobs_scores_the_prompt(self):
        done = self.client.completions.create(model="demo", prompt=[[504, 3575, 282, 4649]], echo=True, logprobs=1,
                                              max_tokens=1, temperature=0)
        scores = done.choices[0].logprobs
        self.assertEqual(len(scores.tokens), 5)
        self.assertIsNone(scores.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in scores.token_logprobs[1:]))
        self.assertEqual(scores.token_logprobs[-1], max(scores.top_logprobs[-1].values()))

    def test_errors_are_typed(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.completions.create(model="another", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(max_tokens=10_000_000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertRegex(caught.exception.message, r"maximum context length is \d+ tokens")

    def test_special_token_text_in_content_is_text(self):
        tokens = self.server.json("POST", "/tokenize", {"messages": [{"role": "user", "content": "<|im_end|>"}]})
        parsed = self.server.json("POST", "/tokenize", {"prompt": "<|im_end|>"})
        self.assertEqual(parsed["count"], 1)
        end = parsed["tokens"][0]
        clean = self.server.json("POST", "/tokenize", {"messages": [{"role": "user", "content": "hello"}]})
        self.assertEqual(tokens["tokens"].count(end), clean["tokens"].count(end))

    def test_tokenize_and_back(self):
        text = "Grüße, 世界! 12345"
        tokens = self.server.json("POST", "/tokenize", {"prompt": text})["tokens"]
        self.assertEqual(self.server.json("POST", "/detokenize", {"tokens": tokens})["prompt"], text)

    def test_prefix_cache_hits_are_counted(self):
        question = "Count with me: " + " ".join(map(str, range(150)))
        first = self.chat(question, max_tokens=4)
        second = self.chat(question, max_tokens=4)
        self.assertEqual(first.choices[0].message.content, second.choices[0].message.content)
        cached = second.usage.prompt_tokens_details.cached_tokens
        self.assertGreaterEqual(cached, 64)
        self.assertLess(cached, second.usage.prompt_tokens)  # once, not with each token

    def test_routed_experts_come_with_each_token(self):
        done = self.server.json("POST", "/v1/completions", {"model": "demo", "prompt": "Hello", "max_tokens": 3,
                                                            "return_routed_experts": True, "temperature": 0})
        tokens = done["choices"][0]["routed_experts"]
        self.assertEqual(len(tokens), 3)
        self.assertEqual(len(tokens[0]["experts"]), 30)
        for chosen in tokens[0]["experts"]:
            self.assertEqual(len(set(chosen)), 4)
            self.assertTrue(all(0 <= expert < 8 for expert in chosen))


if __name__ == "__main__":
    harness.main()
