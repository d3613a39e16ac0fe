// The GPU's kernels, run on this CPU, against the CPU path: the same bytes for any baseline file, crop, resize, flip
// and finishing, in batches of any size.
#include <doctest/doctest.h>

#include <random>

#include "runtime/gpu/played/host_gpu.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/gpu_checks.h"
#include "tests/transforms/image_files.h"

namespace gpu_kernels_test {

namespace {

using namespace penstock;
using namespace penstock_test;
using File = std::vector<std::byte>;
using List = std::vector<double>;

constexpr size_t kGpuBytes = size_t{64} << 20;

}  // namespace

TEST_CASE("batches of pictures of all sizes equal the CPU's, byte for byte") {
  check_batches(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("a damaged file or index gets the CPU's status, and its bytes where that is good") {
  check_statuses(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("files without an index get the CPU's status, and its bytes where that is good") {
  check_search(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("images are hashed where they lie, with the record before them, as the CPU hashes both") {
  check_digests(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("Huffman tables that pictures share are uploaded once") {
  check_shared_tables(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("finished batches equal the finishing pass, in every dtype and format") {
  check_finished(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("the inverse transform on any coefficients is that of the CPU's vector code") {
  check_inverse(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("pixel transforms over their parameters' ranges equal the CPU's, in batches of any size") {
  check_pixels(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("hue, saturation and grey of all colours are the CPU's, and so is contrast around every mean") {
  const auto gpu = open_host_gpu(0, kGpuBytes);
  check_all_colours(*gpu);
  check_tones(*gpu);
}

TEST_CASE("samples that have the same to do in other orders share their launches") {
  check_launches(*open_host_gpu(0, kGpuBytes));
}

TEST_CASE("what a GPU does not take is said before or while it is decoded, and spoils no neighbour") {
  Scratch scratch{DecodeLimits{}};
  GpuSample sample({.by_search = false});
  const Pipeline plain({{"RandomResizedCrop", {{"size", int64_t{24}}}}});
  const auto takes = [&](const Pipeline& pipeline, File file) {
    const Picture picture = picture_of(pipeline, std::move(file), 5);
    return sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws);
  };
  CHECK(takes(plain, make_jpeg({})));
  CHECK(takes(plain, make_jpeg({.progressive = true})));
  CHECK_FALSE(takes(plain, make_jpeg({.arithmetic = true})));
  CHECK_FALSE(takes(plain, make_jpeg({.width = 3})));  // two columns of chroma
  CHECK_FALSE(takes(plain, penstock_test::encode_png(penstock_test::make_rgb(20, 20, 1), 20, 20)));
  CHECK_FALSE(takes(Pipeline({{"FiveCrop", {{"size", int64_t{8}}}}}), make_jpeg({})));
  // Pixel transforms: mixtures of images, and maps that Pillow walks by adding up.
  const TransformSpec resized{"Resize", {{"size", List{30, 30}}}};
  const auto moved = [](double by) -> TransformSpec {
    return {"RandomAffine", {{"degrees", List{10, 10}}, {"scale", List{by, by}}}};
  };
  CHECK(takes(Pipeline({resized, moved(0.1)}), make_jpeg({})));
  CHECK_FALSE(takes(Pipeline({resized, moved(0.0001)}), make_jpeg({})));
  CHECK_FALSE(takes(Pipeline({resized, {"AugMix", {}}}), make_jpeg({})));
  CHECK_FALSE(takes(Pipeline({resized, {"JPEG", {{"quality", int64_t{50}}}}}), make_jpeg({})));
  // A crop that shows nothing but padding.
  const Pipeline padded({{"RandomCrop", {{"size", int64_t{8}}, {"padding", int64_t{50}}}}});
  Picture unseen = picture_of(padded, make_jpeg({}), 5);
  unseen.draws = {{0, {-50, -50}}};
  CHECK_FALSE(sample.plan(padded, scratch, {unseen.file, {}, nullptr}, unseen.header, unseen.draws));

  // The middle one of three ends too early.
  const auto gpu = open_host_gpu(0, kGpuBytes);
  GpuBench bench(*gpu);
  REQUIRE(bench.batch.begin(3, 24, 24));
  std::vector<Picture> pictures;
  for (uint64_t i = 0; i < 3; ++i) {
    File file = make_jpeg({.width = 60, .height = 60, .seed = static_cast<uint32_t>(i)});
    if (i == 1) file.resize(file.size() / 2);
    pictures.push_back(picture_of(plain, std::move(file), i));
    // A crop that reaches to the bottom.
    pictures.back().draws = {{0, {0, 0, 60, 60}}};
    const Picture& picture = pictures.back();
    REQUIRE(sample.plan(plain, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
    const auto place = bench.batch.reserve(sample);
    REQUIRE(place == i);
    const bool supported = bench.batch.fill(*place, sample);
    CHECK(supported == (i != 1));
    if (!supported) bench.batch.drop(*place);
  }
  bench.run();
  for (const size_t i : {size_t{0}, size_t{2}}) {
    CHECK(std::memcmp(made_by_cpu(plain, pictures[i], scratch).data(), bench.output(i), bench.batch.output_bytes()) ==
          0);
  }
  CHECK(bench.untouched(1));

  // Entropy decoding is the GPU's if it may be, and the status then too.
  GpuSample left;
  GpuSample kept({.by_index = false, .by_search = false});
  const Picture& cut = pictures[1];
  for (GpuSample* const of : {&left, &kept}) {
    REQUIRE(of->plan(plain, scratch, {cut.file, {}, nullptr}, cut.header, cut.draws));
    CHECK(of->leaves_entropy() == (of == &left));
    REQUIRE(bench.batch.begin(1, 24, 24));
    REQUIRE(bench.batch.reserve(*of) == 0);
    REQUIRE(bench.batch.fill(0, *of) == of->leaves_entropy());
  }
  REQUIRE(bench.batch.begin(1, 24, 24));
  REQUIRE(bench.batch.reserve(left) == 0);
  REQUIRE(bench.batch.fill(0, left));
  bench.run();
  CHECK_FALSE(bench.batch.good(0));
}

TEST_CASE("a batch keeps to its memory, and a full one is made as it is") {
  std::mt19937 random(5);
  Scratch scratch{DecodeLimits{}};
  const auto gpu = open_host_gpu(0, kGpuBytes);
  const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{32}}}}});
  size_t most = 0;
  for (const size_t memory : {size_t{16} << 10, size_t{64} << 10, size_t{256} << 10, size_t{1} << 20}) {
    GpuBench bench(*gpu, memory, 32);
    BatchBuilder& batch = bench.batch;
    if (!batch.begin(32, 32, 32)) continue;
    std::vector<Picture> pictures;
    GpuSample sample;
    for (;;) {
      const int side = draw(random, 40, 120);
      Picture picture = picture_of(pipeline, make_jpeg({.width = side, .height = side}), pictures.size());
      REQUIRE(sample.plan(pipeline, scratch, {picture.file, {}, nullptr}, picture.header, picture.draws));
      const auto place = batch.reserve(sample);
      if (!place) break;
      REQUIRE(batch.fill(*place, sample));
      pictures.push_back(std::move(picture));
    }
    bench.run();
    for (size_t i = 0; i < pictures.size(); ++i) {
      CHECK(std::memcmp(made_by_cpu(pipeline, pictures[i], scratch).data(), bench.output(i), batch.output_bytes()) ==
            0);
    }
    CHECK(pictures.size() >= most);
    most = pictures.size();
  }
  CHECK(most > 4);
  GpuBench bench(*gpu);
  CHECK_FALSE(bench.batch.begin(64, 4096, 4096));  // not even the outputs
}

TEST_CASE("the GPU that is this CPU has as much memory as it was given") {
  const auto gpu = open_host_gpu(3, 1000);
  const GpuBlock first(*gpu, 600, GpuMemory::device);
  const GpuBlock here(*gpu, 5000, GpuMemory::pinned);
  CHECK_THROWS_WITH_AS(GpuBlock(*gpu, 600, GpuMemory::device), doctest::Contains("GPU 3 (this CPU): allocating 600"),
                       GpuError);
  const GpuBlock second(*gpu, 400, GpuMemory::device);
}

}  // namespace gpu_kernels_test
