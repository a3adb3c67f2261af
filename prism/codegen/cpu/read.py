"""The reading kernel in C++: it only reads every input once, with all threads.

Its time is what no correct kernel can much undercut while the inputs are not in a cache. It has
the C ABI of generated kernels and is compiled by the same command.
"""

from __future__ import annotations

from collections.abc import Sequence

_TEMPLATE = """\
#include <cstddef>
#include <cstdint>
#include <omp.h>

static const size_t sizes[] = {{{sizes}}};  // bytes of each input
static volatile uint64_t sink;

extern "C" int prism_run(const void* const* inputs, void* const*, int threads) {{
    uint64_t total = 0;
    #pragma omp parallel num_threads(threads) reduction(^ : total)
    {{
        const size_t thread = omp_get_thread_num(), count = omp_get_num_threads();
        for (int k = 0; k < {count}; ++k) {{
            const size_t lines = sizes[k] / 64;
            const uint64_t* data = static_cast<const uint64_t*>(inputs[k]);
            const size_t begin = lines * thread / count * 8, end = lines * (thread + 1) / count * 8;
            uint64_t part[32] = {{}};
            size_t i = begin;
            for (; i + 32 <= end; i += 32)
                for (int j = 0; j < 32; ++j) part[j] ^= data[i + j];
            for (; i < end; ++i) part[0] ^= data[i];
            if (thread == 0)
                for (size_t b = lines * 64; b < sizes[k]; ++b)
                    part[0] ^= static_cast<const uint8_t*>(inputs[k])[b];
            for (int j = 0; j < 32; ++j) total ^= part[j];
        }}
    }}
    sink = total;
    return 0;
}}
"""


def read_source(sizes: Sequence[int]) -> str:
    """C++ source of the reading kernel for inputs of so many bytes each."""
    return _TEMPLATE.format(sizes=", ".join(map(str, sizes)), count=len(sizes))
