"""
Is there a better rule than DARA? Trains the tiny models of experiments A and B with rules that were made up for it.

    python -m train_scripts.benchmark.search                                                      # all, seeds 0 to 4
    python -m train_scripts.benchmark.search --candidates starved --seeds 10 11 12 13 14 --results_name search_confirmed

Two aims, both against `gdpo` on the same seeds: *free* is about the speed of `dara_sym` at the other reward of `gdpo`, *fast* is
much more speed at no more than the cost of `dara_sym`. Candidates are tuned on seeds 0 to 4; seeds from 10 on are there to
confirm once what these chose. A run takes half a minute to a minute of one core. Finished runs are kept, so that the same command goes on
after an interruption.
"""

import dataclasses

import pandas as pd
from rich.console import Console
from rich.markdown import Markdown

from train_scripts.benchmark.candidates import CANDIDATES
from train_scripts.benchmark.experiments import EXPERIMENTS, LearningRun
from train_scripts.benchmark.learning_report import NOT_ALL, REFERENCE, first_unseen_step, measure
from train_scripts.benchmark.running import make_parser, mean_and_seeds, train


DARA = "dara_sym"

# By experiment: what is crossed, and for each aim the largest ratio of steps to the reference
CROSSINGS = {"A": "steps to 0.8", "B": "stable at 99 %"}
FREE_RATIO = {"A": 0.85, "B": 0.80}
FAST_RATIO = {"A": 0.65, "B": 0.60}
# and by how much the mean correctness may be below the reference's; for `fast` by as much as with DARA
FREE_LOSS = {"A": 0.02, "B": 0.01}


def make_runs(
    experiments: list[str], candidates: list[str], seeds: list[int]
) -> dict[tuple[str, str, int], LearningRun]:
    """
    The runs of the candidates and of what they are compared with.

    Args:
        experiments (`list[str]`):
            Keys of `CROSSINGS`.
        candidates (`list[str]`):
            Keys of `CANDIDATES`.
        seeds (`list[int]`):
            Seeds.

    Returns:
        `dict[tuple[str, str, int], LearningRun]`: By experiment, rule and seed.
    """
    runs = {}
    for key in experiments:
        for seed in seeds:
            for rule in (REFERENCE, DARA, *candidates):
                run = EXPERIMENTS[key].run(key, rule, seed)
                if rule in CANDIDATES:
                    settings = dict(CANDIDATES[rule])
                    window = settings.pop("window", None)
                    run = dataclasses.replace(run, aggregation_kwargs=settings, calibration_window=window)
                runs[key, rule, seed] = run
    return runs


def compare(results: pd.DataFrame) -> pd.DataFrame:
    """
    Every run beside that of the reference with the same seed.

    Args:
        results (`pd.DataFrame`):
            As returned by [`measure`].

    Returns:
        `pd.DataFrame`: Columns `experiment`, `rule`, `seed`, `ratio` (of steps; none if the rule never gets there),
        `is_bound` (whether the reference never gets there, so that the ratio is at most this), `correctness` (difference of
        the means over the run).
    """
    wide = results.pivot(index=["experiment", "rule", "seed"], columns="measure", values="value").reset_index()
    parts = []
    for key, rows in wide.groupby("experiment"):
        crossing = CROSSINGS[key]
        reference = rows[rows["rule"] == REFERENCE].set_index("seed").loc[rows["seed"]]
        steps = reference[crossing].fillna(first_unseen_step(crossing, EXPERIMENTS[key].steps))
        ratio = rows[crossing].array / steps.array
        correctness = rows["mean correctness"].array - reference["mean correctness"].array
        is_bound = reference[crossing].isna().array
        columns = {"ratio": ratio, "is_bound": is_bound, "correctness": correctness}
        parts.append(rows[["experiment", "rule", "seed"]].assign(**columns))
    compared = pd.concat(parts)
    return compared[compared["rule"] != REFERENCE].reset_index(drop=True)


def reached(compared: pd.DataFrame) -> pd.DataFrame:
    """
    Which aims each rule reaches, as means over the seeds.

    Args:
        compared (`pd.DataFrame`):
            As returned by [`compare`].

    Returns:
        `pd.DataFrame`: Columns `experiment`, `rule`, `free`, `fast`.
    """
    rows = []
    for key, of_experiment in compared.groupby("experiment"):
        loss_of_dara = -of_experiment.loc[of_experiment["rule"] == DARA, "correctness"].mean()
        for rule, of_rule in of_experiment.groupby("rule", sort=False):
            ratio = of_rule["ratio"].mean(skipna=False)  # a rule that never gets there on a seed reaches nothing
            loss = -of_rule["correctness"].mean()
            free = ratio <= FREE_RATIO[key] and loss <= FREE_LOSS[key]
            fast = ratio <= FAST_RATIO[key] and loss <= loss_of_dara
            rows.append({"experiment": key, "rule": rule, "free": free, "fast": fast})
    return pd.DataFrame(rows)


