#include "tests/gpu/gpu_checks.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>

#include "runtime/decode/jpeg/jpeg_kernels.h"
#include "runtime/gpu/kernels.h"
#include "tests/decode/jpeg_files.h"

namespace penstock_test {

using namespace penstock;

namespace {

using List = std::vector<double>;
using Transforms = std::vector<TransformSpec>;

constexpr size_t kGuard = 4096;
constexpr int kPoison = 0xEE;

// Five ways of sampling, and where a crop lies.
enum Border { interior, left, right, top, bottom, sliver, borders };
using Coverage = std::map<std::string, std::array<int, borders>>;

std::string sampling_of(const JpegSpec& spec) {
  return spec.grey ? "grey" : std::to_string(spec.h) + "x" + std::to_string(spec.v);
}

void count(std::array<int, borders>& of, const Box& box, const ImageHeader& header) {
  const bool at[4] = {box.x == 0, box.x + box.width == header.width, box.y == 0, box.y + box.height == header.height};
  if (!at[0] && !at[1] && !at[2] && !at[3]) ++of[interior];
  for (size_t i = 0; i < 4; ++i) of[left + i] += at[i] ? 1 : 0;
  if (box.width <= 2 || box.height <= 2) ++of[sliver];
}

std::vector<Transforms> pipelines() {
  const auto side = [](int a, int b) { return List{static_cast<double>(a), static_cast<double>(b)}; };
  const auto crop_resized = [&](int a, int b, const char* filter) -> TransformSpec {
    return {"RandomResizedCrop", {{"size", side(a, b)}, {"interpolation", std::string(filter)}}};
  };
  const TransformSpec mirrored{"RandomHorizontalFlip", {}};
  const TransformSpec turned{"RandomVerticalFlip", {}};
  // Crops as small as a pixel, of any place.
  const TransformSpec sliver_crop{"RandomResizedCrop",
                                  {{"size", side(9, 14)}, {"scale", List{0.0001, 0.3}}, {"ratio", List{0.05, 20}}}};
  const TransformSpec padded{
      "RandomCrop",
      {{"size", side(40, 32)}, {"padding", int64_t{4}}, {"pad_if_needed", true}, {"fill", List{200, 7, 99}}}};
  return {{crop_resized(24, 31, "bilinear"), mirrored},
          {crop_resized(37, 37, "bicubic"), mirrored, turned},
          {crop_resized(61, 20, "lanczos"), turned},
          {crop_resized(33, 65, "box"), mirrored},
          {crop_resized(30, 30, "nearest"), mirrored},
          {sliver_crop, mirrored},
          {{"Resize", {{"size", int64_t{36}}}}, {"CenterCrop", {{"size", int64_t{28}}}}},
          {padded, mirrored, turned},
          {mirrored, turned, padded, {"Resize", {{"size", side(20, 50)}}}, padded, mirrored},
          // Fills within fills.
          {{"Pad", {{"padding", int64_t{3}}, {"fill", List{1, 250, 3}}}},
           padded,
           mirrored,
           {"Pad", {{"padding", List{5, 0}}, {"fill", List{60, 61, 62}}}}},
          {{"CenterCrop", {{"size", int64_t{16}}}}}};
}

}  // namespace

GpuBench::GpuBench(Gpu& gpu, size_t bytes, size_t samples)
    : memory_bytes(bytes),
      memory(gpu, bytes + kGuard, GpuMemory::device),
      upload(gpu, bytes + kGuard, GpuMemory::pinned),
      outputs(gpu, bytes + kGuard, GpuMemory::pinned),
      batch(upload.data(), {bytes, bytes, samples}),
      stream(gpu.stream()) {
  std::memset(upload.data(), kPoison, bytes + kGuard);
  stream->upload(memory.data(), upload.data(), bytes + kGuard);
  stream->wait(60 * kSecond);
}

void GpuBench::run() {
  batch.seal();
  REQUIRE(batch.upload_bytes() <= memory_bytes);
  REQUIRE(batch.outputs_at() + batch.places() * batch.output_bytes() <= memory_bytes);
  stream->upload(memory.data(), upload.data(), batch.upload_bytes());
  for (const StageLaunch& launch : batch.launches()) stream->launch(memory.data(), launch);
  stream->download(outputs.data(), memory.data() + batch.outputs_at(), batch.places() * batch.output_bytes());
  stream->download(upload.data() + batch.statuses_at(), memory.data() + batch.statuses_at(), batch.status_bytes());
  if (batch.digest_bytes() > 0) {
    stream->download(upload.data() + batch.digests_at(), memory.data() + batch.digests_at(), batch.digest_bytes());
  }
  std::byte* const guard = outputs.data() + memory_bytes;
  stream->download(guard, memory.data() + memory_bytes, kGuard);
  stream->wait(60 * kSecond);
  REQUIRE(std::all_of(guard, guard + kGuard, [](std::byte b) { return b == std::byte{kPoison}; }));
}

bool GpuBench::untouched(size_t place) const {
  return std::all_of(output(place), output(place + 1), [](uint8_t b) { return b == kPoison; });
}

Picture picture_of(const Pipeline& pipeline, std::vector<std::byte> file, uint64_t index) {
  Picture picture{std::move(file), {}, {}};
  REQUIRE(read_header(picture.file, {}, picture.header, pipeline.header_options()).ok());
  picture.draws = pipeline.draw({.seed = 3, .epoch = 1, .index = index}, picture.header);
  return picture;
}

std::vector<uint8_t> made_by_cpu(const Pipeline& pipeline, const Picture& picture, Scratch& scratch) {
  std::vector<uint8_t> out(static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3);
  const SampleStatus status = pipeline.apply(picture.file, picture.header, picture.draws, out, scratch);
  REQUIRE_MESSAGE(status.ok(), status.reason);
  return out;
}

void compare_batches(GpuBench& bench, const std::vector<std::vector<TransformSpec>>& lists, size_t size,
                     std::mt19937& random, BatchCounts& counts, const Planned& planned) {
  Scratch scratch{DecodeLimits{}};
  std::vector<GpuSample> samples(size);
  std::vector<SideIndex> indexes(size);
  for (size_t number = 0; number < lists.size(); ++number) {
    const Pipeline pipeline(lists[number]);
    REQUIRE(bench.batch.begin(size, pipeline.out_width(), pipeline.out_height()));
    std::vector<Picture> pictures;
    while (pictures.size() < size) {
      JpegSpec spec = random_spec(random, draw(random, 0, 3) == 0 ? 20 : 130);
      spec.progressive = draw(random, 0, 5) == 0;
      Picture picture = picture_of(pipeline, make_jpeg(spec), random());
      GpuSample& sample = samples[pictures.size()];
      // Half of them entered at the crop, the others at restart markers or searched for where to: the GPU decodes
      // entropy, but of progressive files.
      SideIndex& index = indexes[pictures.size()];
      const bool indexed =
          draw(random, 0, 1) == 1 && build_side_index(picture.file, {.interval = draw(random, 1, 9)}, index);
      const ImageInput input{picture.file, {}, indexed ? &index : nullptr};
      if (!sample.plan(pipeline, scratch, input, picture.header, picture.draws)) {
        // Chroma of a column or two is libjpeg's; and where nothing but padding is seen, no GPU is needed.
        const bool narrow = !spec.grey && spec.h == 2 && spec.width <= 4;
        // What the CPU refuses (a picture of one row that is made as high as others: too large), it refuses for both.
        ImagePlan own;
        const bool refused = !pipeline.plan(picture.header, picture.draws, scratch, own);
        const Box live = refused ? Box{} : sample.plan().stages.front().geometry.runs.back().live;
        REQUIRE_MESSAGE(
            (narrow || refused || live.width < 1 || live.height < 1),
            "pipeline " << number << " on " << sampling_of(spec) << ", " << spec.width << " x " << spec.height);
        ++counts.refused;
        continue;
      }
      if (planned) planned(sample, picture.header, sampling_of(spec));
      const auto place = bench.batch.reserve(sample);
      REQUIRE(place == pictures.size());
      using EntropyMode = GpuSample::EntropyMode;
      const int64_t mcus = int64_t{sample.reader().frame().mcu_columns} * sample.reader().window().end_row;
      const EntropyMode way = spec.progressive                           ? EntropyMode::cpu
                              : indexed && spec.restart == 0             ? EntropyMode::index
                              : spec.restart != 0 && spec.restart < mcus ? EntropyMode::restarts
                                                                         : EntropyMode::search;
      REQUIRE(sample.entropy_mode() == way);
      ++counts.by_mode[static_cast<size_t>(way)];
      REQUIRE(bench.batch.fill(*place, sample));
      pictures.push_back(std::move(picture));
    }
    bench.run();
    counts.most_launches = std::max(counts.most_launches, bench.batch.launches().size());
    for (size_t i = 0; i < size; ++i) {
      const std::vector<uint8_t> wanted = made_by_cpu(pipeline, pictures[i], scratch);
      REQUIRE(wanted.size() == bench.batch.output_bytes());
      REQUIRE(bench.batch.good(i));
      const bool equal = std::memcmp(wanted.data(), bench.output(i), wanted.size()) == 0;
      REQUIRE_MESSAGE(equal, "pipeline " << number << ":\n"
                                         << pipeline.canonical() << "batch of " << size << ", sample " << i << " of "
                                         << pictures[i].header.width << " x " << pictures[i].header.height);
      ++counts.made;
    }
  }
}

void check_batches(Gpu& gpu) {
  constexpr uint32_t kSeed = 20261121;
  // With PENSTOCK_FULL=1, 20 times as many.
  const size_t times = full() ? 20 : 1;
  std::printf("batches: seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Coverage coverage;
  GpuBench bench(gpu);
  BatchCounts counts;
  const auto planned = [&](const GpuSample& sample, const ImageHeader& header, const std::string& sampling) {
    count(coverage[sampling], sample.plan().stages.front().geometry.runs.back().source, header);
  };
  for (const size_t size : {size_t{1}, size_t{2}, size_t{7}, size_t{64}}) {
    for (size_t round = 0; round < (!full() ? 1 : size < 64 ? 2 : 3) * times; ++round) {
      compare_batches(bench, pipelines(), size, random, counts, planned);
    }
  }
  std::printf(
      "%d pictures, entropy decoding by the CPU of %d, by the GPU with an index of %d, at restart markers of %d,\n"
      "without any of %d, %d not for GPUs\n",
      counts.made, counts.by_mode[0], counts.by_mode[1], counts.by_mode[2], counts.by_mode[3], counts.refused);
  for (const int of : counts.by_mode) CHECK(of > counts.made / 8);
  REQUIRE(coverage.size() == 5);
  for (const auto& sampling : coverage) {  // clang has no lambdas, as this check is one, over parts of a pair
    for (const int n : sampling.second) CHECK_MESSAGE(n >= (full() ? 10 : 3), sampling.first);
  }
}

void check_statuses(Gpu& gpu) {
  constexpr uint32_t kSeed = 20261122;
  const int rounds = full() ? 20000 : 350;
  std::printf("statuses: seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Scratch scratch{DecodeLimits{}};
  GpuBench bench(gpu);
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{16}}}}});
  GpuSample sample({.by_search = false});
  CoefficientReader reader;
  int good = 0;
  int bad = 0;
  int strict = 0;
  for (int round = 0; round < rounds; ++round) {
    JpegSpec spec = random_spec(random, 150);
    spec.restart = 0;
    Picture picture = picture_of(pipeline, make_jpeg(spec), static_cast<uint64_t>(round));
    SideIndex index;
    if (!build_side_index(picture.file, {.interval = draw(random, 1, 9)}, index)) continue;
    // A byte of the scan, or of the index; often one that the crop does not need.
    std::string text = index.serialise();
    const bool in_file = draw(random, 0, 1) == 1;
    if (in_file) {
      const auto at = static_cast<size_t>(
          draw(random, static_cast<int>(index.at(0).byte), static_cast<int>(picture.file.size()) - 1));
      picture.file[at] ^= static_cast<std::byte>(1 << draw(random, 0, 7));
    } else {
      text[static_cast<size_t>(draw(random, 8, static_cast<int>(text.size()) - 1))] ^=
          static_cast<char>(1 << draw(random, 0, 7));
    }
    if (!SideIndex::read(std::as_bytes(std::span(text)), index)) continue;
    const ImageInput input{picture.file, {}, &index};
    if (!sample.plan(pipeline, scratch, input, picture.header, picture.draws) || !sample.leaves_entropy()) continue;
    REQUIRE(reader.open(picture.file, picture.header, sample.plan().stages.front().geometry.runs.back().source,
                        DecodeLimits{}.max_scans));
    std::vector<int16_t> coefficients(reader.bytes() / sizeof(int16_t));
    const bool supported = reader.read(&index, coefficients.data());
    REQUIRE(bench.batch.begin(1, 16, 16));
    REQUIRE(bench.batch.reserve(sample) == 0);
    REQUIRE(bench.batch.fill(0, sample));
    bench.run();
    // Where the GPU is not sure the CPU is asked, so it may be stricter than the CPU's lanes; but rarely.
    REQUIRE_MESSAGE((supported || !bench.batch.good(0)), "round " << round);
    strict += supported && !bench.batch.good(0) ? 1 : 0;
    ++(bench.batch.good(0) ? good : bad);
    if (!bench.batch.good(0)) continue;
    std::vector<uint8_t> wanted(bench.batch.output_bytes());
    REQUIRE(pipeline.apply(input, picture.header, picture.draws, wanted, scratch, {}).ok());
    REQUIRE_MESSAGE(std::memcmp(wanted.data(), bench.output(0), wanted.size()) == 0, "round " << round);
  }
  std::printf("%d good, %d not, %d of them where the CPU would go on\n", good, bad, strict);
  CHECK(strict <= bad / 50);
  CHECK(good > rounds / 10);
  CHECK(bad > rounds / 10);
}

