from __future__ import annotations

import re

import pytest
from cli_helpers import finished

from critgrad import __version__
from critgrad.lab.cli.app import app, data

COMMANDS = [command.callback.__name__.rstrip("_") for command in app.registered_commands]
DATA = [f"data {command.name}" for command in data.registered_commands]


@pytest.mark.parametrize("command", [*COMMANDS, *DATA])
def test_every_command_explains_itself(cli, command):
    text = cli(*command.split(), "--help")
    assert f"Usage: critgrad {command}" in re.sub(r"\s+", " ", text)
    assert "--help" in text


def test_the_guide_starts_with_compare_and_names_every_command(cli):
    text = cli("--help")
    assert "critgrad compare" in text
    for command in (*COMMANDS, "data"):
        assert re.search(rf"│ {command}\s", text), command
    assert text.index("compare ") < text.index("train ") < text.index("playground ") < text.index("optimizers ")


def test_no_words_give_the_guide(cli):
    assert "Run experiments" in cli(code=2)


@pytest.mark.parametrize(
    "command", ["compare", "train", "sweep", "status", "best", "export", "analyze", "ablate", "report"]
)
def test_what_reads_or_writes_runs_takes_a_ledger(cli, command):
    assert "--ledger" in cli(command, "--help")


def test_the_script_runs_as_a_process():
    assert finished("--version") == f"critgrad {__version__}\n"


@pytest.mark.slow
def test_without_typer_the_script_says_what_to_do():
    block = "import sys; sys.modules['typer'] = None"
    text = finished("tasks", prelude=block, code=1)
    assert "pip install 'critgrad[lab]'" in text
    assert "python -m critgrad.lab --help" in text
