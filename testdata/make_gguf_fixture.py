"""Makes testdata/gguf/python.gguf with the `gguf` Python package: every kind of metadata value
and a few tensors. Run from the repository root; needs numpy and gguf.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants

OUT = Path(__file__).parent / "gguf" / "python.gguf"


def main() -> None:
    OUT.parent.mkdir(exist_ok=True)
    writer = GGUFWriter(OUT, "llama")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("t.u32", 4_000_000_000)
    writer.add_int32("t.i32", -2_000_000_000)
    writer.add_uint64("t.u64", 2**63 + 5)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float32("t.f32", 0.1)
    writer.add_float64("t.f64", 0.1)
    writer.add_bool("t.bool", True)
    writer.add_string("t.string", "Zürich 🚴")
    writer.add_array("t.strings", ["a", "", "Ġthe"])
    writer.add_array("t.i32s", [1, -2, 3])
    writer.add_array("t.f32s", [0.5, -1.5])
    writer.add_array("t.bools", [True, False])
    writer.add_key_value("t.nested", [[1, 2], [3]], GGUFValueType.ARRAY)
    rng = np.random.default_rng(5)
    values = rng.normal(0, 1, (3, 64)).astype(np.float32)
    writer.add_tensor("plain", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("half", np.array([1.5, -2.25, 65504], np.float16))
    q8 = quants.quantize(values, GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", q8, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
