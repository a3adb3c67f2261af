"""The form of plain data: which keys it has, and of which kind each value is."""

from __future__ import annotations

import math

NUMBER = (int, float)
_NAMES = {str: "text", int: "an integer", dict: "an object", list: "a list", NUMBER: "a number"}


def check(data: object, form: object, at: str = "") -> None:
    """Raises ValueError, naming the place, where `data` is not of a form.

    A form is a kind (a type, or NUMBER, a finite one); a list of one form, which all elements have;
    or an object of forms by key, in which `*` stands for every key that it does not name.
    """
    if isinstance(form, dict):
        check(data, dict, at)
        for key in form.keys() - {"*"} - data.keys():
            raise ValueError(f"{key!r} is missing{f' in {at[:-1]}' if at else ''}")
        for key in data if "*" in form else form:
            check(data[key], form.get(key, form.get("*")), f"{at}{key}.")
    elif isinstance(form, list):
        check(data, list, at)
        for number, item in enumerate(data):
            check(item, form[0], f"{at}{number}.")
    elif not isinstance(data, form) or isinstance(data, bool) or _endless(data):
        raise ValueError(f"{at.removesuffix('.')} must be {_NAMES[form]}, got {data!r}")


def _endless(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
