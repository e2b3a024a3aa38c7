"""Does the engine that samples the completions agree with the model that is trained?"""

import logging


logger = logging.getLogger(__name__)

# TRL's metric: mean over the sampled tokens of |log-probability by vLLM - log-probability by the trainer|, in nats.
MEAN_DIFFERENCE = "sampling/sampling_logp_difference/mean"

# Different kernels in bfloat16 differ by a few hundredths. Weights that did not arrive differ by more.
LARGEST_MEAN_DIFFERENCE = 0.1


class SamplingMonitor:
    """
    Warns once when vLLM samples from other weights than those that are trained, the way in which a weight
    synchronisation that goes wrong shows: nothing else fails, the importance ratios just go to 0 and nothing is learned.

    Only with `vllm_importance_sampling_correction`, TRL's default, are the log-probabilities compared.
    """

    def __init__(self):
        self.has_warned = False

    def __call__(self, metrics: dict[str, list[float]], step: int) -> None:
        """
        Look at the latest generation batch.

        Args:
            metrics (`dict[str, list[float]]`):
                What TRL collected since the last log; the newest value is the batch's, the same on all processes.
            step (`int`):
                The global step, for the warning.
        """
        differences = metrics.get(MEAN_DIFFERENCE)
        if self.has_warned or not differences or differences[-1] <= LARGEST_MEAN_DIFFERENCE:
            return
        self.has_warned = True
        logger.warning(
            f"vLLM does not sample from the model that is trained: at step {step} the log-probabilities of the sampled "
            f"tokens differ by {differences[-1]:.3g} nats in the mean (`{MEAN_DIFFERENCE}`; more than "
            f"{LARGEST_MEAN_DIFFERENCE} is no rounding). Look for weights that do not reach vLLM (see the server's log "
            "after `update_weights`), another `dtype` or quantization, another `temperature`, `top_k`, `top_p` than the "
            "trainer's, or an adapter on embeddings or a head that are tied to each other, which vLLM keeps the same; and "
            "check that the server runs with `--logprobs-mode processed_logprobs`."
        )
