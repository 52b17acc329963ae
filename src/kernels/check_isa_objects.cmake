# cmake -DNM=nm -DOBJECTS="a.o|b.o" -P check_isa_objects.cmake
# Fails if an object compiled for AVX2 or AVX-512 defines a weak symbol: an inline function, whose copy
# the linker may choose for files that run on any CPU.
string(REPLACE "|" ";" objects "${OBJECTS}")
list(FILTER objects INCLUDE REGEX "/avx[^/]*/[^/]*$")
if(NOT objects)
  message(FATAL_ERROR "no objects of src/kernels/avx2 or avx512 among: ${OBJECTS}")
endif()
foreach(object ${objects})
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]* [VWu] [^\n]*" weak "${symbols}")
  if(weak)
    list(JOIN weak "\n  " weak)
    message(SEND_ERROR "${object} defines inline functions that other files may be given:\n  ${weak}\n"
                       "Keep them static, or in the anonymous namespace of a header for this ISA.")
  endif()
endforeach()
