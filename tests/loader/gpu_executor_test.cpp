// GPUs beside the CPU: the same chunks, whatever GPUs take, have memory for, or fail at.
#include <doctest/doctest.h>
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <random>

#include "runtime/base/error.h"
#include "runtime/gpu/gpus.h"
#include "runtime/gpu/played/host_gpu.h"
#include "runtime/loader/executor.h"
#include "runtime/report/contact_sheet.h"
#include "tests/decode/jpeg_files.h"
#include "tests/support/faulty_gpu.h"
#include "tests/support/memory_source.h"

namespace penstock {
namespace {

using penstock_test::make_jpeg;
using penstock_test::random_spec;

constexpr int kPictures = 120;
constexpr auto kUntouched = std::byte{0x5A};

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

// JPEG of all kinds, and some that are none of a GPU's: PNG, damaged; texts that are too long, which is found when the
// image has been taken already.
std::vector<std::vector<std::byte>> make_files() {
  std::mt19937 random(9);
  std::vector<std::vector<std::byte>> files;
  for (int i = 0; i < kPictures; ++i) {
    penstock_test::JpegSpec spec = random_spec(random, 110);
    spec.width += 5;
    spec.progressive = i % 12 == 1;
    std::vector<std::byte> file = make_jpeg(spec);
    if (i % 12 == 4) file.resize(file.size() / 2);
    if (i % 12 == 7) {
      const std::vector<uint8_t> rgb(20 * 30 * 3, static_cast<uint8_t>(i));
      file = encode_png(rgb.data(), 20, 30);
    }
    files.push_back(std::move(file));
  }
  return files;
}

std::unique_ptr<Source> some_source(bool captions) {
  static const std::vector<std::vector<std::byte>> files = make_files();  // encoded once
  auto source = std::make_unique<MemorySource>(captions ? FieldTable{{"caption", FieldKind::text}} : FieldTable{});
  for (int i = 0; i < kPictures; ++i) {
    std::vector<std::vector<std::byte>> fields;
    if (captions) fields.push_back(bytes_of(std::string(i % 12 == 10 ? 101 : 10, 'a')));
    source->add("picture " + std::to_string(i), i % 7, files[static_cast<size_t>(i)], std::move(fields));
  }
  return source;
}

std::shared_ptr<const SplitContext> context_of(const std::string& keys, const std::string& pipeline,
                                               bool captions = true) {
  const std::string text = "limits: {max_field_bytes: 100}\n" + keys +
                           "splits: {s: {mode: train, dataset: {folder: x}, batch_size: 2, pipeline: [" + pipeline +
                           "]}}\n";
  return SplitContext::with_source(resolve_split(parse_job(text, "job.yaml"), "s"), some_source(captions));
}

const char* const kCrop = "{RandomResizedCrop: {size: [28, 36]}}, {RandomHorizontalFlip: {}}";

// All chunks of an epoch by an executor, by their number: the chunk buffer's bytes and the records' as they travel.
struct Chunk {
  std::vector<std::byte> chunk_buffer;
  Message records;
  std::string failure;
  int64_t of_first_list = 0;  // samples that the first of two lists made
  int64_t on_gpu = 0;         // images that were found in the GPU's shared memory; no part of the contents
  int64_t hashed = 0;         // of those, there alone
  friend bool operator==(const Chunk& a, const Chunk& b) {
    return a.chunk_buffer == b.chunk_buffer && a.records == b.records && a.failure == b.failure &&
           a.of_first_list == b.of_first_list;
  }
};

class Epoch {
 public:
  Epoch(std::shared_ptr<const SplitContext> context, size_t chunk_samples)
      : context_(std::move(context)), chunk_samples_(chunk_samples) {}

