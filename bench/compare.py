#!/usr/bin/env python3
"""The same batches on Paceline and on other engines, and one table of ratios.

    python3 bench/compare.py --install                 once: the peers, in target/peers
    python3 bench/compare.py                           paceline, llama.cpp, openvino-f16
    python3 bench/compare.py --batch 1,64 --rounds 5 --csv record.csv

Machines drift, so the engines take turns: for every round and batch size each of them runs once, in
a process of its own, and the order changes from round to round. Loading a model is not timed.
Prefill lasts until every sequence has its first token; decode is the rest, one token of every
sequence in each step (more in `paceline-drafts`, as far as its guesses are right). Greedy, no end
of text, the same number of tokens for all. Only speed is compared. An engine that is not there, or
fails, is named and left out.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
ROOT = HERE.parent
sys.path.insert(0, str(PEERS))

import install  # noqa: E402
import table  # noqa: E402
from task import Speed, Task  # noqa: E402

WORKERS = {
    "llama.cpp": "llama_cpp_worker.py",
    "llama.cpp-fa": "llama_cpp_worker.py",
    "openvino": "openvino_worker.py",
    "openvino-f16": "openvino_worker.py",
    "transformers": "transformers_worker.py",
}
# Ours, with what flags.
OWN = {
    "paceline": [],
    "paceline-int12": ["--activation-dtype", "int12"],
    "paceline-int8": ["--kv-cache-dtype", "int8"],
    "paceline-all-int8": ["--activation-dtype", "int8", "--kv-cache-dtype", "int8"],
    "paceline-drafts": ["--num-speculative-tokens", "8"],
    "paceline-int8-drafts": ["--kv-cache-dtype", "int8", "--num-speculative-tokens", "8"],
}
ENGINES = [*OWN, *WORKERS]
DEFAULT_ENGINES = "paceline,llama.cpp,openvino-f16"
DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Nothing here takes this long; a process that does is stuck.
LIMIT_S = 900


class EngineError(Exception):
    """Why an engine could not run, in a sentence."""


def main() -> int:
    args = arguments()
    if args.install:
        return run_install(args)
    if not args.model.exists():
        print(f"There is no model at {args.model}: fetch the default one with `paceline pull "
              "default`, or name another with --model.", file=sys.stderr)
        return 2
    results, left_out = measure(args)
    for where, reason in left_out.items():
        print(f"left out: {where}: {reason}", file=sys.stderr)
    if not results.samples:
        print("No engine could run.", file=sys.stderr)
        return 1
    return report(args, results, left_out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--engines", type=engine_list, default=engine_list(DEFAULT_ENGINES), metavar="A,B",
        help=f"of {', '.join(ENGINES)}; the first, and its variants, are compared with the others "
             f"[{DEFAULT_ENGINES}]")
    add("--batch", type=number_list, default=[1, 8, 16, 32, 64, 128], metavar="N,N",
        help="batch sizes [1,8,16,32,64,128]")
    add("--prompt-tokens", type=positive, default=128, metavar="N", help="[128]")
    add("--new-tokens", type=at_least_two, default=64, metavar="N", help="[64]")
    add("--threads", type=positive, default=2, metavar="N", help="[2]")
    add("--rounds", type=positive, default=3, metavar="N", help="[3]")
    add("--model", type=Path, default=default_model(), metavar="PATH", help="a GGUF")
    add("--openvino-model", type=Path, metavar="PATH",
        help="what openvino-f16 runs [an F16 copy of --model, made once]")
    add("--paceline", type=Path, default=ROOT / "target/release/paceline", metavar="PATH",
        help="[target/release/paceline]")
    add("--venv", type=Path, default=ROOT / "target/peers", metavar="PATH",
        help="the peers' virtual environment [target/peers]")
    add("--json", action="store_true", help="print JSON instead of the table")
    add("--csv", type=Path, metavar="PATH", help="also write a record")
    add("--install", action="store_true", help="install the peers among --engines, and end")
    return parser.parse_args()


def engine_list(text: str) -> list[str]:
    engines = list(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        known = ", ".join(ENGINES)
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no engine: there are {known}")
    return engines


def number_list(text: str) -> list[int]:
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def at_least_two(text: str) -> int:
    number = positive(text)
    if number < 2:
        raise argparse.ArgumentTypeError("the first token belongs to prefill: ask for 2 or more")
    return number


def default_model() -> Path:
    """Where `paceline pull default` keeps it."""
    if own := os.environ.get("PACELINE_CACHE"):
        return Path(own) / DEFAULT_MODEL
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "paceline" / DEFAULT_MODEL


def run_install(args: argparse.Namespace) -> int:
    try:
        install.install(args.venv, args.engines)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"The peers could not be installed: {error}", file=sys.stderr)
        return 1
    return 0


def measure(args: argparse.Namespace) -> tuple[table.Results, dict[str, str]]:
    """Every engine once for each round and batch size, side by side."""
    results = table.Results(args.engines, args.batch)
    tasks, left_out = prepare(args)
    for number in range(args.rounds):
        for batch in args.batch:
            for engine in rotated(list(tasks), number):
                where = f"{engine}, batch {batch}"
                if where in left_out:
                    continue
                print(f"round {number + 1}, {where} …", end=" ", file=sys.stderr, flush=True)
                try:
                    speed = run_engine(engine, replace(tasks[engine], batch=batch), args)
                except EngineError as error:
                    left_out[where] = str(error)
                    print("failed", file=sys.stderr)
                    continue
                print(f"prefill {speed.prefill_tokens_per_s:,.0f}, "
                      f"decode {speed.decode_tokens_per_s:,.0f} tok/s", file=sys.stderr)
                results.samples.append(sample(number, engine, batch, speed))
    return results, left_out


def rotated(engines: list[str], by: int) -> list[str]:
    """Nobody is always first, or always after the same neighbour's heat."""
    by %= max(1, len(engines))
    return engines[by:] + engines[:by]


