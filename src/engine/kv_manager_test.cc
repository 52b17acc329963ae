#include "engine/kv_manager.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace rota {
namespace {

KvSpec spec_of(std::vector<int64_t> windows) {
  KvSpec spec;
  spec.shape = {.kv_heads = 1, .head_dim = 16};
  for (const int64_t window : windows) spec.groups.push_back({.window = window, .layers = {0}});
  spec.page_bytes = Bytes{4096};
  return spec;
}

std::vector<int32_t> tokens_of(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computes all of `tokens` in one go; the sequence keeps its pages.
int64_t run_through(KvManager& kv, SequenceKv& sequence, const std::vector<int32_t>& tokens,
                    std::string_view salt = "") {
  const auto total = static_cast<int64_t>(tokens.size());
  const int64_t cached = kv.begin(sequence, tokens, salt, ReadCache::kYes, total);
  for (int64_t computed = cached; computed < total;) {
    const int64_t room = kv.extend(sequence, computed, std::min<int64_t>(total - computed, 100));
    if (room == 0) {
      ADD_FAILURE() << "no room";
      return cached;
    }
    computed += room;
    kv.commit(sequence, tokens, computed);
  }
  return cached;
}

TEST(BlockPool, EvictsTheLongestIdlePageAndSaysSo) {
  std::vector<int32_t> evicted;
  BlockPool pool(3, [&](int32_t page) { evicted.push_back(page); });
  const int32_t a = pool.take();
  const int32_t b = pool.take();
  const int32_t c = pool.take();
  EXPECT_EQ(pool.take(), -1);
  pool.keep(a);
  pool.keep(b);
  pool.release(b);
  pool.release(a);
  pool.release(c);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_EQ(pool.idle(), 2);
  EXPECT_EQ(pool.take(), c);  // free before idle
  EXPECT_TRUE(evicted.empty());
  pool.add_user(b);  // in use again: not evictable
  EXPECT_EQ(pool.take(), a);
  EXPECT_EQ(evicted, std::vector<int32_t>{a});
  EXPECT_EQ(pool.take(), -1);
}

TEST(PrefixCache, AHitIsWholeBlocksAndNeverTheWholePrompt) {
  KvManager kv(spec_of({0}), 64, true);
  const std::vector<int32_t> tokens = tokens_of(256);
  SequenceKv first;
  EXPECT_EQ(run_through(kv, first, tokens), 0);
  SequenceKv again;
  EXPECT_EQ(kv.begin(again, tokens, "", ReadCache::kYes, 256), 192);
  SequenceKv longer;
  EXPECT_EQ(kv.begin(longer, tokens_of(257), "", ReadCache::kYes, 257), 256);
  SequenceKv other;
  EXPECT_EQ(kv.begin(other, tokens_of(257, 1), "", ReadCache::kYes, 257), 0);
  for (SequenceKv* it : {&first, &again, &longer, &other}) kv.release(*it);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST(PrefixCache, SurvivesItsSequenceUntilTheRoomIsNeeded) {
  KvManager kv(spec_of({0}), 8, true);
  SequenceKv sequence;
  run_through(kv, sequence, tokens_of(64 * 4));
  kv.release(sequence);
  EXPECT_EQ(kv.used_pages(), 0);
  EXPECT_EQ(kv.remembered_pages(), 4);
  run_through(kv, sequence, tokens_of(64 * 6, 1000));  // needs two of the remembered pages
  kv.release(sequence);
  // The tail was forgotten, the head is still there.
  EXPECT_EQ(kv.begin(sequence, tokens_of(64 * 4), "", ReadCache::kYes, 256), 128);
  kv.release(sequence);
}

TEST(PrefixCache, SaltsDoNotShare) {
  KvManager kv(spec_of({0}), 64, true);
  const std::vector<int32_t> tokens = tokens_of(200);
  SequenceKv sequence;
  run_through(kv, sequence, tokens, std::string("a\0b", 3));
  kv.release(sequence);
  EXPECT_EQ(run_through(kv, sequence, tokens, "a"), 0);
  kv.release(sequence);
  EXPECT_EQ(run_through(kv, sequence, tokens, std::string("a\0b", 3)), 192);
  kv.release(sequence);
}

TEST(PrefixCache, OffOrNotAskedGivesNothing) {
  KvManager off(spec_of({0}), 64, false);
  SequenceKv sequence;
  run_through(off, sequence, tokens_of(200));
  off.release(sequence);
  EXPECT_EQ(run_through(off, sequence, tokens_of(200)), 0);
  KvManager on(spec_of({0}), 64, true);
  SequenceKv first;
  run_through(on, first, tokens_of(200));
  SequenceKv second;
  EXPECT_EQ(on.begin(second, tokens_of(200), "", ReadCache::kNo, 200), 0);
}

TEST(PrefixCache, EqualBlocksOfTwoSequencesBecomeOne) {
  KvManager kv(spec_of({0}), 64, true);
  const std::vector<int32_t> tokens = tokens_of(129);
  SequenceKv a;
  SequenceKv b;
  kv.begin(a, tokens, "", ReadCache::kYes, 129);
  kv.begin(b, tokens, "", ReadCache::kYes, 129);
  EXPECT_EQ(kv.extend(a, 0, 129), 129);
  EXPECT_EQ(kv.extend(b, 0, 129), 129);
  EXPECT_EQ(kv.used_pages(), 6);
  kv.commit(a, tokens, 129);
  kv.commit(b, tokens, 129);
  EXPECT_EQ(kv.used_pages(), 4);
  EXPECT_EQ(a.tables[0][1], b.tables[0][1]);
  EXPECT_NE(a.tables[0][2], b.tables[0][2]);  // the block that is not full stays one's own
  kv.release(a);
  kv.release(b);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST(Window, PagesBehindItAreGivenBack) {
  KvManager kv(spec_of({0, 128}), 200, true);
  SequenceKv sequence;
  run_through(kv, sequence, tokens_of(64 * 20));
  EXPECT_EQ(std::count(sequence.tables[0].begin(), sequence.tables[0].end(), -1), 0);
  kv.extend(sequence, 64 * 20, 1);
  // The next token, at 1280, sees keys from 1153 on: blocks 18, 19 and its own.
  EXPECT_EQ(std::count(sequence.tables[1].begin(), sequence.tables[1].end(), -1), 18);
  EXPECT_EQ(kv.used_pages(), 21 + 3);
  kv.release(sequence);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST(Window, AHitNeedsTheWindowsPagesOnlyWhereTheWindowReaches) {
  KvManager kv(spec_of({0, 128}), 60, true);
  const std::vector<int32_t> tokens = tokens_of(64 * 20 + 1);
  SequenceKv sequence;
  run_through(kv, sequence, tokens);
  kv.release(sequence);
  SequenceKv again;
  EXPECT_EQ(kv.begin(again, tokens, "", ReadCache::kYes, 1281), 64 * 20);
  EXPECT_EQ(again.tables[1][17], -1);
  EXPECT_GE(again.tables[1][18], 0);
  EXPECT_EQ(kv.used_pages(), 20 + 2);
  // Evict what the window passed: 41 + 20 pages are in use or idle of 60.
  SequenceKv other;
  EXPECT_EQ(kv.begin(other, tokens_of(1, 9999), "", ReadCache::kYes, 64 * 18), 0);
  EXPECT_EQ(kv.extend(other, 0, 64 * 18), 64 * 18);
  kv.release(other);
  kv.release(again);
  SequenceKv third;  // the early window pages are gone; the hit does not need them
  EXPECT_EQ(kv.begin(third, tokens, "", ReadCache::kYes, 1281), 64 * 20);
  kv.release(third);
  // But a shorter prefix that ends where they are gone is no hit.
  EXPECT_EQ(kv.begin(third, tokens_of(64 * 4 + 1), "", ReadCache::kYes, 257), 0);
  kv.release(third);
}

TEST(Extend, GivesTheRoomThereIs) {
  KvManager kv(spec_of({0}), 4, true);
  SequenceKv a;
  kv.begin(a, tokens_of(500), "", ReadCache::kYes, 500);
  EXPECT_EQ(kv.pages_to_extend(a, 0, 500), 8);
  EXPECT_EQ(kv.extend(a, 0, 500), 256);
  EXPECT_EQ(kv.extend(a, 256, 10), 0);
  EXPECT_EQ(kv.extend(a, 250, 10), 6);
  kv.release(a);
  EXPECT_EQ(kv.available_pages(), 4);
}

// Random sequences over a small alphabet, so that prefixes meet: every page comes back, and a page
// that a table names is never handed out twice unless its tokens are the same.
TEST(KvManager, RandomLifeReturnsEveryPage) {
  std::mt19937 random(17);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  KvManager kv(spec_of({0, 100}), 80, true);
  struct Live {
    SequenceKv kv;
    std::vector<int32_t> tokens;
    int64_t computed = 0;
  };
  std::vector<Live> live;
  int64_t hits = 0;
  for (int round = 0; round < 6000; ++round) {
    const int64_t action = below(10);
    if (action < 2 && live.size() < 6) {
      Live it;
      const int64_t blocks = 1 + below(6);
      for (int64_t b = 0; b < blocks; ++b) {
        it.tokens.insert(it.tokens.end(), 64, static_cast<int32_t>(below(2)));
      }
      it.tokens.resize(it.tokens.size() - static_cast<size_t>(below(63)));
      it.computed = kv.begin(it.kv, it.tokens, "", ReadCache::kYes, 64 * 6);
      hits += it.computed;
      live.push_back(std::move(it));
    } else if (action < 3 && !live.empty()) {
      const auto victim = live.begin() + below(static_cast<int64_t>(live.size()));
      kv.release(victim->kv);
      live.erase(victim);
    } else if (!live.empty()) {
      Live& it = live[static_cast<size_t>(below(static_cast<int64_t>(live.size())))];
      const int64_t left = static_cast<int64_t>(it.tokens.size()) - it.computed;
      if (left == 0) continue;
      it.computed += kv.extend(it.kv, it.computed, 1 + below(left));
      kv.commit(it.kv, it.tokens, it.computed);
    }
    std::vector<std::pair<int32_t, std::vector<int32_t>>> named;  // page, prefix of its block
    for (const Live& it : live) {
      for (size_t g = 0; g < 2; ++g) {
        for (size_t b = 0; b < it.kv.tables[g].size(); ++b) {
          if (it.kv.tables[g][b] < 0) continue;
          const size_t end = std::min(it.tokens.size(), (b + 1) * 64);
          std::vector<int32_t> prefix(it.tokens.begin(),
                                      it.tokens.begin() + static_cast<int64_t>(end));
          prefix.push_back(static_cast<int32_t>(g) + 100);
          named.emplace_back(it.kv.tables[g][b], std::move(prefix));
        }
      }
    }
    if (round % 20 != 0) continue;
    std::sort(named.begin(), named.end());
    int64_t distinct = 0;
    for (size_t i = 0; i < named.size(); ++i) {
      if (i > 0 && named[i].first == named[i - 1].first) {
        ASSERT_EQ(named[i].second, named[i - 1].second) << "one page, two contents";
      } else {
        ++distinct;
      }
    }
    ASSERT_EQ(kv.used_pages(), distinct);
  }
  EXPECT_GT(hits, 0);
  for (Live& it : live) kv.release(it.kv);
  EXPECT_EQ(kv.used_pages(), 0);
}

TEST(PrefixTree, NodesGoWithTheirLastPageChildOrPin) {
  PrefixTree tree(1, 4);
  const std::vector<int32_t> tokens = tokens_of(128);
  const PrefixTree::Block one(tokens.data(), size_t{64});
  const PrefixTree::Block two(tokens.data() + 64, size_t{64});
  const int32_t root = tree.root("salt");
  const int32_t parent = tree.find_or_add(root, one);
  const int32_t child = tree.find_or_add(parent, two);
  tree.attach(parent, 0, 2);
  tree.attach(child, 0, 3);
  EXPECT_EQ(tree.find(root, one), parent);
  EXPECT_EQ(tree.find(parent, one), PrefixTree::kNone);
  tree.unpin(root);
  EXPECT_EQ(tree.nodes(), 3);
  tree.detach(2);
  EXPECT_EQ(tree.nodes(), 3);  // the child still needs its place
  tree.detach(3);
  EXPECT_EQ(tree.nodes(), 0);
}

}  // namespace
}  // namespace rota
