"""Generation in a process of its own, with a model that answers truly: `python -m ... FOLDER [CALLS_BEFORE_KILL]`."""

import os
import signal
import sys
from pathlib import Path

from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.folder import PROTOCOL, cases_to_generate, save_answer
from trl_dara.evaluation.bfcl.generate import generate_cases
from trl_dara.evaluation.records import keep_settings

from .answers import TruthfulModel


CATEGORIES = ["parallel", "multi_turn_miss_func"]
LIMIT = 10
BATCH_SIZE = 4


def main(folder: Path, calls_before_kill: int | None = None) -> None:
    with BFCL(os.environ["BFCL_PYTHON"]) as bfcl:
        keep_settings(folder / "settings.json", PROTOCOL)
        cases = cases_to_generate(folder, bfcl, CATEGORIES, LIMIT)
        model = TruthfulModel(cases)

        def generate(prompts, sampling):
            if len(model.batches) == calls_before_kill:
                os.kill(os.getpid(), signal.SIGKILL)
            return model(prompts, sampling)

        for record in generate_cases(cases, bfcl, generate, batch_size=BATCH_SIZE):
            save_answer(folder, record)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
