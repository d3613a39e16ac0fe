#include <doctest/doctest.h>

#include <cstdio>
#include <random>

#include "runtime/pixels/color.h"
#include "runtime/pixels/pixel_ops.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/gpu_checks.h"

namespace penstock_test {

using namespace penstock;

namespace {

using List = std::vector<double>;
using Transforms = std::vector<TransformSpec>;

const TransformSpec kCut{"RandomResizedCrop", {{"size", List{24, 31}}, {"scale", List{0.2, 1}}}};
const TransformSpec kSquare{"RandomResizedCrop", {{"size", List{26, 26}}, {"scale", List{0.2, 1}}}};
const TransformSpec kMirrored{"RandomHorizontalFlip", {}};
const TransformSpec kPadded{"Pad", {{"padding", List{3, 1}}, {"fill", List{9, 80, 200}}}};

TransformSpec jittered(const char* what, List range) {
  return {"ColorJitter", {{what, std::move(range)}}};
}

// Each colour operation, one strength after the other.
std::vector<Transforms> colours() {
  std::vector<Transforms> lists;
  const auto add = [&](const TransformSpec& spec) { lists.push_back({kCut, spec}); };
  for (const char* what : {"brightness", "contrast", "saturation"}) {
    for (const double factor : {0.0, 0.3, 0.999, 1.001, 1.7, 3.0, 40.0}) add(jittered(what, {factor, factor}));
  }
  for (const double turn : {-0.5, -0.3, -0.004, 0.004, 0.1, 0.27, 0.5}) add(jittered("hue", {turn, turn}));
  for (const double factor : {0.0, 0.4, 2.0, 30.0}) {
    add({"RandomAdjustSharpness", {{"p", 1.0}, {"sharpness_factor", factor}}});
  }
  for (int64_t bits = 0; bits <= 8; ++bits) add({"RandomPosterize", {{"p", 1.0}, {"bits", bits}}});
  for (const double threshold : {-1.0, 0.0, 77.5, 128.0, 255.0, 256.0}) {
    add({"RandomSolarize", {{"p", 1.0}, {"threshold", threshold}}});
  }
  for (const char* name : {"RandomInvert", "RandomAutocontrast", "RandomEqualize", "RandomGrayscale"}) {
    add({name, {{"p", 1.0}}});
  }
  add({"Grayscale", {{"num_output_channels", int64_t{3}}}});
  for (int i = 0; i < 6; ++i) add({"RandomChannelPermutation", {}});
  return lists;
}

// Images of a few pixels, where there are no neighbours, and histograms of one value.
std::vector<Transforms> slivers() {
  std::vector<Transforms> lists;
  for (const List& size : {List{1, 1}, List{1, 9}, List{2, 2}, List{3, 2}, List{3, 3}}) {
    const TransformSpec cut{"Resize", {{"size", size}}};
    for (const char* name : {"RandomAutocontrast", "RandomEqualize"}) lists.push_back({cut, {name, {{"p", 1.0}}}});
    lists.push_back({cut, jittered("contrast", {2, 2})});
    lists.push_back({cut, {"RandomAdjustSharpness", {{"p", 1.0}, {"sharpness_factor", 3.0}}}});
    lists.push_back({cut, {"GaussianBlur", {{"kernel_size", List{5, 9}}, {"sigma", List{3, 3}}}}});
    lists.push_back({cut, {"RandomRotation", {{"degrees", List{-40, 40}}, {"interpolation", std::string("bicubic")}}}});
  }
  return lists;
}

std::vector<Transforms> areas() {
  std::vector<Transforms> lists;
  const auto blurred = [&](List size, List sigma) {
    lists.push_back({kCut, {"GaussianBlur", {{"kernel_size", std::move(size)}, {"sigma", std::move(sigma)}}}});
  };
  blurred({3}, {0.1, 2.0});
  blurred({1, 5}, {1, 1});
  blurred({23}, {0.001, 0.2});
  blurred({23, 9}, {5, 50});
  blurred({101, 255}, {30, 1000});
  for (const double sigma : {0.0, 0.02, 0.5, 10.0}) {
    for (const bool clip : {true, false}) {
      lists.push_back({kCut, {"GaussianNoise", {{"mean", 0.1}, {"sigma", sigma}, {"clip", clip}}}, kMirrored});
    }
  }
  const List scale{0.02, 0.9};
  lists.push_back({kCut, {"RandomErasing", {{"p", 1.0}, {"scale", scale}, {"value", List{200, 3, 77}}}}});
  lists.push_back({kCut, {"RandomErasing", {{"p", 1.0}, {"scale", scale}, {"value", std::string("random")}}}});
  lists.push_back({{"RandomErasing", {{"p", 0.7}, {"value", std::string("random")}}}, kMirrored, kCut});
  for (const char* mode : {"edge", "reflect", "symmetric"}) {
    lists.push_back({kCut, {"Pad", {{"padding", List{7, 40, 0, 3}}, {"padding_mode", std::string(mode)}}}});
    lists.push_back({{"RandomCrop",
                      {{"size", List{40, 33}},
                       {"padding", int64_t{5}},
                       {"pad_if_needed", true},
                       {"padding_mode", std::string(mode)}}},
                     kMirrored,
                     kPadded});
  }
  return lists;
}

std::vector<Transforms> warps() {
  std::vector<Transforms> lists;
  const List fill{12, 240, 99};
  for (const char* name : {"nearest", "bilinear", "bicubic"}) {
    const std::string filter = name;
    const auto rotated = [&](double low, double high, bool expand) -> TransformSpec {
      return {"RandomRotation",
              {{"degrees", List{low, high}}, {"interpolation", filter}, {"fill", fill}, {"expand", expand}}};
    };
    lists.push_back({kCut, rotated(-180, 180, false)});
    lists.push_back({rotated(-180, 180, true), kCut});
    for (const double turn : {0.0, 90.0, 180.0, 270.0}) {
      lists.push_back({kSquare, rotated(turn, turn, false)});
      lists.push_back({kCut, rotated(turn, turn, false)});
      lists.push_back({rotated(turn, turn, true), kCut});
    }
    const auto affine = [&](List degrees, List scale, ParamValue shear) -> TransformSpec {
      return {"RandomAffine",
              {{"degrees", std::move(degrees)},
               {"translate", List{0.5, 0.3}},
               {"scale", std::move(scale)},
               {"shear", std::move(shear)},
               {"interpolation", filter},
               {"fill", fill}}};
    };
    lists.push_back({kCut, affine({-90, 90}, {0.3, 4}, List{-30, 30, -20, 20})});
    lists.push_back({kCut, affine({0, 0}, {0.05, 9}, ParamValue{})});
    lists.push_back({kCut, affine({0, 0}, {1, 1}, ParamValue{})});
    lists.push_back({affine({-10, 10}, {0.9, 1.1}, List{5}), kCut, kMirrored});
    for (const double distortion : {0.1, 0.9}) {
      lists.push_back({kCut,
                       {"RandomPerspective",
                        {{"p", 1.0}, {"distortion_scale", distortion}, {"interpolation", filter}, {"fill", fill}}}});
    }
    lists.push_back({kCut, {"TrivialAugmentWide", {{"interpolation", filter}, {"fill", fill}}}});
    lists.push_back(
        {kCut, {"RandAugment", {{"num_ops", int64_t{4}}, {"magnitude", int64_t{20}}, {"interpolation", filter}}}});
    for (const char* policy : {"imagenet", "cifar10", "svhn"}) {
      lists.push_back({kCut, {"AutoAugment", {{"policy", std::string(policy)}, {"interpolation", filter}}}});
    }
  }
  return lists;
}

const TransformSpec kJitter{
    "ColorJitter", {{"brightness", List{0.8}}, {"contrast", List{0.8}}, {"saturation", List{0.8}}, {"hue", List{0.2}}}};

// Whole pipelines: operations before, between and behind resizes, cuts of what they made, and choices among all.
std::vector<Transforms> mixtures() {
  const auto resized = [](double a, double b, const char* filter) -> TransformSpec {
    return {"Resize", {{"size", List{a, b}}, {"interpolation", std::string(filter)}}};
  };
  const TransformSpec blur{"GaussianBlur", {{"kernel_size", List{5}}}};
  const TransformSpec equalized{"RandomEqualize", {{"p", 0.5}}};
  const TransformSpec noise{"RandomErasing", {{"p", 0.5}, {"value", std::string("random")}}};
  const TransformSpec framed{
      "RandomCrop",
      {{"size", List{28, 30}}, {"padding", int64_t{2}}, {"pad_if_needed", true}, {"fill", List{5, 6, 7}}}};
  const std::vector<TransformSpec> all{
      kJitter, blur, equalized, noise, {"TrivialAugmentWide", {}}, {"RandAugment", {}}};
  return {{kCut, kMirrored, kJitter},
          {kCut,
           kMirrored,
           kJitter,
           {"RandomGrayscale", {{"p", 0.2}}},
           blur,
           {"RandomSolarize", {{"p", 0.2}, {"threshold", 128.0}}},
           noise},
          {kJitter, kCut},
          {kCut, {"RandomPhotometricDistort", {{"p", 0.7}}}, kMirrored},
          {kJitter, kMirrored, framed, blur, kMirrored, resized(20, 22, "bicubic"), equalized, kPadded},
          {resized(60, 50, "bilinear"), resized(20, 30, "lanczos"), resized(17, 33, "hamming")},
          {{"RandomResize", {{"min_size", int64_t{20}}, {"max_size", int64_t{50}}}}, kCut},
          {{"RandomShortestSize", {{"min_size", List{25, 40}}, {"max_size", int64_t{70}}}}, kMirrored, framed},
          {{"ScaleJitter", {{"target_size", List{50, 60}}, {"scale_range", List{0.8, 1.5}}}}, kJitter, framed},
          {{"RGB", {}}, kCut, {"Identity", {}}, kJitter},
          {{"RandomResizedCrop",
            {{"size", List{20, 30}}, {"interpolation", std::vector<std::string>{"nearest", "bilinear", "lanczos"}}}},
           kMirrored},
          {resized(60, 50, "nearest"), framed, resized(45, 33, "box"), kMirrored, resized(20, 30, "bicubic"), kJitter},
          {resized(40, 40, "bilinear"), kJitter, resized(40, 40, "bilinear"), {"CenterCrop", {{"size", int64_t{50}}}}},
          {equalized, equalized, kJitter, kJitter, framed},
          // A rotation of magnitude 0 changes nothing, and may come between operations of one pixel.
          {kCut, {"RandAugment", {{"num_ops", int64_t{8}}, {"magnitude", int64_t{0}}}}, {"RandomInvert", {{"p", 1.0}}}},
          {kCut, {"RandomApply", {{"transforms", all}, {"p", 0.7}}}},
          {kCut, {"RandomChoice", {{"transforms", all}}}},
          {{"RandomOrder", {{"transforms", all}}}, kCut, {"RandomOrder", {{"transforms", all}}}}};
}

std::vector<uint8_t> colours_from(uint32_t first, uint32_t count) {
  std::vector<uint8_t> planes(size_t{3} * count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t colour = first + i;
    for (uint32_t c = 0; c < 3; ++c) planes[size_t{c} * count + i] = static_cast<uint8_t>(colour >> (16 - 8 * c));
  }
  return planes;
}

// A launch over one part; both arrays are written from `at` on.
template <class Part>
StageLaunch launch_of(std::byte* here, uint64_t at, GpuStage stage, const Part& part) {
  StageLaunch launch{.stage = stage, .spans_at = at + 1024, .parts_at = at};
  static_assert(sizeof(Part) <= 1024);
  std::memcpy(here + at, &part, sizeof part);
  auto* const spans = reinterpret_cast<PartSpan*>(here + launch.spans_at);
  for (uint32_t first = 0; first < part.units; first += kSpanThreads) spans[launch.spans++] = {0, first};
  return launch;
}

}  // namespace

void check_pixels(Gpu& gpu) {
  constexpr uint32_t kSeed = 20261122;
  std::printf("pixel transforms: seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  GpuBench bench(gpu, size_t{24} << 20);
  BatchCounts counts;
  const size_t times = full() ? 10 : 1;
  for (const auto& lists : {colours(), slivers(), areas(), warps(), mixtures()}) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{7}}) {
      if (size == 7 && !full()) continue;  // batches of more are check_batches', and the mixtures below
      for (size_t round = 0; round < times; ++round) compare_batches(bench, lists, size, random, counts);
    }
  }
  for (size_t round = 0; round < times; ++round) compare_batches(bench, mixtures(), full() ? 64 : 16, random, counts);
  std::printf("%d pictures, %d not for GPUs, at most %zu launches\n", counts.made, counts.refused,
              counts.most_launches);
}