  void export_images() { exported_gpus_ = ~uint64_t{0}; }
  void submit(Executor& executor) {
    for (size_t first = 0; first < kPictures; first += chunk_samples_) {
      auto work = std::make_unique<ChunkWork>();
      work->lease.first_row = static_cast<int32_t>(first);
      for (size_t i = first; i < std::min<size_t>(first + chunk_samples_, kPictures); ++i) {
        const auto index = static_cast<int64_t>(i);
        work->lease.samples.push_back({index, index, 0, true});
      }
      work->split = context_;
      Chunk& chunk = chunks_[work->lease.first_row];
      chunk.chunk_buffer.assign(chunk_layout(context_->fields(), std::ssize(work->lease.samples)).total_bytes,
                                kUntouched);
      work->memory = chunk.chunk_buffer.data();
      work->exported_gpus = exported_gpus_;
      executor.submit(std::move(work));
    }
  }
  const std::map<int, Chunk>& collect(Executor& executor) {
    for (size_t left = chunks_.size(); left > 0;) {
      pollfd fd{executor.done_fd(), POLLIN, 0};
      REQUIRE_MESSAGE(::poll(&fd, 1, 30'000) == 1, "no chunk for 30 s");
      while (auto work = executor.next_done()) {
        Chunk& chunk = chunks_[work->lease.first_row];
        chunk.failure = work->failure;
        if (work->exported) look_into(executor, *work, chunk);
        // As it travels: behind a text its room has what somebody wrote before.
        if (chunk.failure.empty()) {
          chunk.chunk_buffer.resize(
              pack_chunk(context_->fields(), std::ssize(work->records), chunk.chunk_buffer.data()));
        }
        chunk.records = encode_envelope({}, work->records);
        for (const SampleRecord& record : work->records) {
          chunk.of_first_list += Variants::noted(record.draws) == Variant::cpu;
        }
        --left;
      }
    }
    return chunks_;
  }

 private:
  // As a receiver that reads and gives back at once.
  void look_into(Executor& executor, ChunkWork& work, Chunk& chunk) {
    BufferRanges& buffer_ranges = *executor.buffer_ranges(work.exported->gpu);
    const BufferRange& buffer_range = work.exported->buffer_range;
    const size_t each = context_->fields()[0].bytes_per_sample();
    REQUIRE(buffer_range.bytes == work.lease.samples.size() * each);
    CHECK(work.failure.empty());
    const FieldLayout layout = chunk_layout(context_->fields(), std::ssize(work.records));
    for (size_t i = 0; i < work.records.size(); ++i) {
      SampleRecord& record = work.records[i];
      const bool hashed = record.pixel_hash.has_value();
      REQUIRE((record.on_gpu || !hashed));
      if (!std::exchange(record.on_gpu, false)) continue;
      ++chunk.on_gpu;
      std::byte* const image = chunk.chunk_buffer.data() + i * each;  // the first field
      const std::span<const std::byte> there(buffer_range.data + i * each, each);
      if (!hashed) {
        CHECK(std::memcmp(there.data(), image, each) == 0);
        continue;
      }
      ++chunk.hashed;
      CHECK(std::all_of(image, image + each, [](std::byte b) { return b == kUntouched; }));
      std::memcpy(image, there.data(), each);
      int64_t label = 0;
      std::memcpy(&label, chunk.chunk_buffer.data() + layout.offsets[1] + i * sizeof label, sizeof label);
      StreamHash hash;
      hash.add(hashed_record_of("s", work.lease.epoch, record, label), std::vector{there});
      CHECK(*std::exchange(record.pixel_hash, std::nullopt) == hash.pixel);
    }
    CHECK(chunk.on_gpu > 0);
    CHECK(buffer_ranges.export_range(buffer_range.id, 0));
    buffer_ranges.give_back(buffer_range.id, 0);
  }

  std::shared_ptr<const SplitContext> context_;
  size_t chunk_samples_;
  uint64_t exported_gpus_ = 0;
  std::map<int, Chunk> chunks_;
};

std::map<int, Chunk> all_chunks(Executor& executor, const std::shared_ptr<const SplitContext>& context,
                                size_t samples) {
  Epoch epoch(context, samples);
  epoch.submit(executor);
  return epoch.collect(executor);
}

struct GpuSetup {
  int threads = 2;
  int gpus = 1;
  InFlightOptions in_flight_batches{.memory_bytes = int64_t{48} << 20};
  size_t gpu_bytes = size_t{64} << 20;
  std::shared_ptr<GpuFaults> faults = std::make_shared<GpuFaults>();
};

class Notices {
 public:
  void add(const std::string& text) {
    MutexLock lock(mutex_);
    all_ += text + "\n";
  }
  std::string all() const {
    MutexLock lock(mutex_);
    return all_;
  }

 private:
  mutable Mutex mutex_;
  std::string all_ PENSTOCK_GUARDED_BY(mutex_);
};

std::unique_ptr<Executor> with_gpus(const GpuSetup& setup, Notices& notices) {
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (int i = 0; i < setup.gpus; ++i) {
    gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(i, setup.gpu_bytes), setup.faults));
  }
  return make_gpu_executor(setup.threads, {}, std::move(gpus), setup.in_flight_batches,
                           [&notices](const std::string& text) { notices.add(text); });
}

int64_t images_of(const ExecutorFigures& figures) {
  int64_t images = 0;
  for (const GpuFigures& gpu : figures.gpus) images += gpu.images;
  return images;
}

TEST_CASE("with GPUs, every chunk is what the CPU alone makes") {
  Notices notices;
  for (const char* const keys : {"on_error: fail\n", "on_error: substitute\n"}) {
    for (const char* const pipeline :
         {kCrop, "{Resize: {size: 40}}, {CenterCrop: {size: 32}}, {RandomInvert: {p: 0.3}}",
          "{RandomCrop: {size: 32, padding: 4, pad_if_needed: true}}, {ToDtype: {dtype: float32, scale: true}}"}) {
      const auto context = context_of(keys, pipeline);
      const auto cpu = make_cpu_executor(2, {});
      for (const size_t samples : {size_t{1}, size_t{7}, size_t{50}}) {
        const auto wanted = all_chunks(*cpu, context, samples);
        const auto executor = with_gpus({.threads = samples == 7 ? 4 : 2, .gpus = samples == 50 ? 2 : 1}, notices);
        CHECK(all_chunks(*executor, context, samples) == wanted);
        const ExecutorFigures figures = executor->figures();
        CHECK(figures.samples == kPictures);
        // A GPU may be the first to find out that a file is damaged.
        CHECK(figures.remade <= kPictures / 12);
        CHECK(images_of(figures) > 0);
      }
    }
  }
  CHECK(notices.all().empty());
}

// Images that were exported, and those of them that were nowhere else.
std::pair<int64_t, int64_t> exported_images(Executor& executor, const std::shared_ptr<const SplitContext>& context,
                                            size_t samples, const std::map<int, Chunk>& wanted) {
  Epoch epoch(context, samples);
  epoch.export_images();
  epoch.submit(executor);
  const auto& chunks = epoch.collect(executor);
  CHECK(chunks == wanted);
  for (const GpuFigures& gpu : executor.figures().gpus) {
    if (gpu.exported) CHECK(gpu.exported->buffer_ranges.out == 0);  // what nobody reads is free again
  }
  std::pair<int64_t, int64_t> images;
  for (const auto& [number, chunk] : chunks) {
    images.first += chunk.on_gpu;
    images.second += chunk.hashed;
  }
  return images;
}

TEST_CASE("images that one GPU has made of a chunk are in its shared memory, with their hashes") {
  const auto cpu = make_cpu_executor(2, {});
  Notices notices;
  GpuSetup setup{.in_flight_batches = {
                     .memory_bytes = int64_t{24} << 20, .in_flight_batches = 10, .exported_bytes = int64_t{1} << 20}};
  for (const bool captions : {true, false}) {
    const auto context = context_of("on_error: substitute\n", kCrop, captions);
    for (const size_t samples : {size_t{1}, size_t{3}, size_t{50}}) {
      const auto wanted = all_chunks(*cpu, context, samples);
      for (const int gpus : {1, 2}) {
        setup.gpus = gpus;
        const auto executor = with_gpus(setup, notices);
        const auto [exported, hashed] = exported_images(*executor, context, samples, wanted);
        const int64_t images = images_of(executor->figures());
        INFO(samples, " samples a chunk, ", gpus, " GPUs, ", captions ? "with captions" : "images and labels");
        CHECK(images > 0);
        // A chunk of fifty has an in-flight batch of each of two GPUs, or in-flight batches that are filled one after
        // the other.
        if (gpus == 1) CHECK(exported == images);
        CHECK((exported <= images && exported > images / 4));
        // What is hashed behind the image is nothing that a GPU knows.
        CHECK(hashed == (captions ? 0 : exported));
        CHECK(all_chunks(*executor, context, samples) == wanted);  // not asked for
      }
    }
  }
  CHECK(notices.all().empty());
}

TEST_CASE("without room for a chunk, without shared memory, and of a GPU that fails, chunks go by the host") {
  const auto context = context_of("on_error: substitute\n", kCrop, false);
  const auto wanted = all_chunks(*make_cpu_executor(2, {}), context, 2);
  Notices notices;
  GpuSetup setup{
      .in_flight_batches = {.memory_bytes = int64_t{24} << 20, .in_flight_batches = 10, .exported_bytes = 3 * 28 * 36}};
  SUBCASE("too small for two images") {
    const auto executor = with_gpus(setup, notices);
    CHECK(exported_images(*executor, context, 2, wanted).first == 0);
    CHECK(executor->figures().gpus[0].exported->buffer_ranges.refused > 0);
    CHECK(notices.all().empty());
  }
  SUBCASE("the driver exports none") {
    setup.faults->most_exported_bytes = 0;
    const auto executor = with_gpus(setup, notices);
    CHECK(exported_images(*executor, context, 2, wanted).first == 0);
    CHECK(notices.all().find("GPU 0 (this CPU) delivers by the host: a GPU of the test exports no memory") !=
          std::string::npos);
    CHECK(images_of(executor->figures()) > 0);
  }
  SUBCASE("the GPU fails at any of its calls") {
    setup.in_flight_batches.exported_bytes = int64_t{1} << 20;
    for (const int calls : {0, 1, 7, 20, 60}) {
      for (const GpuFault fault : {GpuFault::failed, GpuFault::out_of_memory}) {
        setup.faults = std::make_shared<GpuFaults>();
        const auto executor = with_gpus(setup, notices);
        if (fault == GpuFault::failed) setup.faults->after(calls, fault);
        if (fault == GpuFault::out_of_memory) setup.faults->once(calls, fault);
        (void)exported_images(*executor, context, 2, wanted);
        CHECK(executor->figures().remade > 0);
      }
    }
  }
}

TEST_CASE("of two lists any executor makes either, and GPUs get the images of theirs") {
  Notices notices;
  const auto of = [](double fraction) {
    return context_of("on_error: substitute\n",
                      std::string(kCrop) + "], cpu_fraction: " + std::to_string(fraction) +
                          ", gpu_pipeline: [{Resize: {size: [28, 36]}}, {RandomInvert: {p: 0.1}}");
  };
  const auto one_list = all_chunks(*make_cpu_executor(2, {}), context_of("on_error: substitute\n", kCrop), 12);
  for (const double fraction : {0.0, 0.4, 1.0}) {
    const auto context = of(fraction);
    const auto wanted = all_chunks(*make_cpu_executor(3, {}), context, 12);
    CHECK(wanted != one_list);  // the record says the variant
    int64_t first = 0;
    for (const auto& [row_index, chunk] : wanted) first += chunk.of_first_list;
    CHECK(first >= static_cast<int64_t>(fraction * kPictures * 0.6));
    CHECK(first <= static_cast<int64_t>(fraction * kPictures * 1.4));
    for (const int threads : {1, 4}) {
      const auto executor = with_gpus(
          {.threads = threads, .in_flight_batches = {.memory_bytes = int64_t{24} << 20, .in_flight_batches = 10}},
          notices);
      CHECK(all_chunks(*executor, context, 12) == wanted);
      const int64_t images = images_of(executor->figures());
      if (fraction == 1.0) CHECK(images == 0);
      if (fraction < 1.0) CHECK(images > 0);
      CHECK(images <= kPictures - first);
    }
  }
}

TEST_CASE("with one list a share may be kept from the GPUs, and nothing changes") {
  const auto context = context_of("on_error: fail\n", kCrop);
  const auto wanted = all_chunks(*make_cpu_executor(2, {}), context, 12);
  std::vector<int64_t> images;
  for (const double fraction : {0.0, 0.5, 1.0}) {
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(open_host_gpu(0, size_t{64} << 20));
    const auto executor = make_gpu_executor(1, {}, std::move(gpus),
                                            {.memory_bytes = int64_t{24} << 20, .in_flight_batches = 10}, {}, fraction);
    CHECK(all_chunks(*executor, context, 12) == wanted);
    images.push_back(images_of(executor->figures()));
  }
  CHECK(images[0] >= kPictures * 9 / 12);
  CHECK(images[1] > images[0] / 4);
  CHECK(images[1] < images[0] * 3 / 4);
  CHECK(images[2] == 0);
}

TEST_CASE("in-flight batches are taken of the GPU where the wait is least, while it has any") {
  std::vector<std::unique_ptr<Gpu>> gpus;
  for (int i = 0; i < 3; ++i) gpus.push_back(open_host_gpu(i, size_t{64} << 20));
  InFlightBatches in_flight_batches(std::move(gpus), {.memory_bytes = int64_t{8} << 20, .in_flight_batches = 2},
                                    [](InFlightBatch&, const GpuError*) {});
  const std::vector<double> waits = {0.5, 0.1, 0.3};
  std::vector<size_t> taken;
  for (InFlightBatch* in_flight;
       (in_flight = in_flight_batches.take([&](size_t gpu) { return waits[gpu]; })) != nullptr;) {
    taken.push_back(in_flight->gpu);
  }
  CHECK(taken == std::vector<size_t>{1, 1, 2, 2, 0, 0});
}

TEST_CASE("a GPU that a trainer shares has one batch at a time, and rests behind each") {
  constexpr int kBatches = 6;
  constexpr Nanoseconds kBatch = 4'000'000;  // at least
  const auto faults = std::make_shared<GpuFaults>();
  faults->slow_ms = kBatch / 1'000'000;
  std::vector<std::unique_ptr<Gpu>> gpus;
  gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(0, size_t{16} << 20), faults));
  std::atomic<int> failed = 0;
  std::atomic<int> done = 0;
  InFlightBatches* all = nullptr;
  InFlightBatches in_flight_batches(std::move(gpus),
                                    {.memory_bytes = int64_t{8} << 20, .in_flight_batches = 2, .duty = 0.5},
                                    [&](InFlightBatch& in_flight, const GpuError* error) {
                                      failed += error != nullptr ? 1 : 0;
                                      all->give_back(in_flight);
                                      ++done;
                                    });
  all = &in_flight_batches;
  const MonotonicClock clock;
  const Nanoseconds begun = clock.now();
  for (int submitted = 0; submitted < kBatches;) {
    if (InFlightBatch* const in_flight = in_flight_batches.take()) {
      REQUIRE(in_flight->batch.begin(1, 8, 8));
      in_flight_batches.submit(*in_flight);
      ++submitted;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  while (done < kBatches) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Nanoseconds elapsed = clock.now() - begun;
  CHECK(failed == 0);
  // One after the other, and behind each but the last a rest as long as the batch was.
  const Nanoseconds active = in_flight_batches.figures().at(0).active_ns;
  CHECK(active >= kBatches * kBatch);
  CHECK(elapsed >= active + (kBatches - 1) * kBatch);
}

TEST_CASE("by learned speeds, chunks are the CPU's too, by GPUs of different speeds") {
  const auto slow = std::make_shared<GpuFaults>();
  slow->slow_ms = 60;
  for (const char* const pipeline :
       {kCrop, "{Resize: {size: 40}}, {CenterCrop: {size: 32}}, {RandomInvert: {p: 0.3}}"}) {
    const auto context = context_of("on_error: substitute\n", pipeline);
    for (const size_t samples : {size_t{1}, size_t{7}, size_t{40}}) {
      const auto wanted = all_chunks(*make_cpu_executor(2, {}), context, samples);
      std::vector<std::unique_ptr<Gpu>> gpus;
      gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(0, size_t{64} << 20), slow));
      gpus.push_back(open_host_gpu(1, size_t{64} << 20));
      const auto executor =
          make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{48} << 20, .in_flight_batches = 3}, {},
                            CpuFraction::automatic());
      for (int epoch = 0; epoch < 4; ++epoch) CHECK(all_chunks(*executor, context, samples) == wanted);
      const ExecutorFigures figures = executor->figures();
      CHECK(figures.samples == 4 * kPictures);
      REQUIRE(figures.by_speed);
      CHECK(figures.by_speed->gpu_share > 0);
      CHECK(figures.by_speed->make_ns > 0);
      CHECK(figures.fed >= images_of(figures));
      CHECK(images_of(figures) > 0);
      CHECK(images_of(figures) < 4 * kPictures);
      for (const GpuFigures& gpu : figures.gpus) CHECK(gpu.active_ns <= gpu.busy_ns + 1'000'000 * gpu.batches);
    }
  }
}

