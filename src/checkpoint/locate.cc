#include "checkpoint/locate.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "checkpoint/shard_index.h"
#include "platform/read_file.h"

namespace rota {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxNamePart = 96;
constexpr int64_t kMaxRefBytes = 256;

bool is_word_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.';
}

// The hub's own rule for one part of org/name.
bool is_name_part(std::string_view part) {
  if (part.empty() || part.size() > kMaxNamePart) return false;
  if (!std::all_of(part.begin(), part.end(), is_word_character)) return false;
  const auto edge = [](char c) { return c == '-' || c == '.'; };
  return !edge(part.front()) && !edge(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos;
}

bool is_hub_name(std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_name_part(name);
  return is_name_part(name.substr(0, slash)) && is_name_part(name.substr(slash + 1));
}

// A branch, a tag or refs/pr/N: parts of word characters, none of them "." or "..".
bool is_revision(std::string_view revision) {
  if (revision.empty() || revision.size() > static_cast<size_t>(kMaxRefBytes)) return false;
  while (true) {
    const size_t slash = revision.find('/');
    const std::string_view part = revision.substr(0, slash);
    if (part.empty() || part == "." || part.find("..") != std::string_view::npos ||
        !std::all_of(part.begin(), part.end(), is_word_character)) {
      return false;
    }
    if (slash == std::string_view::npos) return true;
    revision.remove_prefix(slash + 1);
  }
}

bool is_commit_hash(std::string_view text) {
  return text.size() == 40 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// Spelled like a path: a missing one is not looked up in the cache.
bool looks_like_path(std::string_view model) {
  return model.starts_with('/') || model.starts_with("./") || model.starts_with("../") ||
         model.starts_with('~') || model == "." || model == ".." || model.ends_with('/');
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string expand_home(std::string path) {
  if (path == "~" || path.starts_with("~/")) return environment("HOME") + path.substr(1);
  return path;
}

// True if `path` is `root` or lies below it; both are free of links and dots.
bool is_inside(const fs::path& path, const fs::path& root) {
  const auto [root_end, unused] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return root_end == root.end();
}

class CachedModel {
 public:
  CachedModel(std::string_view name, const LocateOptions& options)
      : name_(name),
        revision_(options.revision),
        cache_(options.cache_dir.empty() ? hub_cache_dir() : options.cache_dir) {
    std::string folder = "models--" + name_;
    if (const size_t slash = folder.find('/'); slash != std::string::npos) {
      folder.replace(slash, 1, "--");
    }
    root_ = cache_ / folder;
  }

  Result<ModelLocation> locate() {
    std::error_code ec;
    if (!fs::is_directory(root_, ec)) {
      return error(StatusCode::kNotFound,
                   "{}: is no folder here, and the cache {} has no such model; {}", name_,
                   cache_.string(), advice());
    }
    root_ = fs::canonical(root_, ec);
    if (ec) return error(StatusCode::kIo, "{}: {}", root_.string(), ec.message());
    ROTA_ASSIGN_OR_RETURN(const std::string hash, commit_hash());
    const fs::path snapshot = root_ / "snapshots" / hash;
    if (!fs::is_directory(snapshot, ec)) {
      return error(StatusCode::kNotFound, "{}: the cache has no snapshot {}; {}", name_,
                   snapshot.string(), advice());
    }
    ROTA_RETURN_IF_ERROR(check_links(snapshot));
    ROTA_RETURN_IF_ERROR(check_complete(snapshot));
    return ModelLocation{snapshot, name_, hash};
  }

 private:
  std::string advice() const {
    return fmt::format("get it with `hf download {}{}`", name_,
                       revision_ == "main" ? "" : " --revision " + revision_);
  }

  Result<std::string> commit_hash() const {
    if (is_commit_hash(revision_)) return revision_;
    const std::string ref = root_ / "refs" / revision_;
    const auto text = read_file(ref, kMaxRefBytes);
    if (!text.ok()) {
      if (text.status().code() != StatusCode::kNotFound) return text.status();
      return error(StatusCode::kNotFound, "{}: the cache has no revision '{}' ({} is missing); {}",
                   name_, revision_, ref, advice());
    }
    std::string hash = *text;
    while (!hash.empty() && (hash.back() == '\n' || hash.back() == '\r' || hash.back() == ' ')) {
      hash.pop_back();
    }
    if (is_commit_hash(hash)) return hash;
    return invalid_argument("{}: holds no commit hash of 40 hexadecimal digits; {}", ref, advice());
  }

  // Every entry of the snapshot is a file in this model's own folder.
  Status check_links(const fs::path& snapshot) const {
    std::error_code ec;
    if (!is_inside(fs::canonical(snapshot, ec), root_) || ec) {
      return invalid_argument("{}: leads out of the model's cache folder {}", snapshot.string(),
                              root_.string());
    }
    for (const auto& entry : fs::directory_iterator(snapshot, ec)) {
      ROTA_RETURN_IF_ERROR(check_link(entry.path()));
    }
    if (ec) return error(StatusCode::kIo, "{}: {}", snapshot.string(), ec.message());
    return {};
  }

  Status check_link(const fs::path& path) const {
    std::error_code ec;
    const fs::path target = fs::canonical(path, ec);
    if (ec == std::errc::too_many_symbolic_link_levels) {
      return invalid_argument("{}: is a loop of symbolic links; {}", path.string(), advice());
    }
    if (ec) {
      return error(StatusCode::kNotFound,
                   "{}: is a symbolic link to a file that does not exist; {}", path.string(),
                   advice());
    }
    if (!is_inside(target, root_)) {
      return invalid_argument("{}: is a link to {}, outside the model's cache folder {}",
                              path.string(), target.string(), root_.string());
    }
    if (target.extension() == ".incomplete") {
      return error(StatusCode::kDataLoss, "{}: is a download that did not finish ({}); {}",
                   path.string(), target.string(), advice());
    }
    return {};
  }

  // A download that stopped midway leaves a snapshot without some of its files.
  Status check_complete(const fs::path& snapshot) const {
    std::string missing;
    std::error_code ec;
    if (!fs::exists(snapshot / "config.json", ec)) missing = "config.json";
    if (missing.empty() && fs::exists(snapshot / kIndexFileName, ec)) {
      ROTA_ASSIGN_OR_RETURN(const ShardIndex index, read_shard_index(snapshot));
      for (const std::string& shard : index.shards) {
        if (missing.empty() && !fs::exists(snapshot / shard, ec)) missing = shard;
      }
    }
    if (missing.empty()) return {};
    const size_t partial = count_partial_blobs();
    return error(
        StatusCode::kNotFound, "{}: the snapshot has no {}{}; {}", snapshot.string(), missing,
        partial == 0 ? "" : fmt::format(" ({} downloads did not finish: *.incomplete)", partial),
        advice());
  }

  size_t count_partial_blobs() const {
    std::error_code ec;
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator(root_ / "blobs", ec)) {
      count += entry.path().extension() == ".incomplete" ? 1 : 0;
    }
    return count;
  }

  std::string name_;
  std::string revision_;
  fs::path cache_;
  fs::path root_;
};

Result<ModelLocation> locate_folder(const std::string& path) {
  std::error_code ec;
  if (fs::exists(fs::symlink_status(fs::path(path) / "config.json", ec))) {
    return ModelLocation{path, path, ""};
  }
  return error(StatusCode::kNotFound,
               "{}: has no config.json; MODEL is a folder in the layout of "
               "the Hugging Face hub",
               path);
}

}  // namespace

std::string hub_cache_dir() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string dir = environment(name); !dir.empty()) return expand_home(dir);
  }
  if (const std::string home = environment("HF_HOME"); !home.empty()) {
    return fs::path(expand_home(home)) / "hub";
  }
  const std::string cache = environment("XDG_CACHE_HOME");
  return fs::path(expand_home(cache.empty() ? "~/.cache" : cache)) / "huggingface" / "hub";
}

Result<ModelLocation> locate_model(std::string_view model, const LocateOptions& options) {
  if (model.empty()) return invalid_argument("MODEL is empty, expected a folder or org/name");
  if (model.find('\0') != std::string_view::npos) {
    return invalid_argument("MODEL has a NUL byte in it");
  }
  const std::string path = expand_home(std::string(model));
  std::error_code ec;
  if (fs::is_directory(path, ec)) return locate_folder(path);
  if (fs::exists(path, ec)) {
    return invalid_argument("{}: is a file, expected a folder with config.json or org/name", path);
  }
  if (looks_like_path(model)) {
    return error(StatusCode::kNotFound, "{}: no such folder", path);
  }
  if (!is_hub_name(model)) {
    return invalid_argument(
        "MODEL '{}' is neither a folder nor org/name (letters, digits, '-', '_' "
        "and '.', no '..')",
        model.substr(0, 200));
  }
  if (!is_revision(options.revision)) {
    return invalid_argument("--revision '{}' is no branch, tag or commit hash",
                            options.revision.substr(0, 200));
  }
  return CachedModel(model, options).locate();
}

}  // namespace rota
