"""The demo checkpoints: one function in three formats, and real answers."""
import json
import pathlib
import unittest

import harness

TEXT = harness.ROOT / "tests/data/ppl.txt"
DENSE_FORMATS = ("gpt-oss-bf16", "mixtral-bf16")


def perplexity(model, *flags):
    return json.loads(harness.rota("eval", "ppl", model, "--text", TEXT, "--json", *flags).stdout)["perplexity"]


class Demo(unittest.TestCase):
    def test_capital_of_france(self):
        for layout in DENSE_FORMATS:
            answer = harness.rota("chat", harness.demo_model(layout), "--once", "What is the capital of France?",
                                  "--temperature", 0, "--max-tokens", 24).stdout
            self.assertIn("Paris", answer, layout)

    def test_perplexity_is_the_dense_models(self):
        for layout in DENSE_FORMATS:
            model = harness.demo_model(layout)
            wanted = json.loads((pathlib.Path(model) / "demo.json").read_text())["perplexity"]["dense"]
            self.assertLess(abs(perplexity(model) / wanted - 1), 0.005, layout)

    def test_mxfp4_perplexity_is_that_of_its_own_weights(self):
        model = harness.demo_model("gpt-oss-mxfp4")
        wanted = json.loads((pathlib.Path(model) / "demo.json").read_text())["perplexity"]["mixture"]
        self.assertLess(abs(perplexity(model) / wanted - 1), 0.005)

    def test_ten_questions_in_float32_give_the_dense_models_tokens(self):
        for layout in DENSE_FORMATS:
            model = harness.demo_model(layout)
            questions = json.loads((pathlib.Path(model) / "demo.json").read_text())["questions"]
            self.assertEqual(len(questions), 10)
            for question in questions:
                margins = question["margins"]
                sure = next((i for i, margin in enumerate(margins) if margin < 0.3), len(margins))
                out = json.loads(harness.rota("generate", model, "--prompt-ids",
                                              ",".join(map(str, question["prompt_ids"])), "--max-tokens",
                                              max(1, sure), "--temperature", 0, "--dtype", "float32", "--ignore-eos",
                                              "--json").stdout)
                self.assertEqual(out["token_ids"][:sure], question["tokens"][:sure], question)


if __name__ == "__main__":
    harness.main()
