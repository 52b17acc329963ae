#!/usr/bin/env python3
"""Makes small wrong edits, the faults that this kind of server had in public, and asks the tests to notice.

  ci/check_mutations.py                 all of them; writes docs/mutations.md
  ci/check_mutations.py --only bias     those whose fault contains the word; writes nothing

One edit at a time, in a scratch worktree of HEAD under build/mutations. For each, only the test program that
should notice is built and only the named test is run: it must fail. First all named tests must pass without
any edit. Fails if an edit is not noticed, or no longer fits the source.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT / "build/mutations"
BUILD = TREE / "build/release"
REPORT = "docs/mutations.md"
TEST_SECONDS = 300


@dataclasses.dataclass(frozen=True)
class Mutation:
    fault: str  # what the edit makes wrong
    file: str
    old: str  # occurs exactly once in the file
    new: str
    target: str  # test program
    test: str  # GoogleTest filter


SWEEP = "Kinds/Sweep.TheRanksAddUpToTheUnpaddedLayer/*"

MUTATIONS = [
    Mutation("OR to AND in the truncation rule", "src/moe/width_plan.cc",
             "experts_out.is_padded() || combine.is_padded()",
             "experts_out.is_padded() && combine.is_padded()",
             "moe_test", "WidthPlan.EveryCombinationKeepsTheRules"),
    Mutation("combine buffer as wide as the experts' padded input", "src/moe/width_plan.cc",
             "plan.cut = Extent(plan.experts_out.logical());",
             "plan.cut = Extent(plan.experts_in.padded());",
             "moe_test", "Kinds/Sweep.TheRanksAddUpToTheUnpaddedLayer/gpt_oss_mxfp4"),
    Mutation("padding at the end of a fused gate_up", "src/moe/weights.cc",
             "Extent(rows * half.logical(), rows * half.padded())",
             "Extent(rows * half.logical(), (rows - 1) * half.logical() + half.padded())",
             "moe_test", "Models/Weights.PaddedCopiesHoldTheLogicalRegionAndZeros/gptoss*"),
    Mutation("tensor-parallel offsets from padded sizes", "src/moe/weights.cc",
             "const int64_t begin = plan.intermediate_begin;",
             "const int64_t begin = plan.intermediate_begin / plan.intermediate->logical() *"
             " plan.intermediate->padded();",
             "moe_test", "Models/Weights.ATensorParallelShardIsItsRowsAndColumns/mixtral*"),
    Mutation("down's bias on every rank", "src/moe/weights.cc",
             "if (begin > 0) shard.bias = nullptr;", "",
             "moe_test", "Kinds/Sweep.TheRanksAddUpToTheUnpaddedLayer/gpt_oss_bf16"),
    Mutation("router on the padded input", "src/moe/gate.cc",
             "gate.hidden_ = Extent(config.hidden);",
             "gate.hidden_ = Extent(Extent::rounded_up(config.hidden, 256).padded());",
             "moe_test", "Goldens/Runner.AgreesWithTheGoldenBlock/gptoss_mxfp4_h160_ref"),
    Mutation("padded block scales of 0xFF (NaN)", "src/moe/padded_copy.cc",
             "constexpr int kE8m0One = 127;", "constexpr int kE8m0One = 0xFF;",
             "moe_test", "Models/Weights.PaddedCopiesHoldTheLogicalRegionAndZeros/gptoss_mxfp4*"),
    Mutation("-1 (not here) as an index", "src/moe/experts.h",
             "if (index == kNotHere) return std::nullopt;", "",
             "moe_test", SWEEP),
    Mutation("shared experts reduced with the routed sum", "src/moe/runner.cc",
             "dense_.add(out, shared.rows());",
             "dense_.add(out, shared.rows());"
             " ROTA_RETURN_IF_ERROR(ranks_.tensor->reduce(Partial<float>(out)).status());",
             "moe_test", "Kinds/Sweep.TheRanksAddUpToTheUnpaddedLayer/relu2_fp8_shared"),
    Mutation("truncation after the shared experts are added", "src/moe/width_plan.cc",
             """  list.cut("cut", cut, experts_out.is_padded() || combine.is_padded());
  list.add_if("reduce", reduce);
  list.add_if("latent_out", latent_out);
  list.add_if("shared_in", shared_in);
  list.add_if("shared_reduce", shared_reduce);
  list.add_if("shared_add", shared_add);