TEST_CASE("by learned speeds, GPUs that fail leave everything to the CPU") {
  const auto context = context_of("on_error: substitute\n", kCrop);
  const auto wanted = all_chunks(*make_cpu_executor(2, {}), context, 8);
  for (const GpuFault fault : {GpuFault::failed, GpuFault::lost, GpuFault::out_of_memory}) {
    const auto faults = std::make_shared<GpuFaults>();
    if (fault == GpuFault::out_of_memory) faults->once(8, fault);
    if (fault != GpuFault::out_of_memory) faults->after(8, fault);
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(0, size_t{64} << 20), faults));
    const auto executor =
        make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{48} << 20, .in_flight_batches = 3}, {},
                          CpuFraction::automatic());
    for (int epoch = 0; epoch < 4; ++epoch) CHECK(all_chunks(*executor, context, 8) == wanted);
    CHECK(executor->figures().remade > 0);
    const double share = executor->figures().by_speed->gpu_share;
    if (fault != GpuFault::out_of_memory) CHECK(share == 0);
    if (fault == GpuFault::out_of_memory) CHECK(share > 0);  // it has memory again
  }
}

TEST_CASE("every sample is finished once, by a thread of the pool, whoever made it") {
  const auto context = context_of("on_error: substitute\n", kCrop);
  for (const int fails_after : {1'000'000, 6}) {
    const auto faults = std::make_shared<GpuFaults>();
    faults->after(fails_after, GpuFault::failed);
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(0, size_t{64} << 20), faults));
    const auto executor =
        make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{48} << 20, .in_flight_batches = 3}, {});
    constexpr size_t kSamples = 60;
    const std::vector<std::byte> file = make_jpeg({.width = 60, .height = 40});
    std::vector<std::byte> chunk_buffer(chunk_layout(context->fields(), kSamples).total_bytes);
    std::vector<std::atomic<int>> finished(kSamples);
    const size_t bytes = context->fields()[0].bytes_per_sample();
    auto work = std::make_unique<ChunkWork>();
    work->lease.samples.resize(kSamples);
    work->split = context;
    work->memory = chunk_buffer.data();
    work->make = [&](SampleMaker& maker, size_t i, std::span<std::byte* const> fields) {
      SampleRecord record;
      CHECK(maker.make_image(file, {1, 0, i, 0}, fields[0], record).ok());
      return record;
    };
    // What it sees is the image: nothing is written there behind it.
    std::vector<std::vector<std::byte>> seen(kSamples);
    work->finish = [&](size_t i) {
      ++finished[i];
      char thread[16] = {};
      CHECK(::pthread_getname_np(::pthread_self(), thread, sizeof thread) == 0);
      CHECK(std::string_view(thread) == "penstock-cpu");
      seen[i].assign(chunk_buffer.begin() + static_cast<std::ptrdiff_t>(i * bytes),
                     chunk_buffer.begin() + static_cast<std::ptrdiff_t>((i + 1) * bytes));
    };
    executor->submit(std::move(work));
    std::unique_ptr<ChunkWork> done;
    while ((done = executor->next_done()) == nullptr) {
      pollfd fd{executor->done_fd(), POLLIN, 0};
      REQUIRE_MESSAGE(::poll(&fd, 1, 30'000) == 1, "no chunk for 30 s");
    }
    CHECK(done->failure.empty());
    CHECK(executor->figures().fed > 0);
    CHECK((executor->figures().remade > 0) == (fails_after == 6));
    SampleMaker alone(context);
    for (size_t i = 0; i < kSamples; ++i) {
      CHECK(finished[i] == 1);
      std::vector<std::byte> wanted(bytes);
      SampleRecord record;
      CHECK(alone.make_image(file, {1, 0, i, 0}, wanted.data(), record).ok());
      CHECK(seen[i] == wanted);
    }
  }
}

