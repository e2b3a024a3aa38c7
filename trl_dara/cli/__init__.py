"""The command line `trl-dara`: one module per subcommand, with a line of `HELP` and `run(argv) -> exit code`."""
