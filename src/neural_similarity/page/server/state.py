"""Everything that the page shows, as plain values for JSON."""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from ...adapt import missing_hint
from ..engine import Answer, Engine, Lesson
from ..project import Listing, Picture, Project
from ..project.names import identifier
from ..project.pictures import MOST_BYTES
from ..takeaway import Packing

__all__ = ["FEW", "describe", "describe_answer", "describe_picture"]

FEW = 5
"""A class with fewer pictures is reported as having too few."""
_MOST_NAMED = 3  # pictures that are in no class


def describe(project: Project, engine: Engine, packing: Packing) -> dict[str, Any]:
    """The whole state; pictures and classes are named by their identifiers."""
    listing, lesson = project.listing, engine.lesson
    trouble, hint = engine.features.trouble, _hint()
    readable = tuple(p for p in listing.pictures if p.version not in trouble)
    learned = () if lesson is None else lesson.examples.pictures
    return {
        "project": _text(project.folder.name),
        "folder": _text(str(project.folder)),
        "backbone": engine.backbone.name,
        "hint": hint if hint and engine.backbone.name in hint else None,
        "revision": listing.revision,
        "status": asdict(engine.status),
        "classes": [_class(label, listing, trouble) for label in listing.labels],
        "loose": {"count": len(listing.loose), "names": listing.loose[:_MOST_NAMED]},
        "lesson": None if lesson is None else _lesson(lesson, readable == learned, project),
        "history": [asdict(point) for point in project.records.history],
        "bin": [
            {"id": name, **asdict(entry)} for name, entry in reversed(project.bin.entries().items())
        ],
        "moves": project.moves.possible(listing),
        "packing": packing.describe(readable),
        "limits": {"bytes": MOST_BYTES, "few": FEW},
    }


def describe_picture(picture: Picture, trouble: dict[str, str]) -> dict[str, Any]:
    """A picture in its class."""
    values = {"id": picture.id, "version": picture.version, "name": picture.name}
    if picture.version in trouble:
        values["trouble"] = trouble[picture.version]
    return values


def describe_answer(answer: Answer, lesson: Lesson) -> dict[str, Any]:
    """The prediction for a picture: the most probable class first."""
    shares = zip(lesson.examples.labels, answer.probabilities, strict=True)
    return {
        "known": answer.is_known,
        "classes": [
            {"id": identifier(label), "name": label, "probability": round(share, 4)}
            for label, share in sorted(shares, key=lambda pair: -pair[1])
        ],
        "nearest": [
            {
                **describe_picture(near.picture, {}),
                "class": near.picture.label,
                "similarity": round(near.similarity, 3),
            }
            for near in answer.nearest
        ],
    }


def _text(path: str) -> str:
    """A path to show: one that is not UTF-8 could not be sent."""
    return os.fsencode(path).decode("utf-8", "replace")


@cache
def _hint() -> str | None:
    """What to install for a better network: looked up once, because it takes a while."""
    return missing_hint()


def _class(label: str, listing: Listing, trouble: dict[str, str]) -> dict[str, Any]:
    pictures = [describe_picture(picture, trouble) for picture in listing.of(label)]
    return {"id": identifier(label), "name": label, "pictures": pictures}


def _lesson(lesson: Lesson, is_current: bool, project: Project) -> dict[str, Any]:
    validation, pictures = lesson.classifier.cross_validation_, lesson.examples.pictures
    labels = [identifier(label) for label in lesson.examples.labels]
    names = dict(zip(labels, lesson.examples.labels, strict=True))
    tests = {
        picture.id: {"predicted": labels[guess], "confidence": round(float(share), 3)}
        for picture, guess, share in zip(
            pictures, validation.predicted, validation.confidence, strict=True
        )
        if guess >= 0
    }
    suspects = [
        {
            "id": pictures[suspect.row].id,
            "given": labels[suspect.given],
            "predicted": labels[suspect.predicted],
            "probability": suspect.probability,
        }
        for suspect in validation.suspects
        if not project.is_kept(pictures[suspect.row])
    ]
    return {
        "is_current": is_current,
        "is_complete": lesson.is_complete,
        "method": validation.method,
        "accuracy": validation.accuracy,
        "interval": validation.interval,
        "tested": validation.tested,
        "pictures": len(pictures),
        "classes": [{"id": id, "name": name} for id, name in names.items()],
        "confusion": np.asarray(validation.confusion).tolist(),
        "untested": [
            id for id, row in zip(labels, validation.confusion, strict=True) if not row.sum()
        ],
        "tests": tests,
        "suspects": suspects,
        "conflicts": [[pictures[row].id for row in group] for group in validation.conflicts],
        "copies": len(validation.duplicates),
        "per_class": round(lesson.per_class, 1),
        "curve": [list(point) for point in lesson.curve],
        "twice_as_many": lesson.twice_as_many,
    }
