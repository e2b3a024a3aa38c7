"""Trains one run with a group filter: `python -m train_scripts.benchmark.filtering_training RUN OUTPUT_DIR`, RUN as JSON."""

import json
import sys
from pathlib import Path

import torch

from train_scripts.benchmark.experiments import FilteredRun
from trl_dara.demo.training import TOOL_CALLING, train_one


if __name__ == "__main__":
    torch.set_num_threads(1)
    run = FilteredRun(**json.loads(sys.argv[1]))
    train_one(run, Path(sys.argv[2]), TOOL_CALLING, group_filter=run.group_filter)
