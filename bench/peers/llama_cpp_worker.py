"""llama.cpp through the C interface of llama-cpp-python, driven as its llama-batched-bench does.

All prompts go in first; then each call adds one token to every sequence. The tokens are fixed:
sampling is left out of its time, which favours it a little. Settings are the fastest that were
found at batch 16: a cache for each sequence, and prompts in calls of one micro-batch (with longer
calls it cuts every prompt into short pieces). There flash attention helped its prefill and hurt its
decode, so both ways are offered.
"""

import ctypes

import llama_cpp as lib

from task import Clock, Speed, Task, prompts, serve, speed

# Rows of a call, and of its micro-batch.
N_BATCH = 512
# Room for each sequence is rounded up, as the library does itself.
ROOM = 256


@lib.llama_log_callback
def ignore(_level, _text, _data):
    """The library's log is no part of the result."""


class Batch:
    """Rows for one call."""

    def __init__(self, n_rows: int) -> None:
        self.raw = lib.llama_batch_init(n_rows, 0, 1)
        self.raw.n_tokens = 0

    def add(self, token: int, position: int, sequence: int, wants_logits: bool) -> None:
        row, raw = self.raw.n_tokens, self.raw
        raw.token[row] = token
        raw.pos[row] = position
        raw.n_seq_id[row] = 1
        raw.seq_id[row][0] = sequence
        raw.logits[row] = wants_logits
        raw.n_tokens = row + 1

    def run(self, context) -> None:
        """Computes the rows and waits for the result."""
        code = lib.llama_decode(context, self.raw)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        lib.llama_synchronize(context)
        self.raw.n_tokens = 0


def open_model(task: Task):
    lib.llama_log_set(ignore, ctypes.c_void_p(0))
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(task.model.encode(), lib.llama_model_default_params())
    if not model:
        raise RuntimeError("llama.cpp cannot load this model")
    return model


def open_context(task: Task, model):
    params = lib.llama_context_default_params()
    room = -(-(task.prompt_tokens + task.new_tokens) // ROOM) * ROOM
    params.n_ctx = room * task.batch
    params.n_batch = max(N_BATCH, task.batch)
    params.n_ubatch = N_BATCH
    params.n_seq_max = task.batch
    params.n_threads = params.n_threads_batch = task.threads
    params.kv_unified = False
    params.flash_attn_type = (
        lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if task.flash_attention
        else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    context = lib.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context for this batch")
    return context


def prefill(context, batch: Batch, rows: list[list[int]]) -> None:
    for sequence, tokens in enumerate(rows):
        for position, token in enumerate(tokens):
            batch.add(token, position, sequence, position + 1 == len(tokens))
            if batch.raw.n_tokens == N_BATCH:
                batch.run(context)
    if batch.raw.n_tokens > 0:
        batch.run(context)


def decode(context, batch: Batch, task: Task, n_steps: int) -> None:
    for step in range(n_steps):
        for sequence in range(task.batch):
            batch.add(1000 + step, task.prompt_tokens + step, sequence, True)
        batch.run(context)


def run(task: Task) -> Speed:
    model = open_model(task)
    context = open_context(task, model)
    n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    rows = prompts(task, n_vocab)
    batch = Batch(max(N_BATCH, task.batch))

    prefill(context, batch, rows[:1])  # a first call makes threads and buffers; not counted
    lib.llama_memory_clear(lib.llama_get_memory(context), True)

    clock = Clock()
    prefill(context, batch, rows)
    prefill_s = clock.lap()
    decode(context, batch, task, task.new_tokens - 1)
    return speed(task, prefill_s, clock.lap(), f"llama-cpp-python {lib.__version__}")


if __name__ == "__main__":
    serve(run)
