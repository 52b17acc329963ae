#include "checkpoint/locate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>

#include "checkpoint/testing/write_safetensors.h"

namespace rota {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::write_file;

const std::string kHash = "0123456789abcdef0123456789abcdef01234567";

// A cache with the model org/name at main: config.json and model.safetensors, as links to blobs.
class HubCache : public ::testing::Test {
 protected:
  void SetUp() override {
    write_file(repo() / "blobs" / "aa", "{}");
    write_file(repo() / "blobs" / "bb", "weights");
    write_file(repo() / "refs" / "main", kHash);
    fs::create_directories(snapshot());
    link("config.json", "../../blobs/aa");
    link("model.safetensors", "../../blobs/bb");
  }

  fs::path repo() const { return cache_.path() / "models--org--name"; }
  fs::path snapshot() const { return repo() / "snapshots" / kHash; }
  void link(const std::string& name, const fs::path& target) {
    fs::remove(snapshot() / name);
    fs::create_symlink(target, snapshot() / name);
  }
  Result<ModelLocation> locate(std::string_view model = "org/name",
                               const std::string& revision = "main") const {
    return locate_model(model, {.revision = revision, .cache_dir = cache_.path()});
  }
  std::string fault(std::string_view model = "org/name", const std::string& revision = "main") {
    return status_of(locate(model, revision)).message();
  }