namespace {

// Bytes changed, bytes put in, or the rest gone; false: nothing.
bool damage(std::vector<std::byte>& file, size_t scan, std::mt19937& random) {
  const auto any = [&] {
    return static_cast<size_t>(draw(random, static_cast<int>(scan), static_cast<int>(file.size()) - 1));
  };
  switch (draw(random, 0, 4)) {
    case 0: return false;
    case 1: file[any()] ^= static_cast<std::byte>(1 << draw(random, 0, 7)); return true;
    case 2:
      for (int i = draw(random, 1, 8); i > 0; --i) {
        file[any()] = static_cast<std::byte>(draw(random, 0, 2) == 0 ? 255 : draw(random, 0, 255));
      }
      return true;
    case 3:
      for (const int byte : {draw(random, 192, 255), 255}) {
        file.insert(file.begin() + static_cast<ptrdiff_t>(scan) + draw(random, 0, static_cast<int>(file.size() - scan)),
                    static_cast<std::byte>(byte));
      }
      return true;
    default: file.resize(any()); return true;
  }
}

void check_searched_files(GpuBench& bench) {
  constexpr uint32_t kSeed = 20261124;
  const int rounds = full() ? 20000 : 500;
  std::printf("search: seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Scratch scratch{DecodeLimits{}};
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{16}}}}});
  CoefficientReader reader;
  int whole = 0;
  int lost = 0;  // whole files whose codes have not found their way in time
  int strict = 0;
  int counts[2] = {};  // damaged: not good, good
  int restarts = 0;
  for (int round = 0; round < rounds; ++round) {
    const JpegSpec spec = random_spec(random, draw(random, 0, 2) == 0 ? 150 : 40);
    Picture picture = picture_of(pipeline, make_jpeg(spec), static_cast<uint64_t>(round));
    JpegFrame frame;
    if (!read_baseline_frame(picture.file, frame)) continue;
    const bool damaged = damage(picture.file, frame.scan_begin, random);
    GpuSample sample({.subsequence_bytes = uint32_t{1} << draw(random, 2, 9)});
    const ImageInput input{picture.file, {}, nullptr};
    if (!sample.plan(pipeline, scratch, input, picture.header, picture.draws) || !sample.leaves_entropy()) continue;
    REQUIRE(reader.open(picture.file, picture.header, sample.plan().stages.front().geometry.runs.back().source,
                        DecodeLimits{}.max_scans));
    std::vector<int16_t> coefficients(reader.bytes() / sizeof(int16_t));
    const bool supported = reader.read(nullptr, coefficients.data());
    REQUIRE((supported || damaged));
    REQUIRE(bench.batch.begin(1, 16, 16));
    REQUIRE(bench.batch.reserve(sample) == 0);
    REQUIRE(bench.batch.fill(0, sample));
    bench.run();
    const bool good = bench.batch.good(0);
    INFO("round " << round << ", " << sampling_of(spec) << ", subsequences of " << sample.scan().subsequence_bytes());
    REQUIRE((supported || !good));
    const bool at_restarts = sample.entropy_mode() == GpuSample::EntropyMode::restarts;
    restarts += at_restarts ? 1 : 0;
    const bool long_enough = at_restarts || sample.scan().subsequence_bytes() >= 64;
    if (damaged) {
      ++counts[good ? 1 : 0];
      strict += supported && !good && long_enough ? 1 : 0;
    } else {
      ++whole;
      lost += good ? 0 : 1;
      REQUIRE((good || !long_enough));
    }
    if (!good) continue;
    std::vector<uint8_t> wanted(bench.batch.output_bytes());
    REQUIRE(pipeline.apply(input, picture.header, picture.draws, wanted, scratch, {}).ok());
    REQUIRE(std::memcmp(wanted.data(), bench.output(0), wanted.size()) == 0);
  }
  std::printf(
      "%d whole files, %d came back unmade; %d damaged good, %d not, %d of them where the CPU would go on; "
      "%d at restart markers\n",
      whole, lost, counts[1], counts[0], strict, restarts);
  CHECK(restarts > rounds / 10);
  CHECK(whole > rounds / 10);
  CHECK(lost < whole / 2);
  CHECK(counts[0] > rounds / 4);
  CHECK(counts[1] > rounds / 20);
  CHECK(strict <= counts[0] / 10);
}