""",
             """  list.add_if("reduce", reduce);
  list.add_if("latent_out", latent_out);
  list.add_if("shared_in", shared_in);
  list.add_if("shared_reduce", shared_reduce);
  list.add_if("shared_add", shared_add);
  list.cut("cut", cut, experts_out.is_padded() || combine.is_padded());
""",
             "moe_test", "WidthPlan.TheCutComesFirst*"),
]


def run(command, **options):
    return subprocess.run(command, text=True, capture_output=True, **options)


def must(command, **options):
    done = run(command, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done


def build(targets):
    return run(["ninja", "-C", BUILD, *sorted(targets)])


def run_test(mutation):
    """The failed tests' names, or None if all passed."""
    environment = {**os.environ, "GTEST_COLOR": "no"}
    environment.pop("ROTA_FULL", None)
    try:
        done = run([BUILD / "bin" / mutation.target, f"--gtest_filter={mutation.test}"],
                   env=environment, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return ["(did not end)"]
    if "[==========] Running 0 tests" in done.stdout:
        sys.exit(f"{mutation.target} has no test {mutation.test}")
    if done.returncode == 0:
        return None
    failed = sorted(set(re.findall(r"^\[  FAILED  \] (\S+?),?(?: |$)", done.stdout, re.M)))
    failed = [name for name in failed if "." in name]
    started = re.findall(r"^\[ RUN      \] (\S+)", done.stdout, re.M)
    return failed or [f"{started[-1]} (ended by a check)"]


def prepare(mutations):
    """A worktree of HEAD, configured, built, and its named tests green."""
    if TREE.exists():
        must(["git", "worktree", "remove", "--force", TREE], cwd=ROOT)
    must(["git", "worktree", "prune"], cwd=ROOT)
    must(["git", "worktree", "add", "--detach", TREE, "HEAD"], cwd=ROOT)
    must(["cmake", "--preset", "release", "-DROTA_BENCH=OFF"], cwd=TREE)
    done = build({m.target for m in mutations})
    if done.returncode != 0:
        sys.exit(f"HEAD does not build:\n{done.stdout[-4000:]}")
    for mutation in mutations:
        failed = run_test(mutation)
        if failed:
            sys.exit(f"without any edit {', '.join(failed)} of {mutation.target} fails")


def try_mutation(mutation):
    """Names of the tests that failed; empty: nothing noticed."""
    path = TREE / mutation.file
    text = path.read_text()
    if text.count(mutation.old) != 1:
        sys.exit(f"{mutation.fault}: {mutation.file} holds {text.count(mutation.old)} times\n  {mutation.old}\n"
                 f"expected once; bring the table in {pathlib.Path(__file__).name} up to date")
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        done = build({mutation.target})
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            sys.exit(f"{mutation.fault}: the edit does not compile:\n" + "\n".join(errors[:5]))
        return run_test(mutation) or []
    finally:
        path.write_text(text)


def code(text):
    """On one line of a table."""
    return f"`{' '.join(text.split())}`" if text else "(removed)"


def report(results):
    lines = ["# Wrong edits that tests notice", "",
             "Made by `ci/check_mutations.py`: each edit below, alone, in a scratch copy of the sources, makes the named",
             "test fail. They are faults that mixture servers had in public; none is of a kind that the compiler refuses",
             "(those are in `tests/compile_fail`).", "",
             "| fault | edit | noticed by |", "|---|---|---|"]
    for mutation, failed in results:
        edit = f"`{mutation.file}`: {code(mutation.old)} to {code(mutation.new)}"
        by = ", ".join(f"`{name}`" for name in failed[:3]) + (f" and {len(failed) - 3} more" if len(failed) > 3 else "")
        lines.append(f"| {mutation.fault} | {edit} | {by} |".replace("||", "\\|\\|"))
    (ROOT / REPORT).write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a word of the fault")
    only = parser.parse_args().only
    mutations = [m for m in MUTATIONS if only in m.fault]
    prepare(mutations)
    results, unnoticed = [], 0
    for mutation in mutations:
        failed = try_mutation(mutation)
        print(f"{mutation.fault}: {'noticed by ' + failed[0] if failed else 'NOT NOTICED'}", flush=True)
        unnoticed += not failed
        results.append((mutation, failed))
    must(["git", "worktree", "remove", "--force", TREE], cwd=ROOT)
    if unnoticed == 0 and not only:
        report(results)
    print(f"mutations: {len(results)} edits, {unnoticed} not noticed")
    return unnoticed > 0


if __name__ == "__main__":
    sys.exit(main())
