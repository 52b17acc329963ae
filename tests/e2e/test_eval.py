"""rota eval gsm8k: the score of given answers, in any order, and a run that goes on where one before it stopped."""
import json
import math
import pathlib
import tempfile
import unittest

import harness

PROBLEMS = harness.ROOT / "tests/data/gsm8k/sample.jsonl"


class Gsm8k(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = harness.demo_model("gpt-oss-bf16")

    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)

    def tearDown(self):
        self.temporary.cleanup()

    def eval(self, *flags, check=True):
        done = harness.rota("eval", "gsm8k", self.model, "--max-tokens", 16, "--max-model-len", 2048,
                            "--kv-cache-memory-bytes", 256 << 20, "--json", *flags, check=check)
        return json.loads(done.stdout) if check else done.stderr

    def test_any_order_gives_the_same_and_a_second_start_goes_on(self):
        out = self.folder / "answers.jsonl"
        plain = self.eval("--data", PROBLEMS, "--num-problems", 8)
        first = self.eval("--data", PROBLEMS, "--num-problems", 3, "--out", out)
        # What a run leaves that was killed while it wrote.
        with out.open("a") as file:
            file.write('{"problem": 7, "expe')
        second = self.eval("--data", PROBLEMS, "--num-problems", 8, "--out", out, "--shuffle-seed", 5, "--concurrency",
                           2)
        self.assertEqual(first["answers"], plain["answers"][:3])
        self.assertEqual(second["answers"], plain["answers"])
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        asked = [line["problem"] for line in lines[1:]]
        self.assertEqual(sorted(asked), list(range(8)))
        self.assertEqual(sorted(asked[:3]), [0, 1, 2])

        # Nothing is left to ask: no engine is started, whatever its flags.
        third = self.eval("--data", PROBLEMS, "--num-problems", 8, "--out", out, "--kv-cache-memory-bytes", 1)
        self.assertEqual(third["answers"], plain["answers"])
        refused = self.eval("--data", PROBLEMS, "--shots", 2, "--out", out, check=False)
        self.assertIn("shots is 8 there and 2 here", refused)

        examples = [json.loads(line)["answer"] for line in PROBLEMS.read_text().splitlines()]
        for answer, example in zip(plain["answers"], examples[8:]):
            self.assertEqual(answer["expected"], example.split("#### ")[1].replace(",", ""))
            self.assertNotIn("Question:", answer["text"])
            self.assertEqual(answer["correct"], answer["answer"] == answer["expected"])
        right = sum(answer["correct"] for answer in plain["answers"])
        self.assertEqual((plain["correct"], plain["problems"], plain["accuracy"]), (right, 8, right / 8))
        self.assertAlmostEqual(plain["stderr"], math.sqrt(right / 8 * (1 - right / 8) / 7))

    def test_a_number_that_the_model_copies_is_right(self):
        # The problem is one of its own examples: even a small model repeats the answer.
        line = PROBLEMS.read_text().splitlines()[0]
        train, data = self.folder / "train.jsonl", self.folder / "test.jsonl"
        train.write_text((line + "\n") * 8)
        data.write_text(line + "\n")
        found = self.eval("--data", data, "--shots-file", train)
        self.assertEqual((found["accuracy"], found["problems"], found["without_number"]), (1, 1, 0))

    def test_wrong_data_is_named(self):
        data = self.folder / "data.jsonl"
        data.write_text('{"question": "a?", "answer": "7"}\n')
        self.assertIn("data.jsonl, line 1: the answer does not end with", self.eval("--data", data, check=False))
        data.write_text('{"question": "a?", "answer": "#### 7"}\n')
        self.assertIn("--shots 8: ", self.eval("--data", data, check=False))
        self.assertIn("no problem behind the examples", self.eval("--data", data, "--shots", 1, check=False))


if __name__ == "__main__":
    harness.main()