// In a picture of one colour every block but the first is the same two bits, and a decoder that stands at another block
// of the MCU, or takes one code for the other, never notices.
void check_files_that_no_mode_takes(GpuBench& bench) {
  Scratch scratch{DecodeLimits{}};
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{16}}}}});
  for (const bool grey : {false, true}) {
    Picture picture = picture_of(
        pipeline, make_jpeg({.width = 2000, .height = 2000, .grey = grey, .optimize = true, .flat = true}), 0);
    for (const int top : {0, 1960}) {
      picture.draws = {{0, {900, top, 40, 40}}};
      GpuSample sample({.subsequence_bytes = 16});
      REQUIRE(sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
      REQUIRE(sample.entropy_mode() == GpuSample::EntropyMode::search);
      REQUIRE(bench.batch.begin(1, 16, 16));
      REQUIRE(bench.batch.reserve(sample) == 0);
      REQUIRE(bench.batch.fill(0, sample));
      bench.run();
      // Near the beginning rounds are enough.
      CHECK(bench.batch.good(0) == (top == 0));
      if (!bench.batch.good(0)) continue;
      const std::vector<uint8_t> wanted = made_by_cpu(pipeline, picture, scratch);
      CHECK(std::memcmp(wanted.data(), bench.output(0), wanted.size()) == 0);
    }
  }
}

}  // namespace