TEST_CASE("a GPU alone on a thread gets every image that is for GPUs") {
  // One thread and chunks that are collected one by one: an in-flight batch is always free.
  Notices notices;
  const auto context = context_of("on_error: fail\n", kCrop);
  const auto executor = with_gpus(
      {.threads = 1, .in_flight_batches = {.memory_bytes = int64_t{24} << 20, .in_flight_batches = 10}}, notices);
  (void)all_chunks(*executor, context, 12);
  // 120 less the PNG and too-long ones; damaged ones where the crop reached the damage.
  const int64_t images = images_of(executor->figures());
  CHECK(images >= kPictures * 9 / 12);
  CHECK(images <= kPictures * 10 / 12);
}

TEST_CASE("where a GPU is short of memory, batches are smaller, and what does not fit is the CPU's") {
  Notices notices;
  const auto context = context_of("on_error: fail\n", kCrop);
  const auto cpu = make_cpu_executor(2, {});
  const auto wanted = all_chunks(*cpu, context, 60);
  int64_t before = 0;
  for (const size_t most : {size_t{16} << 20, size_t{3} << 20, size_t{1} << 20}) {
    GpuSetup setup;
    setup.faults->most_bytes = most;
    const auto executor = with_gpus(setup, notices);
    CHECK(all_chunks(*executor, context, 60) == wanted);
    const ExecutorFigures figures = executor->figures();
    REQUIRE(figures.gpus.size() == 1);
    CHECK(figures.gpus[0].memory_bytes <= 3 * static_cast<int64_t>(most));
    CHECK(figures.gpus[0].images > 0);
    CHECK(figures.gpus[0].batches >= before);
    before = figures.gpus[0].batches;
  }
  CHECK(before > 2);
  CHECK(notices.all().empty());

  GpuSetup none;
  none.faults->most_bytes = 1000;
  CHECK_THROWS_WITH_AS(with_gpus(none, notices), doctest::Contains("no GPU has memory for a batch"), Error);
}

