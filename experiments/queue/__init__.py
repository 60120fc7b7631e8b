"""The queue: train and test the rows of tables that have no result yet."""

from .jobs import Job, jobs_of
from .worker import Queue

__all__ = ["Job", "Queue", "jobs_of"]
