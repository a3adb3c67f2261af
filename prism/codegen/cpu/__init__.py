"""The CPU backend: C++17 with OpenMP."""
