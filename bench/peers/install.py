"""Makes the virtual environment of the peers. Versions are fixed, so that a record can be repeated.

llama.cpp is compiled for this machine's CPU with clang, which comes from PyPI inside `ziglang`: gcc
12 and older drop stores to the AMX tile configuration (its intrinsic declares a read of 8 bytes
where the instruction reads 64), and the library then crashes in its fastest path.
"""

import os
import subprocess
import sys
from pathlib import Path

LLAMA_CPP = "llama-cpp-python==0.3.36"
BUILD_TOOLS = ["cmake==4.4.4", "ninja==1.13.2", "scikit-build-core==1.1.1", "ziglang==0.17.0"]
CMAKE_ARGS = "-DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF -DLLAVA_BUILD=OFF"
OPENVINO = ["openvino-genai==2026.4.1.0", "numpy"]
CONVERTER = ["gguf==0.19.0"]
# Large: torch comes with it. Set PIP_INDEX_URL to an index with CPU-only builds to save space.
TRANSFORMERS = ["torch", "transformers", "gguf==0.19.0"]


def install(venv: Path, engines: list[str]) -> None:
    """Installs what `engines` need; raises CalledProcessError when a step fails."""
    if not python_of(venv).exists():
        run([sys.executable, "-m", "venv", str(venv)])
    if {"llama.cpp", "llama.cpp-fa"} & set(engines):
        install_llama_cpp(venv)
    if "openvino" in engines:
        pip(venv, OPENVINO)
    if "openvino-f16" in engines:
        pip(venv, OPENVINO + CONVERTER)
    if "transformers" in engines:
        pip(venv, TRANSFORMERS)


def python_of(venv: Path) -> Path:
    return venv / "bin" / "python"


def install_llama_cpp(venv: Path) -> None:
    pip(venv, BUILD_TOOLS)
    bin_dir = venv.resolve() / "bin"
    compilers = {"CC": "cc", "CXX": "c++"}
    settings = {name: str(write_compiler(bin_dir, kind)) for name, kind in compilers.items()}
    settings["CMAKE_ARGS"] = CMAKE_ARGS
    settings["PATH"] = f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}"
    source = ["--no-build-isolation", "--no-binary", "llama-cpp-python", LLAMA_CPP]
    pip(venv, source, settings)


def write_compiler(bin_dir: Path, kind: str) -> Path:
    """CMake wants a compiler that is one word."""
    script = bin_dir / f"zig-{kind}"
    script.write_text(f'#!/bin/sh\nexec "{bin_dir}/python" -m ziglang {kind} "$@"\n')
    script.chmod(0o755)
    return script


def pip(venv: Path, packages: list[str], settings: dict[str, str] | None = None) -> None:
    command = [str(python_of(venv)), "-m", "pip", "install", "--quiet", *packages]
    run(command, {**os.environ, **(settings or {})})


def run(command: list[str], env: dict[str, str] | None = None) -> None:
    print("+", " ".join(command), file=sys.stderr, flush=True)
    subprocess.run(command, env=env, check=True)
