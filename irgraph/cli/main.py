"""The ``irgraph`` command: global options and error handling."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from typer.main import get_command

from irgraph.cli.command_line import COMMAND_LINE
from irgraph.cli.group import CommandGroup
from irgraph.diagnostics import visible_text

if TYPE_CHECKING:
    from irgraph.diagnostics import IrgraphError

app = typer.Typer(
    name="irgraph",
    cls=CommandGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Predict what a PyTorch training step costs on a GPU, and what a change would do to it.",
    epilog="Exit codes: 0 success, 1 the answer is no, 2 usage error, 3 input repaired, 4 unusable "
    "input.\n\nInstalled packages that add to irgraph run their code. Of the files that commands "
    "read, only programs do, with commands whose help says so.",
)


def _show_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        sys.stdout.write(f"irgraph {version('irgraph')}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Handle global options; show the help without a subcommand."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors are reported without a traceback."""
    from irgraph.diagnostics import IrgraphError

    _open_streams()
    try:
        words = sys.argv[1:] if arguments is None else arguments
        COMMAND_LINE.set(tuple(words))
        code = get_command(app)(args=list(words), prog_name="irgraph", standalone_mode=False)
        sys.stdout.flush()
    except IrgraphError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except typer.TyperException as error:
        usage = usage_error(error)
        sys.stderr.write(f"{usage}\n")
        return usage.exit_code
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        location = error.filename or "output"
        sys.stderr.write(visible_text(f"irgraph: {location}: {error.strerror or error}\n"))
        _drop_output()
        return 4
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("interrupted\n")
        return 130
    except MemoryError:
        sys.stderr.write("irgraph: not enough memory for this input\n")
        return 4
    except Exception as error:
        return _report_defect(error)
    return code if isinstance(code, int) else 0


def _open_streams() -> None:
    """Replace standard streams that the caller closed; escape characters that one cannot encode.

    A terminal shows the codes of such characters. Pipes and files use UTF-8, like all formats.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            encoding = stream.encoding if stream.isatty() else "utf-8"
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _drop_output() -> None:
    """Discard further output, because its reader has exited."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _report_defect(error: Exception) -> int:
    """Report an internal error and its position; with IRGRAPH_DEBUG set, raise it again.

    If a package of the user shadows one of irgraph's, that is reported instead.
    """
    from traceback import extract_tb

    from irgraph.diagnostics import IrgraphError
    from irgraph.shadowed_packages import check_packages

    try:
        check_packages()
    except IrgraphError as shadowing:
        sys.stderr.write(f"{shadowing}\n")
        return shadowing.exit_code
    frames = [f for f in extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    location = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    sys.stderr.write(
        visible_text(f"irgraph: internal error: {type(error).__name__}: {error}{location}\n")
        + "hint: this is a bug in irgraph; set IRGRAPH_DEBUG=1 for the traceback\n"
    )
    if os.environ.get("IRGRAPH_DEBUG"):
        raise error
    return 70


def usage_error(error: typer.TyperException) -> IrgraphError:
    """Return a usage error in the form of all other errors, with a hint."""
    from irgraph.diagnostics import fail, suggestion

    ctx = getattr(error, "ctx", None)
    option = getattr(error, "option_name", None)
    message = error.format_message().strip().rstrip(".")
    if type(error) is typer.BadParameter and error.param is not None:
        reason = error.message.rstrip(".")
        message = f"invalid {error.param.opts[-1]}: {reason[:1].lower()}{reason[1:]}"
    elif option is not None and hasattr(error, "possibilities") and ctx is not None:
        option_names = [name for parameter in ctx.command.params for name in parameter.opts]
        message = f"no option {option}{suggestion(option, option_names)}"
    path = ctx.command_path if ctx is not None else "irgraph"
    return fail(message[:1].lower() + message[1:], hint=f"{path} --help", exit_code=2)
