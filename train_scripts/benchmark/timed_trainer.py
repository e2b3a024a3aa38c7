"""Trainers that say how long our own code takes. Imports nothing that a machine which only trains may lack."""

import time

from trl import GRPOTrainer

from trl_dara import MultiRewardGRPOTrainer


class TRLTimer(GRPOTrainer):
    """TRL's trainer, with the time that its two methods take on record. Stands between our trainer and TRL's."""

    seconds_generating = 0.0
    seconds_rewarding = 0.0

    def _generate_and_score_completions(self, inputs):
        start = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        self.seconds_generating += time.perf_counter() - start
        return output

    def _calculate_rewards(self, *args):
        start = time.perf_counter()
        rewards = super()._calculate_rewards(*args)
        self.seconds_rewarding += time.perf_counter() - start
        return rewards


class TimedTrainer(MultiRewardGRPOTrainer, TRLTimer):
    """Our trainer on top of the timed one: what it takes longer than TRL's methods is our own code."""

    own_seconds: list[float]

    def _generate_and_score_completions(self, inputs):
        self.seconds_generating = self.seconds_rewarding = self.seconds_settling = 0.0
        start = time.perf_counter()
        output = super()._generate_and_score_completions(inputs)
        total = time.perf_counter() - start
        self.own_seconds.append(total - self.seconds_generating + self.seconds_settling - self.seconds_rewarding)
        return output

    def _calculate_rewards(self, *args):
        start = time.perf_counter()
        rewards = super()._calculate_rewards(*args)
        self.seconds_settling += time.perf_counter() - start
        return rewards
