"""The symbolic search: members of the e-class, accumulator placements, mappings, verdicts."""

from prism.search.search import Bounds, Found, SearchResult, search

__all__ = ["Bounds", "Found", "SearchResult", "search"]
