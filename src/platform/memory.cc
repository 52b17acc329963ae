#include "platform/memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "platform/clock.h"
#include "platform/count_buffers.h"
#include "platform/topology.h"

namespace rota {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr std::byte kGuardByte{0xA5};
constexpr std::byte kPoisonByte{0xFF};
#ifdef ROTA_POISON
constexpr bool kGuarded = true;
constexpr size_t kGuard = kCacheLine;
#else
constexpr bool kGuarded = false;
constexpr size_t kGuard = 0;
#endif

// BuffersWithoutMemory that live on this thread.
thread_local int counting = 0;

// What lies in memory: [guard | size | rest of the line and guard].
size_t allocated_bytes(size_t size) {
  const size_t lines = (std::max<size_t>(size, 1) + kCacheLine - 1) / kCacheLine * kCacheLine;
  return kGuard + lines + kGuard;
}

bool is_mapped(size_t size) { return size >= kHugePage; }

std::byte* map_pages(size_t bytes) {
  void* got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  // Advice only: without huge pages everything works, with more TLB misses.
  static_cast<void>(madvise(got, bytes, MADV_HUGEPAGE));
  return static_cast<std::byte*>(got);
}

void write_guards(std::byte* base, size_t size, size_t total) {
  std::fill(base, base + kGuard, kGuardByte);
  std::fill(base + kGuard + size, base + total, kGuardByte);
}

void check_guards(const std::byte* base, size_t size, size_t total) {
  const auto intact = [](std::byte b) { return b == kGuardByte; };
  ROTA_CHECK(std::all_of(base, base + kGuard, intact), "something wrote before a buffer");
  ROTA_CHECK(std::all_of(base + kGuard + size, base + total, intact),
             "something wrote past a buffer");
}

void release(std::byte* data, size_t size) {
  if (data == nullptr) return;
  std::byte* base = data - kGuard;
  const size_t total = allocated_bytes(size);
  if (kGuarded) check_guards(base, size, total);
  if (is_mapped(size)) {
    munmap(base, total);
  } else {
    std::free(base);
  }
}

// The first number in a file, or `otherwise` ("max", no file).
int64_t number_in(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t value = 0;
  return file && (file >> value) ? value : otherwise;
}

// The number after `key` in a file of "key number" lines, in the file's unit.
int64_t field_in(const std::string& path, const std::string& key, int64_t otherwise) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind(key, 0) != 0) continue;
    std::istringstream rest(line.substr(key.size()));
    int64_t value = 0;
    if (rest >> value) return value;
  }
  return otherwise;
}

struct CgroupMemory {
  std::string limit;
  std::string used;
  std::string stat;
};

// Folders of this process's memory control groups, innermost first, version 2 and 1.
std::vector<CgroupMemory> cgroup_memory_files() {
  std::vector<CgroupMemory> out;
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const bool v2 = line.rfind("0::", 0) == 0;
    const size_t memory = line.find(":memory:");
    if (!v2 && memory == std::string::npos) continue;
    std::string path = line.substr(v2 ? 3 : memory + 8);
    for (;;) {
      const std::string folder = (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + path;
      if (v2) {
        out.push_back(
            {folder + "/memory.max", folder + "/memory.current", folder + "/memory.stat"});
      } else {
        out.push_back({folder + "/memory.limit_in_bytes", folder + "/memory.usage_in_bytes",
                       folder + "/memory.stat"});
      }
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos || path.size() <= 1) break;
      path.resize(slash);
    }
  }
  return out;
}