void check_launches(Gpu& gpu) {
  std::mt19937 random(3);
  GpuBench bench(gpu, size_t{24} << 20);
  BatchCounts counts;
  compare_batches(bench, {{kCut, kJitter}}, 64, random, counts);
  // Entropy decoding of those with an index; of those without, the first round and six pairs, of which the last two
  // are but one each for pictures this small, sums, and blocks; four of decoding and resizing; then contrast is the
  // first, the last or in between: a point, tally, tone, a point.
  CHECK(counts.most_launches == 1 + (1 + 4 * 2 + 2 * 1 + 2) + 4 + 4);
}

void check_all_colours(Gpu& gpu) {
  constexpr uint32_t kSlab = 1U << 20;
  constexpr size_t kImage = size_t{3} * kSlab;
  constexpr size_t kBytes = 2 * kImage + (size_t{1} << 16) + (kSlab / kSpanThreads) * sizeof(PartSpan);
  const GpuBlock here(gpu, kBytes, GpuMemory::pinned);
  const GpuBlock there(gpu, kBytes, GpuMemory::device);
  const auto stream = gpu.stream();
  std::vector<PixelOp> ops{HueOp{37}, SaturationOp{1.7F}, GreyOp{}};
  if (full()) {
    for (const int shift : {0, 1, 64, 127, 128, 200, 255}) ops.emplace_back(HueOp{static_cast<uint8_t>(shift)});
    for (const float factor : {0.0F, 0.1F, 0.99F, 1.3F, 2.0F, 77.0F}) ops.emplace_back(SaturationOp{factor});
  }
  PaintScratch scratch;
  PixelBuffer image;
  image.resize(1024, kSlab / 1024);
  for (const PixelOp& op : ops) {
    PointStep step;
    if (const auto* hue = std::get_if<HueOp>(&op)) {
      step.kind = PointKind::hue;
      step.shift = hue->shift;
    } else if (const auto* saturation = std::get_if<SaturationOp>(&op)) {
      step.kind = PointKind::saturation;
      step.factor = saturation->factor;
    } else {
      step.kind = PointKind::grey;
    }
    // By default a different two of the sixteen parts for each operation.
    for (uint32_t first = full() ? 0 : static_cast<uint32_t>(op.index() % 8) * kSlab; first < (1U << 24);
         first += full() ? kSlab : 8 * kSlab) {
      const std::vector<uint8_t> planes = colours_from(first, kSlab);
      std::memcpy(here.data(), planes.data(), kImage);
      std::memcpy(here.data() + 2 * kImage, &step, sizeof step);
      PointPart part{.units = kSlab, .width = 1024, .steps = 1, .steps_at = 2 * kImage, .from_at = 0, .to_at = kImage};
      const StageLaunch launch = launch_of(here.data(), 2 * kImage + 1024, GpuStage::point, part);
      stream->upload(there.data(), here.data(), kBytes);
      stream->launch(there.data(), launch);
      stream->download(here.data() + kImage, there.data() + kImage, kImage);
      stream->wait(60 * kSecond);
      for (uint32_t i = 0; i < kSlab; ++i) {
        for (size_t c = 0; c < 3; ++c) image.row(0)[size_t{3} * i + c] = planes[c * kSlab + i];
      }
      run_pixel_op(image, op, scratch);
      const auto* const made = reinterpret_cast<const uint8_t*>(here.data() + kImage);
      uint32_t wrong = 0;
      for (uint32_t i = 0; i < kSlab; ++i) {
        for (size_t c = 0; c < 3; ++c) wrong += image.row(0)[size_t{3} * i + c] != made[c * kSlab + i] ? 1 : 0;
      }
      REQUIRE_MESSAGE(wrong == 0, "operation " << op.index() << " from colour " << first);
    }
  }
}