void check_digests(Gpu& gpu) {
  constexpr uint32_t kSeed = 20261123;
  std::printf("digests: seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  Scratch scratch{DecodeLimits{}};
  GpuBench bench(gpu);
  int hashed = 0;
  for (int round = 0; round < (full() ? 2000 : 200); ++round) {
    const int width = draw(random, 1, 90);
    const int height = draw(random, 1, round % 3 == 0 ? 8 : 90);
    const Pipeline pipeline({{"RandomResizedCrop", {{"size", List{double(height), double(width)}}}}});
    const size_t size = round % 4 == 0 ? 7 : 1;
    REQUIRE(bench.batch.begin(size, width, height, nullptr, true));
    const size_t image = size_t{3} * static_cast<size_t>(width) * static_cast<size_t>(height);
    std::vector<std::vector<std::byte>> records;
    std::vector<bool> told;
    for (size_t i = 0; i < size; ++i) {
      const Picture picture = picture_of(
          pipeline, make_jpeg({.width = 40 + round % 50, .seed = static_cast<uint32_t>(random())}), random());
      GpuSample sample;
      REQUIRE(sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
      REQUIRE(bench.batch.reserve(sample) == i);
      REQUIRE(bench.batch.fill(i, sample));
      // So that record and image end next to the end of a block or a stripe; or just so.
      const size_t step = draw(random, 0, 1) == 0 ? kHashBlockBytes : kHashStripeBytes;
      const size_t border = (image + step - 1) / step * step - image;
      const size_t length = draw(random, 0, 3) == 0
                                ? static_cast<size_t>(draw(random, 0, int{kHashRecordRoom} + 9))
                                : border + static_cast<size_t>(draw(random, 0, 2)) + (border > 0 ? 0 : step) - 1;
      std::vector<std::byte>& record = records.emplace_back(length);
      for (std::byte& byte : record) byte = static_cast<std::byte>(random());
      told.push_back(bench.batch.set_record(i, record));
      REQUIRE(told.back() == (length > 0 && length <= kHashRecordRoom && length + image >= kHashLeastBytes));
    }
    bench.run();
    for (size_t i = 0; i < size; ++i) {
      REQUIRE(bench.batch.good(i));
      if (!told[i]) continue;
      ++hashed;
      const std::span<const std::byte> pixels(reinterpret_cast<const std::byte*>(bench.output(i)), image);
      StreamHash wanted;
      wanted.add(records[i], std::vector{pixels});
      REQUIRE_MESSAGE(bench.batch.digest(i) == wanted.pixel,
                      width << " x " << height << ", a record of " << records[i].size() << " bytes");
    }
  }
  std::printf("%d images and their records hashed\n", hashed);
  CHECK(hashed > 100);
}

void check_search(Gpu& gpu) {
  GpuBench bench(gpu);
  check_searched_files(bench);
  check_files_that_no_mode_takes(bench);
}

void check_shared_tables(Gpu& gpu) {
  Scratch scratch{DecodeLimits{}};
  GpuBench bench(gpu);
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{16}}}}});
  std::vector<Picture> pictures;
  std::vector<size_t> uploaded;
  for (uint32_t i = 0; i < 4; ++i) {  // the last with tables of its own
    pictures.push_back(picture_of(
        pipeline, make_jpeg({.width = 64, .height = 64, .optimize = i == 3, .seed = i, .noise_bits = 6}), 0));
  }
  REQUIRE(bench.batch.begin(4, 16, 16));
  GpuSample sample;
  for (size_t i = 0; i < 4; ++i) {
    const Picture& picture = pictures[i];
    REQUIRE(sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
    REQUIRE(sample.entropy_mode() == GpuSample::EntropyMode::search);
    const size_t before = bench.batch.upload_bytes();
    REQUIRE(bench.batch.reserve(sample) == i);
    uploaded.push_back(bench.batch.upload_bytes() - before - sample.scan().bytes());
    // The first brings the tables, also where it is none of the batch's in the end.
    if (i == 0) {
      bench.batch.drop(0);
    } else {
      REQUIRE(bench.batch.fill(i, sample));
    }
  }
  const size_t tables = 4 * sizeof(CodeTable);
  CHECK(uploaded[0] > tables);
  CHECK(uploaded[1] < uploaded[0] - tables + 1024);
  CHECK(uploaded[2] < uploaded[0] - tables + 1024);
  CHECK(uploaded[3] > tables);
  bench.run();
  CHECK(bench.untouched(0));
  for (size_t i = 1; i < 4; ++i) {
    REQUIRE(bench.batch.good(i));
    const std::vector<uint8_t> wanted = made_by_cpu(pipeline, pictures[i], scratch);
    CHECK(std::memcmp(wanted.data(), bench.output(i), wanted.size()) == 0);
  }
}

