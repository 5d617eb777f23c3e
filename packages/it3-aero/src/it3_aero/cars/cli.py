"""The commands `it3-aero cars ...`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from it3_aero.shapes import options as shared
from it3_aero.shapes.options import Demo, New, Trained, one_thread
from it3_core import IT3Error
from it3_core.experiment import verbs
from it3_core.experiment.verbs import Overwrite, Positive, Quiet, Seed, application

app = application("cars", "Cars: from a mesh to a drag coefficient.")
verbs.add_report(app, "it3-aero cars")

TASK = "it3_aero.cars.task:TASK"
# --nose -x
Axis = Annotated[
    Literal["x", "-x", "y", "-y", "z", "-z"] | None, Parameter(allow_leading_hyphen=True)
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Fineness:
    """Options of commands that run OpenFOAM."""

    preset: Literal["smoke", "coarse", "medium"] = "coarse"
    "How fine: 10,000, 80,000 or 400,000 cells."
    ranks: int = 1
    "Processes of MPI for one case; 1 is best on few cores."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Generate(Fineness, shared.Generate):
    """Options of `generate`."""

    n: Annotated[int | None, Parameter(name=["--n", "-n"])] = None
    "Number of cars; 128, or all meshes, if not given."
    meshes: Path | None = None
    "A folder of meshes to take instead; ShapeNet's layout too."
    nodes: Positive = 1000
    "Most vertices of a sample's mesh."


@Parameter(name="*")
@dataclass(frozen=True)
class MeshOptions:
    """Options of commands that read meshes; what is not given is found out by `axes.place`."""

    up: Axis = None
    "Axis of the file that is up: z, -y, ..."
    nose: Axis = None
    "Axis of the file to which the nose points."
    unit: float | None = None
    "Metres per unit of the file."
    ground: verbs.Finite | None = None
    "Height of the ground along up, in the file's unit; the lowest point if not given."
    largest_hole: float = 0.25
    "Diameter of the largest hole to be capped, as a fraction of the length."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Train(shared.Train):
    """Options of `train`."""

    threshold: verbs.Finite | None = None
    "The smallest Cd to train on; a quarter of the cars lie below if no top is given either."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Evaluate(shared.Evaluate):
    """Options of `evaluate`."""

    batch_sizes: str = "1,2,4"
    "Separated by commas."


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Predict(shared.Predict):
    """Options of `predict`."""

    mesh: MeshOptions = MeshOptions()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `demo`."""

    data: Path | None = None
    "Instead of the cars that come with this."
    seed: Seed = 0
    epochs: Positive | None = None
    "Of the training."
    quiet: Quiet = False


@app.command
def generate(out: New, /, *, options: Generate = Generate()) -> None:
    """Draw cars at random, solve each with OpenFOAM, and keep them in OUT for training.

    Killed at any moment and started again, it loses nothing and makes nothing twice. OUT gets
    raw/samples.jsonl, raw/meshes, what is worth keeping of each case in cases, the data card
    card.json and histogram.png.

    Example: it3-aero cars generate cars -n 16 --preset smoke
    """
    from it3_aero.cars.generating import generate as run

    with shared.resumable(out):
        card = run(out, **options.settings())
    print(shared.summary(out, card, "cars", "Cd", "drag"))


@app.command
def check(
    files: list[Path],
    /,
    *,
    out: Path | None = None,
    mesh: MeshOptions = MeshOptions(),
) -> int:
    """Say of each mesh whether it can be solved, what was mended for that, or why it can't be.

    With --out, a picture of each shows what would be solved, nose to the left, new faces in orange.
    Exits with 2 if one is rejected; the others are checked all the same.

    Example: it3-aero cars check mine.stl --out pictures --nose -x

    Args:
        files: Meshes (STL, OBJ, PLY, OFF, GLB, DAE) or folders of them.
        out: Folder for pictures; none are made if not given.
    """
    from it3_aero.cars.intake import check as run
    from it3_aero.cars.intake import found_meshes
    from it3_aero.cars.render import verdict_picture
    from it3_core.io.output import distinct_names, open_output

    paths = [path for given in files for path in found_meshes(given)]
    names = distinct_names(paths, ".png") if out is not None else []
    pictures = out and open_output(out, "cars check", {}, files=names, inputs=files)
    accepted = 0
    for number, path in enumerate(paths):
        verdict = run(path, mesh)
        print(verdict)
        accepted += verdict.accepted
        if pictures and verdict.mesh is not None:
            made = pictures.write_bytes(names[number], verdict_picture(verdict))
            print(f"  picture: {made}")
    print(f"{accepted} of {len(paths)} accepted")
    return 0 if accepted == len(paths) else 2


