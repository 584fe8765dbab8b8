#!/usr/bin/env python3
"""Interactive streams alone, then beside a batch job: how much slower do they get, and what does the job get?

Starts `paceline serve` with a data directory of its own, and in each round runs the same load
(`paceline bench serve`) first in quiet, then beside a job of `/v1/batches`, which is cancelled
afterwards. Prints the time between tokens of both, their ratio, and the job's tokens per second.

    cargo build --release
    python3 bench/beside.py --paceline target/release/paceline [--model MODEL] [--serve-arg=--batch-itl-factor=0]

Needs Python alone.
"""

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paceline", default="target/release/paceline", help="the program")
    parser.add_argument("--model", default="default")
    parser.add_argument("--streams", type=int, default=8, help="interactive streams at once")
    parser.add_argument("--requests", type=int, default=48, help="interactive requests of each part")
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=192)
    parser.add_argument("--lines", type=int, default=1000, help="lines of the job")
    parser.add_argument("--line-tokens", type=int, default=128, help="new tokens of each line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve-arg", action="append", default=[], help="a further flag of serve")
    return parser.parse_args()


class Server:
    """A server of our own; ends with the block."""

    def __init__(self, args, data_dir, key=None):
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [args.paceline, "serve", args.model, "--port", str(port), "--data-dir", data_dir]
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command + args.serve_arg, stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(600):
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit("the server has ended:\n" + self.log.read().decode())
            try:
                self.get("/health")
                return self
            except OSError:
                time.sleep(0.5)
        sys.exit("the server does not become ready")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def send(self, path, body, kind):
        request = urllib.request.Request(self.url + path, body, {"Content-Type": kind, **self.headers})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def get(self, path):
        request = urllib.request.Request(self.url + path, headers=self.headers)
        with urllib.request.urlopen(request) as response:
            return response.read().decode()

    def metric(self, name):
        lines = self.get("/metrics").splitlines()
        return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))

    def upload(self, lines):
        """The id of a file of lines for `start_batch`."""
        mark = uuid.uuid4().hex
        head = 'Content-Disposition: form-data; name="{}"'
        parts = [head.format("purpose") + "\r\n\r\nbatch",
                 head.format("file") + '; filename="lines.jsonl"\r\n\r\n' + lines]
        form = "".join(f"--{mark}\r\n{part}\r\n" for part in parts) + f"--{mark}--\r\n"
        return self.send("/v1/files", form.encode(), f"multipart/form-data; boundary={mark}")["id"]

    def start_batch(self, file):
        batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
        return self.send("/v1/batches", json.dumps(batch).encode(), "application/json")

    def start_job(self, args):
        """Uploads lines that begin differently, so that no cache does the work."""
        def line(i):
            prompt = f"{i} things to know about the number {i * 7919 % 1000}:"
            body = {"prompt": prompt, "max_tokens": args.line_tokens, "ignore_eos": True}
            return {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}

        lines = "\n".join(json.dumps(line(i)) for i in range(args.lines))
        job = self.start_batch(self.upload(lines))["id"]
        while self.metric("vllm:num_requests_running") == 0:
            time.sleep(0.1)
        return job

    def end_job(self, job):
        """Whether lines were left to run until the end."""
        was_running = json.loads(self.get(f"/v1/batches/{job}"))["status"] == "in_progress"
        if was_running:
            self.send(f"/v1/batches/{job}/cancel", b"", "application/json")
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"):
            time.sleep(0.1)
        return was_running


def load(args, server):
    """One run of `bench serve`, and all tokens that the server generated meanwhile, a second."""
    command = [args.paceline, "bench", "serve", "--base-url", server.url, "--json", "--ignore-eos",
               "--num-prompts", str(args.requests), "--max-concurrency", str(args.streams),
               "--input-len", str(args.input_len), "--output-len", str(args.output_len),
               "--metric-percentiles", "50,95,99"]
    before, start = server.metric("vllm:generation_tokens_total"), time.monotonic()
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    rate = (server.metric("vllm:generation_tokens_total") - before) / (time.monotonic() - start)
    rows = json.loads(output)
    return (rows[0] if isinstance(rows, list) else rows), rate


def main():
    args = arguments()
    print(f"{'round':>5} {'':8} {'ITL p50':>9} {'ITL p95':>9} {'ITL p99':>9} {'TTFT p50':>9} "
          f"{'streams':>12} {'job':>12}")
    ratios = []
    with tempfile.TemporaryDirectory() as data_dir, Server(args, data_dir) as server:
        load(args, server)
        for number in range(1, args.rounds + 1):
            quiet, _ = load(args, server)
            job = server.start_job(args)
            beside, rate = load(args, server)
            if not server.end_job(job):
                print("the job ended before the streams did; give it more --lines", file=sys.stderr)
            for name, row, all_tokens in [("quiet", quiet, None), ("beside", beside, rate)]:
                own = row["output_throughput"]
                job_rate = "" if all_tokens is None else f"{max(all_tokens - own, 0):.0f} tok/s"
                print(f"{number:>5} {name:8} " + " ".join(
                    f"{row[f'p{p}_itl_ms']:>6.1f} ms" for p in (50, 95, 99)) +
                    f" {row['p50_ttft_ms']:>6.0f} ms {own:>6.0f} tok/s {job_rate:>12}", flush=True)
            ratios.append(beside["p95_itl_ms"] / quiet["p95_itl_ms"])
    ratios.sort()
    print(f"p95 ITL beside the job: {ratios[len(ratios) // 2]:.2f} times that of quiet "
          f"(median of {len(ratios)}; all: {', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main()
