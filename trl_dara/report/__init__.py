"""What rewards did in a run, read from its files: replay of recorded rewards, verdicts, plots and pages."""