@app.command
def solve(
    file: Path,
    out: Path,
    /,
    *,
    fineness: Fineness = Fineness(),
    mesh: MeshOptions = MeshOptions(),
) -> int:
    """Solve for the drag coefficient of one car with OpenFOAM, and draw the pressure on it.

    Example: it3-aero cars solve mine.stl case --preset smoke

    Args:
        file: A mesh: STL, OBJ, PLY, OFF, GLB or DAE.
        out: Folder for the case; one that was killed continues.
    """
    from it3_aero.cars.foam import preset
    from it3_aero.cars.foam import solve as run
    from it3_aero.cars.foam.case import check_case
    from it3_aero.cars.intake import check
    from it3_aero.cars.render import pressure_picture
    from it3_core.io.output import OutputFolder

    check_case(out, preset(fineness.preset), fineness.ranks)
    verdict = check(file, mesh)
    print(verdict)
    if verdict.mesh is None or not verdict.accepted:
        return 2
    with shared.resumable(out):
        flow = run(verdict.mesh, out, fineness.preset, ranks=fineness.ranks)
    if flow.problem is not None:
        raise IT3Error(f"{file}: {flow.problem}")
    print(
        f"Cd {flow.cd:.4f} ± {flow.cd_std:.4f}, Cl {flow.cl:.4f}, on {flow.frontal_area:.4g} m²; "
        f"{flow.solver}, {flow.cells:,} cells, {flow.iterations} iterations, "
        f"{flow.cpu_seconds:.0f} s of CPU, {flow.peak_mb:.0f} MB"
    )
    content = pressure_picture(verdict.mesh, flow)
    print(f"picture: {OutputFolder(out).write_bytes('pressure.png', content)}")
    return 0


@app.command
def pack(data: Path, out: Path, /, *, overwrite: Overwrite = False) -> None:
    """Put all cars of a folder into one small file, which train and CarDataset read too.

    Example: it3-aero cars pack cars cars.safetensors

    Args:
        data: The folder that generate made.
        out: The file, such as cars.safetensors.
    """
    from it3_aero.cars.dataset import pack as run
    from it3_core.io.output import output_file

    found = run(data, output_file(out, overwrite=overwrite, inputs=[data]))
    print(f"{out}: {len(found.records)} cars, {out.stat().st_size / 1e6:.1f} MB")


@app.command
def train(data: Path, /, *, options: Train) -> None:
    """Train a network on cars down to some Cd; started again, it continues where it was.

    Example: it3-aero cars train cars --out experiment --vanilla

    Args:
        data: The folder that generate made, or the file that pack made.
    """
    one_thread(options.size)
    verbs.train(TASK, data, options)


@app.command
def evaluate(experiment: Trained, /, *, options: Evaluate = Evaluate()) -> None:
    """Compare every method on every level; write records, tables, pictures and the report.

    Example: it3-aero cars evaluate experiment
    """
    one_thread()
    verbs.evaluate(TASK, experiment, options)


@app.command
def predict(experiment: Trained, meshes: list[Path], /, *, options: Predict = Predict()) -> int:
    """Predict the drag of cars in files, mended as by check, and say how unusual they are.

    Exits with 2 if a file has a problem; the others are predicted all the same. --verify runs
    OpenFOAM, as finely as for the training data.

    Example: it3-aero cars predict experiment mine.stl --plot mine.png

    Args:
        meshes: STL, OBJ, PLY, OFF, GLB or DAE files.
    """
    one_thread()
    return verbs.predict(TASK, experiment, meshes, options, options.plot, options.overwrite)


@app.command
def demo(*, out: Demo = Path("it3-cars-demo"), options: DemoOptions = DemoOptions()) -> None:
    """Train on the solved cars that come with this, evaluate and write the report.

    Example: it3-aero cars demo --out demo --epochs 20
    """
    if options.data is not None and not options.data.exists():
        raise IT3Error(f"there are no cars in {options.data}")
    one_thread()
    verbs.demo(TASK, out, options)
