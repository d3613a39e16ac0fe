#include "sampler/samplers.h"

#include <doctest/doctest.h>

#include <iterator>
#include <vector>

#include "runtime/base/error.h"

using namespace penstock;
using Indices = std::vector<int64_t>;
using Batches = std::vector<Indices>;

static_assert(std::input_iterator<IndexIterator>);

namespace {

template <class Sampler>
Indices list(const Sampler& sampler) {
  Indices indices;
  for (const int64_t index : sampler) indices.push_back(index);
  CHECK(static_cast<int64_t>(indices.size()) == sampler.size());
  return indices;
}

template <class Sampler>
Batches list_batches(const Sampler& sampler, int64_t batch_size, bool drop_last) {
  const BatchSampler batches(sampler, batch_size, drop_last);
  Batches all;
  for (const Indices& batch : batches) all.push_back(batch);
  CHECK(static_cast<int64_t>(all.size()) == batches.size());
  return all;
}

}  // namespace

TEST_CASE("11 samples on 2 ranks: padded to 12, the first repeated") {
  CHECK(list(DistributedSampler(11, 2, 0, /*shuffle=*/false)) == Indices{0, 2, 4, 6, 8, 10});
  CHECK(list(DistributedSampler(11, 2, 1, /*shuffle=*/false)) == Indices{1, 3, 5, 7, 9, 0});
}

TEST_CASE("11 samples on 2 ranks with drop_last: cut to 10") {
  CHECK(list(DistributedSampler(11, 2, 0, false, 0, /*drop_last=*/true)) == Indices{0, 2, 4, 6, 8});
  CHECK(list(DistributedSampler(11, 2, 1, false, 0, /*drop_last=*/true)) == Indices{1, 3, 5, 7, 9});
}

TEST_CASE("1 sample on 3 ranks: each gets it; with drop_last none does") {
  for (int64_t rank = 0; rank < 3; ++rank) {
    CHECK(list(DistributedSampler(1, 3, rank)) == Indices{0});
    CHECK(list(DistributedSampler(1, 3, rank, true, 0, /*drop_last=*/true)).empty());
  }
}

TEST_CASE("2 samples on 7 ranks: the set repeats three and a half times") {
  for (int64_t rank = 0; rank < 7; ++rank) CHECK(list(DistributedSampler(2, 7, rank, false)) == Indices{rank % 2});
}

TEST_CASE("the ranks of a shuffled epoch, interleaved, are the RandomSampler's order") {
  RandomSampler whole(12, /*seed=*/5);
  whole.set_epoch(3);
  Indices interleaved(12);
  for (int64_t rank = 0; rank < 4; ++rank) {
    DistributedSampler share(12, 4, rank, true, /*seed=*/5);
    share.set_epoch(3);
    int64_t place = rank;
    for (const int64_t index : share) {
      interleaved[static_cast<size_t>(place)] = index;
      place += 4;
    }
  }
  CHECK(interleaved == list(whole));
}

TEST_CASE("an epoch can be made again alone, and iterators outlive the sampler's epoch") {
  RandomSampler sampler(100, 1);
  const Indices first = list(sampler);
  IndexIterator it = sampler.begin();
  sampler.set_epoch(1);
  CHECK(list(sampler) != first);
  for (const int64_t index : first) {
    REQUIRE(*it == index);
    ++it;
  }
  CHECK(it == std::default_sentinel);
  sampler.set_epoch(0);
  CHECK(list(sampler) == first);
}

TEST_CASE("BatchSampler: torch's documented examples") {
  CHECK(list_batches(SequentialSampler(10), 3, false) == Batches{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9}});
  CHECK(list_batches(SequentialSampler(10), 3, true) == Batches{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}});
  CHECK(list_batches(SequentialSampler(2), 3, true).empty());
  CHECK(list_batches(SequentialSampler(0), 3, false).empty());
}

TEST_CASE("BatchSampler over a DistributedSampler follows set_epoch") {
  BatchSampler batches(DistributedSampler(11, 2, 0, true, 9), 4, false);
  batches.sampler().set_epoch(2);
  DistributedSampler alone(11, 2, 0, true, 9);
  alone.set_epoch(2);
  Indices joined;
  for (const Indices& batch : batches) joined.insert(joined.end(), batch.begin(), batch.end());
  CHECK(joined == list(alone));
  CHECK(batches.size() == 2);
}

TEST_CASE("a plain vector can be batched too") {
  CHECK(list_batches(Indices{7, 5, 3}, 2, false) == Batches{{7, 5}, {3}});
}

TEST_CASE("sizes near 2^62 neither overflow nor allocate") {
  const int64_t size = (int64_t{1} << 62) + 1;
  const DistributedSampler sampler(size, 2, 1, /*shuffle=*/false);
  CHECK(sampler.size() == (int64_t{1} << 61) + 1);
  CHECK(*sampler.begin() == 1);
  CHECK(DistributedSampler(3, int64_t{1} << 40, (int64_t{1} << 40) - 1, false).size() == 1);
}

TEST_CASE("arguments out of range are refused by name") {
  const auto refuses = [](const char* name, auto make) {
    try {
      make();
      FAIL(name << " was accepted");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK(error.message().find(name) != std::string::npos);
      CHECK(!error.remedy().empty());
    }
  };
  refuses("rank", [] { DistributedSampler(10, 2, 2); });
  refuses("rank", [] { DistributedSampler(10, 2, -1); });
  refuses("num_replicas", [] { DistributedSampler(10, 0, 0); });
  refuses("dataset_size", [] { DistributedSampler(-1, 1, 0); });
  refuses("dataset_size", [] { SequentialSampler(-1); });
  refuses("epoch", [] { RandomSampler(10).set_epoch(-1); });
  refuses("batch_size", [] { BatchSampler(SequentialSampler(3), 0, false); });
}
