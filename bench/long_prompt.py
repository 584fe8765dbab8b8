#!/usr/bin/env python3
"""Streams alone, then beside a long prompt with a target for their pace: do they keep it?

In each round starts `paceline serve` twice and runs the same streams (`paceline bench serve`):
first in quiet, then with `--target-itl-ms` at some times the median of quiet, while a prompt of
random tokens arrives a second after the streams have begun. Prints the time between tokens of
both, and how long the prompt took.

    cargo build --release
    python3 bench/long_prompt.py --paceline target/release/paceline [--model MODEL]

Needs Python alone.
"""

import argparse
import json
import random
import tempfile
import threading
import time

from beside import Server, load


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paceline", default="target/release/paceline", help="the program")
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=500, help="tokens of each stream")
    parser.add_argument("--prompt-tokens", type=int, default=6000, help="the long prompt's length")
    parser.add_argument("--factor", type=float, default=2.0, help="the target, as times of quiet")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-arg", action="append", default=[], help="a further flag of serve")
    args = parser.parse_args()
    args.requests = args.streams
    return args


def prompt_beside(server, args, seconds):
    """Sends the prompt once all streams generate; appends how long its only token took."""
    tokens = [random.randrange(100, 40_000) for _ in range(args.prompt_tokens)]
    body = {"model": args.model, "prompt": tokens, "max_tokens": 1, "temperature": 0}
    while server.metric("vllm:num_requests_running") < args.streams:
        time.sleep(0.05)
    time.sleep(1.0)
    start = time.monotonic()
    server.send("/v1/completions", json.dumps(body).encode(), "application/json")
    seconds.append(time.monotonic() - start)


def run(args, target=None):
    """The streams' figures, and the prompt's seconds if there is a target."""
    flags = [] if target is None else ["--target-itl-ms", str(target)]
    given = argparse.Namespace(**{**vars(args), "serve_arg": args.serve_arg + flags})
    with tempfile.TemporaryDirectory() as data_dir, Server(given, data_dir) as server:
        if target is None:
            return load(args, server)[0], None
        seconds = []
        prompt = threading.Thread(target=prompt_beside, args=(server, args, seconds))
        prompt.start()
        row = load(args, server)[0]
        prompt.join()
        return row, seconds[0] if seconds else float("nan")


def main():
    args = arguments()
    n_kept = 0
    print(f"{'round':>5} {'quiet p50':>10} {'p95':>9} {'target':>8} {'beside p50':>11} {'p95':>9} {'prompt':>8}")
    for number in range(1, args.rounds + 1):
        quiet, _ = run(args)
        target = round(args.factor * quiet["p50_itl_ms"])
        beside, seconds = run(args, target)
        n_kept += beside["p95_itl_ms"] <= target
        print(f"{number:>5} {quiet['p50_itl_ms']:>7.1f} ms {quiet['p95_itl_ms']:>6.1f} ms {target:>5} ms "
              f"{beside['p50_itl_ms']:>8.1f} ms {beside['p95_itl_ms']:>6.1f} ms {seconds:>6.1f} s", flush=True)
    print(f"p95 within the target in {n_kept} of {args.rounds} rounds")


if __name__ == "__main__":
    main()