// Reads [words] in order as fast as memory gives them; the result must be used, or the compiler
// drops the loop. (Measured: prefetching into L2 reads as fast as the best kernel, into L1 three
// quarters of that.)
uint64_t read_all(const uint64_t* words, size_t count) {
  constexpr size_t kLine = kCacheLine / sizeof(uint64_t);
  constexpr size_t kAhead = 5888 / sizeof(uint64_t);
  uint64_t sums[kLine] = {};
  for (size_t i = 0; i + kLine <= count; i += kLine) {
    __builtin_prefetch(words + i + kAhead, 0, 2);
    for (size_t lane = 0; lane < kLine; ++lane) sums[lane] += words[i + lane];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

Result<Buffer> Buffer::allocate(size_t bytes, Fill fill) {
  if (bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()) / 2) {
    return error(StatusCode::kResourceExhausted, "cannot allocate {} bytes", bytes);
  }
  if (counting > 0) {
    Buffer counted;
    counted.size_ = bytes;
    return counted;
  }
  const size_t total = allocated_bytes(bytes);
  std::byte* base = is_mapped(bytes)
                        ? map_pages(total)
                        : static_cast<std::byte*>(std::aligned_alloc(kCacheLine, total));
  if (base == nullptr) {
    return error(StatusCode::kResourceExhausted,
                 "cannot allocate {:.1f} MiB: the system has no more memory for this process",
                 static_cast<double>(bytes) / (1 << 20));
  }
  Buffer out;
  out.data_ = base + kGuard;
  out.size_ = bytes;
  if (kGuarded) write_guards(base, bytes, total);
  if (fill == Fill::kZero) {
    if (!is_mapped(bytes)) std::memset(out.data_, 0, bytes);
  } else if (kGuarded) {
    std::memset(out.data_, static_cast<int>(kPoisonByte), bytes);
  }
  return out;
}

BuffersWithoutMemory::BuffersWithoutMemory() { ++counting; }

BuffersWithoutMemory::~BuffersWithoutMemory() { --counting; }

Buffer::~Buffer() { release(data_, size_); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release(data_, size_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MemoryInfo memory_info() {
  MemoryInfo out;
  out.total_bytes = field_in("/proc/meminfo", "MemTotal:", 0) * 1024;
  out.available_bytes = field_in("/proc/meminfo", "MemAvailable:", 0) * 1024;
  for (const CgroupMemory& group : cgroup_memory_files()) {
    const int64_t limit = number_in(group.limit, -1);
    if (limit <= 0 || limit >= out.total_bytes) continue;
    // File pages that nobody uses at present are given back on demand.
    const int64_t used = number_in(group.used, 0) - field_in(group.stat, "inactive_file ", 0);
    out.total_bytes = limit;
    out.available_bytes = std::min(out.available_bytes, std::max<int64_t>(0, limit - used));
  }
  return out;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  return file && (file >> size >> resident) ? resident * sysconf(_SC_PAGESIZE) : 0;
}

int64_t peak_resident_bytes() { return field_in("/proc/self/status", "VmHWM:", 0) * 1024; }

int64_t major_page_faults() {
  rusage usage{};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_majflt : 0;
}

double measure_read_bandwidth(int threads, double seconds) {
  constexpr size_t kBytesEach = size_t{256} << 20;
  const auto count = static_cast<size_t>(std::max(1, threads));
  std::vector<Buffer> buffers;
  for (size_t i = 0; i < count; ++i) {
    Result<Buffer> buffer = Buffer::allocate(kBytesEach, Fill::kUnspecified);
    if (!buffer.ok()) break;
    std::memset(buffer->data(), static_cast<int>(i + 1),
                kBytesEach);  // real pages, not the zero page
    buffers.push_back(std::move(buffer).value());
  }
  if (buffers.empty()) return 0;

  std::vector<double> rates(buffers.size(), 0.0);
  std::vector<uint64_t> sums(buffers.size(), 0);
  // Each on its own core, also where the caller is pinned to one.
  const UsableCpus& usable = usable_cpus();
  const bool enough_cores = count <= usable.one_per_core.size();
  const std::vector<int>& cpus = enough_cores ? usable.one_per_core : usable.logical;
  std::vector<std::thread> readers;
  readers.reserve(buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    readers.emplace_back([&, i] {
      pin_this_thread(cpus[i % cpus.size()]);
      const auto* words = reinterpret_cast<const uint64_t*>(buffers[i].data());
      constexpr size_t kChunk = (size_t{4} << 20) / sizeof(uint64_t);
      constexpr size_t kWords = kBytesEach / sizeof(uint64_t);
      const auto start = Clock::now();
      double elapsed = 0;
      size_t at = 0;
      int64_t chunks = 0;
      do {
        sums[i] += read_all(words + at, kChunk);
        at = (at + kChunk) % kWords;
        ++chunks;
        elapsed = seconds_since(start);
      } while (elapsed < seconds);
      rates[i] =
          static_cast<double>(chunks) * static_cast<double>(kChunk * sizeof(uint64_t)) / elapsed;
    });
  }
  for (std::thread& reader : readers) reader.join();
  static volatile uint64_t used;
  for (const uint64_t sum : sums) used = sum;
  static_cast<void>(used);
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

}  // namespace rota
