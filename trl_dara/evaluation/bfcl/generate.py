"""Stage 1 of 3: what the model answers."""

from collections.abc import Iterable, Iterator
from itertools import islice

from trl_dara.evaluation.bfcl.client import BFCL
from trl_dara.evaluation.bfcl.dialogue import Dialogue
from trl_dara.evaluation.generation import Generate, Sampling


# Of the paper's evaluation
SAMPLING = Sampling(n=1, temperature=0.6, top_p=0.95, top_k=-1, repetition_penalty=1.0, max_tokens=8192, seed=0)
CONTEXT_LENGTH = 32768  # tokens


def generate_cases(
    cases: Iterable[dict], bfcl: BFCL, generate: Generate, sampling: Sampling = SAMPLING, batch_size: int = 64
) -> Iterator[dict]:
    """
    Run cases of any categories, one trajectory each. `batch_size` of them are under way together, so that their next
    prompts are generated in one call; where one ends, the next begins.

    Args:
        cases (`Iterable[dict]`):
            Cases as [`BFCL.cases`] gives them.
        bfcl ([`BFCL`]):
            Executes the calls of multi-turn cases.
        generate ([`Generate`]):
            The model.
        sampling ([`Sampling`], *optional*, defaults to the paper's):
            Decoding.
        batch_size (`int`, *optional*, defaults to `64`):
            Cases under way together.

    Yields:
        `dict`: the record of each case, once it is over; see [`Dialogue.record`].
    """
    dialogues = map(Dialogue, cases)
    live = list(islice(dialogues, batch_size))
    while live:
        answers = generate([dialogue.prompt() for dialogue in live], sampling)
        for dialogue, (answer,) in zip(live, answers, strict=True):
            dialogue.receive(answer, bfcl)
            if dialogue.finished:
                yield dialogue.record()
        live = [dialogue for dialogue in live if not dialogue.finished]
        live += islice(dialogues, batch_size - len(live))
