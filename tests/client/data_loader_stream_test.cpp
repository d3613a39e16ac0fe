// One stream: whatever the threads, chunks, chunk buffers and decisions of the balancer, and with unreadable pictures
// in it, the program gets what sampler and pipeline alone say it gets, bit for bit.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/balancer/event_log.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/client/data_loader.h"
#include "runtime/job/job.h"
#include "runtime/sample/sample_maker.h"
#include "runtime/sample/split_context.h"
#include "tests/support/tiny_dataset.h"

namespace penstock {
namespace {

struct Hashes {
  std::string order;
  std::string pixel;
  friend bool operator==(const Hashes&, const Hashes&) = default;
};

Hashes hashes_of(DataLoader& loader, const std::string& split) {
  const auto stats = parse_json(loader.stats_json());
  return {stats["splits"][split]["order_hash"], stats["splits"][split]["pixel_hash"]};
}

Hashes run(const std::string& job, const std::string& split, int epochs, const std::vector<std::string>& overrides) {
  DataLoader loader(job, split, {.overrides = overrides});
  for (int e = 0; e < epochs; ++e) {
    loader.set_epoch(e);
    for (auto& batch : loader) (void)batch;
  }
  return hashes_of(loader, split);
}

// Plan and SampleMaker, one sample after the other: no loader, no balancer, no transport.
Hashes direct(const std::string& job, const std::string& split, int epochs, int replicas = 1, int replica = 0) {
  const ResolvedSplit resolved = resolve_split(load_job(job), split);
  const auto context = SplitContext::open(resolved);
  SampleMaker maker(context);
  PlanSpec spec;
  spec.dataset_size = context->source().size();
  spec.num_replicas = replicas;
  spec.batch_size = resolved.split.batch_size;
  spec.shuffle = resolved.split.sampler.shuffle;
  spec.seed = resolved.seed;
  spec.tail = resolved.split.tail;
  spec.mode = resolved.split.mode;
  std::vector<std::byte> image(context->fields()[0].bytes_per_sample());
  int64_t label = 0;
  StreamHash sum;
  for (int e = 0; e < epochs; ++e) {
    const Plan plan(spec, e);
    for (int64_t step = 0; step < plan.steps(); ++step) {
      for (const PlannedSample& planned : plan.batch(step, replica)) {
        std::byte* const fields[] = {image.data(), reinterpret_cast<std::byte*>(&label)};
        const SampleRecord record = maker.make(planned, e, fields);
        PlannedSample delivered = record.planned;
        delivered.index = record.index;
        const std::span<const std::byte> bytes(image);
        sum.add(sample_record(split, static_cast<uint32_t>(e), delivered, record.draws, label), std::span(&bytes, 1));
      }
    }
  }
  return {sum.order.hex(), sum.pixel.hex()};
}

const std::vector<std::vector<std::string>>& ways() {
  static const std::vector<std::vector<std::string>> list{
      {"loader.threads=1"},
      {"loader.threads=2"},
      {"loader.threads=3"},
      {"loader.threads=4"},
      {"loader.chunk_samples=1"},
      {"loader.chunk_samples=3", "loader.threads=4"},
      {"loader.chunk_samples=16"},
      {"loader.chunk_buffers=1", "loader.chunk_samples=2"},
      {"loader.chunk_buffers=2", "loader.chunk_samples=1", "loader.threads=3"},
      {"loader.prefetch=1", "trainer.hold=0"},
      {"loader.prefetch=5"},
      {"balancer.policy=random", "loader.chunk_samples=1", "loader.threads=4"},
      {"balancer.policy=random", "loader.chunk_buffers=2", "loader.chunk_samples=2"},
  };
  return list;
}

std::string text_of(const std::vector<std::string>& overrides) {
  std::string text;
  for (const std::string& one : overrides) text += one + " ";
  return text;
}

TEST_CASE("the same hashes by every way, and by no way at all") {
  const TinyDataset data(50);
  const Hashes train = direct(data.job(), "train", 2);
  const Hashes val = direct(data.job(), "val", 1);
  CHECK(train.order != direct(data.job(), "train", 1).order);  // hashes do tell streams apart
  for (const auto& way : ways()) {
    CAPTURE(text_of(way));
    CHECK(run(data.job(), "train", 2, way) == train);
    CHECK(run(data.job(), "val", 1, way) == val);
  }
}

TEST_CASE("replicas: each gets its share of the same stream") {
  const TinyDataset data(50);
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader loader(data.job(), "train", {.num_replicas = 3, .rank = rank});
    for (auto& batch : loader) (void)batch;
    CHECK(hashes_of(loader, "train") == direct(data.job(), "train", 1, 3, rank));
  }
}

TEST_CASE("breaking off, two iterations at once and other dtypes change no hash of what was delivered") {
  const TinyDataset data(50);
  const Hashes whole = direct(data.job(), "train", 1);
  DataLoader loader(data.job(), "train", {.dtype = DType::bfloat16, .channels_last = true});
  BatchIterator a = loader.begin_at(0, 0);  // steps 0..2 by one iteration, 3.. by another that lives beside it
  ++a;
  ++a;
  for (BatchIterator b = loader.begin_at(0, 3); b != loader.end(); ++b) {
  }
  CHECK(hashes_of(loader, "train") == whole);
}

// Three of fifty pictures become unusable, in different ways.
void spoil(const TinyDataset& data) {
  data.folder().write("data/" + TinyDataset::name(7), "this is text");
  data.folder().write("data/" + TinyDataset::name(23), "");
  std::vector<std::byte> png;
  posix_file_system().read_file(data.folder().path("data/" + TinyDataset::name(40)), 1 << 20, png);
  data.folder().write("data/" + TinyDataset::name(40), {reinterpret_cast<const char*>(png.data()), png.size() / 2});
}

TEST_CASE("on_error: fail names the file at its batch; the batches before it are good") {
  const TinyDataset data(50);
  spoil(data);
  std::string first;
  for (const char* threads : {"loader.threads=1", "loader.threads=4"}) {
    DataLoader loader(data.job(), "val", {.overrides = {threads, "loader.prefetch=4"}});
    int64_t good = 0;
    try {
      for (auto& batch : loader) {
        (void)batch;
        ++good;
      }
      FAIL("nothing failed");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::dataset);
      if (first.empty()) first = error.what();
      CHECK(error.what() == first);
      CHECK(error.message().find(".png") != std::string::npos);
      CHECK(error.remedy().find("on_error") != std::string::npos);
    }
    CHECK(good == 1);                           // in order of classes, picture 40 is index 8, 7 is 21 and 23 is 34
    CHECK(loader.begin_at(0, 3)->size() == 8);  // the loader is unharmed
  }
}

