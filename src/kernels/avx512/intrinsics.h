// The AVX-512 intrinsics, the compiler's or SIMDe's under the same names. Included by the AVX-512
// sources only.
#pragma once

#include "kernels/avx512/avx512_namespace.h"

#ifdef ROTA_COMPILING_EMULATED_AVX512
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#else
#include <immintrin.h>
#endif