void check_tones(Gpu& gpu) {
  constexpr size_t kBytes = size_t{1} << 16;
  constexpr uint32_t kPixels = 2;
  const GpuBlock here(gpu, kBytes, GpuMemory::pinned);
  const GpuBlock there(gpu, kBytes, GpuMemory::device);
  const auto stream = gpu.stream();
  PaintScratch scratch;
  for (const float factor : {0.0F, 0.21F, 0.8F, 1.0F, 1.2345F, 3.0F, 500.0F}) {
    for (int sum = 0; sum <= 2 * 255; ++sum) {
      const uint64_t uploaded = static_cast<uint64_t>(sum);
      std::memcpy(here.data(), &uploaded, sizeof uploaded);
      TonePart part{.units = 256, .kind = ToneKind::contrast, .pixels = kPixels, .factor = factor};
      part.to_at = 256;
      const StageLaunch launch = launch_of(here.data(), 1024, GpuStage::tone, part);
      stream->upload(there.data(), here.data(), 4096);
      stream->launch(there.data(), launch);
      stream->download(here.data() + 256, there.data() + 256, 256);
      stream->wait(60 * kSecond);
      // Two grey pixels of that sum, turned by the CPU.
      PixelBuffer image;
      image.resize(2, 1);
      std::memset(image.row(0), sum / 2, 3);
      std::memset(image.row(0) + 3, sum - sum / 2, 3);
      run_pixel_op(image, ContrastOp{factor}, scratch);
      const auto* const table = reinterpret_cast<const uint8_t*>(here.data() + 256);
      REQUIRE(image.row(0)[0] == table[sum / 2]);
      REQUIRE(image.row(0)[3] == table[sum - sum / 2]);
    }
  }
}

}  // namespace penstock_test
