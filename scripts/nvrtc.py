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
        """Whether `text` compiles, and the compiler's output."""
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
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return status == 0, log.value.decode()


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
    failures = []
    print(f"{'registers, spilled bytes: ':66}" + "".join(f"{a:>12}" for a in nvrtc.architectures()))
    for file in files:
        text = file.read_bytes()
        name, shared = re.match(r"// (.*?) *; (\d+) bytes", text.decode()).groups()
        # The hash at the end distinguishes variants of one name; here their description does.
        name = re.sub(r"_[0-9a-f]{8}\b", "", name)
        cells = []
        for architecture in nvrtc.architectures():
            compiled, log = nvrtc.compile(text, architecture)
            if not compiled:
                failures.append(f"{name} for {architecture}:\n{log}")
                cells.append("FAILED")
                continue
            registers = number(r"Used (\d+) registers", log)
            if registers == 0:
                failures.append(f"{name} for {architecture}: no register count in:\n{log}")
            spilled = number(r"(\d+) bytes spill stores", log)
            if spilled > SPILL_LIMIT:
                failures.append(f"{name} for {architecture}: {spilled} spilled bytes")
            cells.append(f"{registers}, {spilled}")
        print(f"{name:50}{int(shared):10} shared" + "".join(f"{cell:>12}" for cell in cells))
    print(f"{len(files)} kernels, {len(failures)} failures")
    if failures:
        sys.exit("the first of them:\n" + failures[0])


if __name__ == "__main__":
    main()
