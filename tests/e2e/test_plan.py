"""rota plan: widths, ranks, warnings and roofline of published config.json files, without any weights."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import harness

DATA = harness.ROOT / "tests/data"
UTF8 = {**os.environ, "LC_ALL": "C.UTF-8"}


def plan(model, *flags):
    return json.loads(harness.rota("plan", model, "--json", *flags).stdout)


def drawing(model, *flags, env=UTF8):
    return harness.rota("plan", model, *flags, env=env).stdout


class Presets(unittest.TestCase):
    """What is known of the published checkpoints."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        config = json.loads((DATA / "gpt-oss-120b/config.json").read_text())
        config.update(num_hidden_layers=24, num_local_experts=32, layer_types=config["layer_types"][:24])
        (pathlib.Path(self.folder.name) / "config.json").write_text(json.dumps(config))

    def tearDown(self):
        self.folder.cleanup()

    def test_bytes_are_those_of_the_published_files(self):
        for model, expected in ((self.folder.name, 13761264768), (DATA / "gpt-oss-120b", 65248815744),
                                (DATA / "mixtral-8x7b", 93405585408), (DATA / "qwen3-30b-a3b", 61064245248)):
            with self.subTest(model=model):
                found = plan(model)
                self.assertEqual(found["weights"]["bytes"], expected)
                self.assertEqual(sum(rank["bytes"] for rank in found["ranks"]), expected)

    def test_bytes_of_a_decoded_token(self):
        for model, expected in ((self.folder.name, 3.7e9), (DATA / "gpt-oss-120b", 5.0e9)):
            cost = plan(model)["roofline"]["decode"]
            weights = cost["bytes"] - cost["parts"]["kv_cache"]["bytes"]
            self.assertAlmostEqual(weights / expected, 1, delta=0.01)

    def test_speeds_that_are_given_bound_the_rates(self):
        roofline = plan(self.folder.name, "--bandwidth", 40, "--peak", 1000)["roofline"]
        decode, prompt = roofline["decode"], roofline["prompt"]
        self.assertEqual((decode["bound_by"], prompt["bound_by"]), ("memory", "arithmetic"))
        self.assertAlmostEqual(decode["tokens_per_second"], 40e9 / decode["bytes"])
        self.assertAlmostEqual(prompt["tokens_per_second"], 1000e9 / prompt["flop"])
        self.assertNotIn("tokens_per_second", plan(self.folder.name)["roofline"]["decode"])

    def test_as_many_decode_at_once_as_the_states_have_room_for(self):
        found = plan(DATA / "nemotron-3-nano-30b-a3b-bf16", "--kv-cache-memory-bytes", 2 * 10**9)
        self.assertLess(found["kv"]["max_num_seqs"], 64)
        self.assertEqual(found["roofline"]["batch"], found["kv"]["max_num_seqs"])

    def test_speeds_that_are_none_and_contexts_too_long_are_refused(self):
        flags = [(name, value) for name in ("--bandwidth", "--peak") for value in ("inf", "nan", 0, -1, 1e300, 1e-300)]
        for name, value in [*flags, ("--context", 131073), ("--context", -1)]:
            done = harness.rota("plan", self.folder.name, name, value, check=False)
            self.assertEqual(done.returncode, 1, (name, value))
            self.assertIn(f"{name}: ", done.stderr)
        self.assertIn("131072", harness.rota("plan", self.folder.name, "--context", 131073, check=False).stderr)
        plan(self.folder.name, "--context", 131072)

    def test_speeds_can_be_measured(self):
        roofline = plan(self.folder.name, "--measure", "--threads", 1)["roofline"]
        self.assertGreater(roofline["bandwidth_gb_per_second"], 0)
        self.assertGreater(roofline["decode"]["tokens_per_second"], 0)
        self.assertTrue(roofline["measured"])

    def test_context_lengthens_the_cache_that_is_read(self):
        short, long = (plan(self.folder.name, "--context", context)["roofline"]["decode"]["parts"]["kv_cache"]["bytes"]
                       for context in (1, 1024))
        # 24 layers of 2 KB a position; windows of 128 in every other one.
        self.assertEqual(short, 24 * 2048)
        self.assertEqual(long, 12 * (1024 + 128) * 2048)


