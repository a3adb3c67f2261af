// Kernels that generated CPU code calls; inlined into every generated source.
#pragma once
#include "prism_gemm.h"
#include "prism_math.h"
#include "prism_types.h"
