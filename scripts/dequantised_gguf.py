#!/usr/bin/env python3
"""Rewrites a GGUF with every matrix in f32, f16 or bf16, dequantised by the `gguf` package; metadata is unchanged.

llama.cpp multiplies quantised weights by quantised activations. Tooltune and transformers dequantise the weights and
multiply floating-point numbers. With dequantised weights, all of them compute the same function. Vectors (norms) and
convolutions stay in f32, as in llama.cpp's converter.
"""

import argparse
from pathlib import Path

import gguf
import numpy

TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16, "bf16": gguf.GGMLQuantizationType.BF16}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16, "bf16": gguf.LlamaFileType.MOSTLY_BF16}
# Keys that the writer sets itself.
WRITTEN = ("GGUF.", "general.architecture", "general.file_type")


def write_dequantised(source: Path, target: Path, dtype: str) -> None:
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(WRITTEN):
            sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(FILE_TYPES[dtype])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        is_f32 = values.ndim == 1 or "ssm_conv1d" in tensor.name
        kind = TYPES["f32" if is_f32 else dtype]
        writer.add_tensor(tensor.name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="GGUF file to read")
    parser.add_argument("target", type=Path, help="GGUF file to write")
    parser.add_argument("--dtype", choices=list(TYPES), default="f32")
    arguments = parser.parse_args()
    write_dequantised(arguments.source, arguments.target, arguments.dtype)


if __name__ == "__main__":
    main()
