"""Writes the F16 copy of a quantised GGUF: OpenVINO's fastest format.

The values stay what the quantised file says, so the two files are one model.
"""

import sys

import gguf
import numpy

FLOATS = {gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16}
# Written by the writer itself.
OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def copy_fields(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for field in reader.fields.values():
        if field.name.startswith(OWN_FIELDS):
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=of)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)


def as_float(tensor: gguf.ReaderTensor) -> numpy.ndarray:
    if tensor.tensor_type in FLOATS:
        return tensor.data
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float16)


def convert(source: str, target: str) -> None:
    reader = gguf.GGUFReader(source)
    arch = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(target, arch)
    copy_fields(reader, writer)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, as_float(tensor))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    convert(sys.argv[1], sys.argv[2])
