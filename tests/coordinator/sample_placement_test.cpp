#include "runtime/coordinator/sample_placement.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "runtime/base/error.h"

namespace penstock {
namespace {

Readable ranges(std::vector<int64_t> bounds, int64_t size) {
  return std::make_shared<const IndexRanges>(std::move(bounds), size);
}

BatchPlan batch_of(const std::vector<int64_t>& indices) {
  BatchPlan batch;
  for (const int64_t index : indices) batch.push_back({.position = std::ssize(batch), .index = index});
  return batch;
}

TEST_CASE("ranges of samples are what was added, and a peer's are checked") {
  IndexRanges some;
  for (const int64_t i : {0, 1, 2, 7, 9, 10}) some.add(i);
  CHECK(some.bounds() == std::vector<int64_t>{0, 3, 7, 8, 9, 11});
  CHECK(some.samples() == 6);
  CHECK(some.count() == 3);
  for (int64_t i = -1; i < 13; ++i) {
    CHECK(some.contains(i) == (i == 0 || i == 1 || i == 2 || i == 7 || i == 9 || i == 10));
  }
  CHECK(IndexRanges(some.bounds(), 11) == some);
  CHECK_FALSE(IndexRanges().contains(0));
  const std::vector<std::vector<int64_t>> wrong = {{0, 3, 7}, {3, 0}, {-1, 3}, {0, 12}, {0, 3, 3, 4}, {5, 5}};
  for (const std::vector<int64_t>& bounds : wrong) CHECK_THROWS_AS(IndexRanges(bounds, 11), Error);
}

TEST_CASE("samples of a group lie on the same disks, and a loader holds the groups all of which it has") {
  std::mt19937_64 random(5);
  int64_t groups = 0;
  for (int world = 0; world < 300; ++world) {
    CAPTURE(world);
    const int64_t size = 1 + static_cast<int64_t>(random() % 60);
    const size_t disks = random() % 5;
    std::vector<Readable> all;
    for (size_t d = 0; d < disks; ++d) {
      IndexRanges one;
      bool has = random() % 2 == 0;
      for (int64_t i = 0; i < size; ++i) {
        if (random() % 6 == 0) has = !has;
        if (has) one.add(i);
      }
      all.push_back(std::make_shared<const IndexRanges>(one));
    }
    const SamplePlacement placement(size, all);
    groups += placement.groups();
    for (int64_t a = 0; a < size; ++a) {
      bool anywhere = false;
      for (const Readable& disk : all) anywhere = anywhere || disk->contains(a);
      REQUIRE(placement.missing().contains(a) == !anywhere);
      for (int64_t b = 0; b < size; ++b) {
        const bool same = std::all_of(all.begin(), all.end(),
                                      [&](const Readable& disk) { return disk->contains(a) == disk->contains(b); });
        REQUIRE((placement.group_of(a) == placement.group_of(b)) == same);
      }
    }
    // The disks that it was made of, and one that it was not.
    IndexRanges stranger;
    for (int64_t i = 0; i < size; ++i) {
      if (random() % 8 != 0) stranger.add(i);
    }
    all.push_back(std::make_shared<const IndexRanges>(stranger));
    for (const Readable& disk : all) {
      const std::vector<int64_t> held = placement.held_by(disk);
      for (int64_t group = 0; group < placement.groups(); ++group) {
        bool whole = true;
        for (int64_t i = 0; i < size; ++i) {
          if (placement.group_of(i) == group) whole = whole && disk->contains(i);
        }
        REQUIRE((std::find(held.begin(), held.end(), group) != held.end()) == whole);
      }
    }
  }
  CHECK(groups > 1000);
}

TEST_CASE("each row of a batch is in one chunk, with samples of its group, in chunks of nearly equal size") {
  std::mt19937_64 random(6);
  const SamplePlacement placement(100, {ranges({0, 40, 60, 100}, 100), ranges({30, 70}, 100), ranges({90, 95}, 100)});
  for (int world = 0; world < 300; ++world) {
    CAPTURE(world);
    std::vector<int64_t> indices(1 + random() % 70);
    for (int64_t& index : indices) index = static_cast<int64_t>(random() % 100);
    const auto chunk_samples = static_cast<int32_t>(1 + random() % 9);
    const BatchCut cut = cut_batch(batch_of(indices), placement, chunk_samples);
    REQUIRE(cut.ends.size() == cut.groups.size());
    std::set<int32_t> rows;
    std::map<int64_t, std::pair<int64_t, int64_t>> sizes;  // of chunks by group: smallest, largest
    for (int32_t chunk = 0; chunk < std::ssize(cut.groups); ++chunk) {
      const auto its = cut.rows_of(chunk);
      const int64_t group = cut.groups[static_cast<size_t>(chunk)];
      REQUIRE(!its.empty());
      REQUIRE(std::ssize(its) <= chunk_samples);
      REQUIRE(std::is_sorted(its.begin(), its.end()));
      for (const int32_t row : its) {
        REQUIRE(rows.insert(row).second);
        REQUIRE(placement.group_of(indices[static_cast<size_t>(row)]) == group);
      }
      auto& [least, most] = sizes.try_emplace(group, INT64_MAX, 0).first->second;
      least = std::min<int64_t>(least, std::ssize(its));
      most = std::max<int64_t>(most, std::ssize(its));
    }
    REQUIRE(rows.size() == indices.size());
    for (const auto& [group, one] : sizes) REQUIRE(one.second - one.first <= 1);
  }
}

TEST_CASE("where every disk has everything a batch is cut as it is elsewhere: into successive rows") {
  const SamplePlacement placement(50, {std::make_shared<const IndexRanges>(IndexRanges::all(50))});
  CHECK(placement.groups() == 1);
  CHECK(placement.missing().samples() == 0);
  const BatchCut cut = cut_batch(batch_of({9, 3, 7, 1, 4, 49}), placement, 4);
  CHECK(cut.rows == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(cut.ends == std::vector<int32_t>{3, 6});
}

TEST_CASE("a loader that comes back holds groups of what was placed while it was away") {
  BackgroundWork background([] {});
  LoaderDisks disks;
  disks.set(2, IndexRanges({0, 50}, 100));
  disks.set(3, IndexRanges({50, 80}, 100));
  disks.set(4, IndexRanges({80, 100}, 100));
  disks.forget(3);
  disks.forget(4);
  const auto placement = disks.placement(100, background);
  REQUIRE(placement != nullptr);
  CHECK(disks.of(3) == nullptr);
  disks.set(3, IndexRanges({50, 80}, 100));
  CHECK(placement->held_by(disks.of(3)) == std::vector<int64_t>{placement->group_of(50)});
}

}  // namespace
}  // namespace penstock
