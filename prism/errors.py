"""The one family of errors a user can cause; the command line prints each as a single line."""


class PrismError(Exception):
    """Bad input or a missing means. The message says what, where, and what would be right."""
