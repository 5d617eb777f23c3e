"""The command lines: how they are made, warn and fail; the verbs' options, and what is printed."""

# Annotations are values here, not text: cyclopts reads them in the modules of subclasses.

import json
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError
from cyclopts.validators import Number

from it3_core.errors import IT3Error, IT3Warning
from it3_core.experiment import Adapt
from it3_core.io.typed import printable

if TYPE_CHECKING:
    from it3_core.experiment.types import Evaluation, Experiment, Task


Positive = Annotated[int, Parameter(validator=Number(gte=1))]
NotNegative = Annotated[int, Parameter(validator=Number(gte=0, lte=2**32 - 1))]
Quiet = Annotated[bool, Parameter(help="No progress bars.")]
Overwrite = Annotated[bool, Parameter(help="Replace what an earlier run wrote there.")]
Seed = Annotated[NotNegative, Parameter(help="Of all that is random.")]
Finite = Annotated[float, Parameter(validator=Number(gte=-1e6, lte=1e6))]


def application(name: str, help: str, version: str | None = None) -> App:
    """A command, or a group of commands, in the form that all packages share."""
    return App(
        name=name,
        help=help,
        help_format="markdown",  # joins the lines of a paragraph
        version=version,
        version_flags=["--version"] if version else [],
        default_parameter=Parameter(negative=()),  # no --no-quiet beside --quiet
        suppress_keyboard_interrupt=False,  # `run` says that it was interrupted
    )


