"""The engine: one thread that computes features and trains, always on the newest pictures."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from time import monotonic

from ...adapt import FeatureExtractor
from ..project import Listing, Project
from ..project.records import Point
from .features import Examples, Features
from .lesson import Lesson, learn

__all__ = ["Engine", "Status"]

_LOGGER = logging.getLogger("neural_similarity")
_BATCH = 8  # pictures between two progress reports
_PAUSE = 0.3  # seconds without a change before training starts
_QUIET, _OPENING = 0.5, 3.0  # seconds without a request, in the first seconds after the start


@dataclass(frozen=True)
class Status:
    """What the engine is doing now.

    Attributes:
        stage: ``"idle"``, ``"features"``, ``"learning"``, ``"comparing"`` or ``"failed"``.
        done, total: pictures with features, and all pictures, in stage ``"features"``.
    """

    stage: str = "idle"
    done: int = 0
    total: int = 0


class _OutdatedError(Exception):
    """The pictures have changed: the current training is obsolete."""


class Engine:
    """Trains whenever a project changes.

    First the features of new pictures are computed, batch by batch. Then, once nothing has changed
    for a moment, a quick lesson is computed, then one that compares all methods. A change
    interrupts both, and training starts again with the newest pictures.

    Args:
        project: the project.
        backbone: the network that computes features.
        on_news: called from the engine's thread whenever there is something new to show.
        pause: seconds without a change before training starts.

    Attributes:
        status: what it is doing now.
        lesson: the last result of training; None if there is none yet.
    """

    def __init__(
        self,
        project: Project,
        backbone: FeatureExtractor,
        on_news: Callable[[], None] = lambda: None,
        pause: float = _PAUSE,
    ) -> None:
        self.project, self.backbone, self.on_news, self.pause = project, backbone, on_news, pause
        self.features = Features(backbone, project.folder)
        self.status = Status()
        self.lesson: Lesson | None = None
        self._news = Condition()
        self._last_change = self._started = monotonic()
        self._last_request = float("-inf")
        self._learned = 0  # the revision of the last complete lesson
        self._is_stopped = False
        self._thread = Thread(target=self._run, name="nsl-teach", daemon=True)

    def start(self) -> None:
        """Start; the project reports its changes by :meth:`wake`."""
        self._started = monotonic()
        self._thread.start()

    def defer(self) -> None:
        """Report that the page asked for a picture: an opening page goes before training."""
        self._last_request = monotonic()

    def stop(self) -> None:
        """End the thread, after the current step."""
        with self._news:
            self._is_stopped = True
            self._news.notify_all()
        self._thread.join()

    def wake(self) -> None:
        """Report that the project has changed."""
        with self._news:
            self._last_change = monotonic()
            self._news.notify_all()

    @property
    def is_up_to_date(self) -> bool:
        """Whether the newest pictures have been trained on."""
        return self._learned == self.project.listing.revision

    def _run(self) -> None:
        while not self._is_stopped:
            revision = self.project.listing.revision
            try:
                self._step()
            except _OutdatedError:
                continue
            except Exception:  # the page continues, and tries again after the next change
                _LOGGER.exception("neural_similarity: learning failed")
                self._learned = revision
                self._report(Status("failed"))
            with self._news:
                self._news.wait_for(lambda: self._is_stopped or not self.is_up_to_date)

    def _step(self) -> None:
        """Train on the newest pictures, or raise because they have changed."""
        self._compute_features()
        self._wait_for_a_pause()
        listing = self.project.listing
        examples = self.features.examples(listing)
        if examples is None:
            self.lesson = None
        elif not self._is_learned(examples):
            self._report(Status("learning"))
            tick = self._tick(listing)
            self.lesson = learn(examples, quick=True, tick=tick)
            self._report(Status("comparing"))
            self.lesson = learn(examples, quick=False, tick=tick)
            self._remember(self.lesson)
        self._learned = listing.revision
        self._report(Status())

    def _compute_features(self) -> None:
        while (missing := self.features.missing(self.project.listing)) and not self._is_stopped:
            total = len(self.project.listing.pictures)
            self._report(Status("features", total - len(missing), total))
            self.features.compute(missing[:_BATCH])

    def _wait_for_a_pause(self) -> None:
        with self._news:
            while (left := self._next_lesson() - monotonic()) > 0:
                self._news.wait(left)
                if self._is_stopped:
                    break
        if self._is_stopped or self.features.missing(self.project.listing):
            raise _OutdatedError

    def _next_lesson(self) -> float:
        """The time when training may start."""
        is_open = min(self._last_request + _QUIET, self._started + _OPENING)
        return max(self._last_change + self.pause, is_open)

    def _is_learned(self, examples: Examples) -> bool:
        """Whether the last lesson had the same pictures: something else has changed."""
        lesson = self.lesson
        return (
            lesson is not None
            and lesson.is_complete
            and lesson.examples.labels == examples.labels
            and lesson.examples.pictures == examples.pictures
        )

    def _tick(self, listing: Listing) -> Callable[[], None]:
        def check() -> None:
            if self._is_stopped or self.project.listing.pictures != listing.pictures:
                raise _OutdatedError

        return check

    def _remember(self, lesson: Lesson) -> None:
        """Add the accuracy to the history of the project."""
        validation, examples = lesson.classifier.cross_validation_, lesson.examples
        if validation.accuracy is not None and validation.interval is not None:
            point = Point(
                len(examples.pictures), len(examples.labels), validation.accuracy,
                *validation.interval,
            )  # fmt: skip
            self.project.records.add_point(point)

    def _report(self, status: Status) -> None:
        self.status = status
        self.on_news()
