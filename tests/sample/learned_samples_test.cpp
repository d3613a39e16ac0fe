// What loaders learn of JPEG files while they first decode them changes no sample, whatever becomes of the files
// meanwhile.
#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/base/json_text.h"
#include "runtime/client/data_loader.h"
#include "runtime/job/job.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "tests/decode/jpeg_files.h"
#include "tests/support/temporary_folder.h"

namespace penstock::learned_samples_test {
namespace {

using penstock_test::JpegSpec;
using penstock_test::make_jpeg;

constexpr int kPictures = 24;

// Files of many kinds: one in eight is progressive, has restart markers, or is cut in the middle.
class Photos {
 public:
  Photos() {
    for (int i = 0; i < kPictures; ++i) write(i, 1);
    folder_.write("job.yaml",
                  "seed: 3\non_error: substitute\nbad_samples: {max_fraction: 0.5, max_count: 100}\n"
                  "loader: {threads: 2, memory_gb: 0.2}\ntrainer: {timeout_s: 30}\n"
                  "splits:\n  train:\n    mode: train\n    dataset: {folder: data}\n"
                  "    pipeline: [{RandomResizedCrop: {size: 24}}, {RandomHorizontalFlip: {}}]\n"
                  "    sampler: {shuffle: true}\n    batch_size: 8\n");
  }
  void write(int i, uint32_t seed) const {
    JpegSpec spec{.width = 90 + 13 * i, .height = 200 - 5 * i, .h = 1 + i % 2, .v = 1 + i / 2 % 2};
    spec.progressive = i % 24 == 7;
    spec.restart = i % 24 == 15 ? 3 : 0;
    spec.seed = seed + static_cast<uint32_t>(i);
    const std::vector<std::byte> file = make_jpeg(spec);
    const size_t size = i % 8 == 5 ? file.size() / 2 : file.size();
    folder_.write("data/a/" + std::to_string(100 + i) + ".jpg", {reinterpret_cast<const char*>(file.data()), size});
  }
  std::string job() const { return folder_.path("job.yaml"); }

 private:
  TemporaryFolder folder_;
};

struct Made {
  std::vector<std::byte> image;
  bool bad = false;
  std::string reason;
  friend bool operator==(const Made&, const Made&) = default;
};

Made make(SampleMaker& maker, const SplitContext& context, int64_t index, int64_t epoch) {
  Made made;
  made.image.resize(context.fields()[0].bytes_per_sample());
  int64_t label = 0;
  std::byte* const fields[] = {made.image.data(), reinterpret_cast<std::byte*>(&label)};
  const SampleRecord record = maker.make({index, index, 0, true}, epoch, fields);
  made.bad = record.bad || record.substituted;
  made.reason = record.reason;
  return made;
}

TEST_CASE("samples with learning are those without, over epochs, and after files have changed") {
  const Photos photos;
  const ResolvedSplit split = resolve_split(load_job(photos.job(), {}), "train");
  const auto memory = std::make_shared<LearnedMemory>(1 << 20);
  const auto with = SplitContext::open(split, posix_file_system(), {}, {}, memory);
  const auto without = SplitContext::open(split);
  CHECK(with->learned() != nullptr);
  CHECK(without->learned() == nullptr);
  SampleMaker learning(with);
  SampleMaker plain(without);
  int64_t bad = 0;
  for (int64_t epoch = 0; epoch < 6; ++epoch) {
    for (int64_t i = 0; i < kPictures; ++i) {
      INFO("epoch ", epoch, ", picture ", i);
      const Made want = make(plain, *without, i, epoch);
      REQUIRE(make(learning, *with, i, epoch) == want);
      bad += want.bad ? 1 : 0;
    }
    if (epoch == 2) {
      for (int i = 0; i < kPictures; i += 2) photos.write(i, 100);
    }
  }
  CHECK(bad > 0);
  const LearnedFigures figures = memory->figures();
  CHECK(figures.photos >= kPictures / 2);
  CHECK(figures.used == learning.decode_counts().indexed_jpeg);
  CHECK(figures.used > 2 * kPictures);
  CHECK(plain.decode_counts().indexed_jpeg == 0);
}

TEST_CASE("a job of three epochs has the same hashes whether its loader learns or not") {
  const Photos photos;
  std::string hashes[3];
  const std::vector<std::string> memories = {"0", "0.003", "512"};
  for (size_t way = 0; way < memories.size(); ++way) {
    DataLoader loader(photos.job(), "train", {.overrides = {"loader.index_memory_mb=" + memories[way]}});
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& batch : loader) CHECK(batch.size() == 8);
    }
    const nlohmann::json report = parse_json(loader.report_json());
    hashes[way] = report["splits"]["train"]["pixel_hash"];
    CHECK(report["splits"]["train"]["images"] == 3 * kPictures);
    nlohmann::json learned;
    for (const auto& rank : report["ranks"]) {
      if (rank.contains("learned_index")) learned = rank["learned_index"];
    }
    CHECK(learned.is_null() == (way == 0));
    if (way == 1) CHECK(learned["bytes"] <= 3200);
    if (way == 2) {
      CHECK(learned["photos"] >= kPictures / 2);
      CHECK(learned["used"] >= kPictures / 2);
    }
  }
  CHECK(hashes[0] == hashes[1]);
  CHECK(hashes[0] == hashes[2]);
}

}  // namespace
}  // namespace penstock::learned_samples_test
