// GPUs whose library decodes in jobs of arithmetic `fast`: which images it gets, and that whatever it does no sample
// is another one, lost, or judged otherwise. The library here is the CPU's decoder at full size
// (gpu/played/host_gpu.h), so what it makes has the bytes of arithmetic `exact`.
#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>

#include "runtime/base/thread_annotations.h"
#include "runtime/gpu/played/host_gpu.h"
#include "runtime/loader/executor.h"
#include "tests/decode/jpeg_files.h"
#include "tests/support/memory_source.h"

namespace penstock::gpu_library_test {
namespace {

using penstock_test::JpegSpec;
using penstock_test::make_jpeg;

constexpr int kPictures = 96;
constexpr int kChunk = 8;

enum class Kind : uint8_t { indexed, bare, progressive, grey, damaged, cut };  // cut: behind its index

Kind kind_of(int64_t i) {
  constexpr Kind kinds[] = {Kind::indexed, Kind::indexed, Kind::bare,        Kind::indexed, Kind::grey,
                            Kind::indexed, Kind::damaged, Kind::progressive, Kind::cut};
  return kinds[i % 9];
}

int64_t count(Kind kind) {
  int64_t n = 0;
  for (int64_t i = 0; i < kPictures; ++i) n += kind_of(i) == kind ? 1 : 0;
  return n;
}

struct Photo {
  std::vector<std::byte> file;
  std::string index;
};

std::vector<Photo> make_photos() {
  std::vector<Photo> photos;
  for (int i = 0; i < kPictures; ++i) {
    const Kind kind = kind_of(i);
    JpegSpec spec{.width = 90 + 7 * (i % 31), .height = 300 - 5 * (i % 37), .h = 1 + i % 2, .v = 1 + i / 2 % 2};
    spec.progressive = kind == Kind::progressive;
    spec.grey = kind == Kind::grey;
    spec.seed = static_cast<uint32_t>(i) + 1;
    std::vector<std::byte> file = make_jpeg(spec);
    SideIndex index;
    const bool indexed = build_side_index(file, {}, index);
    if (kind == Kind::damaged || kind == Kind::cut) file.resize(i % 2 == 0 ? file.size() / 3 : file.size() - 60);
    const bool given = indexed && (kind == Kind::indexed || kind == Kind::grey || kind == Kind::cut);
    photos.push_back({std::move(file), given ? index.serialise() : std::string()});
  }
  return photos;
}

std::unique_ptr<Source> photos() {
  static const std::vector<Photo> once = make_photos();  // encoding and indexing them is most of the work
  auto source = std::make_unique<MemorySource>();
  for (size_t i = 0; i < once.size(); ++i) {
    source->add("photo " + std::to_string(i), static_cast<int64_t>(i % 3), once[i].file);
    if (!once[i].index.empty()) source->add_index(once[i].index);
  }
  return source;
}

std::shared_ptr<const SplitContext> context_of(const std::string& arithmetic, const std::string& pipeline) {
  const std::string text = "arithmetic: " + arithmetic +
                           "\non_error: substitute\nbad_samples: {max_fraction: 1, max_count: 1000}\n"
                           "splits: {s: {mode: eval, dataset: {folder: x}, batch_size: 8, pipeline: [" +
                           pipeline + "]}}\n";
  return SplitContext::with_source(resolve_split(parse_job(text, "job.yaml"), "s"), photos());
}

const std::string kCrop = "{RandomResizedCrop: {size: 24, scale: [0.2, 1]}}, {RandomHorizontalFlip: {}}";

struct Epoch {
  std::vector<std::vector<std::byte>> images;
  std::vector<Message> records;  // as they travel: keys, statuses, draws, labels
};

Epoch epoch_of(Executor& executor, const std::shared_ptr<const SplitContext>& context) {
  Epoch epoch;
  epoch.images.resize(kPictures);
  epoch.records.resize(kPictures);
  std::map<int, std::vector<std::byte>> chunk_buffers;
  for (int first = 0; first < kPictures; first += kChunk) {
    auto work = std::make_unique<ChunkWork>();
    work->lease.first_row = first;
    for (int64_t i = first; i < first + kChunk; ++i) work->lease.samples.push_back({i, i, 0, true});
    work->split = context;
    chunk_buffers[first].resize(chunk_layout(context->fields(), kChunk).total_bytes);
    work->memory = chunk_buffers[first].data();
    executor.submit(std::move(work));
  }
  const size_t bytes = context->fields()[0].bytes_per_sample();
  for (size_t left = chunk_buffers.size(); left > 0;) {
    pollfd fd{executor.done_fd(), POLLIN, 0};
    REQUIRE_MESSAGE(::poll(&fd, 1, 30'000) == 1, "no chunk for 30 s");
    while (auto work = executor.next_done()) {
      REQUIRE(work->failure == "");
      const FieldLayout layout = chunk_layout(context->fields(), kChunk);
      for (size_t i = 0; i < kChunk; ++i) {
        const std::byte* const image = work->memory + layout.offsets[0] + i * bytes;
        const size_t row_index = static_cast<size_t>(work->lease.first_row) + i;
        epoch.images[row_index].assign(image, image + bytes);
        epoch.records[row_index] = encode_envelope({}, {work->records[i]});
      }
      --left;
    }
  }
  return epoch;
}

// Made once for all test cases.
const Epoch& by_cpu(const std::string& arithmetic, const std::string& pipeline) {
  static std::map<std::pair<std::string, std::string>, Epoch> made;
  const auto key = std::pair(arithmetic, pipeline);
  if (!made.contains(key)) made[key] = epoch_of(*make_cpu_executor(2, {}), context_of(arithmetic, pipeline));
  return made.at(key);
}

// One thread and more in-flight batches than chunks: whatever a GPU takes it gets.
struct Run {
  explicit Run(const std::string& arithmetic = "fast", const std::string& pipeline = kCrop)
      : arithmetic_(arithmetic), pipeline_(pipeline) {}

  Epoch go(std::shared_ptr<HostLibrary> library, std::optional<ChromaUpsampling> setup = ChromaUpsampling::interpolated,
           int epochs = 1) {
    std::vector<std::unique_ptr<Gpu>> gpus;
    gpus.push_back(open_host_gpu(0, size_t{256} << 20, std::move(library)));
    InFlightOptions in_flight_batches{.memory_bytes = int64_t{200} << 20, .in_flight_batches = 14};
    in_flight_batches.library = setup;
    const auto executor = make_gpu_executor(1, {}, std::move(gpus), in_flight_batches, [this](const std::string& text) {
      MutexLock lock(mutex);
      ++notices[text];
    });
    const auto context = context_of(arithmetic_, pipeline_);
    Epoch epoch;
    for (int i = 0; i < epochs; ++i) epoch = epoch_of(*executor, context);
    figures = executor->figures();
    return epoch;
  }
  int64_t refused(Refusal refusal) const { return figures.gpus[0].library->refused[static_cast<size_t>(refusal)]; }
  int64_t missed(LibraryMiss miss) const { return figures.library_missed[static_cast<size_t>(miss)]; }
  // All are one text, which contains `part`.
  int told(const std::string& part) const {
    int times = 0;
    for (const auto& [text, n] : notices) times += text.find(part) != std::string::npos ? n : 0;
    return times;
  }

  ExecutorFigures figures;
  Mutex mutex;
  std::map<std::string, int> notices;

 private:
  std::string arithmetic_;
  std::string pipeline_;
};

TEST_CASE("the library decodes what an index has shown to be sound, the others are as without it") {
  for (const std::string& pipeline :
       {kCrop, std::string("{Resize: {size: [24, 24]}}"), std::string("{CenterCrop: {size: 24}}, {RandomInvert: {}}"),
        std::string("{RandomRotation: {degrees: 20}}, {Resize: {size: [24, 24]}}"),
        std::string(
            "{Pad: {padding: 9}}, {RandomCrop: {size: 200, pad_if_needed: true}}, {Resize: {size: [24, 24]}}")}) {
    CAPTURE(pipeline);
    const Epoch exact = by_cpu("exact", pipeline);
    const Epoch fast = by_cpu("fast", pipeline);
    REQUIRE(exact.records == fast.records);  // what `fast` promises
    Run run("fast", pipeline);
    const Epoch made = run.go(std::make_shared<HostLibrary>());
    CHECK(made.records == fast.records);
    for (int64_t i = 0; i < kPictures; ++i) {
      CAPTURE(i);
      const auto n = static_cast<size_t>(i);
      CHECK(made.images[n] == (kind_of(i) == Kind::indexed ? exact : fast).images[n]);
    }
    CHECK(run.figures.gpus[0].library->images == count(Kind::indexed));
    CHECK(run.figures.gpus[0].library->failure == "");
    CHECK(run.figures.gpus[0].times.library_ns > 0);
    CHECK(run.refused(Refusal::file) == 0);
    CHECK(run.missed(LibraryMiss::kind) == count(Kind::grey));
    CHECK(run.missed(LibraryMiss::no_index) ==
          count(Kind::bare) + count(Kind::progressive) + count(Kind::damaged) + count(Kind::cut));
    CHECK(run.told("without an index") == 1);
    CHECK(run.told("grey") == 1);
    CHECK(run.notices.size() == 2);
  }
}

TEST_CASE("in jobs of arithmetic exact the library is never asked") {
  const auto library = std::make_shared<HostLibrary>();
  std::atomic<int> asked = 0;
  library->judge = [&](const LibraryPicture&) {
    ++asked;
    return Refusal::none;
  };
  Run run("exact");
  const Epoch made = run.go(library);
  const Epoch exact = by_cpu("exact", kCrop);
  CHECK(made.images == exact.images);
  CHECK(made.records == exact.records);
  CHECK(asked == 0);
  CHECK(run.figures.gpus[0].library->images == 0);
  CHECK(run.figures.gpus[0].images > 0);
  CHECK(run.notices.empty());
}

TEST_CASE("without the option a fast job has the CPU's pixels") {
  Run run;
  const Epoch made = run.go(std::make_shared<HostLibrary>(), std::nullopt);
  const Epoch fast = by_cpu("fast", kCrop);
  CHECK(made.images == fast.images);
  CHECK(made.records == fast.records);
  CHECK(!run.figures.gpus[0].library);
  CHECK(run.notices.empty());
}

TEST_CASE("regions hold the crop and its margin, and stay within the picture") {
  for (const bool cuts : {true, false}) {
    const auto library = std::make_shared<HostLibrary>();
    library->facts.cuts_regions = cuts;
    std::atomic<int> smaller = 0;
    std::atomic<int> wrong = 0;
    library->judge = [&](const LibraryPicture& picture) {
      const GpuBox& r = picture.region;
      const bool whole = r.x == 0 && r.y == 0 && r.width == picture.width && r.height == picture.height;
      smaller += whole ? 0 : 1;
      const bool inside = r.x >= 0 && r.y >= 0 && r.width > 0 && r.height > 0 && r.x + r.width <= picture.width &&
                          r.y + r.height <= picture.height;
      // Whole MCUs, but for the picture's own end.
      const bool aligned = r.x % 8 == 0 && r.y % 8 == 0 && (r.width % 8 == 0 || r.x + r.width == picture.width) &&
                           (r.height % 8 == 0 || r.y + r.height == picture.height);
      wrong += inside && aligned ? 0 : 1;
      return Refusal::none;
    };
    Run run;
    const Epoch made = run.go(library);
    CHECK(wrong == 0);
    CHECK((smaller > 10) == cuts);
    CHECK((smaller > 0) == cuts);
    CHECK(made.records == by_cpu("fast", kCrop).records);
    CHECK(made.images[0] == by_cpu("exact", kCrop).images[0]);
    CHECK(run.figures.gpus[0].library->images == count(Kind::indexed));
  }
}

TEST_CASE("images that the library refuses are the CPU's, one by one, and each reason is said once") {
  const Epoch exact = by_cpu("exact", kCrop);
  const Epoch fast = by_cpu("fast", kCrop);
  for (const Refusal refusal : {Refusal::file, Refusal::memory}) {
    const auto library = std::make_shared<HostLibrary>();
    std::atomic<int> n = 0;
    library->judge = [&](const LibraryPicture&) { return ++n % 3 == 0 ? refusal : Refusal::none; };
    Run run;
    const Epoch made = run.go(library, ChromaUpsampling::interpolated, 2);
    CHECK(made.records == fast.records);
    for (size_t i = 0; i < kPictures; ++i)
      CHECK((made.images[i] == fast.images[i] || made.images[i] == exact.images[i]));
    const int64_t third = 2 * count(Kind::indexed) / 3;
    CHECK(run.refused(refusal) == third);
    CHECK(run.figures.remade == third);
    CHECK(run.figures.gpus[0].library->images == 2 * count(Kind::indexed) - third);
    CHECK(run.figures.gpus[0].library->failure == "");
    CHECK(run.told("it was told to refuse") == 1);
    CHECK(run.told("gpu_memory_mb") == (refusal == Refusal::memory ? 1 : 0));
  }
}

TEST_CASE("a library that fails is not asked again, and the stream goes on") {
  const Epoch fast = by_cpu("fast", kCrop);
  for (const int good : {0, 1, 20}) {
    const auto library = std::make_shared<HostLibrary>();
    std::atomic<int> n = 0;
    library->judge = [&](const LibraryPicture&) { return ++n > good ? Refusal::library : Refusal::none; };
    Run run;
    const Epoch made = run.go(library, ChromaUpsampling::nearest, 3);
    CHECK(made.records == fast.records);
    CHECK(made.images == fast.images);  // of the third epoch
    CHECK(run.figures.gpus[0].library->images <= good);
    CHECK(run.figures.gpus[0].library->failure == "it was told to refuse");
    CHECK(run.figures.gpus[0].failure == "");
    CHECK(run.refused(Refusal::library) > 0);
    CHECK(run.told("is not asked any more") == 1);
    // Only batches that were under way when it failed met it again; its in-flight batches' decoders ask once each.
    CHECK(n <= good + 14);
  }
}

TEST_CASE("where there is no library a fast job is as without one, and the reason is said once") {
  const auto library = std::make_shared<HostLibrary>();
  library->missing = "nvJPEG cannot be loaded: no such file";
  Run run;
  const Epoch made = run.go(library);
  const Epoch fast = by_cpu("fast", kCrop);
  CHECK(made.images == fast.images);
  CHECK(made.records == fast.records);
  CHECK(run.told("decodes without nvJPEG: nvJPEG cannot be loaded: no such file") == 1);
  CHECK(run.notices.size() == 1);
  CHECK(run.figures.gpus[0].library->failure == library->missing);
  CHECK(run.figures.gpus[0].library->images == 0);
  // All of the GPU's memory is the in-flight batches'.
  CHECK(run.figures.gpus[0].memory_bytes / 14 == (int64_t{200} << 20) / 14);
}

TEST_CASE("a GPU that can make a decoder for some of its in-flight batches alone goes on without, in all of them") {
  const Epoch fast = by_cpu("fast", kCrop);
  for (const int decoders : {1, 4}) {  // the first is to see whether there is a library
    const auto library = std::make_shared<HostLibrary>();
    library->decoders = decoders;
    Run run;
    const Epoch made = run.go(library);
    CHECK(made.images == fast.images);
    CHECK(made.records == fast.records);
    CHECK(run.figures.gpus[0].failure == "");
    CHECK(run.figures.gpus[0].in_flight_batches == 14);
    CHECK(run.figures.gpus[0].library->failure == "no more decoders");
    CHECK(run.told("decodes without nvJPEG: no more decoders") == 1);
  }
}

TEST_CASE("of two GPUs, one with a library, both work, and its pictures come to nobody else") {
  const auto with = std::make_shared<HostLibrary>();
  const auto without = std::make_shared<HostLibrary>();
  without->missing = "there is none";
  std::vector<std::unique_ptr<Gpu>> gpus;
  gpus.push_back(open_host_gpu(0, size_t{64} << 20, with));
  gpus.push_back(open_host_gpu(1, size_t{64} << 20, without));
  InFlightOptions in_flight_batches{.memory_bytes = int64_t{48} << 20, .in_flight_batches = 3};
  in_flight_batches.library = ChromaUpsampling::interpolated;
  const auto executor = make_gpu_executor(2, {}, std::move(gpus), in_flight_batches, {});
  const auto context = context_of("fast", kCrop);
  const Epoch fast = by_cpu("fast", kCrop);
  const Epoch exact = by_cpu("exact", kCrop);
  for (int epoch = 0; epoch < 3; ++epoch) {
    const Epoch made = epoch_of(*executor, context);
    CHECK(made.records == fast.records);
    for (size_t i = 0; i < kPictures; ++i)
      CHECK((made.images[i] == fast.images[i] || made.images[i] == exact.images[i]));
  }
  const ExecutorFigures figures = executor->figures();
  CHECK(figures.gpus[0].library->images > 0);
  CHECK(figures.gpus[1].library->images == 0);
  CHECK(figures.gpus[0].images + figures.gpus[1].images <= figures.fed);
}

}  // namespace
}  // namespace penstock::gpu_library_test
