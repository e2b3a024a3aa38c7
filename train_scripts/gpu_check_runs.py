"""What `train_scripts.gpu_check` runs in its processes. Each run returns its figures and a list of what is wrong."""

import argparse
import functools
import gc
import itertools
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from train_scripts.benchmark.timed_trainer import TimedTrainer
from train_scripts.gpu_check import Check
from trl_dara import AGGREGATIONS, MultiRewardGRPOConfig, MultiRewardGRPOTrainer, compute_advantages
from trl_dara.data.synthetic import TINY_TOOL_CALLER, make_dataset
from trl_dara.rewards.text import completion_text


DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
NUM_PROMPTS, NUM_GENERATIONS = 8, 8
MAX_LENGTH = 128  # of prompt and completion, in tokens
TOLERANCE = 1e-5  # of an advantage in float32, whose magnitude is around 1
STEPS_OF_A_TIMED_RUN = 6

Outcome = tuple[dict, list[str]]


# Small integers, whose mean over 8 completions is exact: rounding cannot decide whether channels are in conflict.


def distinct(completions, **kwargs) -> list[float]:
    """A dense reward: number of different words."""
    return [float(len(set(completion_text(completion).split()))) for completion in completions]


def calls_a_tool(completions, **kwargs) -> list[float]:
    """A sparser reward, of two values."""
    return [float("tool_call" in completion_text(completion)) for completion in completions]


def not_long(completions, **kwargs) -> list[float]:
    """One that is against the first, and not scored where there is no text."""
    texts = [completion_text(completion) for completion in completions]
    return [None if not text.strip() else float(len(text) < 60) for text in texts]


REWARDS = [distinct, calls_a_tool, not_long]
BOUNDS = {"distinct": [0, 32], "calls_a_tool": [0, 1], "not_long": [0, 1]}


class ObservedTrainer(MultiRewardGRPOTrainer):
    """The trainer, with a record of each batch's rewards, completion lengths and advantages."""

    batches: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]

    def _compute_advantages(self, rewards_per_func):
        result = super()._compute_advantages(rewards_per_func)
        self.batches.append((rewards_per_func.clone(), self._completion_lengths, result.advantages))
        return result


@functools.cache
def saved_model(precision: str) -> str:
    """A folder with a random Llama of 1.8 million parameters and the demo's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(TINY_TOOL_CALLER)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,  # of 64 dimensions, which vLLM knows on every device
        num_key_value_heads=2,
        max_position_embeddings=MAX_LENGTH,
        tie_word_embeddings=True,
        initializer_range=1 / 16,  # hidden_size ** -0.5
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    folder = tempfile.mkdtemp()
    LlamaForCausalLM(config).to(DTYPES[precision]).save_pretrained(folder)  # vLLM computes in the checkpoint's
    tokenizer.save_pretrained(folder)
    return folder


def build(trainer_class: type, config_class: type, check: Check, device: str, **settings) -> GRPOTrainer:
    """A trainer of the small model; trained in float32 weights, which TRL loads, with the check's mixed precision."""
    args = config_class(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=NUM_PROMPTS * NUM_GENERATIONS,
        num_generations=NUM_GENERATIONS,
        max_completion_length=24,
        learning_rate=1e-2 if check.lora else 1e-3,
        lr_scheduler_type="constant",
        bf16=check.precision == "bf16",
        fp16=check.precision == "fp16",
        use_cpu=device == "cpu",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    # An adapter that is not 0 at first: a sampler that leaves it out shows at once
    lora = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    trainer = trainer_class(
        model=saved_model(check.precision),
        reward_funcs=REWARDS,
        args=args,
        train_dataset=make_dataset(size=256),
        peft_config=lora if check.lora else None,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def train(check: Check, options: argparse.Namespace, rule: str, **settings) -> tuple[ObservedTrainer, Outcome]:
    """Train with one rule, and see whether it went as it must."""
    static = {"static_weights": [1.0, 2.0, 0.5]} if rule.startswith("static") else None
    trainer = build(
        ObservedTrainer,
        MultiRewardGRPOConfig,
        check,
        options.device,
        max_steps=options.steps,
        aggregation=rule,
        aggregation_kwargs=static,
        reward_bounds=BOUNDS,
        **settings,
    )
    trainer.batches = []
    before = {name: weight.detach().clone() for name, weight in trainable(trainer)}
    trainer.train()
    moved = max((weight.detach() - before[name]).abs().max().item() for name, weight in trainable(trainer))

    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    errors = [advantage_error(trainer, batch) for batch in trainer.batches]
    figures = {
        "largest_advantage_error": max(errors),
        "losses": [entry["loss"] for entry in logs],
        "grad_norms": [entry["grad_norm"] for entry in logs],
        "weight_change": moved,
        "density": {name: [entry[f"channels/{name}/density"] for entry in logs] for name in BOUNDS},
    }
    problems = []
    if max(errors) > TOLERANCE:
        problems.append(f"an advantage is {max(errors):.2g} from the CPU's in float64, more than {TOLERANCE:g}")
    if {advantages.device.type for _, _, advantages in trainer.batches} != {options.device}:
        problems.append("the advantages were computed on another device")
    if not any(advantages.any() for _, _, advantages in trainer.batches):
        problems.append("all advantages are 0: nothing was tried")
    if len(logs) != options.steps or not all(math.isfinite(loss) for loss in figures["losses"]):
        problems.append("a loss is missing or not finite")
    # The first steps in fp16 may overflow while the loss scale is found; these leave the weights as they are
    if not any(math.isfinite(norm) and norm > 0 for norm in figures["grad_norms"]) or not 0 < moved < math.inf:
        problems.append("the weights did not move")
    return trainer, (figures, problems)


def trainable(trainer: GRPOTrainer) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, weight) for name, weight in trainer.model.named_parameters() if weight.requires_grad]


