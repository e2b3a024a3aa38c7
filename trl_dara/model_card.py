"""The section of the model card that says how the rewards were combined."""


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
