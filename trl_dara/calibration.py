"""The window of recent groups from which a rule may estimate density and batch statistics."""

import torch


class CalibrationWindow:
    r"""
    Remembers the most recent groups, so that density and the batch mean and standard deviation can be estimated from
    more groups than one generation batch holds.

    With one group per generation batch, density is 0 or 1, every weight is 1 and `dara_*` is `gdpo`; normalising over
    one group also erases the energies that the weights set. The window removes both. It always holds at least the whole
    current batch, so from `B >= size` on it changes nothing.

    A window belongs to one training run: rules extend it in place. Scores are kept as they were when their batch was
    weighted.

    Args:
        size (`int`, *optional*, defaults to `64`):
            Number of most recent groups to remember.

    Example:

    ```python
    >>> import torch
    >>> from trl_dara import CalibrationWindow, compute_advantages

    >>> window = CalibrationWindow(size=64)
    >>> for rewards in torch.randint(2, (10, 4, 2)).float():  # ten batches of one group, four completions, two channels
    ...     result = compute_advantages(rewards, num_generations=4, window=window)
    >>> len(window)
    10
    ```
    """

    def __init__(self, size: int = 64):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"`size` of a CalibrationWindow is the number of groups to remember, got {size!r}. Pass an integer of "
                "at least 1, or use no window to calibrate on the current batch only."
            )
        self.size = size
        self._active = None
        self._counted = None
        self._scores = None

    def __len__(self) -> int:
        return 0 if self._active is None else len(self._active)

    def add_activity(self, active: torch.Tensor, counted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """
        Add the activity of a batch and return that of the window.

        Args:
            active (`torch.Tensor` of shape `(B, K)`):
                Whether the channel is active in the group.
            counted (`torch.Tensor` of shape `(B, K)`):
                Whether the group counts in the channel's density.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`: `active` and `counted` of the window, each of shape `(W, K)` with
            `W = max(B, min(size, groups seen))`.
        """
        self._active = self._extend(self._active, active, "channels")  # (W, K)
        self._counted = self._extend(self._counted, counted, "channels")  # (W, K)
        return self._active, self._counted

    def add_scores(self, scores: torch.Tensor) -> torch.Tensor:
        """
        Add the scores of a batch and return those of the window.

        Args:
            scores (`torch.Tensor` of shape `(B, G)`):
                Combined score of each completion before batch normalisation, NaN where the completion is unscorable.

        Returns:
            `torch.Tensor` of shape `(W, G)`: scores of the window.
        """
        self._scores = self._extend(self._scores, scores, "completions per group")  # (W, G)
        return self._scores

    def _extend(self, past: torch.Tensor | None, new: torch.Tensor, what: str) -> torch.Tensor:
        if past is not None and past.shape[1] != new.shape[1]:
            raise ValueError(
                f"This CalibrationWindow holds groups with {past.shape[1]} {what}, got a batch with {new.shape[1]}. "
                "Use a new window for another set of channels or another `num_generations`."
            )
        groups = new if past is None else torch.cat([past.to(new), new])  # (W + B, ·)
        return groups[-max(self.size, len(new)) :].clone()  # (W, ·)

    def state_dict(self) -> dict:
        """State as JSON-compatible lists; floats round-trip exactly, NaN is stored as `None`."""
        return {
            "size": self.size,
            "active": None if self._active is None else self._active.tolist(),
            "counted": None if self._counted is None else self._counted.tolist(),
            "scores": None if self._scores is None else _nan_to_none(self._scores.tolist()),
        }

    def load_state_dict(self, state: dict) -> None:
        """
        Continue from a state saved by [`~CalibrationWindow.state_dict`].

        A state of another `size` is accepted: the groups beyond this window's size are dropped with the next batch.
        """
        self._active = None if state["active"] is None else torch.tensor(state["active"])
        self._counted = None if state["counted"] is None else torch.tensor(state["counted"])
        # None becomes NaN again; float64 holds every saved float exactly and is cast to the next batch's dtype.
        scores = state["scores"]
        self._scores = None if scores is None else torch.tensor(_none_to_nan(scores), dtype=torch.float64)


def _nan_to_none(rows: list[list[float]]) -> list[list[float | None]]:
    return [[None if value != value else value for value in row] for row in rows]


def _none_to_nan(rows: list[list[float | None]]) -> list[list[float]]:
    return [[float("nan") if value is None else value for value in row] for row in rows]
