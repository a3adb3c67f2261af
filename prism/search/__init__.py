"""The symbolic search (paper section 3)."""

from prism.search.bounds import Bounds
from prism.search.result import SearchResult
from prism.search.search import search

__all__ = ["Bounds", "SearchResult", "search"]