TEST_CASE("on_error: substitute gives the same stream by every way, marked and reported") {
  const TinyDataset data(50, "on_error: substitute\n");
  spoil(data);
  const Hashes expected = direct(data.job(), "train", 2);
  for (const auto& way : ways()) {
    CAPTURE(text_of(way));
    CHECK(run(data.job(), "train", 2, way) == expected);
  }
  DataLoader loader(data.job(), "train");
  int marked = 0;
  for (auto& batch : loader) {
    for (int64_t i = 0; i < batch.size(); ++i) {
      marked += batch.substituted()[i];
      CHECK(batch.label().as<int64_t>()[i] == batch.indices()[i] / 10);  // the substitute's own label and index
    }
    CHECK(batch.size() == (batch.step() == 6 ? 2 : 8));
  }
  CHECK(marked == 3);
  const auto stats = parse_json(loader.stats_json());
  const auto& bad = stats["splits"]["train"]["bad_samples"];
  REQUIRE(bad.size() == 3);
  for (const auto& one : bad) {
    CHECK(one["path"].get<std::string>().find(".png") != std::string::npos);
    CHECK_FALSE(one["reason"].get<std::string>().empty());
    CHECK(one["substitute"].is_number());
  }
}

TEST_CASE("in eval an unusable sample is masked: label -100, valid 0, zeros, and counted by nobody") {
  const TinyDataset data(50, "on_error: substitute\n");
  spoil(data);
  const Hashes expected = direct(data.job(), "val", 1);
  for (const auto& way : ways()) {
    CAPTURE(text_of(way));
    CHECK(run(data.job(), "val", 1, way) == expected);
  }
  DataLoader loader(data.job(), "val");
  int64_t valid = 0;
  for (auto& batch : loader) {
    valid += batch.num_valid();
    for (int64_t i = 0; i < batch.size(); ++i) {
      if (batch.valid()[i] != 0) continue;
      CHECK(batch.label().as<int64_t>()[i] == -100);
      const float* image = batch.image().as<float>() + i * 3 * 24 * 24;
      for (int p = 0; p < 3 * 24 * 24; ++p) REQUIRE(image[p] == 0);
    }
  }
  CHECK(valid == 47);
}

