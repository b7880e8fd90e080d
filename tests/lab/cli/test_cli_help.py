from __future__ import annotations

import re

import pytest
from cli_helpers import finished

from critgrad import __version__
from critgrad import cli as command_line

COMMANDS = [name for panel in command_line.COMMANDS.values() for name in panel if name != "data"]
DATA = [f"data {name}" for name in command_line.DATA]


@pytest.mark.parametrize("command", [*COMMANDS, *DATA])
def test_every_command_explains_itself(cli, command):
    text = cli(*command.split(), "--help")
    assert f"Usage: critgrad {command}" in re.sub(r"\s+", " ", text)
    assert "--help" in text


def test_the_guide_starts_with_compare_and_names_every_command(cli):
    text = cli("--help")
    assert "critgrad compare" in text
    for command in (*COMMANDS, "data"):
        assert re.search(rf"^  {command}\s", text, re.MULTILINE), command
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


def test_a_wrong_option_has_the_code_of_a_wrong_command_line(cli):
    assert "unrecognized arguments: --topc" in cli("train", "digits-mlp", "--topc", "5", code=2)
    assert "unrecognized arguments: --seed" in cli("compare", "--seed", "5", code=2)  # not short for --seeds
