"""transformers in bfloat16: one batch of equal prompts, which needs no padding; greedy."""

from pathlib import Path

import torch
import transformers

from task import Clock, Speed, Task, prompts, serve, speed


def open_model(task: Task):
    path = Path(task.model)
    source = {"pretrained_model_name_or_path": str(path)}
    if path.suffix == ".gguf":
        source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.bfloat16)
    return model.eval()


def step(model, ids, cache):
    """The next token of every sequence."""
    out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values


def timed(model, rows, n_new: int) -> tuple[float, float]:
    clock = Clock()
    ids, cache = step(model, rows, None)
    prefill_s = clock.lap()
    for _ in range(n_new - 1):
        ids, cache = step(model, ids, cache)
    return prefill_s, clock.lap()


@torch.inference_mode()
def run(task: Task) -> Speed:
    torch.set_num_threads(task.threads)
    model = open_model(task)
    rows = torch.tensor(prompts(task, model.config.vocab_size))
    timed(model, rows[:, :16], 2)
    prefill_s, decode_s = timed(model, rows, task.new_tokens)
    return speed(task, prefill_s, decode_s, f"transformers {transformers.__version__}")


if __name__ == "__main__":
    serve(run)