TEST_CASE("a GPU that is left out beside one that works is named, with the reason") {
  Notices notices;
  const auto context = context_of("on_error: fail\n", kCrop);
  const auto short_of_memory = std::make_shared<GpuFaults>();
  short_of_memory->most_bytes = 1000;
  std::vector<std::unique_ptr<Gpu>> gpus;
  gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(4, size_t{64} << 20), short_of_memory));
  gpus.push_back(open_host_gpu(5, size_t{64} << 20));
  const auto executor =
      make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{48} << 20, .in_flight_batches = 3},
                        [&](const std::string& text) { notices.add(text); });
  CHECK(notices.all().starts_with("GPU 4 ("));
  CHECK(notices.all().find("is left out: a GPU of the test is short of memory") != std::string::npos);
  CHECK(all_chunks(*executor, context, 12) == all_chunks(*make_cpu_executor(2, {}), context, 12));
  const ExecutorFigures figures = executor->figures();
  REQUIRE(figures.gpus.size() == 2);
  CHECK(figures.gpus[0].in_flight_batches == 0);
  CHECK(figures.gpus[0].failure == "a GPU of the test is short of memory");
  CHECK(figures.gpus[1].in_flight_batches == 3);
  CHECK(figures.gpus[1].failure.empty());
  CHECK(figures.gpus[1].images > 0);
}

