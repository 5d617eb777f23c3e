"""The workspace's sessions. `nox -l` lists them; `python3 tools/bootstrap.py SESSION` runs one.

Every environment is made under tools/constraints.txt and kept for the next run. It is made anew
when something that decides its content has changed: see `install`.
"""

import hashlib
import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
PACKAGES = ("core", "tabular", "vision", "aero")
# With its optional parts: tests cover them.
WHOLE = {
    "core": "core[experiment]",
    "tabular": "tabular[cli]",
    "vision": "vision[geo,pretrained]",
    "aero": "aero[dask]",
}
TESTED_WITH = {name: list(dict.fromkeys([WHOLE["core"], WHOLE[name]])) for name in PACKAGES}

# Isolated builds take their hatchling from the constraints too: pip reads the second name there,
# `python -m build` and older pips the first. A URI, because pip splits these values at spaces.
PIP = {"PIP_CONSTRAINT": CONSTRAINTS.as_uri(), "PIP_BUILD_CONSTRAINT": CONSTRAINTS.as_uri()}

nox.options.sessions = ["tests", "lint", "types"]
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True


def folder(package: str) -> Path:
    """A package's folder, relative to the workspace."""
    return Path("packages", f"it3-{package}")


def source(package: str) -> Path:
    """The folder of a package's import package."""
    return folder(package) / "src" / f"it3_{package}"


def install(session: nox.Session, *requirements: str, packages: Sequence[str] = ()) -> None:
    """Install requirements, and packages of the workspace, unless that was done before.

    The packages are installed as editable: a change in the source is seen at once, tracebacks and
    doctests name the source file, and a second run installs nothing. What an editable install can't
    see, a file missing from the wheel, is the `build` session's to find. A stamp in the environment
    says what it was made from; when that differs, or an install broke off, it starts from nothing,
    so that a dependency which is no longer declared is no longer there either.
    """
    arguments = list(requirements)
    made_from = [str(ROOT), CONSTRAINTS.read_text(encoding="utf-8")]
    for package in packages:
        arguments += ["-e", str(folder(package))]
        name = package.partition("[")[0]
        text = (source(name) / "__init__.py").read_text(encoding="utf-8")
        made_from += re.findall(r"^__version__ = .*$", text, flags=re.MULTILINE)
        made_from += [(folder(name) / "pyproject.toml").read_text(encoding="utf-8")]
    wanted = hashlib.sha256(repr((made_from, arguments)).encode()).hexdigest()

    stamp = Path(session.virtualenv.location) / "made-from"
    if stamp.exists():
        if stamp.read_text(encoding="utf-8") == wanted:
            return
        shutil.rmtree(session.virtualenv.location)
        session.virtualenv.create()
    stamp.write_text("unfinished", encoding="utf-8")
    session.install("-c", str(CONSTRAINTS), *arguments, env=PIP)
    stamp.write_text(wanted, encoding="utf-8")


@nox.session
@nox.parametrize("package", PACKAGES, ids=PACKAGES)
def tests(session: nox.Session, package: str) -> None:
    """Run a package's tests and docstring examples, with only its own dependencies there."""
    install(session, "pytest", "pytest-xdist", "hypothesis", packages=TESTED_WITH[package])
    named = any(argument.startswith(("packages/", "tools/")) for argument in session.posargs)
    paths = [] if named else [str(folder(package) / "tests"), str(folder(package) / "src")]
    if package == "tabular" and not named:  # the tools need no more than what is there
        paths.append("tools/tests")
    # A file to a process: what a file's tests share is made once. A few chosen tests need no more
    # than one, which starts sooner.
    spread = [] if session.posargs else ["-n", "auto", "--dist", "loadfile", "--durations=30"]
    # Networks are small here: two processes of one thread beat one of two.
    session.run(
        *("pytest", "--config-file=pyproject.toml", *spread, *paths, *session.posargs),
        env={"OMP_NUM_THREADS": "1"},
    )


# Libraries whose networks tools/zoo.py makes.
ZOO = (
    "e3nn==0.6.0",
    "mlp-mixer-pytorch==0.3.1",
    "monai==1.6.1",
    "neuraloperator==2.0.0",
    "pytorch-tabnet==4.1.0",
    "rtdl_revisiting_models==0.0.2",
    "tab-transformer-pytorch==0.6.1",
    "torch-geometric",
    "transformers==5.23.0",
    "x-transformers==2.31.10",
)


@nox.session
def zoo(session: nox.Session) -> None:
    """Agree with a peer, torch-ttt; try every method on other libraries' networks: docs/zoo.md."""
    # einops: torch-ttt imports it undeclared.
    install(session, "pytest", "torch-ttt==0.0.2", "einops", *ZOO, packages=TESTED_WITH["vision"])
    session.run("pytest", "--config-file=pyproject.toml", "packages/it3-vision/zoo")
    session.run("python", "tools/zoo.py", env={"OMP_NUM_THREADS": "1"})


# Each demo at its smallest setting, with the machine's own number of threads, as a user runs it.
DEMOS = (
    "it3-core demo",
    "it3-tabular demo",
    "it3-vision classify demo --n 400 --tested 32 --epochs 1",
    "it3-vision age demo --n 600 --epochs 1",
    "it3-vision roads demo --epochs 1",
    "it3-aero wings demo --n 100 --epochs 2",
    "it3-aero cars demo --epochs 2",
)


