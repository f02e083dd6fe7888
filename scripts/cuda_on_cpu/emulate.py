"""Runs a CUDA kernel source of CubeCL as a function on CPU tensors."""

import ctypes
import re
import struct
from pathlib import Path

import torch

from module import compile_text, parameters


class Launch(ctypes.Structure):
    _fields_ = [
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("descending", ctypes.c_uint),
    ]


class Kernel:
    """A kernel, compiled by g++ next to its source."""

    def __init__(self, file):
        text = file.read_text()
        self.name, shared, threads = re.match(
            r"// (.*?) *; (\d+) bytes of shared memory; (\d+) threads", text
        ).groups()
        self.shared_bytes, self.threads = int(shared), int(threads)
        self.has_scalars = [kind == "info_st" for kind in parameters(text)[1]]
        self.n_buffers = self.has_scalars.count(False)
        # Groups of scalars in the order in which the kernel reads them, and their padded lengths.
        self.scalars = re.findall(r"scalars_(\w+)\[(\d+)\];", text)
        self.library = ctypes.CDLL(str(compile_text(text, file.with_suffix(".so"))))
        self.library.run.restype = ctypes.c_bool

    def __call__(self, grid, buffers, **scalars):
        """Runs the kernel twice, with the threads in both orders; the results must agree.

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
        # Lengths of buffers follow; they are not read.
        packed = ctypes.create_string_buffer(packed + bytes(256))
        pointers = [ctypes.c_void_p(buffer.data_ptr()) for buffer in buffers]
        left = iter(pointers)
        arguments = [packed if is_scalars else next(left) for is_scalars in self.has_scalars]
        arguments = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        threads = (ctypes.c_uint * 3)(self.threads, 1, 1)
        launch = Launch((ctypes.c_uint * 3)(*(*grid, 1)[:3]), threads, self.shared_bytes, descending)
        converged = self.library.run(arguments, ctypes.byref(launch))
        assert converged, f"{self.name}: some threads of a block end while others wait"


def load(directory):
    """The file of each kernel in a directory, by name without the hash that CubeCL adds."""
    files = {}
    for file in sorted(Path(directory).glob("*.cu")):
        name = re.match(r"// (.*?) *;", file.read_text()).group(1)
        files[re.sub(r"_[0-9a-f]{8}\b", "", name)] = file
    return files
