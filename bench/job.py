#!/usr/bin/env python3
"""A job over HTTP, the same file on the command line, and the engine without either: tokens per second.

In each round, in turn:

    waves    the bare engine, as many requests of the same lengths, all there from the start (`bench strategies`)
    group    the bare engine, one full batch: prompts, then all sequences decode in step (`bench throughput`)
    http     `/v1/files` and `/v1/batches` on `paceline serve`, from the POST of the batch until it is completed
    cli      `paceline batch`, after the model is loaded

All of them run at most `--batch` sequences at once with the same memory for keys and values. A group has no tail; the
other three end with fewer and fewer sequences.

    cargo build --release
    python3 bench/job.py --paceline target/release/paceline [--model MODEL] [--batch 64] [--lines 1000]

Needs Python alone.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from beside import Server

WORDS = "river stone light green table house seven music winter paper brown silver garden train letter".split()
BLOCK = 32
KINDS = ["waves", "group", "http", "cli"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paceline", default="target/release/paceline", help="the program")
    parser.add_argument("--model", default="default")
    parser.add_argument("--lines", type=int, default=1000)
    parser.add_argument("--prompt-words", type=int, default=64, help="words of each prompt, about a token each")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256, help="sequences that run at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="what to measure")
    parser.add_argument("--default-memory", action="store_true",
                        help="let the server and the command line size their memory as they do by default")
    args = parser.parse_args()
    # As `bench strategies` has it.
    n_blocks = -(-(args.prompt_words + args.new_tokens) // BLOCK) * args.batch
    # Guesses at next tokens are no part of what is compared.
    args.engine = ["--max-num-seqs", str(args.batch), "--num-speculative-tokens", "0"]
    if not args.default_memory:
        args.engine += ["--num-kv-blocks", str(n_blocks + n_blocks // 50 + 8)]
    args.serve_arg = args.engine
    return args


def lines(args):
    """Prompts that begin differently, so that no cache does the work."""
    dice = random.Random(5)

    def line(i):
        prompt = " ".join(dice.choice(WORDS) for _ in range(args.prompt_words))
        body = {"prompt": prompt, "max_tokens": args.new_tokens, "ignore_eos": True, "temperature": 0}
        return {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}

    return "".join(json.dumps(line(i)) + "\n" for i in range(args.lines))


def over_http(args, text):
    with tempfile.TemporaryDirectory() as data_dir, Server(args, data_dir) as server:
        file = server.upload(text)
        start = time.monotonic()
        job = server.start_batch(file)
        while job["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.1)
            job = json.loads(server.get(f"/v1/batches/{job['id']}"))
        elapsed = time.monotonic() - start
    if job["request_counts"]["completed"] != args.lines:
        raise SystemExit(f"not every line was answered: {job}")
    return args.lines * args.new_tokens / elapsed


def on_the_command_line(args, text):
    with tempfile.TemporaryDirectory() as folder:
        lines_file = Path(folder, "in.jsonl")
        lines_file.write_text(text)
        command = [args.paceline, "batch", "-m", args.model, "-i", lines_file, "-o", Path(folder, "out.jsonl")]
        said = subprocess.run(command + args.engine, check=True, stderr=subprocess.PIPE, text=True).stderr
    return float(re.search(r"([\d.]+) tokens/s", said).group(1))


def bench(args, what, *flags):
    command = [args.paceline, "bench", what, "-m", args.model, "--json", "--new-tokens", str(args.new_tokens),
               "--prompt-tokens", str(args.prompt_words), *flags]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)[0]


def in_waves(args, _):
    return bench(args, "strategies", "--strategies", "continuous", "--rate", "1000000",
                 "--requests", str(args.lines), "--max-batch", str(args.batch))["tokens_per_s"]


def in_a_group(args, _):
    row = bench(args, "throughput", "--batch", str(args.batch), "--rounds", "3")
    n_prompt, n_new = args.prompt_words, args.new_tokens
    return n_new / (n_prompt / row["prefill_tokens_per_s"] + (n_new - 1) / row["decode_tokens_per_s"])


def main():
    args = arguments()
    text = lines(args)
    measure = dict(zip(KINDS, [in_waves, in_a_group, over_http, on_the_command_line]))
    rates = {kind: [] for kind in KINDS if kind in args.only}
    print(f"{args.lines} lines, {args.prompt_words} prompt and {args.new_tokens} new tokens, {args.batch} at once; "
          "tokens per second")
    print("round " + "".join(f"{kind:>9}" for kind in rates))
    for number in range(1, args.rounds + 1):
        # Forwards and backwards, so that a machine that drifts favours nobody.
        for kind in list(rates)[::1 if number % 2 else -1]:
            rates[kind].append(measure[kind](args, text))
        print(f"{number:>5} " + "".join(f"{rates[kind][-1]:>9,.0f}" for kind in rates), flush=True)
    print("median" + "".join(f"{statistics.median(rates[kind]):>9,.0f}" for kind in rates))
    for bare in [kind for kind in ("waves", "group") if kind in rates]:
        for kind in [kind for kind in ("http", "cli") if kind in rates]:
            ratios = [ours / theirs for ours, theirs in zip(rates[kind], rates[bare])]
            print(f"{kind} is {statistics.median(ratios):.1%} of {bare} "
                  f"(median of rounds; all: {', '.join(f'{ratio:.1%}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