TEST_CASE("a picture larger than an in-flight batch leaves the in-flight batch to others") {
  const auto context = context_of("on_error: fail\n", "{Resize: {size: [28, 36]}}");
  const std::vector<std::byte> large = make_jpeg({.width = 1400, .height = 1400, .h = 1, .v = 1});
  const std::vector<std::byte> small = make_jpeg({.width = 60, .height = 40});
  std::vector<std::unique_ptr<Gpu>> gpus;
  gpus.push_back(open_host_gpu(0, size_t{64} << 20));
  const auto executor =
      make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{3} << 20, .in_flight_batches = 1}, {});

  const size_t chunk_buffer_bytes = chunk_layout(context->fields(), 1).total_bytes;
  std::vector<std::byte> chunk_buffers[2] = {std::vector<std::byte>(chunk_buffer_bytes),
                                             std::vector<std::byte>(chunk_buffer_bytes)};
  std::promise<void> large_made;
  std::promise<void> small_made;
  const auto work_of = [&](size_t number, auto make) {
    auto work = std::make_unique<ChunkWork>();
    work->lease.samples.resize(1);
    work->split = context;
    work->memory = chunk_buffers[number].data();
    work->make = make;
    return work;
  };
  // The large one's chunk goes on until the small one's is done.
  executor->submit(work_of(0, [&](SampleMaker& maker, size_t, std::span<std::byte* const> fields) {
    SampleRecord record;
    CHECK(maker.make_image(large, {}, fields[0], record).ok());
    large_made.set_value();
    CHECK(small_made.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
    return record;
  }));
  REQUIRE(large_made.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready);
  executor->submit(work_of(1, [&](SampleMaker& maker, size_t, std::span<std::byte* const> fields) {
    SampleRecord record;
    CHECK(maker.make_image(small, {}, fields[0], record).ok());
    return record;
  }));
  const auto await_one = [&] {
    while (executor->next_done() == nullptr) {
      pollfd fd{executor->done_fd(), POLLIN, 0};
      REQUIRE_MESSAGE(::poll(&fd, 1, 30'000) == 1, "no chunk for 30 s");
    }
  };
  await_one();
  CHECK(executor->figures().gpus.at(0).images == 1);
  small_made.set_value();
  await_one();
  CHECK(executor->figures().gpus.at(0).images == 1);
}

TEST_CASE("a GPU that fails, wherever: the CPU makes what it had, and it is said") {
  const auto context = context_of("on_error: substitute\n", kCrop);
  const auto cpu = make_cpu_executor(2, {});
  const auto wanted = all_chunks(*cpu, context, 8);
  int remade = 0;
  for (const GpuFault fault : {GpuFault::failed, GpuFault::lost, GpuFault::out_of_memory}) {
    for (const int calls : {0, 1, 5, 7, 11}) {
      INFO("fault ", static_cast<int>(fault), " after ", calls);
      Notices notices;
      GpuSetup setup;
      if (fault == GpuFault::out_of_memory) {
        setup.faults->once(calls, fault);
      } else {
        setup.faults->after(calls, fault);
      }
      const auto executor = with_gpus(setup, notices);
      CHECK(all_chunks(*executor, context, 8) == wanted);
      CHECK(all_chunks(*executor, context, 8) == wanted);
      const ExecutorFigures figures = executor->figures();
      CHECK(figures.samples == 2 * kPictures);
      CHECK(notices.all().find("a fault of the test; the CPU makes what it had") != std::string::npos);
      // A GPU that has failed is left alone; one that only wanted memory is not.
      CHECK(figures.gpus[0].failure.empty() == (fault == GpuFault::out_of_memory));
      if (fault != GpuFault::out_of_memory) CHECK(figures.gpus[0].batches <= 3);
      remade += static_cast<int>(figures.remade);
    }
  }
  std::printf("%d images made again\n", remade);
  CHECK(remade > 15);
}

TEST_CASE("images that GPUs have are nobody's, until they are made") {
  const auto context = context_of("on_error: fail\n", "{Resize: {size: [28, 36]}}");
  const std::vector<std::byte> file = make_jpeg({.width = 60, .height = 40});
  for (const bool fails : {false, true}) {
    const auto faults = std::make_shared<GpuFaults>();
    faults->slow_ms = 400;
    if (fails) faults->after(2, GpuFault::failed);
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(std::make_unique<FaultyGpu>(open_host_gpu(0, size_t{64} << 20), faults));
    const auto executor =
        make_gpu_executor(2, {}, std::move(gpus), {.memory_bytes = int64_t{24} << 20, .in_flight_batches = 1}, {});
    constexpr int kSamples = 12;
    std::vector<std::byte> chunk_buffer(chunk_layout(context->fields(), kSamples).total_bytes);
    auto work = std::make_unique<ChunkWork>();
    work->lease.samples.resize(kSamples);
    work->split = context;
    work->memory = chunk_buffer.data();
    work->make = [&](SampleMaker& maker, size_t i, std::span<std::byte* const> fields) {
      SampleRecord record;
      CHECK(maker.make_image(file, {1, 0, i, 0}, fields[0], record).ok());
      return record;
    };
    executor->submit(std::move(work));
    ExecutorFigures figures;
    std::unique_ptr<ChunkWork> done;
    while ((done = executor->next_done()) == nullptr) {
      figures = executor->figures();
      if (!fails) CHECK(figures.cpu_images() == 0);
      pollfd fd{executor->done_fd(), POLLIN, 0};
      (void)::poll(&fd, 1, 5);
    }
    figures = executor->figures();
    CHECK(figures.cpu_images() == (fails ? kSamples : 0));
    CHECK(images_of(figures) + figures.cpu_images() == kSamples);
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("where an in-flight batch's thread cannot be had, it is said") {
  std::vector<std::unique_ptr<Gpu>> gpus;
  gpus.push_back(open_host_gpu(0, size_t{1} << 30));
  constexpr int kInFlight = 200;
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  // Room for the in-flight batches' memory, and for some of the threads' stacks.
  std::ifstream status("/proc/self/statm");
  rlim_t pages = 0;
  status >> pages;
  REQUIRE(pages > 0);
  rlimit tight = before;
  tight.rlim_cur =
      pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{kInFlight} << 21) + (rlim_t{64} << 20);
  REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
  std::string said;
  try {
    const InFlightBatches in_flight_batches(std::move(gpus),
                                            {.memory_bytes = int64_t{kInFlight} << 20, .in_flight_batches = kInFlight},
                                            [](InFlightBatch&, const GpuError*) {});
  } catch (const Error& error) {
    said = error.message();
  }
  REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(said.starts_with("cannot start 200 threads for GPUs: "));
}
#endif

TEST_CASE("an executor may go while GPUs are at work") {
  Notices notices;
  const auto context = context_of("on_error: fail\n", kCrop);
  for (int i = 0; i < 10; ++i) {
    auto executor = with_gpus({}, notices);
    Epoch epoch(context, 10);
    epoch.submit(*executor);
    if (i > 4) std::this_thread::sleep_for(std::chrono::milliseconds(i));
    executor.reset();  // before the chunk buffers
  }
}

TEST_CASE("loaders of a node take its GPUs from the last one down") {
  CHECK(chosen_gpus({.count = 1, .loader_number = 0}, 4) == std::vector<int>{3});
  CHECK(chosen_gpus({.count = 1, .loader_number = 1}, 4) == std::vector<int>{2});
  CHECK(chosen_gpus({.count = 2, .loader_number = 1}, 4) == std::vector<int>{1, 0});
  CHECK(chosen_gpus({.count = 2, .loader_number = 2}, 4) == std::vector<int>{3, 2});  // shared: there are no more
  CHECK(chosen_gpus({.count = 9, .loader_number = 0}, 2) == std::vector<int>{1, 0});
  CHECK(chosen_gpus({.count = 1, .loader_number = 5}, 1) == std::vector<int>{0});
}

}  // namespace
}  // namespace penstock