def advantage_error(trainer: ObservedTrainer, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> float:
    """Largest difference of the advantages to those that the CPU finds in float64 for the same rewards."""
    rewards, lengths, advantages = batch
    expected = compute_advantages(
        rewards.double().cpu(),
        NUM_GENERATIONS,
        trainer.aggregation,
        completion_lengths=lengths.cpu(),
        **trainer.aggregation_kwargs,
    ).advantages
    return (advantages.double().cpu() - expected).abs().max().item()


def device_runs(check: Check, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    def run() -> Outcome:
        if options.device == "cpu":
            return {"name": "cpu"}, []
        if not torch.cuda.is_available():
            target = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU only"
            return {}, [f"there is no GPU here that PyTorch {torch.__version__}, built for {target}, can use"]
        properties = torch.cuda.get_device_properties(0)
        memory = round(properties.total_memory / 2**30, 1)
        return {"name": properties.name, "memory_gib": memory, "cuda": torch.version.cuda}, []

    yield "", run


def train_runs(check: Check, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    for rule in options.rules or AGGREGATIONS:
        yield rule, lambda rule=rule: train(check, options, rule)[1]
        gc.collect()  # the trainer and what it holds of the GPU


def step_time_runs(check: Check, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    def one(ours: bool, seed: int) -> tuple[list[float], list[float]]:
        settings = {"aggregation": "dara_asym"} if ours else {"multi_objective_aggregation": "normalize_then_sum"}
        classes = (TimedTrainer, MultiRewardGRPOConfig) if ours else (GRPOTrainer, GRPOConfig)
        trainer = build(*classes, check, options.device, max_steps=STEPS_OF_A_TIMED_RUN, seed=seed, **settings)
        trainer.own_seconds = []
        trainer.train()
        seconds = [entry["step_time"] for entry in trainer.state.log_history if "step_time" in entry]
        return seconds[1:], trainer.own_seconds[1:]  # the first step warms up

    def run() -> Outcome:
        seconds, own = {True: [], False: []}, []
        for pair in range(options.pairs):
            for ours in (True, False) if pair % 2 == 0 else (False, True):
                steps, own_seconds = one(ours, seed=pair)
                seconds[ours] += steps
                own += own_seconds
        differences = [ours - trl for ours, trl in zip(seconds[True], seconds[False], strict=True)]
        medians = {"ours": seconds[True], "trl": seconds[False], "paired_difference": differences, "own_code": own}
        return {f"{name}_ms": round(statistics.median(values) * 1e3, 3) for name, values in medians.items()}, []

    yield "", run


def colocate_runs(check: Check, options: argparse.Namespace) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    def run() -> Outcome:
        trainer, (figures, problems) = train(
            check,
            options,
            "dara_asym",
            use_vllm=True,
            vllm_mode="colocate",
            vllm_max_model_length=MAX_LENGTH,
            vllm_enable_sleep_mode=check.lora and options.device == "cuda",  # vLLM has it on GPUs only
        )
        logs = trainer.state.log_history
        figures["sampling_logp_difference"] = [
            entry["sampling/sampling_logp_difference/mean"] for entry in logs if "loss" in entry
        ]
        trainer.vllm_generation.sync_weights()
        trained, untrained = logprob_differences(trainer, check)
        figures |= {"difference_to_trained": trained, "difference_to_untrained": untrained}
        if not trained < untrained / 10:
            problems.append(f"vLLM samples {trained:.3g} from the trained, {untrained:.3g} from the untrained weights")
        return figures, problems

    yield "", run


def logprob_differences(trainer: GRPOTrainer, check: Check) -> tuple[float, float]:
    """
    Mean |log-probability that vLLM reports - a model's| over the tokens of new completions, for the trained model and for
    the one that training began with, whose weights vLLM would still have without a working weight synchronisation.
    """
    device = trainer.accelerator.device
    untrained = AutoModelForCausalLM.from_pretrained(saved_model(check.precision), dtype=torch.float32).to(device)
    tokenizer = trainer.processing_class
    prompts = [
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
        for prompt in trainer.train_dataset["prompt"][:NUM_PROMPTS]
    ]
    prompts = list(itertools.chain.from_iterable([prompt] * NUM_GENERATIONS for prompt in prompts))
    _, completions, sampled, _ = trainer.vllm_generation.generate(prompts, None, NUM_GENERATIONS)
    differences = ([], [])
    trainer.model.eval()
    for prompt, completion, reported in zip(prompts, completions, sampled, strict=True):
        tokens = torch.tensor([prompt + list(completion)], device=device)  # (1, T)
        reported = torch.tensor(reported, device=device)  # (C, 1)
        for model, found in zip((trainer.model, untrained), differences, strict=True):
            with torch.no_grad():
                logits = model(tokens).logits[0, len(prompt) - 1 : -1].float()  # (C, V)
            expected = logits.log_softmax(-1).gather(-1, tokens[0, len(prompt) :].unsqueeze(-1))  # (C, 1)
            found += (reported - expected).abs().flatten().tolist()
    return statistics.mean(differences[0]), statistics.mean(differences[1])


RUNS = {"device": device_runs, "train": train_runs, "step_time": step_time_runs, "colocate": colocate_runs}
