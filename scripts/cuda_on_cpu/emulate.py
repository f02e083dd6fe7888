"""A CUDA text of CubeCL's as a function on tensors of a CPU."""

import ctypes
import re
import struct
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent

ENTRY = """
extern "C" bool run(void **arguments, void *scalars, const Launch *grid) {{
    return launch(*grid, [=] {{ text::{name}({arguments}); }});
}}
"""


class Launch(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint)
        for name in ["blocks_x", "blocks_y", "threads", "shared_bytes", "descending"]
    ]


class Kernel:
    """A kernel, compiled by g++ beside its text."""

    def __init__(self, file):
        text = file.read_text()
        head, self.name, shared, threads = re.match(
            r"(// (.*?) *; (\d+) bytes of shared memory; (\d+) threads)", text
        ).groups()
        self.shared_bytes, self.threads = int(shared), int(threads)
        # Those that the headers of the shim stand for.
        text = re.sub(r"#include <(mma|cuda_bf16)\.h>", "", text)
        # One symbol for the shared memory of whichever block is running.
        text = re.sub(
            r"extern __shared__ __align__\(\d+\) char (\w+)\[\];",
            r"char *const \1 = shared_memory;",
            text,
        )
        entry, parameters = re.search(
            r'extern "C" __global__ void __launch_bounds__\(\d+\)\s+(\w+)\((.*?)\) \{', text
        ).groups()
        self.n_buffers = 0
        arguments = []
        for parameter in parameters.split(", "):
            if "info_st" in parameter:
                arguments.append("*static_cast<text::info_st *>(scalars)")
                continue
            kind = parameter.split()[0]
            # Vectors are structures of the text; the other types are the compiler's or the shim's.
            kind = f"text::{kind}" if f" {kind} {{" in text else kind
            kind = kind.replace("uint32_t", "unsigned")
            arguments.append(f"static_cast<{kind} *>(arguments[{self.n_buffers}])")
            self.n_buffers += 1
        # Groups of scalars in the order in which the kernel reads them, and their padded lengths.
        self.scalars = re.findall(r"scalars_(\w+)\[(\d+)\];", text)
        source = file.with_suffix(".cpp")
        body = '#include "cuda.h"\nnamespace text {\n' + text + "\n}\n"
        source.write_text(body + ENTRY.format(name=entry, arguments=", ".join(arguments)))
        library = file.with_suffix(".so")
        compiler = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
        subprocess.run([*compiler, f"-I{HERE}", source, "-o", library], check=True)
        self.library = ctypes.CDLL(str(library))
        self.library.run.restype = ctypes.c_bool

    def __call__(self, grid, buffers, **scalars):
        """Runs the kernel twice, with the threads in both orders, which must agree.

        `buffers` are changed in place; `scalars` are lists by type, `f32` and `u32`.
        """
        assert len(buffers) == self.n_buffers, f"{self.name} takes {self.n_buffers} buffers"
        before = [buffer.clone() for buffer in buffers]
        self.run(grid, buffers, scalars, descending=0)
        self.run(grid, before, scalars, descending=1)
        for first, second in zip(buffers, before):
            same = torch.equal(first.view(torch.uint8), second.view(torch.uint8))
            assert same, f"{self.name}: the order of threads matters; is a barrier missing?"

    def run(self, grid, buffers, scalars, descending):
        packed = b""
        for kind, length in self.scalars:
            values = list(scalars[kind])
            values += [0] * (int(length) - len(values))
            packed += struct.pack({"f32": "f", "u32": "I"}[kind] * len(values), *values)
        # Lengths of buffers follow, which nothing reads.
        packed = ctypes.create_string_buffer(packed + bytes(256))
        pointers = (ctypes.c_void_p * len(buffers))(*(buffer.data_ptr() for buffer in buffers))
        launch = Launch(*grid, self.threads, self.shared_bytes, descending)
        converged = self.library.run(pointers, packed, ctypes.byref(launch))
        assert converged, f"{self.name}: some threads of a block end while others wait"


def load(directory):
    """The file of each kernel in a directory, by name without the hash that CubeCL adds."""
    files = {}
    for file in sorted(Path(directory).glob("*.cu")):
        name = re.match(r"// (.*?) *;", file.read_text()).group(1)
        files[re.sub(r"_[0-9a-f]{8}\b", "", name)] = file
    return files
