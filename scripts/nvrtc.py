"""Compiles CUDA sources with NVRTC and prints the GPU resources of each: `nvrtc.py DIRECTORY`.

Each `*.cu` file of the directory is one kernel; the comment in its first line has its name and the shared memory per
launch, which the source does not contain.
"""

import ctypes
import re
import sys
from pathlib import Path

# Compute capabilities of A100, of A10 and RTX 30, of H100 and H200, and of B200, in CubeCL's format.
ARCHITECTURES = ["sm_80", "sm_86", "sm_90a", "sm_100a"]

# A kernel may spill a few bytes of rarely used values. Spilled values of a loop need more bytes.
SPILL_LIMIT = 64

# Kernels whose results have the bits of another program. NVRTC contracts a product and a sum into one operation with one
# rounding, so these must have no such operation.
WITHOUT_FMA = ("dequantise_nf4",)
# The lowest nine bits of such an instruction.
FFMA = 0x23


class Nvrtc:
    """NVRTC from the package nvidia-cuda-nvrtc, and the headers of the packages next to it."""

    def __init__(self):
        import nvidia.cu13

        self.root = Path(list(nvidia.cu13.__path__)[0])
        libraries = self.root / "lib"
        # NVRTC opens this library by its bare name, which the loader knows once it is loaded.
        for builtins in libraries.glob("libnvrtc-builtins.so.*"):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(libraries / "libnvrtc.so.13"))
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def check(self, status):
        if status != 0:
            sys.exit(f"nvrtc.py: {self.library.nvrtcGetErrorString(status).decode()}")

    def architectures(self):
        """Those of ARCHITECTURES that this NVRTC knows."""
        count = ctypes.c_int()
        self.check(self.library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        known = (ctypes.c_int * count.value)()
        self.check(self.library.nvrtcGetSupportedArchs(known))
        return [a for a in ARCHITECTURES if int(re.sub(r"\D", "", a)) in set(known)]

    def compile(self, text, architecture):
        """Whether `text` compiles, the compiler's output, and the code for the GPU."""
        program = ctypes.c_void_p()
        create = self.library.nvrtcCreateProgram
        self.check(create(ctypes.byref(program), text, b"kernel.cu", 0, None, None))
        include = self.root / "include"
        options = [
            f"--gpu-architecture={architecture}",
            f"--include-path={include}",
            f"--include-path={include / 'cccl'}",
            "--ptxas-options=-v",
        ]
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        status = self.library.nvrtcCompileProgram(program, len(options), array)
        size = ctypes.c_size_t()
        self.check(self.library.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
        log = ctypes.create_string_buffer(size.value)
        self.check(self.library.nvrtcGetProgramLog(program, log))
        code = b""
        if status == 0:
            self.check(self.library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
            buffer = ctypes.create_string_buffer(size.value)
            self.check(self.library.nvrtcGetCUBIN(program, buffer))
            code = buffer.raw
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return status == 0, log.value.decode(), code


def fused_products(code):
    """Number of FFMA instructions, a product and a sum with one rounding, in a cubin.

    Since compute capability 7.0 an instruction has 16 bytes, and its lowest nine bits are the operation.
    """
    fused = 0
    table = int.from_bytes(code[0x28:0x30], "little")
    size, count = (int.from_bytes(code[at : at + 2], "little") for at in (0x3A, 0x3C))
    for i in range(count):
        header = code[table + i * size : table + (i + 1) * size]
        flags, start, length = (int.from_bytes(header[at : at + 8], "little") for at in (0x08, 0x18, 0x20))
        if flags & 4:  # instructions
            for at in range(start, start + length, 16):
                fused += int.from_bytes(code[at : at + 2], "little") & 0x1FF == FFMA
    return fused


def number(pattern, log):
    """The number that `pattern` matches in the assembler's report; 0 without a match."""
    found = re.search(pattern, log)
    return int(found.group(1)) if found else 0


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: nvrtc.py DIRECTORY")
    nvrtc = Nvrtc()
    files = sorted(Path(sys.argv[1]).glob("*.cu"))
    if not files:
        sys.exit(f"nvrtc.py: no *.cu in {sys.argv[1]}")
    failures, n_fused = [], {}
    print(f"{'registers, spilled bytes: ':66}" + "".join(f"{a:>12}" for a in nvrtc.architectures()))
    for file in files:
        text = file.read_bytes()
        name, shared = re.match(r"// (.*?) *; (\d+) bytes", text.decode()).groups()
        # The hash at the end distinguishes variants of one name; here their description does.
        name = re.sub(r"_[0-9a-f]{8}\b", "", name)
        cells = []
        for architecture in nvrtc.architectures():
            compiled, log, code = nvrtc.compile(text, architecture)
            if not compiled:
                failures.append(f"{name} for {architecture}:\n{log}")
                cells.append("FAILED")
                continue
            registers = number(r"Used (\d+) registers", log)
            if registers == 0:
                failures.append(f"{name} for {architecture}: no register count in:\n{log}")
            fused = fused_products(code)
            n_fused[architecture] = n_fused.get(architecture, 0) + fused
            if fused and name.startswith(WITHOUT_FMA):
                failures.append(f"{name} for {architecture}: {fused} products and sums with one rounding")
            spilled = number(r"(\d+) bytes spill stores", log)
            if spilled > SPILL_LIMIT:
                failures.append(f"{name} for {architecture}: {spilled} spilled bytes")
            cells.append(f"{registers}, {spilled}")
        print(f"{name:50}{int(shared):10} shared" + "".join(f"{cell:>12}" for cell in cells))
    failures += [f"{a}: no fused operation was found in any kernel" for a in nvrtc.architectures() if not n_fused.get(a)]
    print(f"{len(files)} kernels, {len(failures)} failures")
    if failures:
        sys.exit("the first of them:\n" + failures[0])


if __name__ == "__main__":
    main()
