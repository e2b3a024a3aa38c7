"""
What does each rule buy? Trains tiny models on tasks in which one reward is sparse, with every rule and several seeds.

    python -m train_scripts.benchmark.learning                                            # A and B, the main rules
    python -m train_scripts.benchmark.learning --experiments all --rules all              # everything, some hours

A run takes about half a minute to a minute of one core. Finished runs are kept, so that the same command goes on after an
interruption. Runs with the same seed see the same prompts in the same order and start from the same weights, so rules are
compared seed by seed.
"""

from pathlib import Path

from rich.console import Console

from train_scripts.benchmark.experiments import EXPERIMENTS, LearningRun
from train_scripts.benchmark.learning_report import markdown, measure, save_figure
from train_scripts.benchmark.running import make_parser, report_results, train
from trl_dara import AGGREGATIONS


MAIN_EXPERIMENTS = ["A", "B"]
MAIN_RULES = ["grpo", "gdpo", "dara_sym", "dara_asym"]


def make_runs(experiments: list[str], rules: list[str], seeds: list[int]) -> dict[tuple[str, str, int], LearningRun]:
    """
    All combinations, seed by seed, so that an interrupted benchmark has whole seeds.

    Args:
        experiments (`list[str]`):
            Keys of `EXPERIMENTS`.
        rules (`list[str]`):
            Aggregation rules.
        seeds (`list[int]`):
            Seeds.

    Returns:
        `dict[tuple[str, str, int], LearningRun]`: By experiment, rule and seed.
    """
    return {
        (key, rule, seed): EXPERIMENTS[key].run(key, rule, seed)
        for key in experiments
        for seed in seeds
        for rule in rules
    }


def main() -> None:
    parser = make_parser(__doc__, "learning")
    parser.add_argument(
        "--experiments", nargs="+", choices=["all", *EXPERIMENTS], default=MAIN_EXPERIMENTS, metavar="KEY"
    )
    parser.add_argument("--rules", nargs="+", choices=["all", *AGGREGATIONS], default=MAIN_RULES, metavar="RULE")
    parser.add_argument("--results_name", default="learning", help="name of the tables and figures")
    arguments = parser.parse_args()
    experiments = list(EXPERIMENTS) if "all" in arguments.experiments else arguments.experiments
    rules = list(AGGREGATIONS) if "all" in arguments.rules else arguments.rules

    runs = make_runs(experiments, rules, arguments.seeds)
    console = Console()
    train(list(runs.values()), arguments, console, module="train_scripts.benchmark.training")
    results = measure(runs, arguments.output_dir)
    stem = arguments.results_dir / arguments.results_name
    report_results(results, markdown(results), stem, console)
    for key in experiments:
        save_figure(key, runs, arguments.output_dir, Path(f"{stem}_{key}.png"))


if __name__ == "__main__":
    main()