def sample(number: int, engine: str, batch: int, speed: Speed) -> table.Sample:
    return table.Sample(number, engine, batch, speed.prefill_tokens_per_s,
                        speed.decode_tokens_per_s, speed.version)


def prepare(args: argparse.Namespace) -> tuple[dict[str, Task], dict[str, str]]:
    """Each engine's task without its batch size, or why it has none."""
    tasks, left_out = {}, {}
    for engine in args.engines:
        try:
            model = model_for(engine, args)
        except EngineError as error:
            left_out[engine] = str(error)
            continue
        tasks[engine] = Task(str(model.resolve()), 1, args.prompt_tokens, args.new_tokens,
                             args.threads, engine == "llama.cpp-fa")
    return tasks, left_out


def model_for(engine: str, args: argparse.Namespace) -> Path:
    if engine in OWN:
        if not args.paceline.exists():
            raise EngineError(f"there is no {args.paceline}: run `cargo build --release`")
        return args.model
    if not install.python_of(args.venv).exists():
        raise EngineError(f"there is no virtual environment at {args.venv}: run with --install")
    return f16_model(args) if engine == "openvino-f16" else args.model


def f16_model(args: argparse.Namespace) -> Path:
    """The F16 copy, kept in the virtual environment; made when absent or older than its source."""
    if args.openvino_model:
        if not args.openvino_model.exists():
            raise EngineError(f"there is no model at {args.openvino_model}")
        return args.openvino_model
    copy = args.venv / "models" / f"{args.model.stem}.F16.gguf"
    if copy.exists() and copy.stat().st_mtime >= args.model.stat().st_mtime:
        return copy
    copy.parent.mkdir(exist_ok=True)
    part = copy.with_suffix(".part")
    python = install.python_of(args.venv)
    output([str(python), str(PEERS / "gguf_f16.py"), str(args.model), str(part)])
    part.rename(copy)
    return copy


def run_engine(engine: str, task: Task, args: argparse.Namespace) -> Speed:
    if engine in OWN:
        return run_paceline(task, OWN[engine], args.paceline)
    worker = PEERS / WORKERS[engine]
    python = install.python_of(args.venv)
    command = [str(python), str(worker), json.dumps(asdict(task))]
    try:
        return Speed(**json.loads(output(command).splitlines()[-1]))
    except (IndexError, TypeError, ValueError) as error:
        raise EngineError(f"its answer is not a speed: {error}") from error


def run_paceline(task: Task, flags: list[str], binary: Path) -> Speed:
    command = [str(binary), "bench", "throughput", "--json", "--rounds", "1",
               "--model", task.model, "--batch", str(task.batch),
               "--prompt-tokens", str(task.prompt_tokens),
               "--new-tokens", str(task.new_tokens), "--threads", str(task.threads),
               *flags]
    try:
        row = json.loads(output(command))[0]
        return Speed(row["prefill_tokens_per_s"], row["decode_tokens_per_s"], row.get("isa", ""))
    except (LookupError, TypeError, ValueError) as error:
        raise EngineError(f"its answer is not a speed: {error}") from error


def output(command: list[str]) -> str:
    """What the command prints; its last word becomes the error when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"it took longer than {LIMIT_S} s") from error
    except OSError as error:
        raise EngineError(f"it could not be started: {error}") from error
    if done.returncode < 0:
        raise EngineError(f"it was ended by signal {-done.returncode}")
    if done.returncode > 0:
        lines = done.stderr.strip().splitlines()
        raise EngineError(lines[-1] if lines else f"it ended with code {done.returncode}")
    return done.stdout


def report(args: argparse.Namespace, results: table.Results, left_out: dict[str, str]) -> int:
    setting = (f"{args.model.name}, {args.prompt_tokens} prompt and {args.new_tokens} new tokens "
               f"for each sequence, {args.threads} threads, rounds: {args.rounds}")
    if args.json:
        print(json.dumps({"setting": setting, "rows": results.rows(), "left_out": left_out},
                         indent=2))
    else:
        print(f"{setting}\ntokens per second: median (range); ratios are taken within a round\n")
        print(table.text(results))
    if not args.csv:
        return 0
    comments = [f"{setting}; medians of alternating rounds",
                "bench/compare.py " + recorded_flags(args),
                f"A ratio is {results.present()[0]} against the engine of the line."]
    try:
        args.csv.write_text(table.csv_text(results, args.model.stem, comments))
    except OSError as error:
        print(f"The record could not be written: {error}", file=sys.stderr)
        return 1
    return 0


def recorded_flags(args: argparse.Namespace) -> str:
    """The flags that repeat a run, without the paths of this machine."""
    return shlex.join(["--engines", ",".join(args.engines),
                       "--batch", ",".join(map(str, args.batch)),
                       "--prompt-tokens", str(args.prompt_tokens),
                       "--new-tokens", str(args.new_tokens), "--threads", str(args.threads),
                       "--rounds", str(args.rounds)])


if __name__ == "__main__":
    sys.exit(main())
