// Who stands in for an unusable sample: each other sample is tried once, in an order that everybody finds, until a
// usable one is met or the budget says that there need be none.
#include <doctest/doctest.h>

#include <atomic>
#include <set>

#include "runtime/base/error.h"
#include "runtime/report/contact_sheet.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "runtime/sample/substitutes.h"
#include "runtime/transforms/draw.h"
#include "tests/support/memory_source.h"

namespace penstock {
namespace {

constexpr BadSampleSpec kAny{1.0, 0};

std::vector<int64_t> all_of(Substitutes others) {
  std::vector<int64_t> out;
  while (const auto other = others.next()) out.push_back(*other);
  CHECK(others.given() == std::ssize(out));
  return out;
}

TEST_CASE("every other sample comes once, and first those that Philox draws") {
  for (const int64_t size : {1, 2, 3, 10, 300, 5000}) {
    CAPTURE(size);
    for (const int64_t index : {int64_t{0}, size / 2, size - 1}) {
      const auto given = all_of({7, 2, index, size, kAny});
      CHECK(std::set<int64_t>(given.begin(), given.end()).size() == given.size());
      REQUIRE(std::ssize(given) == size - 1);
      CHECK(std::count(given.begin(), given.end(), index) == 0);
      for (const int64_t one : given) REQUIRE((one >= 0 && one < size));
      // Jobs of earlier versions: draw number `attempt` below `size`, those that come again passed over.
      DrawStream draws({7, 2, static_cast<uint64_t>(index), 0}, 0xFFFF);
      std::vector<int64_t> first;
      for (int attempt = 0; attempt < 16; ++attempt) {
        const int64_t drawn = draws.below(static_cast<uint32_t>(size));
        if (drawn != index && std::count(first.begin(), first.end(), drawn) == 0) first.push_back(drawn);
      }
      CHECK(std::equal(first.begin(), first.end(), given.begin()));
    }
  }
  CHECK(all_of({7, 2, 5, 300, kAny}) == all_of({7, 2, 5, 300, kAny}));
  CHECK(all_of({7, 2, 5, 300, kAny}) != all_of({7, 3, 5, 300, kAny}));
  CHECK(all_of({7, 2, 5, 300, kAny}) != all_of({8, 2, 5, 300, kAny}));
}

TEST_CASE("a data set of more than 2^32 samples, and more than 2^16 draws") {
  const int64_t size = (int64_t{1} << 34) + 5;
  std::set<int64_t> quarters;
  for (uint32_t attempt = 0; attempt < 200; ++attempt) {
    const int64_t drawn = substitute_index(1, 0, 9, attempt, size);
    REQUIRE((drawn >= 0 && drawn < size));
    quarters.insert(drawn >> 32);
  }
  CHECK(quarters.size() == 4);
  int same = 0;
  for (uint32_t attempt = 0; attempt < 1000; ++attempt) {
    same += substitute_index(1, 0, 9, attempt, size) == substitute_index(1, 0, 9, attempt + 65'536, size) ? 1 : 0;
  }
  CHECK(same == 0);
}

TEST_CASE("how many are tried follows from the budget") {
  const BadSampleSpec usual;
  CHECK(substitutes_tried(usual, 1) == 0);
  CHECK(substitutes_tried(usual, 50) == 49);
  CHECK(substitutes_tried(usual, 1000) == 999);
  CHECK(substitutes_tried(usual, 1'000'000) == 1024);
  CHECK(substitutes_tried({0.99, 0}, 1'000'000) == 12'800);
  CHECK(substitutes_tried({0, 999'900}, 1'000'000) == 999'999);
  CHECK(substitutes_tried(kAny, 1'000'000) == 999'999);
  CHECK(substitutes_tried({0, int64_t{1} << 62}, 1'000'000) == 999'999);
}

TEST_CASE("what is known to be unusable takes a bounded room, the newest epoch's first") {
  UnusableSamples known;
  const auto most = static_cast<int64_t>(UnusableSamples::kMost);
  for (int64_t i = 0; i < most + 10; ++i) known.add(4, 0, i);
  CHECK(known.has(4, 0, most - 1));
  CHECK_FALSE(known.has(4, 0, most));
  CHECK_FALSE(known.has(4, 1, 0));
  known.add(3, 0, 1);  // older: there is no room for it
  CHECK_FALSE(known.has(3, 0, 1));
  known.add(5, 0, 1);
  CHECK(known.has(5, 0, 1));
  CHECK_FALSE(known.has(4, 0, 1));
}

constexpr int64_t kSamples = 300;

struct World {
  explicit World(int64_t usable) {
    auto owned = std::make_unique<MemorySource>();
    source = owned.get();
    const std::vector<uint8_t> rgb(16 * 16 * 3, 99);
    for (int64_t i = 0; i < kSamples; ++i)
      owned->add(std::to_string(i), i, i == usable ? encode_png(rgb.data(), 16, 16) : std::vector<std::byte>(9));
    const std::string text =
        "on_error: substitute\nbad_samples: {max_fraction: 1.0}\n"
        "splits: {s: {dataset: {folder: x}, batch_size: 2, pipeline: [{CenterCrop: {size: 8}}]}}\n";
    context = SplitContext::with_source(resolve_split(parse_job(text, "job.yaml"), "s"), std::move(owned));
  }
  SampleRecord make(SampleMaker& maker, int64_t index, int64_t epoch = 0) const {
    std::vector<std::byte> image(8 * 8 * 3);
    int64_t label = 0;
    std::byte* const fields[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
    return maker.make({index, index, 0, true}, epoch, fields);
  }
  const MemorySource* source = nullptr;
  std::shared_ptr<const SplitContext> context;
};

TEST_CASE("one usable sample of 300 is found, and no other is looked at twice in an epoch") {
  const World world(123);
  SampleMaker maker(world.context);
  constexpr int64_t kMade = 40;
  for (int64_t index = 0; index < kMade; ++index) {
    const SampleRecord record = world.make(maker, index);
    REQUIRE(record.substituted);
    CHECK(record.index == 123);
    CHECK(record.attempts > 0);
  }
  CHECK(world.source->loads() <= kSamples - 1 + 2 * kMade);  // each unusable one, each planned one, and the usable one
  CHECK(world.make(maker, 123).reason.empty());
}

TEST_CASE("where none is usable every one is looked at, once, and the sample says so") {
  const World world(-1);
  SampleMaker maker(world.context);
  const SampleRecord record = world.make(maker, 3);
  CHECK(record.bad);
  CHECK(record.reason.find("; and none of 299 substitutes is usable") != std::string::npos);
  CHECK(world.source->loads() == kSamples);
  CHECK(world.make(maker, 4).reason == record.reason);
  CHECK(world.source->loads() == kSamples + 1);
}

TEST_CASE("a search ends when nobody waits for it") {
  const World world(-1);
  SampleMaker maker(world.context);
  const std::atomic<bool> ending = true;
  maker.give_up_when(&ending);
  CHECK_THROWS_WITH_AS((void)world.make(maker, 3), doctest::Contains("the loader ended"), Error);
  CHECK(world.source->loads() == 1);
}

}  // namespace
}  // namespace penstock
