// The AVX-512 sources are compiled once for the CPU and, with ROTA_EMULATE_AVX512, once more
// through SIMDe for CPUs without it. Both end up in one program, so each has a namespace of its
// own:
//
//   namespace rota::ROTA_AVX512 { void rms_norm(const RmsNormArgs& args) { ... } }
#pragma once

#ifdef ROTA_COMPILING_EMULATED_AVX512
#define ROTA_AVX512 avx512_emulated
#else
#define ROTA_AVX512 avx512
#endif
