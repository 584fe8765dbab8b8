"""OpenVINO GenAI's continuous batching, stepped by hand on the GGUF itself.

All requests are added at once and may fill one step, which is its fastest prefill; a whole untimed
batch goes before, because it compiles kernels for the shapes it meets.
"""

from importlib.metadata import version

import numpy
import openvino
import openvino_genai as genai

from task import Clock, Speed, Task, prompts, serve, speed

# Ids below this are words in every vocabulary in use; the pipeline does not tell its size.
N_VOCAB = 30_000
# Tokens of a cache block; its own are larger, so there is always room.
BLOCK = 16


def open_pipeline(task: Task):
    config = genai.SchedulerConfig()
    config.max_num_batched_tokens = task.batch * task.prompt_tokens
    config.max_num_seqs = task.batch
    config.enable_prefix_caching = False
    n_tokens = task.prompt_tokens + task.new_tokens
    config.num_kv_blocks = task.batch * (n_tokens // BLOCK + 2)
    properties = {"INFERENCE_NUM_THREADS": task.threads}
    return genai.ContinuousBatchingPipeline(task.model, config, "CPU", properties)


def greedy(n_new: int):
    config = genai.GenerationConfig()
    config.max_new_tokens = n_new
    config.ignore_eos = True
    config.do_sample = False
    return config


def timed(pipeline, rows: list[list[int]], n_new: int) -> tuple[float, float]:
    """Seconds until every sequence has its first token, and seconds of the rest."""
    inputs = [openvino.Tensor(numpy.array([row], dtype=numpy.int64)) for row in rows]
    clock, prefill_s = Clock(), None
    handles = [pipeline.add_request(i, ids, greedy(n_new)) for i, ids in enumerate(inputs)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        if prefill_s is None and all(handle.can_read() for handle in handles):
            prefill_s = clock.lap()
    decode_s = clock.lap()
    lengths = {len(handle.read_all()[0].generated_ids) for handle in handles}
    if lengths != {n_new} or prefill_s is None:
        raise RuntimeError(f"asked for {n_new} tokens each, got {sorted(lengths)}")
    return prefill_s, decode_s


def run(task: Task) -> Speed:
    pipeline = open_pipeline(task)
    rows = prompts(task, N_VOCAB)
    timed(pipeline, rows, 3)
    prefill_s, decode_s = timed(pipeline, rows, task.new_tokens)
    return speed(task, prefill_s, decode_s, f"openvino-genai {version('openvino-genai')}")


if __name__ == "__main__":
    serve(run)
