// Files that are part of the program: the page.
#pragma once

#include <span>
#include <string_view>

namespace rota {

struct EmbeddedFile {
  std::string_view name;  // "index.html"
  std::string_view content;
};

std::span<const EmbeddedFile> embedded_files();

}  // namespace rota
