"""The model card says how the rewards were combined, and cites the right paper."""

from .support import build, digest, has_a, run


def test_card(tiny_model, tmp_path):
    trainer = build(
        tiny_model,
        tmp_path,
        [digest, has_a],
        aggregation="dara_sym",
        aggregation_kwargs={"w_max": 3.0},
        reward_weights={"has_a": 0.5},
    )
    trainer.create_model_card(model_name="tiny")
    card = (tmp_path / "README.md").read_text()
    assert "trained with MultiRewardGRPO" in card
    assert "`dara_sym` with `{'w_max': 3.0}`" in card
    assert "| `digest` | 1 |" in card and "| `has_a` | 0.5 |" in card
    assert "Make Sparse Rewards Count: Density-Aware Reward Aggregation" in card
    assert "https://huggingface.co/papers/2610.00574" in card and "Skylar Zhai" in card
    assert "DeepSeekMath" not in card and "2402.03300" not in card
    assert {"- trl", "- grpo", "- trl-dara"} <= set(card.splitlines())


def test_each_checkpoint_writes_the_section_once(tiny_model, tmp_path):
    run(tiny_model, tmp_path, [digest], save_strategy="steps", save_steps=1)
    assert (tmp_path / "README.md").read_text().count("## Rewards") == 1
