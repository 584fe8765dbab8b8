"""The work every engine is given, and what it answers.

A worker is a program of its own: it takes a `Task` as JSON in its only argument and prints a
`Speed` as the last line of its output. This module knows no engine.
"""

import json
import random
import sys
import time
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Task:
    """One batch: `batch` sequences of `prompt_tokens`, each continued by `new_tokens`."""

    model: str
    batch: int
    prompt_tokens: int
    new_tokens: int
    threads: int
    flash_attention: bool = False


@dataclass(frozen=True)
class Speed:
    """Tokens per second. The first new token of a sequence belongs to prefill."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    version: str


def prompts(task: Task, n_vocab: int) -> list[list[int]]:
    """Unlike prompts, the same in every run. Ids start past the control tokens of most models."""
    source = random.Random(1)
    ids = range(min(1000, n_vocab // 2), n_vocab)
    return [source.choices(ids, k=task.prompt_tokens) for _ in range(task.batch)]


def speed(task: Task, prefill_s: float, decode_s: float, version: str) -> Speed:
    """Every sequence decodes one token less than it has: prefill gave the first."""
    n_prompt = task.batch * task.prompt_tokens
    n_decoded = task.batch * (task.new_tokens - 1)
    return Speed(n_prompt / prefill_s, n_decoded / decode_s, version)


class Clock:
    """Seconds since the last look."""

    def __init__(self) -> None:
        self.last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return seconds


def serve(run) -> None:
    """The `main` of a worker: `run` turns a Task into a Speed."""
    try:
        answer = run(Task(**json.loads(sys.argv[1])))
    except Exception as error:  # noqa: BLE001 - whatever a peer throws becomes one sentence
        sys.exit(f"{type(error).__name__}: {error}".splitlines()[0])
    print(json.dumps(asdict(answer)), flush=True)