void check_finished(Gpu& gpu) {
  std::mt19937 random(7);
  Scratch scratch{DecodeLimits{}};
  GpuBench bench(gpu);
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", List{21, 34}}}},
                           {"RandomHorizontalFlip", {}},
                           {"ColorJitter", {{"brightness", List{0.5}}, {"contrast", List{0.5}}}}});
  for (const DType dtype : {DType::uint8, DType::float32, DType::float16, DType::bfloat16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      FinishSpec spec{.dtype = dtype, .memory_format = format};
      if (dtype != DType::uint8) {
        spec.scale = spec.normalize = true;
        spec.mean = {0.485F, 0.456F, 0.406F};
        spec.std = {0.229F, 0.224F, 0.225F};
      }
      const Finisher finisher = finisher_of(pipeline, spec);
      REQUIRE(bench.batch.begin(3, pipeline.out_width(), pipeline.out_height(), &finisher));
      std::vector<Picture> pictures;
      GpuSample sample;
      for (uint64_t i = 0; i < 3; ++i) {
        pictures.push_back(picture_of(pipeline, make_jpeg({.width = draw(random, 9, 90), .height = 50}), i));
        const Picture& picture = pictures.back();
        REQUIRE(sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
        const auto place = bench.batch.reserve(sample);
        REQUIRE(place.has_value());
        REQUIRE(bench.batch.fill(*place, sample));
      }
      bench.run();
      std::vector<std::byte> wanted(finisher.bytes_per_sample());
      REQUIRE(bench.batch.output_bytes() == wanted.size());
      for (size_t i = 0; i < 3; ++i) {
        finisher.run(made_by_cpu(pipeline, pictures[i], scratch).data(), wanted.data());
        CHECK(std::memcmp(wanted.data(), bench.output(i), wanted.size()) == 0);
      }
    }
  }
}

