"""The ``irgraph`` command: its subcommands, and what every one does about errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from irgraph.cli.analyze import analyze
from irgraph.cli.anonymise import anonymise
from irgraph.cli.bisect import bisect
from irgraph.cli.calibrate_profiler import calibrate_profiler
from irgraph.cli.capture import capture
from irgraph.cli.check import check
from irgraph.cli.devices import devices, hosts
from irgraph.cli.diff import diff
from irgraph.cli.evaluate import evaluate
from irgraph.cli.lower import lower
from irgraph.cli.measure import calibrate, measure
from irgraph.cli.models import fmt, show, verify
from irgraph.cli.models_list import models
from irgraph.cli.opt import opt
from irgraph.cli.overheads import overheads
from irgraph.cli.passes import passes
from irgraph.cli.pipeline import PipelineCommand
from irgraph.cli.predict import predict
from irgraph.cli.ranks import ranks
from irgraph.cli.record import record
from irgraph.cli.reduce import reduce
from irgraph.cli.replay import replay
from irgraph.cli.train import search, train

app = typer.Typer(
    name="irgraph",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Predict what a PyTorch training step costs on a GPU, and what a change would do to it.",
    epilog="Exit codes: 0 good, 1 the answer is no, 2 usage, 3 usable with repairs, "
    "4 unusable input.",
)
for command in (capture, lower, show, verify, fmt, predict, diff, passes, devices, hosts, evaluate):
    app.command()(command)
app.command()(train)
app.command()(search)
app.command()(check)
app.command()(measure)
app.command()(calibrate)
app.command()(models)
app.command()(ranks)
app.command()(replay)
app.command()(overheads)
app.command()(analyze)
app.command()(record)
app.command()(anonymise)
app.command()(calibrate_profiler)
app.command(cls=PipelineCommand)(opt)
app.command(cls=PipelineCommand)(bisect)
app.command(cls=PipelineCommand)(reduce)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"irgraph {version('irgraph')}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Take what stands before the subcommand."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; no error reaches the user as a traceback."""
    from irgraph.text.diagnostics import IrgraphError

    _open_streams()
    try:
        given = sys.argv[1:] if arguments is None else arguments
        code = app(args=list(given), prog_name="irgraph", standalone_mode=False)
        sys.stdout.flush()
    except IrgraphError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        sys.stderr.write(f"irgraph: {error.filename or 'output'}: {error.strerror or error}\n")
        _drop_output()
        return 4
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    except Exception as error:
        return usage_error(error)
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Stand in for standard streams that the caller closed."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _drop_output() -> None:
    """Let nothing more be written to an output that takes no more."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def usage_error(error: Exception) -> int:
    """Show an error of the command line's own syntax; anything else is a defect and says so."""
    if not hasattr(error, "format_message"):
        sys.stderr.write(
            f"irgraph: internal error: {type(error).__name__}: {error}\n"
            "hint: this is a defect of irgraph; set IRGRAPH_DEBUG=1 to see where it happened\n"
        )
        if os.environ.get("IRGRAPH_DEBUG"):
            raise error
        return 70
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()  # type: ignore[attr-defined]
    else:
        sys.stderr.write(f"{_misused(error)}\n")
    return int(getattr(error, "exit_code", 2))


def _misused(error: Any) -> Exception:  # noqa: ANN401  (the parser's own kinds of errors)
    """Return a parser's error in the words of all others, with the nearest option or command."""
    from irgraph.text.diagnostics import fail, near

    message = error.format_message().strip().rstrip(".")
    command = error.ctx.command if error.ctx is not None else None
    path = error.ctx.command_path if error.ctx is not None else "irgraph"
    if hasattr(error, "possibilities"):
        known = [name for given in command.params for name in given.opts] if command else []
        message = f"no option {error.option_name}{near(error.option_name, known)}"
    elif message.startswith("No such command"):
        word = message.split("'")[1]
        message = f"no command {word!r}{near(word, error.ctx.command.commands)}"
    message = message.removeprefix("Invalid value for ")
    return fail(message[:1].lower() + message[1:], hint=f"{path} --help", exit_code=2)
