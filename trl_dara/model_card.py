"""What the model card says: how the rewards were combined, and which paper to cite."""

import textwrap


PAPER = {
    "title": "Make Sparse Rewards Count: Density-Aware Reward Aggregation for Multi-Reward RL",
    "id": "2610.00574",
    # docstyle-ignore
    "citation": textwrap.dedent("""\
        @article{zheng2026dara,
            title        = {{Make Sparse Rewards Count: Density-Aware Reward Aggregation for Multi-Reward RL}},
            author       = {Tong Zheng and Skylar Zhai and Zhan Cheng and TianMing Sha and Youling Huang and Shuo Zhou and Shaotong Qi and Jingcheng Liang and Xuwei Ding and Pengcheng Xu},
            year         = 2026,
            eprint       = {arXiv:2610.00574},
        }"""),
}


def rewards_section(rule_name: str, aggregation_kwargs: dict, weights: dict[str, float]) -> str:
    """
    Markdown for the model card.

    Args:
        rule_name (`str`):
            Name of the aggregation rule.
        aggregation_kwargs (`dict`):
            Its keyword arguments.
        weights (`dict[str, float]`):
            The user's weight of each channel, by name.
    """
    rows = "\n".join(f"| `{name}` | {weight:g} |" for name, weight in weights.items())
    options = f" with `{aggregation_kwargs}`" if aggregation_kwargs else ""
    return (
        f"\n## Rewards\n\nThe rewards were combined by the rule `{rule_name}`{options} of trl_dara.\n\n"
        f"| channel | reward weight |\n|---|---|\n{rows}\n"
    )
