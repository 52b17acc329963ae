# Options and compiler settings shared by every target of the house.

option(ROTA_TESTS "build the tests" ON)
option(ROTA_BENCH "build the benchmarks" OFF)
option(ROTA_FUZZ "build the libFuzzer targets (clang only)" OFF)
option(ROTA_WERROR "warnings are errors" OFF)
option(ROTA_POISON "assertions on; unspecified tails filled with NaN / 0xFF, guard bytes checked" OFF)
option(ROTA_EMULATE_AVX512 "also build the AVX-512 kernels through SIMDe, for CPUs without them" OFF)
set(ROTA_SANITIZE "" CACHE STRING "sanitizers, e.g. address;undefined")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(ROTA_CCACHE ccache)
if(ROTA_CCACHE)
  # Paths below the source folder count as relative: another clone finds the same objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
                                  ${ROTA_CCACHE})
endif()

add_library(rota_flags INTERFACE)
# Contraction off: a sum has the same bits whichever compiler or inlining made it (design section 6).
target_compile_options(rota_flags INTERFACE -Wall -Wextra -Wconversion -ffp-contract=off
                                            -fno-omit-frame-pointer)
target_include_directories(rota_flags INTERFACE ${CMAKE_SOURCE_DIR}/src)
if(ROTA_WERROR)
  target_compile_options(rota_flags INTERFACE -Werror)
endif()
if(ROTA_FUZZ)
  target_compile_options(rota_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(ROTA_POISON)
  target_compile_definitions(rota_flags INTERFACE ROTA_POISON=1)
endif()
if(ROTA_SANITIZE)
  list(JOIN ROTA_SANITIZE "," sanitizers)
  target_compile_options(rota_flags INTERFACE -fsanitize=${sanitizers} -fno-sanitize-recover=all)
  target_link_options(rota_flags INTERFACE -fsanitize=${sanitizers})
endif()
