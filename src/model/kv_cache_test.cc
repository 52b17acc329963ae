#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

namespace rota {
namespace {

ModelConfig alternating(int64_t layers, int64_t window) {
  ModelConfig config;
  config.layers = layers;
  config.kv_heads = 2;
  config.head_dim = 16;
  config.sliding_window = window;
  for (int64_t n = 0; n < layers; ++n) {
    const bool slides = window > 0 && n % 2 == 0;
    config.attention.push_back(slides ? AttentionKind::kSliding : AttentionKind::kFull);
  }
  return config;
}

const KernelTable& ref() { return kernels_for(Isa::kRef, detect_cpu()); }

KvSpec spec_of(const ModelConfig& config, Compute compute = Compute::kBf16) {
  return make_kv_spec(config, compute, ref());
}

TEST(KvSpec, GroupsLayersByHowLongTheirPagesLive) {
  const KvSpec spec = spec_of(alternating(5, 128));
  ASSERT_EQ(spec.groups.size(), 2u);
  EXPECT_EQ(spec.groups[0].window, 0);
  EXPECT_EQ(spec.groups[0].layers, (std::vector<int>{1, 3}));
  EXPECT_EQ(spec.groups[1].window, 128);
  EXPECT_EQ(spec.groups[1].layers, (std::vector<int>{0, 2, 4}));
  EXPECT_EQ(spec.page_bytes, spec.layer_bytes * 3);
}

TEST(KvSpec, OneGroupWhereNoLayerSlides) {
  const KvSpec spec = spec_of(alternating(4, 0));
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_EQ(spec.groups[0].layers.size(), 4u);
}

// The engine's pages are how it counts positions: there is a group and a page even if no layer
// attends.
TEST(KvSpec, OnlyRecurrentLayersHaveStatesAndPagesOfOneCacheLine) {
  ModelConfig config = alternating(2, 0);
  config.attention = {AttentionKind::kNone, AttentionKind::kNone};
  config.layer_kinds = {LayerKind::kMamba, LayerKind::kMoe};
  config.mamba = {.heads = 6, .head_dim = 16, .groups = 2, .state = 16, .conv_kernel = 4};
  const KvSpec spec = spec_of(config);
  ASSERT_EQ(spec.groups.size(), 1u);
  EXPECT_TRUE(spec.groups[0].layers.empty());
  EXPECT_EQ(spec.page_bytes.count, 64);
  EXPECT_EQ(spec.state.layers, std::vector<int>{0});
  EXPECT_EQ(spec.state.layer_bytes.count, (3 * 160 + 6 * 16 * 16) * 4);
}

TEST(KvSpec, Float32TakesTwiceTheBytesOfBf16) {
  const ModelConfig config = alternating(4, 128);
  EXPECT_EQ(spec_of(config, Compute::kFloat32).page_bytes,
            spec_of(config, Compute::kBf16).page_bytes * 2);
}

TEST(KvSpec, WindowsDoNotGrow) {
  const KvSpec spec = spec_of(alternating(4, 128));
  // Two full layers; keys and values, 2 heads of 16, 2 bytes each.
  EXPECT_EQ(spec.bytes_per_token().count, 2 * 2 * 2 * 16 * 2);
}

TEST(KvSpec, AWindowsFirstBlockIsTheOneOfItsOldestKey) {
  const KvGroup full{.window = 0, .layers = {}};
  const KvGroup window{.window = 128, .layers = {}};
  EXPECT_EQ(KvSpec::first_live_block(full, 1000), 0);
  EXPECT_EQ(KvSpec::first_live_block(window, 0), 0);
  EXPECT_EQ(KvSpec::first_live_block(window, 190), 0);  // sees keys 63..190
  EXPECT_EQ(KvSpec::first_live_block(window, 191), 1);  // sees keys 64..191
  EXPECT_EQ(KvSpec::first_live_block(window, 255), 2);
}

TEST(KvCache, EveryLayerOfEveryPageHasItsOwnBytes) {
  const KvSpec spec = spec_of(alternating(6, 128));
  const auto cache = KvCache::allocate(spec, 4);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  EXPECT_EQ(cache->pages(), 4);
  EXPECT_EQ(cache->bytes(), spec.page_bytes * 4);
  // Pages of different groups are different numbers: within a group each (page, layer) is apart.
  for (int group = 0; group < 2; ++group) {
    std::set<const std::byte*> places;
    for (int slot = 0; slot < 3; ++slot) {
      const KvPages pages = cache->layer_pages({group, slot}, {});
      for (int64_t page = 0; page < 4; ++page) {
        places.insert(pages.base + (pages.page_stride * page).count);
      }
    }
    ASSERT_EQ(places.size(), 12u);
    const std::byte* last = nullptr;
    for (const std::byte* place : places) {
      if (last != nullptr) {
        EXPECT_GE(place - last, spec.layer_bytes.count);
      }
      last = place;
    }
    EXPECT_LE(last + spec.layer_bytes.count, *places.begin() + cache->bytes().count);
  }
}

TEST(KvCache, PlacesFollowTheGroups) {
  const KvSpec spec = spec_of(alternating(5, 128));
  const std::vector<KvPlace> places = kv_places(spec, 5);
  EXPECT_EQ(places[0].group, 1);
  EXPECT_EQ(places[0].slot, 0);
  EXPECT_EQ(places[3].group, 0);
  EXPECT_EQ(places[3].slot, 1);
  EXPECT_EQ(places[4].group, 1);
  EXPECT_EQ(places[4].slot, 2);
}

TEST(KvCache, NoPagesIsAnError) {
  const auto cache = KvCache::allocate(spec_of(alternating(2, 0)), 0);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.status().code(), StatusCode::kInvalidArgument);
}

TEST(KvCache, MoreThanTheMachineHasIsAnErrorThatSaysHowMuch) {
  const auto cache = KvCache::allocate(spec_of(alternating(2, 0)), int64_t{1} << 60);
  ASSERT_FALSE(cache.ok());
  EXPECT_EQ(cache.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(cache.status().message().find("KV cache of 1152921504606846976 pages"),
            std::string::npos)
      << cache.status().message();
}

TEST(KvCache, EverySlotHoldsAStateOfItsOwnThatCanBeCopied) {
  KvSpec spec = spec_of(alternating(2, 0));
  spec.state = {.layers = {1, 3}, .layer_bytes = Bytes{128}};
  const auto cache = KvCache::allocate(spec, 1, 3);
  ASSERT_TRUE(cache.ok()) << cache.status().message();
  EXPECT_EQ(cache->bytes(), spec.page_bytes + Bytes{3 * 2 * 128});
  for (int32_t slot = 0; slot < 3; ++slot) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      std::ranges::fill(cache->state(slot, layer), static_cast<std::byte>(2 * slot + layer));
    }
  }
  cache->copy_state(0, 2);
  for (const auto& [slot, first] : {std::pair{0, 0}, {1, 2}, {2, 0}}) {
    for (int64_t layer = 0; layer < 2; ++layer) {
      for (const std::byte byte : cache->state(slot, layer)) {
        ASSERT_EQ(byte, static_cast<std::byte>(first + layer)) << slot << " " << layer;
      }
    }
  }
}

TEST(KvCache, StatesWithoutASlotAreAnError) {
  KvSpec spec = spec_of(alternating(2, 0));
  spec.state = {.layers = {0}, .layer_bytes = Bytes{64}};
  const auto cache = KvCache::allocate(spec, 1);
  ASSERT_FALSE(cache.ok());
  EXPECT_NE(cache.status().message().find("one for each sequence"), std::string::npos);
}

}  // namespace
}  // namespace rota
