// Aligned anonymous memory, owned. In ROTA_POISON builds every buffer is fenced by guard bytes that
// are checked when it is freed, and fresh memory that nobody asked to be zero is 0xFF (NaN as a
// float).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"

namespace rota {

inline constexpr size_t kCacheLine = 64;

enum class Fill { kZero, kUnspecified };

class Buffer {
 public:
  Buffer() = default;
  // Alignment kCacheLine. Large buffers (>= 2 MiB) ask for huge pages. Fails with
  // kResourceExhausted.
  static Result<Buffer> allocate(size_t bytes, Fill fill);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

struct MemoryInfo {
  int64_t total_bytes = 0;      // the machine's, or the cgroup's limit where that is less
  int64_t available_bytes = 0;  // what may still be taken
};
MemoryInfo memory_info();

int64_t resident_bytes();       // of this process, now
int64_t peak_resident_bytes();  // of this process, so far
int64_t major_page_faults();  // of this process, so far: a step that adds to it waited for the disk

// Sum of read bandwidth over `threads` cores in bytes/s, measured over a buffer far larger than the
// caches.
double measure_read_bandwidth(int threads, double seconds);

}  // namespace rota
