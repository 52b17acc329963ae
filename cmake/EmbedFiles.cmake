# rota_embed_files(TARGET OUTPUT file...): the files as byte arrays in one generated .cc, reached
# through `std::span<const EmbeddedFile> embedded_files()` (server/embedded_file.h).
# As a script (-P) it writes that file: -DOUTPUT=... -DFILES=a;b
if(CMAKE_SCRIPT_MODE_FILE)
  set(arrays "")
  set(entries "")
  set(index 0)
  foreach(path ${FILES})
    get_filename_component(name ${path} NAME)
    file(READ ${path} hex HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    string(APPEND arrays "const unsigned char kFile${index}[] = {${bytes}};\n")
    string(APPEND entries "    {\"${name}\", {reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index})}},\n")
    math(EXPR index "${index} + 1")
  endforeach()
  file(WRITE ${OUTPUT} "// Made from the page's files; do not edit.
#include \"server/embedded_file.h\"

namespace rota {
namespace {
${arrays}
const EmbeddedFile kFiles[] = {
${entries}};
}  // namespace

std::span<const EmbeddedFile> embedded_files() { return kFiles; }

}  // namespace rota
")
  return()
endif()

function(rota_embed_files target output)
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} "-DFILES=${ARGN}" -P ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
    DEPENDS ${ARGN} ${CMAKE_SOURCE_DIR}/cmake/EmbedFiles.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