  TempFolder cache_;
};

TEST_F(HubCache, BranchLeadsToItsSnapshot) {
  const auto where = locate();
  ASSERT_TRUE(where.ok()) << where.status().message();
  EXPECT_EQ(where->dir, snapshot());
  EXPECT_EQ(where->name, "org/name");
  EXPECT_EQ(where->revision, kHash);
}

TEST_F(HubCache, CommitHashNeedsNoRef) {
  fs::remove_all(repo() / "refs");
  EXPECT_TRUE(locate("org/name", kHash).ok());
}

TEST_F(HubCache, PullRequestRevision) {
  write_file(repo() / "refs" / "refs" / "pr" / "3", kHash + "\n");
  EXPECT_TRUE(locate("org/name", "refs/pr/3").ok());
}

TEST_F(HubCache, NameWithoutAnOrganisation) {
  fs::rename(repo(), cache_.path() / "models--name");
  EXPECT_TRUE(locate("name").ok());
}

TEST_F(HubCache, ModelThatIsNotThereSaysHowToGetIt) {
  EXPECT_THAT(fault("org/other"), HasSubstr("get it with `hf download org/other`"));
  EXPECT_EQ(status_of(locate("org/other")).code(), StatusCode::kNotFound);
}

TEST_F(HubCache, HostileMissingRef) {
  EXPECT_THAT(fault("org/name", "v2"), HasSubstr("the cache has no revision 'v2'"));
  EXPECT_THAT(fault("org/name", "v2"), HasSubstr("hf download org/name --revision v2"));
}

TEST_F(HubCache, HostileRefWithoutAHash) {
  write_file(repo() / "refs" / "main", "../../../../etc");
  EXPECT_THAT(fault(), HasSubstr("holds no commit hash"));
  write_file(repo() / "refs" / "main", std::string(1000, 'a'));
  EXPECT_THAT(fault(), HasSubstr("bytes long, expected at most 256"));
}

TEST_F(HubCache, HostileMissingSnapshot) {
  fs::remove_all(snapshot());
  EXPECT_THAT(fault(), HasSubstr("the cache has no snapshot"));
}

TEST_F(HubCache, HostileLinkOutOfTheCache) {
  TempFolder elsewhere;
  write_file(elsewhere / "secret", "{}");
  link("config.json", elsewhere / "secret");
  EXPECT_THAT(fault(), HasSubstr("outside the model's cache folder"));
}

TEST_F(HubCache, HostileLinkToAnotherModelOfTheCache) {
  write_file(cache_ / "models--org--other/blobs/cc", "{}");
  link("config.json", "../../../models--org--other/blobs/cc");
  EXPECT_THAT(fault(), HasSubstr("outside the model's cache folder"));
}

TEST_F(HubCache, HostileSnapshotThatIsALinkOutOfTheCache) {
  TempFolder elsewhere;
  write_file(elsewhere / "config.json", "{}");
  fs::remove_all(snapshot());
  fs::create_symlink(elsewhere.path(), snapshot());
  EXPECT_THAT(fault(), HasSubstr("leads out of the model's cache folder"));
}

TEST_F(HubCache, HostileDanglingLink) {
  link("model.safetensors", "../../blobs/none");
  EXPECT_THAT(fault(), HasSubstr("symbolic link to a file that does not exist"));
}

TEST_F(HubCache, HostileLinkLoop) {
  link("model.safetensors", "model.safetensors");
  EXPECT_THAT(fault(), HasSubstr("is a loop of symbolic links"));
}

TEST_F(HubCache, HostilePartialBlob) {
  write_file(repo() / "blobs" / "cc.incomplete", "half");
  link("model.safetensors", "../../blobs/cc.incomplete");
  EXPECT_THAT(fault(), HasSubstr("is a download that did not finish"));
}

TEST_F(HubCache, HostileShardStillBeingDownloaded) {
  fs::remove(snapshot() / "model.safetensors");
  write_file(snapshot() / "model.safetensors.index.json",
             R"({"weight_map": {"w": "model-1.safetensors"}})");
  write_file(repo() / "blobs" / "cc.incomplete", "half");
  EXPECT_THAT(fault(), HasSubstr("the snapshot has no model-1.safetensors (1 downloads did not "
                                 "finish"));
}

TEST_F(HubCache, HostileNoConfig) {
  fs::remove(snapshot() / "config.json");
  EXPECT_THAT(fault(), HasSubstr("the snapshot has no config.json"));
}

TEST_F(HubCache, HostileNames) {
  for (const char* name :
       {"org/..", "../name", "..", "org/na me", "org/name/more", "org//name", "org/na..me", "/",
        "org/-name", "org/name.", "org--x/name", "https://example.org/a", "org/na\nme", "a\\b"}) {
    EXPECT_FALSE(locate(name).ok()) << name;
  }
  EXPECT_FALSE(locate(std::string_view("org/n\0me", 8)).ok());
  EXPECT_FALSE(locate(std::string(1000, 'a')).ok());
  EXPECT_FALSE(locate("").ok());
}

TEST_F(HubCache, HostileRevisions) {
  for (const char* revision :
       {"", "..", "../main", "a/../../b", "/etc", "a//b", "a b", "main\n", "./main"}) {
    EXPECT_THAT(fault("org/name", revision), HasSubstr("no branch, tag or commit hash"))
        << revision;
  }
}

TEST(LocateFolder, FolderWithAConfig) {
  TempFolder folder;
  write_file(folder / "config.json", "{}");
  const auto where = locate_model(folder.path().string());
  ASSERT_TRUE(where.ok()) << where.status().message();
  EXPECT_EQ(where->dir, folder.path());
  EXPECT_EQ(where->revision, "");
}

TEST(LocateFolder, FolderWithoutAConfigFileOrNothing) {
  TempFolder folder;
  EXPECT_THAT(status_of(locate_model(folder.path().string())).message(),
              HasSubstr("has no config.json"));
  write_file(folder / "model.gguf", "");
  EXPECT_THAT(status_of(locate_model(folder / "model.gguf")).message(),
              HasSubstr("is a file, expected a folder"));
  EXPECT_THAT(status_of(locate_model(folder / "none")).message(), HasSubstr("no such folder"));
  EXPECT_THAT(status_of(locate_model("./none")).message(), HasSubstr("no such folder"));
}

// Sets variables for one test and puts the old ones back.
class Environment {
 public:
  explicit Environment(const std::map<std::string, std::optional<std::string>>& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      old_[name] = old == nullptr ? std::nullopt : std::optional<std::string>(old);
      set(name, value);
    }
  }
  ~Environment() {
    for (const auto& [name, value] : old_) set(name, value);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  std::map<std::string, std::optional<std::string>> old_;
};

TEST(HubCacheDir, FollowsTheEnvironmentInTheHubsOrder) {
  std::map<std::string, std::optional<std::string>> values = {{"HF_HUB_CACHE", "/a"},
                                                              {"HUGGINGFACE_HUB_CACHE", {}},
                                                              {"HF_HOME", "/b"},
                                                              {"XDG_CACHE_HOME", {}},
                                                              {"HOME", "/home/x"}};
  {
    const Environment environment(values);
    EXPECT_EQ(hub_cache_dir(), "/a");
  }
  values["HF_HUB_CACHE"].reset();
  {
    const Environment environment(values);
    EXPECT_EQ(hub_cache_dir(), "/b/hub");
  }
  values["HF_HOME"] = "~/hf";
  {
    const Environment environment(values);
    EXPECT_EQ(hub_cache_dir(), "/home/x/hf/hub");
  }
  values["HF_HOME"].reset();
  {
    const Environment environment(values);
    EXPECT_EQ(hub_cache_dir(), "/home/x/.cache/huggingface/hub");
  }
  values["XDG_CACHE_HOME"] = "/c";
  const Environment environment(values);
  EXPECT_EQ(hub_cache_dir(), "/c/huggingface/hub");
}

}  // namespace
}  // namespace rota
