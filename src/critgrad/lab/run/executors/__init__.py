"""Where jobs run: executors in the shape of ``concurrent.futures``, chosen by name.

An executor takes picklable calls and gives futures. It answers for its workers: one that dies is replaced and its call made
again; a call that has cost three workers gets ``WorkerLostError``.
"""

from .base import LOSSES, JobExecutor, WorkerLostError
from .registry import EXECUTORS, ExecutorRecord, KeptExecutor, open_executor

__all__ = ["EXECUTORS", "LOSSES", "ExecutorRecord", "JobExecutor", "KeptExecutor", "WorkerLostError", "open_executor"]
