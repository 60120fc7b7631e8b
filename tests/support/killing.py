"""Runs that are killed between two steps, and what must be the same afterwards."""


class Killed(BaseException):
    """Stands for a process that is killed between two steps."""


def killed_at(step):
    def callback(line):
        if line["kind"] == "step" and line["step"] == step:
            raise Killed

    return callback


def timeless(metrics):
    """Metrics without the values that depend on the clock."""
    clock = {"seconds", "images_per_second", "step_seconds"}
    return [{k: v for k, v in line.items() if k not in clock} for line in metrics]
