#!/usr/bin/env python3
"""rota against llama.cpp on the same weights: prefill and decode, in turn A B A B, ratio of medians.

    pip install llama-cpp-python gguf numpy
    bench/compare_llamacpp.py --model CHECKPOINT [--rota build/release/bin/rota] [--gguf FILE] [--rounds 3]

CHECKPOINT is a gpt-oss MXFP4 checkpoint. Its weights are written as GGUF once (FILE, default CHECKPOINT.gguf). Both run on
all physical cores with everything else at their defaults. Absolute times mean nothing on a shared machine; the ratio does.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time


def run_rota(args):
    out = subprocess.run([args.rota, "bench", args.model, "--pp", str(args.pp), "--tg", str(args.tg), "--repeats", "1",
                          "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout
    figures = json.loads(out)
    return figures["prefill_tokens_per_second"], figures["decode_tokens_per_second"]


def run_llama(args):
    """In a process of its own, so that nothing of one run is left for the next."""
    out = subprocess.run([sys.executable, __file__, "--llama-worker", "--gguf", args.gguf, "--pp", str(args.pp), "--tg",
                          str(args.tg), "--model", args.model], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         check=True, text=True).stdout
    return tuple(json.loads(out.strip().splitlines()[-1]))


def llama_worker(args):
    import llama_cpp

    threads = len(os.sched_getaffinity(0))
    llama = llama_cpp.Llama(args.gguf, n_ctx=args.pp + args.tg + 8, n_batch=512, n_threads=threads,
                            n_threads_batch=threads, verbose=False, logits_all=False)
    llama.eval([1, 2, 3])  # warm-up: touches the weights
    llama.reset()

    start = time.perf_counter()
    llama.eval([(7919 * i) % 50000 for i in range(args.pp)])
    prefill = args.pp / (time.perf_counter() - start)

    llama.reset()
    llama.eval(list(range(16)))
    start = time.perf_counter()
    for token in range(args.tg):
        llama.eval([1000 + token])
    decode = args.tg / (time.perf_counter() - start)
    print(json.dumps([prefill, decode]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rota", default=str(pathlib.Path(__file__).resolve().parents[1] / "build/release/bin/rota"))
    parser.add_argument("--gguf", help="where the same weights lie as GGUF; written if it is not there")
    parser.add_argument("--pp", type=int, default=512)
    parser.add_argument("--tg", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--llama-worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.gguf = args.gguf or args.model.rstrip("/") + ".gguf"
    if args.llama_worker:
        return llama_worker(args)
    if not os.path.exists(args.gguf):
        from gpt_oss_gguf import write_gguf

        print(f"writing {args.gguf}", file=sys.stderr)
        write_gguf(args.model, args.gguf)
    results = {"rota": [], "llama.cpp": []}
    for turn in range(args.rounds):
        for name, run in (("rota", run_rota), ("llama.cpp", run_llama)):
            results[name].append(run(args))
            prefill, decode = results[name][-1]
            print(f"round {turn + 1}  {name:10} prefill {prefill:8.1f}  decode {decode:6.1f} tokens/s", flush=True)
    for index, what in enumerate((f"prefill {args.pp}", f"decode {args.tg}")):
        ours, theirs = (statistics.median(run[index] for run in results[name]) for name in ("rota", "llama.cpp"))
        print(f"{what}: rota / llama.cpp = {ours / theirs:.2f}  (medians {ours:.1f} and {theirs:.1f} tokens/s)")


if __name__ == "__main__":
    main()