@nox.session
def demos(session: nox.Session) -> None:
    """Every package's demo at its smallest setting; with `-- full` at its defaults."""
    install(session, packages=list(WHOLE.values()))
    full = session.posargs == ["full"]
    place = Path(session.create_tmp()).resolve()
    shutil.rmtree(place)
    place.mkdir()
    session.chdir(place)
    for number, line in enumerate(DEMOS):
        command, *words = line.split()
        verbs = words[: words.index("demo") + 1]
        out = [] if command == "it3-tabular" else ["--out", str(place / str(number))]
        quiet = [] if command == "it3-tabular" else ["--quiet"]
        session.run(command, *(verbs if full else words), *out, *quiet)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff, and the architecture with import-linter."""
    install(session, "ruff", "import-linter")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    sources = os.pathsep.join(str(folder(package).resolve() / "src") for package in PACKAGES)
    session.run("lint-imports", env={"PYTHONPATH": sources})


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of all four packages and of the tools with mypy --strict."""
    install(session, "mypy", "nox", "pandas-stubs", "pytest", packages=list(WHOLE.values()))
    sources = [str(source(package)) for package in PACKAGES]
    session.run("mypy", "--strict", *sources, "tools", "noxfile.py")


@nox.session
def build(session: nox.Session) -> None:
    """Build wheels and sdists into dist/, and try each wheel in a clean environment."""
    install(session, "build", "twine", "virtualenv")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    for package in PACKAGES:
        session.run(
            *("python", "-m", "build", "--outdir", str(dist), str(folder(package))),
            env=PIP,
            silent=True,
        )
    session.run("twine", "check", "--strict", *map(str, sorted(dist.iterdir())))
    wheels = {package: next(dist.glob(f"it3_{package}-*.whl")) for package in PACKAGES}
    for package, wheel in wheels.items():
        check_content(session, package, wheel)
        extra = "[cli]" if package == "tabular" else ""  # what brings its command
        try_wheel(session, package, [str(wheels["core"]), f"{wheel}{extra}"])


def check_content(session: nox.Session, package: str, wheel: Path) -> None:
    """Fail unless a wheel holds every file of the source, py.typed among them, and the licence."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        licences = [archive.read(name) for name in names if name.endswith("licenses/LICENSE")]
    top = source(package)
    wanted = {
        f"it3_{package}/{path.relative_to(top).as_posix()}"
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    if missing := sorted((wanted | {f"it3_{package}/py.typed"}) - set(names)):
        session.error(f"{wheel.name} lacks {', '.join(missing)}")
    if licences != [(ROOT / "LICENSE").read_bytes()]:
        session.error(f"{wheel.name} does not hold the workspace's LICENSE")


def try_wheel(session: nox.Session, package: str, wheels: list[str]) -> None:
    """Install wheels into a new environment, import the package and call its command."""
    place = Path(session.create_tmp(), package)
    session.run("virtualenv", "--quiet", "--clear", str(place))
    python = str(place / "bin" / "python")
    command = str(place / "bin" / f"it3-{package}")
    pip = (python, "-m", "pip")
    # Not compiled: each environment is used three times and thrown away.
    options = ("--no-compile", "-c", str(CONSTRAINTS))
    session.run(*pip, "install", *options, *wheels, external=True, silent=True)
    session.run(*pip, "check", external=True)
    session.run(python, "-c", f"import it3_{package}", external=True)
    session.run(command, "--help", external=True)
    session.run(command, "--version", external=True)
    shutil.rmtree(place)


@nox.session
def demo(session: nox.Session) -> None:
    """Wings from geometry to a report; arguments after -- go to `it3-aero wings demo`."""
    install(session, packages=[WHOLE["core"], "aero"])
    session.run("it3-aero", "wings", "demo", *session.posargs)


@nox.session
def paper(session: nox.Session) -> None:
    """The paper's experiments, figures and tables: [TASK...] [--size quick|small|full] [--list]."""
    install(session, packages=list(WHOLE.values()))
    session.run("python", "-m", "paper", *session.posargs, env={"PYTHONPATH": "tools"})


@nox.session
def theory(session: nox.Session) -> None:
    """The paper's arguments as small experiments: writes docs/theory.md and its pictures."""
    install(session, packages=[WHOLE["core"]])
    session.run("python", "tools/theory.py", *session.posargs, env={"OMP_NUM_THREADS": "1"})


# Which package each benchmark is of.
BENCHES = {
    "core": "core",
    "tabular": "tabular",
    "cars": "aero",
    "streams": "aero",
    "corrupt": "vision",
}


@nox.session
def bench(session: nox.Session) -> None:
    """Measure, beside the peers: core (the default), or another of BENCHES after --."""
    what, *options = session.posargs or ["core"]
    if what not in BENCHES:
        session.error(f"there is no benchmark {what!r}: name one of {', '.join(BENCHES)}")
    peers = ["torch-ttt==0.0.2", "einops", "numpy"] if what == "core" else []
    all_tasks = what == "streams"
    packages = list(WHOLE.values()) if all_tasks else TESTED_WITH[BENCHES[what]]
    install(session, *peers, packages=packages)
    session.run("python", f"tools/bench/{what}.py", *options)
