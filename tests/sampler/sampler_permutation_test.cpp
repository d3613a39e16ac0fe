#include "sampler/permutation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/base/error.h"

using namespace penstock;

namespace {

std::vector<int64_t> to_vector(const Permutation& order) {
  std::vector<int64_t> values;
  for (int64_t place = 0; place < order.size(); ++place) values.push_back(order[place]);
  return values;
}

}  // namespace

TEST_CASE("the generator is MT19937: the standard's 10,000th value for its default seed") {
  TorchGenerator generator(5489);
  for (int i = 1; i < 10000; ++i) generator.random();
  CHECK(generator.random() == 4123659995u);
}

TEST_CASE("a 64-bit draw takes two 32-bit draws, the high half first") {
  TorchGenerator a(7), b(7);
  const uint64_t high = a.random();
  const uint64_t low = a.random();
  CHECK(b.random64() == (high << 32 | low));
}

TEST_CASE("known orders of torch.randperm(10)") {
  CHECK(to_vector(Permutation::shuffled(10, 0)) == std::vector<int64_t>{4, 1, 7, 5, 3, 9, 0, 8, 6, 2});
  CHECK(to_vector(Permutation::shuffled(10, (uint64_t{1} << 32) + 5)) ==
        std::vector<int64_t>{1, 4, 9, 6, 3, 5, 0, 2, 8, 7});
  CHECK(to_vector(Permutation::shuffled(10, UINT64_MAX)) == std::vector<int64_t>{1, 4, 6, 2, 0, 5, 8, 7, 9, 3});
}

TEST_CASE("manual_seed keeps the low 32 bits of the seed") {
  CHECK(to_vector(Permutation::shuffled(50, 3)) == to_vector(Permutation::shuffled(50, 3 + (uint64_t{9} << 32))));
  CHECK(to_vector(Permutation::shuffled(50, 3)) != to_vector(Permutation::shuffled(50, 4)));
}

TEST_CASE("both ways of shuffling give permutations, the same for any index width") {
  for (const size_t size : {0u, 1u, 2u, 3u, 10u, 1000u}) {
    CAPTURE(size);
    std::vector<uint64_t> sorted(size);
    std::iota(sorted.begin(), sorted.end(), uint64_t{0});
    for (const bool inside_out : {false, true}) {
      std::vector<uint32_t> narrow(size);
      std::vector<uint64_t> wide(size);
      TorchGenerator a(11), b(11);
      if (inside_out) {
        randperm_inside_out(std::span(narrow), a);
        randperm_inside_out(std::span(wide), b);
      } else {
        randperm_forward(std::span(narrow), a);
        randperm_forward(std::span(wide), b);
      }
      CHECK(std::equal(narrow.begin(), narrow.end(), wide.begin(), wide.end()));
      CHECK(a.random() == b.random());  // and as many draws
      if (size >= 10) CHECK(wide != sorted);
      std::sort(wide.begin(), wide.end());
      CHECK(wide == sorted);
    }
  }
}

TEST_CASE("memory: 4 bytes a sample when shuffled, none for the identity, shared by copies") {
  const Permutation shuffled = Permutation::shuffled(1000, 0);
  CHECK(shuffled.bytes() == 4000);
  CHECK(Permutation::identity(int64_t{1} << 40).bytes() == 0);
  CHECK(Permutation::identity(int64_t{1} << 40)[(int64_t{1} << 40) - 1] == (int64_t{1} << 40) - 1);
  const Permutation copy = shuffled;  // NOLINT: the copy is the point
  CHECK(to_vector(copy) == to_vector(shuffled));
}

TEST_CASE("an impossible size is refused") {
  CHECK_THROWS_AS(Permutation::identity(-1), Error);
  CHECK_THROWS_AS(Permutation::shuffled(-1, 0), Error);
  try {
    Permutation::shuffled(INT64_MAX, 0);
    FAIL("2^63 samples were shuffled");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::runtime);
    CHECK(error.message().find("9223372036854775807 samples") != std::string::npos);
  }
}
