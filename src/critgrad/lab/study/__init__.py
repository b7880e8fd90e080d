"""Studies: is one optimizer better than another on a task, if both are tuned alike? Anyone's optimizer, anyone's task.

``answer = study.run("study.toml", workers=2)`` runs what is missing; ``answer.claims`` have the verdicts.
"""

from .answer import Answer, Arm, Claim, Replicate, Run
from .file import StudyError
from .runner import check, report, run
from .work import device

__all__ = ["Answer", "Arm", "Claim", "Replicate", "Run", "StudyError", "check", "device", "report", "run"]
