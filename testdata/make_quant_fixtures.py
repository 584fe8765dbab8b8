"""Makes testdata/quant/<TYPE>.bin: blocks of each tensor type, then the f32 values the `gguf`
Python package reads from them. Run from the repository root; needs numpy and gguf.

A file is n blocks followed by their n * block_len values, so its length gives n.
"""

from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf import quants

OUT = Path(__file__).parent / "quant"

# Byte offsets of the f16 scales in a block.
SCALES = {
    T.Q4_0: [0],
    T.Q4_1: [0, 2],
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.Q8_0: [0],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
}
QUANTISED_BY_PACKAGE = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]
# Subnormal, smallest normal, largest, negative, zero, negative zero.
EDGE_SCALES = [5.96e-8, 3e-6, 6.104e-5, 65504.0, -0.0173, 0.0, -0.0]


def with_scales(block: np.ndarray, ty: T, values: list[float]) -> np.ndarray:
    for at, value in zip(SCALES[ty], values, strict=True):
        block[at : at + 2] = np.array([value], np.float16).view(np.uint8)
    return block


def quantised_blocks(ty: T, rng: np.random.Generator) -> np.ndarray:
    block_len, block_bytes = GGML_QUANT_SIZES[ty]
    n_scales = len(SCALES[ty])
    blocks = []
    if ty in QUANTISED_BY_PACKAGE:
        data = rng.normal(0, 0.05, (8, block_len)).astype(np.float32)
        data[7] = 0
        blocks += list(quants.quantize(data, ty))
    for fill in (0x00, 0xFF, 0x80, 0x7F):
        block = np.full(block_bytes, fill, np.uint8)
        blocks.append(with_scales(block, ty, [0.0123] * n_scales))
    for edges in zip(EDGE_SCALES, EDGE_SCALES[3:] + EDGE_SCALES[:3]):
        block = rng.integers(0, 256, block_bytes, np.uint8)
        blocks.append(with_scales(block, ty, list(edges[:n_scales])))
    for _ in range(2):
        scales = list(rng.normal(0, 0.01, n_scales))
        blocks.append(with_scales(rng.integers(0, 256, block_bytes, np.uint8), ty, scales))
    return np.stack(blocks)


def float_rows(ty: T, rng: np.random.Generator) -> np.ndarray:
    """Random bit patterns (no NaN) after a few chosen ones."""
    if ty == T.F32:
        bits = rng.integers(0, 2**32, 256, np.uint32)
        bits[:4] = [0, 0x80000000, 1, 0x7F800000]
        return bits[~np.isnan(bits.view(np.float32))].view(np.uint8)
    bits = rng.integers(0, 2**16, 256, np.uint16)
    bits[:4] = [0, 0x8000, 1, 0x7C00 if ty == T.F16 else 0x7F80]
    as_float = bits.view(np.float16) if ty == T.F16 else (bits.astype(np.uint32) << 16).view(np.float32)
    return bits[~np.isnan(as_float)].view(np.uint8)


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for ty in [T.F32, T.F16, T.BF16, *SCALES]:
        rng = np.random.default_rng([2024, int(ty)])
        if ty in SCALES:
            blocks = quantised_blocks(ty, rng)
        else:
            blocks = float_rows(ty, rng).reshape(1, -1)
        values = quants.dequantize(blocks, ty).astype(np.float32)
        (OUT / f"{ty.name}.bin").write_bytes(blocks.tobytes() + values.tobytes())


if __name__ == "__main__":
    main()