class Ranks(unittest.TestCase):
    MODEL = DATA / "gpt-oss-120b"

    def kinds(self, *flags):
        return {warning["kind"] for warning in plan(self.MODEL, *flags)["warnings"]}

    def test_eight_ranks_of_experts_can_be_read_on_one_machine(self):
        found = plan(self.MODEL, "-dp", 8, "--enable-expert-parallel", "--all2all-backend", "deepep_low_latency")
        self.assertEqual(found["parallel"]["ranks"], 8)
        self.assertEqual(found["prepare_finalize"], "low_latency")
        self.assertEqual([rank["experts"] for rank in found["ranks"]], [16] * 8)
        steps = {step["name"]: step for step in found["widths"]}
        self.assertEqual((steps["dispatch"]["padded"], steps["dispatch"]["padded_by"], steps["dispatch"]["cut_by"]),
                         (3072, "low_latency", "gather"))

    def test_ranks_of_one_machine_share_its_memory(self):
        alone = plan(self.MODEL, "-dp", 4, "-ep", "--hostfile", self.hosts("slots=1", "slots=3"))["kv"]
        shared = plan(self.MODEL, "-dp", 4, "-ep", "--hostfile", self.hosts("slots=2", "slots=2"))["kv"]
        self.assertEqual((alone["ranks_here"], shared["ranks_here"]), (1, 2))
        self.assertEqual(plan(self.MODEL, "-dp", 4, "-ep")["kv"]["ranks_here"], 4)
        small = DATA / "gpt-oss-20b"
        cut = ("--load-format", "dummy", "--hf-overrides",
               '{"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]}', "--max-num-seqs", 4096)
        one, two = (plan(small, *cut, "-dp", ranks, "-ep")["kv"]["tokens_that_fit"] for ranks in (2, 4))
        self.assertLess(two, 0.6 * one)

    def hosts(self, *slots):
        file = harness.OUTPUT / f"hosts-{'-'.join(slots)}"
        harness.OUTPUT.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"node{index} {it}\n" for index, it in enumerate(slots)))
        return file

    def test_what_travels(self):
        self.assertEqual(set(plan(self.MODEL)["transfer"].values()), {0})
        sizes = {kind: plan(self.MODEL, "-dp", 8, "-ep", "--all2all-backend", kind)["transfer"]
                 for kind in ("allgather_reducescatter", "alltoallv", "low_latency")}
        row, ids = 2 * 2880, 4 * 4  # BF16, and four experts' numbers
        self.assertEqual(sizes["allgather_reducescatter"],
                         {"out_bytes": row + ids, "home_bytes": 4 * 2880, "pass_bytes": 0, "group_bytes": 0,
                          "sum_bytes": 0})
        self.assertEqual(sizes["alltoallv"]["pass_bytes"], 7 * 4)
        self.assertEqual(sizes["low_latency"]["pass_bytes"], 112 * 4)
        self.assertEqual([size["home_bytes"] for size in sizes.values()], [4 * 2880, 4 * 3072, 4 * 3072])
        grouped = plan(self.MODEL, "-dp", 4, "-tp", 2, "-ep")["transfer"]
        self.assertEqual((grouped["group_bytes"], grouped["sum_bytes"]), (4 * 2880, 0))
        # The others' pieces to them, its own to all.
        together = plan(self.MODEL, "-tp", 4)["transfer"]
        self.assertEqual((together["out_bytes"], together["sum_bytes"]), (0, 4 * 2 * 3 * 2880 // 4))
        nano = DATA / "nemotron-3-nano-30b-a3b-bf16"
        shared = plan(nano, "-dp", 2, "-tp", 2, "-ep")["transfer"]
        self.assertEqual((shared["group_bytes"], shared["sum_bytes"]), (4 * 2688, 4 * 2688))

    def test_the_parts_of_the_work_add_up_to_the_roofline(self):
        found = plan(self.MODEL, "--context", 4096)
        work, cost = found["work"], found["roofline"]["decode"]
        active = found["top_k"] * found["moe_layers"]
        seen = [min(group["window"] or 4096, 4096) for group in work["attention"]]
        for unit in ("bytes", "flop"):
            total = active * work[f"expert_{unit}"]
            total += sum(group[f"token_{unit}"] * count for group, count in zip(work["attention"], seen))
            total += sum(part[f"token_{unit}"] for part in work["dense"])
            if unit == "bytes":
                total += sum(part["step_bytes"] for part in work["dense"])
            self.assertAlmostEqual(total / cost[unit], 1, places=6)

    def test_tensor_parallel_shards_are_whole_blocks(self):
        found = plan(self.MODEL, "-tp=4")
        shards = [(rank["intermediate"]["begin"], rank["intermediate"]["end"]) for rank in found["ranks"]]
        self.assertEqual(shards, [(0, 736), (736, 1472), (1472, 2208), (2208, 2880)])
        self.assertEqual(found["prepare_finalize"], "no_dp_ep")
        self.assertIn("reduce", [step["name"] for step in found["widths"]])

    def test_warnings(self):
        self.assertEqual(self.kinds(), set())
        self.assertEqual(self.kinds("--moe-hidden-alignment", 256), {"rounded_weights"})
        self.assertEqual(self.kinds("-tp", 16), {"empty_rank", "cut_block", "repeated_kv_heads"})
        self.assertEqual(self.kinds("-dp", 5, "-ep"), {"uneven_experts"})
        self.assertEqual(self.kinds("--all2all-backend", "pplx"), {"unused_flag"})

    def test_words_and_sizes_that_are_none_are_refused_by_every_command(self):
        for flags, message in ((("--all2all-backend", "carrier"), '"carrier" is none of'),
                               (("--expert-placement-strategy", "random"), "linear, round_robin"),
                               (("-tp", 0), "--tensor-parallel-size: 0")):
            for command in ("plan", "serve"):
                done = harness.rota(command, self.MODEL, *flags, check=False)
                self.assertEqual(done.returncode, 1)
                self.assertIn(message, done.stderr)

    def test_a_tensor_parallel_size_that_heads_cannot_be_cut_by_is_refused_with_those_that_can(self):
        for command in ("plan", "serve"):
            done = harness.rota(command, self.MODEL, "-tp", 3, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("tensor parallel size 3: 64 attention heads over 8 KV heads cannot be cut into 3 equal parts; "
                          "sizes that work for this model: 1, 2, 4, 8, 16, 32, 64", done.stderr)

    def test_shared_experts_states_and_workspace_are_cut_too(self):
        model = DATA / "nemotron-3-nano-30b-a3b-nvfp4"
        whole, cut = plan(model), plan(model, "-tp", 2)
        self.assertEqual(2 * cut["kv"]["state_bytes"], whole["kv"]["state_bytes"])
        self.assertLess(cut["workspace_bytes"], whole["workspace_bytes"])
        self.assertEqual(2 * cut["roofline"]["decode"]["parts"]["state"]["bytes"],
                         whole["roofline"]["decode"]["parts"]["state"]["bytes"])
        shared = [step["name"] for step in cut["widths"] if step["name"].startswith("shared")]
        self.assertEqual(shared, ["shared_in", "shared_reduce", "shared_add"])

    def test_the_workspace_is_counted_without_being_taken(self):
        flags = (self.MODEL, "--max-num-batched-tokens", 1 << 16, "--threads", 1)
        limited = f"ulimit -v {3 << 20}; exec \"$@\""
        done = subprocess.run(["bash", "-c", limited, "rota", harness.ROTA, "plan", *map(str, flags), "--json"],
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)["workspace_bytes"], 4 << 30)

    def test_with_one_rank_the_flags_of_the_public_report_start_a_server(self):
        # A server that died in its start-up profiling elsewhere, there with eight ranks.
        flags = ("--tensor-parallel-size", 1, "--data-parallel-size", 1, "--enable-expert-parallel",
                 "--max-model-len", 4096, "--moe-hidden-alignment", 256)
        with harness.Server(harness.demo_model("gpt-oss-bf16"), *flags) as server:
            answer = server.json("POST", "/v1/completions",
                                 {"model": "demo", "prompt": "one", "max_tokens": 4, "ignore_eos": True})
            self.assertEqual(answer["usage"]["completion_tokens"], 4)


class Drawing(unittest.TestCase):
    FLAGS = ("-dp", 8, "-ep", "--all2all-backend", "low_latency", "--moe-hidden-alignment", 512,
             "--moe-intermediate-alignment", 256)

    def test_fits_a_terminal_and_is_plain_where_it_is_none(self):
        for model in ("gpt-oss-120b", "mixtral-8x7b", "qwen3-30b-a3b"):
            for flags in ((), self.FLAGS, ("-tp", 2, "-dp", 3), ("--bandwidth", 40, "--peak", 1000)):
                text = drawing(DATA / model, *flags)
                self.assertNotIn("\x1b", text)
                for line in text.splitlines():
                    if not line.startswith(("Not on this machine", str(DATA))):  # as long as they are
                        self.assertLessEqual(len(line), 100, line)

    def test_every_stage_has_a_column_with_who_pads_and_who_cuts(self):
        text = drawing(DATA / "gpt-oss-120b", *self.FLAGS)
        bands = re.findall(r"^  stage +(.*)$", text, re.M)
        self.assertEqual(" ".join(bands).split(),
                         [step["name"] for step in plan(DATA / "gpt-oss-120b", *self.FLAGS)["widths"]])
        self.assertEqual(re.findall(r"^  logical +(.*)$", text, re.M)[0].split(), ["2880"] * 5)
        self.assertEqual(re.findall(r"^  padded +(.*)$", text, re.M)[0].split(), ["-", "3072", "3072", "3072", "3072"])
        self.assertRegex(text, r"who pads +transport +hidden flag +inner flag +hidden flag")
        self.assertRegex(text, r"who cuts +gather +gate_up +down +combine")
        self.assertIn("2880 -> 3072, --moe-hidden-alignment asks for a multiple of 512", text)
        self.assertIn("█░", text)

    def test_an_alignment_that_the_backend_does_not_divide_is_told_with_both(self):
        text = " ".join(drawing(DATA / "gpt-oss-120b", "--moe-hidden-alignment", 7).split())
        self.assertRegex(text, r"--moe-hidden-alignment asks for a multiple of 7, \w+ for one of 32: together 224")

    def test_equal_ranks_are_one_row(self):
        text = drawing(DATA / "gpt-oss-120b", "-tp", 8)
        self.assertRegex(text, r"(?m)^  0 +128 +\[0, 384\) ")  # the first holds the biases of down
        self.assertRegex(text, r"(?m)^  1-6 +128 +\[384, 2688\) by 384 ")
        self.assertRegex(text, r"(?m)^  7 +128 +\[2688, 2880\) ")

    def test_ascii_where_the_locale_knows_no_more(self):
        text = drawing(DATA / "gpt-oss-120b", env={**os.environ, "LC_ALL": "C"})
        self.assertTrue(text.isascii())
        self.assertIn("####", text)


if __name__ == "__main__":
    harness.main()
