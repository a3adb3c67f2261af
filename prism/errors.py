"""The one family of errors a user can cause; the command line prints each as a single line."""

import contextlib
from collections.abc import Iterator


class PrismError(Exception):
    """Bad input or a missing means. The message says what, where, and what would be right."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Data of another form than expected becomes a PrismError that names `what` it is."""
    try:
        yield
    except KeyError as error:
        raise PrismError(f"{what}: {error.args[0]!r} is missing") from None
    except PrismError as error:
        raise PrismError(f"{what}: {error}") from None
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise PrismError(f"{what}: not of the right form: {error}") from None
