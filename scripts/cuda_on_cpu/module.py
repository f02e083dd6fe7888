"""Compiles a CUDA kernel source of CubeCL as a CPU library.

    python3 module.py TEXT.cu LIBRARY.so

The library exports `run`, which has the arguments of cuLaunchKernel, and `argument_sizes`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent

ENTRY = """
extern "C" const unsigned argument_sizes[] = {{ {n}{sizes} }};
extern "C" bool run(void **arguments, const Launch *grid) {{
    return launch(*grid, [=] {{ {name}({arguments}); }});
}}
"""

SIGNATURE = r'extern "C" __global__ void __launch_bounds__\(\d+\)\s+(\w+)\((.*?)\) \{'


def parameters(text):
    """The kernel's name, and the type of each of its parameters."""
    name, listed = re.search(SIGNATURE, text).groups()
    types = []
    for parameter in listed.split(", "):
        parameter = re.sub(r"\b(__grid_constant__|__restrict__|const)\b", " ", parameter)
        types.append(re.sub(r"\w+\s*$", "", parameter).strip())
    return name, types


def compile_text(text, library):
    """Compiles `text` to the file `library`; its C++ source is written next to it."""
    # Headers that cuda.h replaces.
    text = re.sub(r"#include <[\w./]+>", "", text)
    # One symbol for the shared memory of the running block.
    text = re.sub(
        r"extern __shared__ __align__\(\d+\) char (\w+)\[\];",
        r"char *const \1 = shared_memory;",
        text,
    )
    # The only instruction that CubeCL writes as inline assembly.
    text = re.sub(
        r'asm volatile\("atom\.relaxed\.add\.f32 %0, \[%1\], %2;" : "=f"\((\w+)\) : "l"\((\w+)\), "f"\((\w+)\) \);',
        r"\1 = add_at(\2, \3);",
        text,
    )
    name, types = parameters(text)
    entry = ENTRY.format(
        n=len(types),
        sizes="".join(f", sizeof({kind})" for kind in types),
        name=name,
        arguments=", ".join(f"*static_cast<std::add_pointer_t<{kind}>>(arguments[{i}])" for i, kind in enumerate(types)),
    )
    library = Path(library)
    # The source and the library of this process.
    source = library.with_suffix(f".{os.getpid()}.cpp")
    source.write_text('#include "cuda.h"\nnamespace text {\n' + text + entry + "}\n")
    made = library.with_suffix(f".{os.getpid()}")
    compiler = ["g++", "-std=c++20", "-O1", "-ffp-contract=off", "-w", "-shared", "-fPIC"]
    subprocess.run([*compiler, f"-I{HERE}", "-x", "c++", source, "-o", made], check=True)
    # Renamed into place, because another process may look for it.
    made.rename(library)
    return library


if __name__ == "__main__":
    compile_text(Path(sys.argv[1]).read_text(), sys.argv[2])