def run(app: App, name: str, arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code: 2, and one sentence, for what a user can mend.

    A command returns None, or an exit code. Our warnings are one sentence too, without the file and
    line that Python puts before them.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, TextIOWrapper):  # a file's name may hold any byte
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _plain_warnings(name):
            code = app(given, exit_on_error=False, print_error=False, result_action="return_value")
    except UnusedCliTokensError as problem:
        extra = (problem.unused_tokens or [""])[0]
        print(f"{name}: unexpected argument {extra!r}: see --help", file=sys.stderr)
        return 2
    except CycloptsError as problem:
        print(f"{name}: {' '.join(str(problem).split())}", file=sys.stderr)
        return 2
    except IT3Error as problem:
        print(f"{name}: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:  # a name too long, a full disk, a folder that is a file
        where = f"{printable(problem.filename)}: " if problem.filename else ""
        print(f"{name}: {where}{problem.strerror or problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    if not given and app.default_command is None:
        return 2  # the help was shown, which is not what a script asked for
    return code if isinstance(code, int) else 0


def batch_sizes(text: str, what: str = "batch sizes") -> list[int]:
    """Numbers separated by commas, each at least 1."""
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise IT3Error(f"{what} are numbers from 1 separated by commas, unlike {text!r}")
    return list(dict.fromkeys(sizes))


@contextmanager
def _plain_warnings(name: str) -> Iterator[None]:
    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, IT3Warning):
            print(f"{name}: warning: {message}", file=sys.stderr)
        else:
            before(message, category, *where)

    warnings.showwarning = show  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = before


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What every `train` takes."""

    out: Path
    """The experiment folder: new, empty, or of the same settings."""
    seed: NotNegative = 0
    """Of the first weights, the splits and the order of the rows."""
    seeds: Positive = 1
    """Train this many networks, with consecutive seeds."""
    vanilla: bool = False
    """Train the same network without a signal too, for comparison."""
    device: str | None = None
    """Such as cpu or cuda:0; a GPU if there is one."""
    workers: NotNegative = 0
    """Processes that prepare batches."""
    quiet: bool = False
    """No progress bars."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """What every `evaluate` takes."""

    out: Path | None = None
    """The folder to write to; `evaluation` in the experiment's by default."""
    only: str | None = None
    """Names of methods, separated by semicolons; all by default."""
    ablation: bool = False
    """Also 1, 2, 3 of the paper's steps, its loss without anchor, a stream of shifted inputs."""
    steps: Positive | None = None
    """Of the paper's IT³, offline and online, in place of the number that was chosen."""
    lr: Annotated[float | None, Parameter(validator=Number(gt=0, lte=1))] = None
    """Learning rate of the paper's IT³, in place of the one that was chosen."""
    device: str = "cpu"
    """Such as cpu or cuda:0."""
    overwrite: bool = False
    """Replace an evaluation with other settings."""
    quiet: bool = False
    """No progress bars."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What every `predict` takes."""

    adapt: Adapt = "auto"
    """Adaptation at test time; auto is the method chosen by tuning, which may be none."""
    coverage: Annotated[float | None, Parameter(validator=Number(gt=0, lt=1))] = None
    """Of the intervals, or sets, that auto gives; 0.9 by default."""
    json: bool = False
    """One JSON object a line."""
    device: str = "cpu"
    """Such as cpu or cuda:0."""
    quiet: bool = False
    """No progress bars."""


def task_named(reference: str) -> "Task":
    """The task at "module:NAME", imported now."""
    module, _, name = reference.partition(":")
    return cast("Task", getattr(import_module(module), name))


def loaded(reference: str, folder: Path, device: str = "cpu") -> "Experiment":
    """The experiment in a folder."""
    from it3_core.experiment.folder import load

    task = task_named(reference)
    return load(folder, task.name, task.restore, device)


def train(reference: str, data: Path, options: TrainOptions) -> None:
    """Trains each seed and prints what came of it."""
    from it3_core.experiment.train import train as run
    from it3_core.io.output import check_output

    task = task_named(reference)
    check_output(options.out, f"{task.name} train", inputs=[data])
    for seed in range(options.seed, options.seed + options.seeds):
        experiment = run(
            task.problem(data, replace(options, seed=seed)),
            options.out,
            vanilla=options.vanilla,
            device=options.device,
            workers=options.workers,
            inputs=[data],
            progress=not options.quiet,
        )
        print(_trained(experiment, seed))


def _trained(experiment: "Experiment", seed: int) -> str:
    from it3_core.experiment.lines import units

    network = next(one for one in experiment.networks if one.seed == seed)
    measured, history = network.measured, network.history
    lines = [
        f"{experiment.folder}, seed {seed}: {measured['training_rows']} rows, "
        f"{len(history['train'])} epochs in {history['seconds']:.0f} s; validation error "
        f"{measured['validation_error']:.4g} on {measured['validation_rows']} rows; sensitivity "
        f"to the signal {measured['sensitivity']:.2f}."
    ]
    lines += [f"  {units(name)}: {one.reason}" for name, one in network.tunings.items()]
    if measured["skipped"]:
        lines.append(f"  left out: {'; '.join(measured['skipped'][:3])}")
    return "\n".join(lines)


def evaluate(reference: str, folder: Path, options: EvaluateOptions) -> None:
    """Evaluates, writes the report, and prints the main table."""
    from it3_core.experiment.evaluate import evaluate as run
    from it3_core.experiment.lines import with_paper_step
    from it3_core.io.output import EVALUATION, OutputFolder, check_output, inside

    task = task_named(reference)
    read = [v for name, v in vars(options).items() if isinstance(v, Path) and name != "out"]
    out = options.out or inside(folder, EVALUATION)
    check_output(out, f"{task.name} evaluate", inputs=read, experiment=folder)
    experiment = with_paper_step(
        loaded(reference, folder, options.device), options.steps, options.lr
    )
    if not read and "data" in experiment.provenance:  # where they were in training
        read = [Path(str(experiment.provenance["data"]))]
    only = None if options.only is None else [name.strip() for name in options.only.split(";")]
    found = run(
        experiment,
        task.test_set(experiment, options),
        out,
        only=only,
        ablation=options.ablation,
        inputs=read,
        overwrite=options.overwrite,
        progress=not options.quiet,
    )
    with OutputFolder(found.folder).writing("report.html") as page:
        _report(found, page)


def _report(found: "Evaluation", page: Path) -> None:
    from it3_core.experiment.report import report as write
    from it3_core.experiment.tables import compact, markdown_table

    write(found, page)
    levels = [found.summary["in_distribution"], *found.summary["headline"]]
    print(markdown_table(compact(found.rows, levels, digits=found.summary["columns"][0][2])))
    print(f"\n{page}")


def add_report(app: App, command: str) -> None:
    """Gives a task's commands their `report`."""
    example = f"Example: {command} report experiment --out page.html"
    app.command(report, help=f"Write the page of an evaluation again.\n\n{example}")


def report(folder: Path, /, *, out: Path | None = None, overwrite: Overwrite = False) -> None:
    """Writes the page of an evaluation, or of an experiment's own, again, or to another file.

    Args:
        folder: The folder that train or evaluate made.
        out: The page; report.html in the evaluation's folder if not given.
    """
    from it3_core.experiment.evaluate import load_evaluation
    from it3_core.io.output import EVALUATION, OutputFolder, inside, output_file

    if out is not None:
        whole = Path(os.path.realpath(folder))
        whole = whole.parent if whole.name == EVALUATION else whole  # the experiment around it
        output_file(out, overwrite=overwrite, experiment=whole)
    own = inside(folder, EVALUATION)
    found = load_evaluation(own if own.is_dir() else folder)
    if out is None:
        with OutputFolder(found.folder).writing("report.html") as page:
            _report(found, page)
    else:
        _report(found, out)


def predict(
    reference: str,
    folder: Path,
    paths: Sequence[Path],
    options: PredictOptions,
    plot: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Prints a prediction for each item; 2 where one had a problem. `plot` is a picture of all."""
    from it3_core.experiment.predict import as_json
    from it3_core.experiment.predict import predict as run
    from it3_core.io.files import write_figure
    from it3_core.io.output import output_file

    if plot is not None:
        output_file(plot, overwrite=overwrite, inputs=paths, experiment=folder)
    task, experiment = task_named(reference), loaded(reference, folder, options.device)
    reader = task.reader(experiment, options)
    found = []
    for one in run(experiment, reader, list(paths), adapt=options.adapt, coverage=options.coverage):
        found.append(one)
        problem = f"{one.item.name}: {one.problem}"
        text = problem if one.percentile is None else reader.words(one)
        text = json.dumps(as_json(one)) if options.json else text
        print(printable(text, 10**6), flush=True)
    if plot is not None and reader.draw is not None:
        predicted = [one for one in found if one.percentile is not None]
        if not predicted:
            raise IT3Error(f"there is no {reader.noun} with a prediction to draw")
        write_figure(plot, reader.draw(predicted), dpi=150)
    return 2 if any(one.problem is not None for one in found) else 0


def demo(reference: str, out: Path, options: Any) -> "Experiment":
    """Makes data, trains, evaluates and writes the report into one folder; killed, it goes on."""
    from it3_core.experiment.evaluate import evaluate as run
    from it3_core.experiment.train import train as fit
    from it3_core.io.output import inside, open_output

    task = task_named(reference)
    settings = {name: value for name, value in asdict(options).items() if name != "quiet"}
    folder = open_output(
        out,
        f"{task.name} demo",
        {name: str(v) if isinstance(v, Path) else v for name, v in settings.items()},
        files=["report.html"],
        inputs=[value for value in settings.values() if isinstance(value, Path)],
    )
    trained = inside(out, "experiment")
    made = task.demo(out, options)
    progress = not options.quiet
    experiment = fit(made.problem, trained, vanilla=made.vanilla, progress=progress)
    print(_trained(experiment, made.problem.recipe.seed))
    found = run(experiment, made.test_set(experiment), progress=progress)
    with folder.writing("report.html") as page:
        _report(found, page)
    return experiment
