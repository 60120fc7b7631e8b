"""All theory experiments, one after the other: ``python -m experiments.theory [--out FOLDER]``."""

from . import experiment, gradient_flow, higher_order, implicit_regularisation, ode, self_recurrence

EXPERIMENTS = (gradient_flow, implicit_regularisation, higher_order, ode, self_recurrence)

if __name__ == "__main__":
    experiment.run_all(
        EXPERIMENTS,
        "All theory experiments; each also runs alone: python -m experiments.theory.NAME.",
    )
