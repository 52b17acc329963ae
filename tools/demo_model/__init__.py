"""Builds rota's demo model: SmolLM2-135M-Instruct written as a mixture of experts.

A dense model whose every MLP is cut into S slices; two copies of each slice are the 2 S experts
of the layer, and the router always chooses exactly one copy of each slice. So the mixture computes
the function of the dense model, and any engine that runs it can be compared with the dense one.

Reading order (nothing below `source` is imported without numpy):

    cache.py         where things are kept, reuse of a finished checkpoint, atomic publishing
    environment.py   the tool's own Python environment, installed from pinned packages
    progress.py      the progress bar
    source.py        GGUF file -> dense float32 weights and the vocabulary
    number_formats.py   BF16 and MXFP4, encode and decode
    moe.py           one dense MLP -> experts and router, in each checkpoint format
    safetensors_file.py   a streaming writer and a mapped reader
    checkpoint.py    dense weights -> model.safetensors
    text_files.py    tokenizer.json, chat template, config.json
    forward.py       the numpy forward pass, dense and mixture
    reference.py     what the dense model answers, and its perplexity
    verify.py        the written checkpoint against the dense model
    worker.py        all of it in order
"""
