#!/usr/bin/env python3
"""Set up everything on a fresh machine, then run one of the workspace's sessions.

    python3 tools/bootstrap.py [--no-solvers] SESSION [-- arguments of the session]
    python3 tools/bootstrap.py "tests(core)" -- -k trust -x

It makes .venv with nox in it (once; a broken one is made anew), installs the Debian packages xfoil
and openfoam (for tests also chromium) if they are missing and it may, and runs the session.
--no-solvers installs none of them. Standard library only.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "tools" / "constraints.txt"
SOLVERS = {"xfoil": "xfoil", "openfoam": "simpleFoam"}  # Debian package: a program it brings
BROWSER = {"chromium": "chromium"}  # tests open the reports in it


def main(arguments: list[str]) -> int:
    """Set up, then become nox; an exit code only where that is not reached."""
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python gets here, and a clear sentence
        return fail(f"Python 3.11 or newer is needed, and this is {sys.version.split()[0]}.", 2)
    known = sessions()
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    solvers, given = "--no-solvers" not in arguments[:cut], arguments[:cut]
    named = [argument for argument in given if argument != "--no-solvers"]
    if len(named) != 1 or named[0] in ("-h", "--help"):
        print(__doc__, "sessions:", sep="\n")
        print("\n".join(f"  {name:<8}{purpose}" for name, purpose in known.items()))
        return 0 if named and named[0] in ("-h", "--help") else 2
    session = named[0].partition("(")[0]
    if session not in known:
        return fail(f"There is no session {named[0]!r}; there are {', '.join(known)}.", 2)
    if not venv_is_ready() and (problem := make_venv()):
        return fail(problem, 1)
    if solvers:
        install_debian(SOLVERS | BROWSER if session == "tests" else SOLVERS)
    # nox takes this process's place: signals and the exit code are its own from here.
    nox = [str(VENV_PYTHON), "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", named[0]]
    return os.execv(nox[0], [*nox, *arguments[cut:]])


def sessions() -> dict[str, str]:
    """The noxfile's sessions and their first docstring lines, read without needing nox."""
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return {
        node.name: (ast.get_docstring(node) or "").partition("\n")[0]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator) == "nox.session" for decorator in node.decorator_list)
    }


def venv_stamp() -> tuple[Path, str]:
    """The file that says what .venv was made from, and what it must say."""
    made_from = f"{VENV}\n{sys.version}\n{CONSTRAINTS.read_text(encoding='utf-8')}"
    return VENV / "made-from", hashlib.sha256(made_from.encode()).hexdigest()


def venv_is_ready() -> bool:
    """Whether .venv was finished, from the present constraints and Python, and its nox starts."""
    stamp, wanted = venv_stamp()
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != wanted:
        return False
    try:
        return succeeds([str(VENV_PYTHON), "-m", "nox", "--version"])
    except OSError:
        return False


def make_venv() -> str | None:
    """Make .venv from nothing, with nox in it. Return what went wrong, if something did."""
    say(f"Making {VENV.name} with nox in it.")
    # Not sys.executable, which lies in .venv itself when that is activated.
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    create = [python, "-m", "venv", "--clear", str(VENV)]
    pip = [str(VENV_PYTHON), "-m", "pip"]
    if importlib.util.find_spec("ensurepip") is None:  # Debian keeps it in python3-venv
        if importlib.util.find_spec("pip") is None:
            return "This Python has neither ensurepip nor pip. Run: apt-get install python3-venv"
        create.append("--without-pip")
        pip = [python, "-m", "pip", "--python", str(VENV_PYTHON)]
    if run(create) != 0:
        return f"Could not make {VENV}; the reason stands above."
    if run([*pip, "install", "--quiet", "-c", str(CONSTRAINTS), "nox"]) != 0:
        return f"Could not install nox into {VENV}; pip's reason stands above."
    stamp, wanted = venv_stamp()
    stamp.write_text(wanted, encoding="utf-8")
    return None


def install_debian(programs: dict[str, str]) -> None:
    """Install the missing programs where that is allowed; where it isn't, say how, and go on."""
    missing = [package for package, program in programs.items() if shutil.which(program) is None]
    if not missing:
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    allowed = not sudo or (shutil.which("sudo") is not None and succeeds(["sudo", "-n", "true"]))
    if shutil.which("apt-get") is None or not allowed:
        say(f"Missing: {', '.join(missing)} (tests that need them will say so). As root, run:")
        say(f"  apt-get update && apt-get install --no-install-recommends {' '.join(missing)}")
        return
    say(f"Installing Debian packages that are missing: {', '.join(missing)}.")
    apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
    apt += ["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]
    run([*apt, "update"])
    for package in missing:  # one by one: a package that can't be had doesn't stop the other
        if run([*apt, "install", "--yes", "--no-install-recommends", package]) != 0:
            say(f"apt-get could not install {package}; going on, tests that need it will say so.")


def run(command: list[str]) -> int:
    """Run a command and return its exit code; what it printed is shown if that isn't 0.

    Ctrl-C reaches the command as well. It is waited for, so that apt-get is never cut off.
    """
    quiet, joined = subprocess.DEVNULL, subprocess.STDOUT
    process = subprocess.Popen(command, stdin=quiet, stdout=subprocess.PIPE, stderr=joined)
    try:
        printed, _ = process.communicate()
    except KeyboardInterrupt:
        process.communicate()
        raise
    if process.returncode != 0:
        sys.stderr.write(printed.decode(errors="replace"))
    return process.returncode


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def say(sentence: str) -> None:
    print(f"bootstrap: {sentence}", flush=True)


def fail(sentence: str, code: int) -> int:
    print("bootstrap: " + sentence, file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(fail("interrupted.", 130))
