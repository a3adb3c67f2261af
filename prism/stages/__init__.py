"""What each stage of the command line does, given its own keys and Hydra overrides.

A module holds one stage, or two that belong together. All raise PrismError for bad input, and
KeyboardInterrupt when the user ends them.
"""