void check_inverse(Gpu& gpu) {
  std::mt19937 random(11);
  constexpr uint32_t kAcross = 5;
  constexpr uint32_t kRows = 40;
  constexpr size_t kTiles = (kAcross + kBlocksPerTile - 1) / kBlocksPerTile;
  struct alignas(256) Memory {
    int16_t coefficients[kRows * kTiles * kTileCoefficients];
    alignas(256) uint8_t samples[kRows * 8 * 8 * kAcross];
    alignas(256) InversePart part;
    alignas(256) PartSpan spans[(kAcross * kRows + kSpanThreads - 1) / kSpanThreads];
  };
  const GpuBlock here(gpu, sizeof(Memory), GpuMemory::pinned);
  const GpuBlock there(gpu, sizeof(Memory), GpuMemory::device);
  auto* const memory = new (here.data()) Memory();
  memory->part = {
      .units = kAcross * kRows, .across = kAcross, .row_bytes = kTiles * kTileCoefficients * sizeof(int16_t)};
  memory->part.samples = {offsetof(Memory, samples), 8 * kAcross, 0, 0};
  for (uint32_t i = 0; i < std::size(memory->spans); ++i) memory->spans[i] = {0, i * kSpanThreads};
  const int limits[] = {3, 200, 2047, 32767};
  for (uint32_t row = 0; row < kRows; ++row) {
    int16_t* const first = memory->coefficients + row * kTiles * kTileCoefficients;
    const int sparse = draw(random, 1, 9);
    const int limit = limits[row % 4];
    for (size_t i = 0; i < kTiles * kTileCoefficients; ++i) {
      first[i] = static_cast<int16_t>(draw(random, 1, sparse) == 1 ? draw(random, -limit, limit) : 0);
    }
    // A block without AC coefficients has arithmetic of its own.
    for (size_t place = 1; place < 64; ++place) first[tile_offset(place)] = 0;
  }
  for (auto& q : memory->part.quant) q = static_cast<uint16_t>(draw(random, 1, 255));
  const auto stream = gpu.stream();
  stream->upload(there.data(), here.data(), sizeof(Memory));
  stream->launch(there.data(), {.stage = GpuStage::inverse,
                                .spans = static_cast<uint32_t>(std::size(memory->spans)),
                                .spans_at = offsetof(Memory, spans),
                                .parts_at = offsetof(Memory, part)});
  stream->download(reinterpret_cast<std::byte*>(memory->samples), there.data() + offsetof(Memory, samples),
                   sizeof memory->samples);
  stream->wait(60 * kSecond);
  std::vector<uint8_t> wanted(8 * 32 * kTiles);
  for (uint32_t row = 0; row < kRows; ++row) {
    idct_tiles(memory->coefficients + row * kTiles * kTileCoefficients, kTiles, memory->part.quant, wanted.data(),
               32 * kTiles);
    for (size_t y = 0; y < 8; ++y) {
      REQUIRE(std::memcmp(memory->samples + (row * 8 + y) * 8 * kAcross, wanted.data() + y * 32 * kTiles,
                          8 * kAcross) == 0);
    }
  }
}

}  // namespace penstock_test
