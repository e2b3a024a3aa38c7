"""
The Berkeley function-calling leaderboard, version 4, as in the tool-calling experiments of DARA: official data, tools
and checkers, ToolRL's prompts, three groups of categories. In three stages, `generate`, `score` and `aggregate`.
"""