def markdown(compared: pd.DataFrame) -> str:
    """
    A table for each experiment, every seed shown, and what came out.

    Args:
        compared (`pd.DataFrame`):
            As returned by [`compare`].

    Returns:
        `str`: Markdown.
    """
    aims = reached(compared).set_index(["experiment", "rule"])
    parts = [_overview(compared), ""]
    for key, rows in compared.groupby("experiment"):
        seeds = sorted(rows["seed"].unique())
        parts.append(
            f"### {key}: {EXPERIMENTS[key].title}\n\n"
            f"Against `{REFERENCE}`, seeds {', '.join(map(str, seeds))}; *free* is a ratio of at most {FREE_RATIO[key]} that "
            f"costs at most {FREE_LOSS[key]}, *fast* one of at most {FAST_RATIO[key]} that costs no more than `{DARA}`. Mean, 95 % "
            "bootstrap interval, every seed.\n\n"
            f"| rule | {CROSSINGS[key]}: ratio | mean correctness: difference | free | fast |\n|---|---|---|---|---|"
        )
        for rule, of_rule in rows.groupby("rule", sort=False):
            of_rule = of_rule.set_index("seed").reindex(seeds)
            ratio = _bound(of_rule) + mean_and_seeds(of_rule["ratio"], "{:.2f}", interval=True)
            difference = mean_and_seeds(of_rule["correctness"], "{:+.3f}", interval=True)
            verdicts = ("yes" if aims.loc[(key, rule), aim] else "no" for aim in ("free", "fast"))
            parts.append(f"| `{rule}` | {ratio} | {difference} | {' | '.join(verdicts)} |")
        parts.append("")
    held = [
        f"`{rule}` is {aim}"
        for aim in ("free", "fast")
        for rule in aims.index.unique("rule")
        if aims.xs(rule, level="rule")[aim].all()
    ]
    experiments = " and ".join(aims.index.unique("experiment"))
    parts.append(f"In {experiments}: {', '.join(held) or 'no rule is free, none is fast'}.\n")
    return "\n".join(parts)


def _overview(compared: pd.DataFrame) -> str:
    """Rules down, experiments across, means over the seeds."""
    keys = sorted(compared["experiment"].unique())
    titles = (f"{key}: {CROSSINGS[key]}, ratio | mean correctness" for key in keys)
    lines = [f"| rule | changed | {' | '.join(titles)} |", "|---" * (2 + 2 * len(keys)) + "|"]
    for rule, of_rule in compared.groupby("rule", sort=False):
        changed = ", ".join(f"`{name}` {value}" for name, value in CANDIDATES.get(rule, {}).items())
        cells = []
        for key in keys:
            rows = of_rule[of_rule["experiment"] == key]
            ratio = NOT_ALL if rows["ratio"].isna().any() else f"{_bound(rows)}{rows['ratio'].mean():.2f}"
            cells += [ratio, f"{rows['correctness'].mean():+.3f}"]
        lines.append(f"| `{rule}` | {changed} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _bound(rows: pd.DataFrame) -> str:
    return "at most " if rows["is_bound"].any() else ""


def main() -> None:
    parser = make_parser(__doc__, "learning")  # the reference's runs are those of the learning benchmark
    parser.add_argument("--experiments", nargs="+", choices=[*CROSSINGS], default=[*CROSSINGS])
    parser.add_argument("--candidates", nargs="+", choices=[*CANDIDATES], default=[*CANDIDATES], metavar="CANDIDATE")
    parser.add_argument("--results_name", default="search", help="name of the tables")
    arguments = parser.parse_args()
    runs = make_runs(arguments.experiments, arguments.candidates, arguments.seeds)
    console = Console()
    train(list(runs.values()), arguments, console, "train_scripts.benchmark.search_training")
    compared = compare(measure(runs, arguments.output_dir))
    stem = arguments.results_dir / arguments.results_name
    compared.to_csv(stem.with_suffix(".csv"), index=False, float_format="%.6g")
    report = markdown(pd.read_csv(stem.with_suffix(".csv")))  # of the file, to its last digit
    stem.with_suffix(".md").write_text(report)
    console.print(Markdown(report))


if __name__ == "__main__":
    main()
