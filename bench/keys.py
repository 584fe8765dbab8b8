#!/usr/bin/env python3
"""One key alone, then beside another that floods the server: how long does its first token take?

Starts `paceline serve` with two keys. In each round the polite one asks for one answer after the other, first in quiet,
then while the other keeps `--flood` requests under way, from a process of its own. Prints both times to the first
token, their ratio, and the tokens per second of the flood.

    cargo build --release
    python3 bench/keys.py --paceline target/release/paceline [--model MODEL] [--flood 64]

Needs Python alone.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from beside import Server

FLOOD, POLITE = "sk-flood", "sk-polite"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paceline", default="target/release/paceline", help="the program")
    parser.add_argument("--model", default="default")
    parser.add_argument("--flood", type=int, default=64, help="requests of the flood under way")
    parser.add_argument("--requests", type=int, default=100, help="polite requests of each part")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=64, help="of each request of the flood; the polite ask for 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-arg", action="append", default=[], help="a further flag of serve")
    parser.add_argument("--flood-url", help=argparse.SUPPRESS)
    return parser.parse_args()


def ask(args, url, key, new_tokens):
    """Seconds until the first token of a prompt that nobody has asked before."""
    prompt = [random.randrange(100, 40000) for _ in range(args.prompt_tokens)]
    body = {"prompt": prompt, "max_tokens": new_tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(url + "/v1/completions", json.dumps(body).encode(), headers)
    start, first = time.monotonic(), None
    with urllib.request.urlopen(request) as response:
        for line in response:
            if first is None and line.startswith(b"data: {"):
                first = time.monotonic() - start
    return first


def flood(args):
    def go():
        while True:
            ask(args, args.flood_url, FLOOD, args.new_tokens)

    threads = [threading.Thread(target=go, daemon=True) for _ in range(args.flood)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def polite(args, url):
    times = sorted(1e3 * ask(args, url, POLITE, 8) for _ in range(args.requests))
    return statistics.median(times), times[int(len(times) * 0.95)]


def beside_a_flood(args, server):
    """The polite key's times, and the flood's tokens per second."""
    others = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--flood-url", server.url])
    try:
        time.sleep(4)
        before, start = server.metric("vllm:generation_tokens_total"), time.monotonic()
        times = polite(args, server.url)
        n_tokens = server.metric("vllm:generation_tokens_total") - before - 8 * args.requests
        return times, n_tokens / (time.monotonic() - start)
    finally:
        others.kill()
        others.wait()
        while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting"):
            time.sleep(0.1)


def measure(args):
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.txt"
        keys.write_text(f"flood {FLOOD}\npolite {POLITE}\n")
        args.serve_arg += ["--api-key-file", str(keys)]
        with Server(args, folder + "/data", key=POLITE) as server:
            polite(args, server.url)
            for number in range(1, args.rounds + 1):
                quiet = polite(args, server.url)
                beside, rate = beside_a_flood(args, server)
                ratios.append(beside[1] / quiet[1])
                print(f"round {number}: first token p50 {quiet[0]:.0f}, p95 {quiet[1]:.0f} ms in quiet; "
                      f"p50 {beside[0]:.0f}, p95 {beside[1]:.0f} ms beside a flood of {rate:.0f} tok/s: "
                      f"{ratios[-1]:.2f} times as long", flush=True)
    print(f"p95 of the first token: {statistics.median(ratios):.2f} times that of quiet (median of {len(ratios)})")


def main():
    args = arguments()
    flood(args) if args.flood_url else measure(args)


if __name__ == "__main__":
    main()