TEST_CASE("padding of an unusable sample is padding: listed once, and counted once") {
  const TinyDataset data(50, "on_error: substitute\nbad_samples: {max_fraction: 0, max_count: 2}\n");
  for (const int picture : {0, 5})
    data.folder().write("data/" + TinyDataset::name(picture), "text");  // indices 0 and 1
  for (const int replicas : {1, 3}) {
    CAPTURE(replicas);
    std::multiset<int64_t> listed;
    int64_t images = 0;
    int64_t padding = 0;
    int64_t valid = 0;
    for (int rank = 0; rank < replicas; ++rank) {
      DataLoader val(data.job(), "val", {.overrides = {"splits.val.tail=pad"}, .num_replicas = replicas, .rank = rank});
      for (auto& batch : val) valid += batch.num_valid();
      const auto split = parse_json(val.stats_json())["splits"]["val"];
      images += split["images"].get<int64_t>();
      padding += split["padding"].get<int64_t>();
      for (const auto& bad : split["bad_samples"]) listed.insert(bad["index"].get<int64_t>());
    }
    CHECK(listed == std::multiset<int64_t>{0, 1});
    CHECK(valid == 48);
    CHECK(images == (replicas == 1 ? 56 : 72));
    CHECK(padding == images - 50);
  }
}

TEST_CASE("more unusable samples than the budget allows is an error that says so") {
  const TinyDataset data(50, "on_error: substitute\nbad_samples: {max_fraction: 0, max_count: 2}\n");
  spoil(data);
  DataLoader loader(data.job(), "train");
  for (int epoch = 0; epoch < 2; ++epoch) {
    try {
      for (auto& batch : loader) (void)batch;
      FAIL("the budget was not kept");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::dataset);
      CHECK(error.message().find("more than 2 samples") != std::string::npos);
      CHECK(error.remedy().find("bad_samples.max_") != std::string::npos);
    }
  }
  // Exactly as many as allowed is fine; the budget is per epoch.
  DataLoader enough(data.job(), "train", {.overrides = {"bad_samples.max_count=3"}});
  for (int epoch = 0; epoch < 2; ++epoch) {
    int64_t samples = 0;
    for (auto& batch : enough) samples += batch.size();
    CHECK(samples == 50);
  }
}

TEST_CASE("as long as one sample is usable it is found, by every way the same") {
  const TinyDataset data(50, "on_error: substitute\nbad_samples: {max_fraction: 1.0}\n");
  for (int i = 0; i < 50; ++i) {
    if (i != 12) data.folder().write("data/" + TinyDataset::name(i), "text");
  }
  const Hashes expected = direct(data.job(), "train", 1);
  for (const auto& way : ways()) {
    CAPTURE(text_of(way));
    CHECK(run(data.job(), "train", 1, way) == expected);
  }
  DataLoader loader(data.job(), "train");
  int64_t samples = 0;
  for (auto& batch : loader) {
    samples += batch.size();
    for (int64_t i = 0; i < batch.size(); ++i) CHECK(batch.indices()[i] == 22);  // in order of classes
  }
  CHECK(samples == 50);
  CHECK(parse_json(loader.stats_json())["splits"]["train"]["bad_samples"].size() == 49);
}

TEST_CASE("no usable sample at all: the substitutes run out, by name") {
  const TinyDataset data(5, "on_error: substitute\n");
  for (int i = 0; i < 5; ++i) data.folder().write("data/" + TinyDataset::name(i), "text");
  DataLoader loader(data.job(), "train");
  try {
    (void)loader.begin();
    FAIL("nothing failed");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    CHECK(error.message().find("substitutes") != std::string::npos);
  }
}

TEST_CASE("the balancer's log of a live run replays to the same decisions") {
  const TinyDataset data(50);
  const std::string log = data.folder().path("balancer.log");
  (void)run(data.job(), "train", 2, {"balancer.log=" + log, "loader.chunk_samples=3"});
  std::ifstream in(log);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  CHECK(text.size() > 1000);
  CHECK(replay_log(text).difference == "");
}

}  // namespace
}  // namespace penstock
