"""Trains one run of the search: `python -m train_scripts.benchmark.search_training RUN OUTPUT_DIR`, RUN as JSON."""

import json
import sys
from pathlib import Path

import torch

from train_scripts.benchmark.candidates import candidate
from train_scripts.benchmark.experiments import LearningRun
from train_scripts.benchmark.training import TASKS
from trl_dara import AGGREGATIONS
from trl_dara.demo.training import train_one


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = LearningRun(**json.loads(sys.argv[1]))
    train_one(run, Path(sys.argv[2]), TASKS[run.task], aggregation=None if run.rule in AGGREGATIONS else candidate)
