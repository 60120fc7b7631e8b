"""Few-shot learning: methods behind one small protocol, trained and tested on episodes.

Which method should I use? See ``docs/fewshot.md``. The main names:

- :func:`list_methods`, :func:`create_method`: a method by name; it builds a
  :class:`FewShotNetwork` from a backbone, and computes the training loss and the scores of queries.
- :class:`FewShotConfig`, :func:`train_method`: settings, and training into a :class:`FewShotRun`,
  a folder that can be resumed. Its ``evaluate`` runs tests, each described by a :class:`Trial`.
  :func:`open_run` opens a run of ``nsl train`` as well.
- :func:`plan_runs`, :func:`run_plan`: several methods at once. Networks that methods start from are
  trained first, and shared; :func:`read_plan` continues a plan that was stopped.
  :func:`order_runs` only determines which run starts from which.
- :func:`evaluate_method`: the accuracy of a method on episodes, as a :class:`Result`;
  :func:`mean_feature`: the mean by which some methods centre features.
- :class:`Method`, :class:`FeatureMethod`, :func:`register_method`: for your own methods.
"""

from . import methods
from .batches import Images, Tasks, as_tasks, query_labels
from .config import FewShotConfig
from .evaluate import Evaluator, Result, evaluate_method, mean_feature
from .methods import FeatureMethod, Method, create_method, list_methods, register_method
from .network import FewShotNetwork, batch_statistics, remove_classifier
from .plan import FinishedRun, Plan, PlannedRun, plan_runs, read_plan, run_plan
from .runs import FewShotRun, Trial, open_run
from .shared_backbones import order_runs
from .task import train_method

__all__ = [
    "Evaluator",
    "FeatureMethod",
    "FewShotConfig",
    "FewShotNetwork",
    "FewShotRun",
    "FinishedRun",
    "Images",
    "Method",
    "Plan",
    "PlannedRun",
    "Result",
    "Tasks",
    "Trial",
    "as_tasks",
    "batch_statistics",
    "create_method",
    "evaluate_method",
    "list_methods",
    "mean_feature",
    "methods",
    "open_run",
    "order_runs",
    "plan_runs",
    "query_labels",
    "read_plan",
    "register_method",
    "remove_classifier",
    "run_plan",
    "train_method",
]
