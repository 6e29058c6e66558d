"""What every test shares: one thread, one number format, no network, nothing of the user's settings.

GPU tests are skipped without a GPU; at the end there is a list of what could not run.
"""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from functools import cache

import pytest
from hypothesis import settings

# Before torch is imported anywhere: the tests run side by side, and more threads on few cores make each other wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "Agg"
# Nothing here may ask a model hub: a test must not depend on the network.
os.environ["HF_HUB_OFFLINE"] = "1"
# Real models compute in the same number format on every processor; `make test` tests text in the other one, too.
os.environ["SCOPE_LITE_NUMBER_FORMAT"] = os.environ.get("SCOPE_LITE_NUMBER_FORMAT") or "float32"
# What a user's shell may say to the libraries and to us; the product must bear it itself, the tests need not.
# Tried with the tests of text, of figures, of the report and of the command line:
# SCOPE_LITE_NUMBER_FORMAT=float32 and =bfloat16, LC_ALL=C, TZ=Asia/Kolkata, FORCE_COLOR=1 COLUMNS=30, a MATPLOTLIBRC
# that changes everything, and, for a lesser processor, ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2.
for name in (
    "CLICOLOR_FORCE", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "LINES", "NO_COLOR", "TERMINAL_WIDTH",
    "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "MATPLOTLIBRC",
    "SCOPE_LITE_COOPERBENCH", "SCOPE_LITE_HOME", "SCOPE_LITE_P4G", "SCOPE_LITE_WORLDS",
):  # fmt: skip
    os.environ.pop(name, None)
# A job started in the background or by nohup inherits an ignored Ctrl-C, and so would every process under test.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples at every run, however slow the machine; --hypothesis-profile=default looks for new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@cache
def missing_gpu() -> str:
    """Why a test marked `gpu` cannot run here; empty when it can."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    return "" if torch.cuda.is_available() else "no CUDA device"


def missing_backend(item: pytest.Item) -> str:
    """Why a test marked `backend` does not run here; empty when it does."""
    marker = item.get_closest_marker("backend")
    if marker is None:
        return ""
    for package in marker.args:
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed"
    minutes = marker.kwargs.get("minutes")
    if minutes and "backend" not in item.config.getoption("markexpr"):
        return f"takes {minutes} minutes: ask for it with -m backend"
    return ""


@cache
def missing_sandbox() -> str:
    """Why a test marked `sandbox` cannot run here; empty when it can."""
    from scope_lite.envs.cooperbench.sandbox import fault

    return fault()


def seed_torch() -> None:
    """Models that a test makes draw on torch's global generator: the same draws whatever ran before in the process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


def pytest_runtest_setup(item: pytest.Item) -> None:
    seed_torch()  # for what fixtures make
    if item.get_closest_marker("gpu") and missing_gpu():
        pytest.skip(missing_gpu())
    if reason := missing_backend(item):
        pytest.skip(reason)
    if item.get_closest_marker("sandbox") and missing_sandbox():
        pytest.skip(missing_sandbox())


def pytest_runtest_call() -> None:
    seed_torch()


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is compared more closely than 16 bits can tell: real models compute in float32."""
    monkeypatch.setenv("SCOPE_LITE_NUMBER_FORMAT", "float32")


@pytest.fixture
def sixteen_bits() -> bool:
    """Whether real models compute in 16 bits in this run of the tests, so that only what is coarser can be told."""
    return os.environ["SCOPE_LITE_NUMBER_FORMAT"] == "bfloat16"


def skip_reason(report: pytest.TestReport) -> str:
    """The reason of a skipped test, without pytest's prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that could not run on this machine, GPU tests first, each with its reason."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "xfail" not in report.keywords]
    if not skipped:
        return
    terminalreporter.section("could not run on this machine")
    rows = sorted(("gpu" not in report.keywords, report.nodeid, skip_reason(report)) for report in skipped)
    for not_gpu, name, reason in rows:
        terminalreporter.line(f"{'    ' if not_gpu else 'GPU '}{name}: {reason}")
