#include "platform/mapped_file_guard.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "platform/mapped_file.h"

namespace rota {
namespace internal {
namespace {

struct Entry {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: free
  std::array<char, 1024> path{};  // the last part of it, if it is longer
  Entry* next = nullptr;
};

// A signal handler has no context but globals.
std::atomic<Entry*> head{nullptr};
std::mutex writers;
struct sigaction previous_action;

void set_path(Entry& entry, std::string_view path) {
  const size_t room = entry.path.size() - 1;
  if (path.size() > room) path.remove_prefix(path.size() - room);
  // The line on stderr must stay one line.
  std::transform(path.begin(), path.end(), entry.path.begin(),
                 [](char c) { return static_cast<unsigned char>(c) < 0x20 ? '?' : c; });
  entry.path[path.size()] = '\0';
}

const Entry* find(uintptr_t address) {
  for (const Entry* e = head.load(std::memory_order_acquire); e != nullptr; e = e->next) {
    if (address < e->end.load(std::memory_order_acquire) &&
        address >= e->begin.load(std::memory_order_acquire)) {
      return e;
    }
  }
  return nullptr;
}

void print(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t written = write(STDERR_FILENO, text, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text += written;
    left -= static_cast<size_t>(written);
  }
}

[[noreturn]] void end_process(const char* path) {
  print("rota: ");
  print(path);
  print(": became shorter or unreadable while mapped; restore the file and start again\n");
  _exit(kMappedFileLostExitCode);
}

void on_sigbus(int signal, siginfo_t* info, void*) {
  const bool fault = info->si_code > 0;  // not sent by a process
  const Entry* entry = fault ? find(reinterpret_cast<uintptr_t>(info->si_addr)) : nullptr;
  if (entry != nullptr) {
    end_process(entry->path.data());
  }
  // Not ours: the fault happens again under the action that was there before.
  sigaction(SIGBUS, &previous_action, nullptr);
  if (!fault) raise(signal);
}

}  // namespace

void guard_add(const std::byte* begin, size_t length, std::string_view path) {
  const std::lock_guard lock(writers);
  Entry* entry = head.load();
  while (entry != nullptr && entry->end.load() != 0) entry = entry->next;
  const bool fresh = entry == nullptr;
  if (fresh) entry = new Entry;
  set_path(*entry, path);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  entry->begin.store(address, std::memory_order_release);
  entry->end.store(address + length, std::memory_order_release);
  if (fresh) {
    entry->next = head.load();
    head.store(entry, std::memory_order_release);
  }
}

void guard_remove(const std::byte* begin) {
  const std::lock_guard lock(writers);
  for (Entry* entry = head.load(); entry != nullptr; entry = entry->next) {
    if (entry->end.load() != 0 && entry->begin.load() == reinterpret_cast<uintptr_t>(begin)) {
      entry->end.store(0, std::memory_order_release);
      return;
    }
  }
}

}  // namespace internal

void end_for_lost_file(const std::string& path) { internal::end_process(path.c_str()); }

Status install_mapped_file_guard() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction current{};
  if (sigaction(SIGBUS, nullptr, &current) != 0) {
    return error(StatusCode::kInternal, "cannot read the action of SIGBUS: {}",
                 std::strerror(errno));
  }
  if (current.sa_sigaction == internal::on_sigbus) return {};
  internal::previous_action = current;
  struct sigaction action{};
  action.sa_sigaction = internal::on_sigbus;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGBUS, &action, nullptr) != 0) {
    return error(StatusCode::kInternal, "cannot install the SIGBUS handler: {}",
                 std::strerror(errno));
  }
  return {};
}

}  // namespace rota
