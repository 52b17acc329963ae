#include "platform/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace rota {
namespace {

size_t aligned(size_t size) { return (size + 3) / 4 * 4; }

// The GNU build id among the notes of a segment.
std::string find_id(const std::byte* note, const std::byte* end) {
  while (note + sizeof(ElfW(Nhdr)) <= end) {
    ElfW(Nhdr) header;
    std::memcpy(&header, note, sizeof header);
    const std::byte* name = note + sizeof header;
    const std::byte* value = name + aligned(header.n_namesz);
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(name, "GNU", 4) == 0) {
      std::string id;
      for (size_t i = 0; i < header.n_descsz; ++i) {
        id += fmt::format("{:02x}", std::to_integer<unsigned>(value[i]));
      }
      return id;
    }
    note = value + aligned(header.n_descsz);
  }
  return {};
}

// The first object is the program itself.
int visit_program(dl_phdr_info* info, size_t, void* context) {
  auto& id = *static_cast<std::string*>(context);
  for (int i = 0; i < info->dlpi_phnum && id.empty(); ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the linker says addresses as integers
    const auto* notes = reinterpret_cast<const std::byte*>(info->dlpi_addr + segment.p_vaddr);
    id = find_id(notes, notes + segment.p_memsz);
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(visit_program, &id);
  return id;
}

}  // namespace rota
