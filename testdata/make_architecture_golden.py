"""Reference logits of the tiny synthetic models, from transformers in float32.

Write the models first:  cargo run --release --example synth_models -- DIR
Then:                    python make_architecture_golden.py DIR OUT
Needs torch and transformers. For each architecture: some tokens, and the logits of eight fixed
vocabulary entries after each of them.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

N_TOKENS = 80
ENTRIES = [0, 1, 17, 64, 123, 200, 255, 299]
source, out = Path(sys.argv[1]), Path(sys.argv[2])
tokens = [(i * 37 + 11) % 300 for i in range(N_TOKENS)]
golden = {"tokens": tokens, "entries": ENTRIES, "architectures": {}}
for directory in sorted(p for p in source.iterdir() if p.is_dir()):
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    rows = [[round(float(row[e]), 4) for e in ENTRIES] for row in logits]
    golden["architectures"][directory.name] = rows
    print(directory.name, "ok")
out.write_text(json.dumps(golden, separators=(",", ":")))
