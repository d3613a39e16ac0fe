#include "runtime/pixels/finish.h"

#include <doctest/doctest.h>

#include <hwy/targets.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/base/error.h"

using penstock::DType;
using penstock::Finisher;
using penstock::FinishSpec;
using penstock::MemoryFormat;

namespace {

constexpr FinishSpec kImageNet{.dtype = DType::float32,
                               .scale = true,
                               .normalize = true,
                               .mean = {0.485f, 0.456f, 0.406f},
                               .std = {0.229f, 0.224f, 0.225f}};

// All specs that pipelines can ask for, with awkward constants among them.
std::vector<FinishSpec> specs() {
  std::vector<FinishSpec> out;
  for (const DType dtype : {DType::uint8, DType::float32, DType::float16, DType::bfloat16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      for (const bool scale : {false, true}) {
        FinishSpec spec{.dtype = dtype, .scale = scale, .memory_format = format};
        out.push_back(spec);
        if (dtype == DType::uint8) break;
        spec.normalize = true;
        spec.mean = kImageNet.mean;
        spec.std = kImageNet.std;
        out.push_back(spec);
        spec.mean = {0.1f, -3.5f, 127.5f};
        spec.std = {1e-3f, 58.395f, 7.0f / 3.0f};
        out.push_back(spec);
        spec.std = {1e-7f, 1e-42f, 3e38f};  // overflow, subnormal divisor, subnormal results
        out.push_back(spec);
      }
    }
  }
  return out;
}

std::string describe(const FinishSpec& spec, int channels, int height, int width, size_t offset) {
  return std::string(penstock::name_of(spec.dtype)) + (spec.scale ? " scale" : "") + " std0 " +
         std::to_string(spec.normalize ? spec.std[0] : 0) +
         (spec.memory_format == MemoryFormat::channels_last ? " channels_last " : " ") + std::to_string(channels) +
         "x" + std::to_string(height) + "x" + std::to_string(width) + " offset " + std::to_string(offset);
}

// Runs both and compares every byte, and the bytes around the destination.
void check_equal(const Finisher& finisher, const FinishSpec& spec, int channels, int height, int width, size_t offset,
                 const std::vector<uint8_t>& source) {
  const size_t bytes = finisher.bytes_per_sample();
  std::vector<uint8_t> expected(bytes);
  penstock::finish_reference(spec, channels, height, width, source.data(), expected.data());
  constexpr size_t kGuard = 192;
  std::vector<uint8_t> memory(bytes + 2 * kGuard + 64, 0xa5);
  const size_t misaligned = reinterpret_cast<uintptr_t>(memory.data()) % 64;
  uint8_t* destination = memory.data() + kGuard + (64 - misaligned) % 64 + offset;
  finisher.run(source.data(), destination);
  const bool equal = std::memcmp(expected.data(), destination, bytes) == 0;
  if (!equal) FAIL(describe(spec, channels, height, width, offset));
  for (uint8_t* p = memory.data(); p < memory.data() + memory.size(); ++p) {
    if ((p < destination || p >= destination + bytes) && *p != 0xa5) {
      FAIL("wrote beside: " << describe(spec, channels, height, width, offset));
    }
  }
}

std::vector<uint8_t> random_bytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint8_t> out(count);
  for (uint8_t& b : out) b = static_cast<uint8_t>(random());
  return out;
}

}  // namespace

TEST_CASE("every value of every spec equals the reference, bit for bit") {
  // A plane of 16 x 16 holds each value once; a rotated copy per channel.
  std::vector<uint8_t> source(3 * 256);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i + i / 256 * 37);
  int checked = 0;
  for (const FinishSpec& spec : specs()) {
    const Finisher finisher(spec, 3, 16, 16);
    check_equal(finisher, spec, 3, 16, 16, 0, source);
    for (const Finisher::Method method :
         {Finisher::Method::reciprocal, Finisher::Method::divide, Finisher::Method::table}) {
      Finisher forced(spec, 3, 16, 16);
      if (!forced.force_method(method)) continue;
      check_equal(forced, spec, 3, 16, 16, 0, source);
      ++checked;
    }
  }
  CHECK(checked > 100);
}

TEST_CASE("odd sizes and misaligned destinations") {
  const uint64_t seed = 7;
  std::printf("finish: seed %llu\n", static_cast<unsigned long long>(seed));
  const int sizes[][2] = {{1, 1}, {1, 2}, {3, 5}, {7, 9}, {1, 63}, {8, 8}, {5, 13}, {33, 31}, {1, 257}, {64, 65}};
  for (const FinishSpec& spec : specs()) {
    for (const auto& size : sizes) {
      for (const int channels : {1, 3}) {
        const Finisher finisher(spec, channels, size[0], size[1]);
        const std::vector<uint8_t> source =
            random_bytes(static_cast<size_t>(channels) * static_cast<size_t>(size[0] * size[1]), seed);
        for (const size_t offset : {0UL, 1UL, 2UL, 3UL, 4UL, 8UL, 12UL, 20UL, 36UL, 62UL}) {
          check_equal(finisher, spec, channels, size[0], size[1], offset, source);
        }
      }
    }
  }
}

TEST_CASE("every instruction set that this CPU has gives the same bits") {
  std::vector<uint8_t> source(3 * 256);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 5 + i / 256);
  int targets = 0;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(target);
    std::printf("finish: %s\n", hwy::TargetName(target));
    for (const FinishSpec& spec : specs()) {
      for (const size_t offset : {0UL, 1UL, 4UL}) {
        check_equal(Finisher(spec, 3, 16, 16), spec, 3, 16, 16, offset, source);
        check_equal(Finisher(spec, 3, 15, 17), spec, 3, 15, 17, offset, source);
      }
    }
    ++targets;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().DeInit();
  CHECK(targets >= 1);
}

TEST_CASE("several images of a sample are finished one by one") {
  FinishSpec spec = kImageNet;
  spec.memory_format = MemoryFormat::channels_last;
  std::vector<uint8_t> source(3 * 4 * 5 * 3);
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<uint8_t>(i * 37);
  const Finisher all(spec, 3, 4, 5, 3);
  REQUIRE(all.bytes_per_sample() == source.size() * 4);
  std::vector<uint8_t> made(all.bytes_per_sample()), wanted(made.size());
  all.run(source.data(), made.data());
  for (size_t i = 0; i < 3; ++i)
    penstock::finish_reference(spec, 3, 4, 5, source.data() + i * 60, wanted.data() + i * 240);
  CHECK(made == wanted);
}

TEST_CASE("the fast way is taken for the specs that people use") {
  FinishSpec spec = kImageNet;
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
    spec.dtype = dtype;
    CHECK(Finisher(spec, 3, 224, 224).method() != Finisher::Method::table);
  }
  spec = {};
  CHECK(Finisher(spec, 3, 224, 224).method() == Finisher::Method::copy);
  CHECK(Finisher(spec, 3, 224, 224).bytes_per_sample() == 150528);
}

TEST_CASE("half and bfloat16 round to nearest even") {
  // A half or bfloat16 is a float whose neighbours are known: check each boundary between two of them, and beside it.
  const auto half_value = [](uint16_t h) {
    const int exponent = (h >> 10) & 31;
    const int significand = h & 1023;
    const double magnitude =
        exponent == 0 ? std::ldexp(significand, -24) : std::ldexp(1024 + significand, exponent - 25);
    return (h & 0x8000) != 0 ? -magnitude : magnitude;
  };
  for (uint32_t h = 0; h < 0x7c00; ++h) {
    const auto low = static_cast<uint16_t>(h);
    const auto value = static_cast<float>(half_value(low));
    REQUIRE(penstock::half_bits(value) == low);
    REQUIRE(penstock::half_bits(-value) == (low | 0x8000));
    const double next = h + 1 == 0x7c00 ? 65536.0 : half_value(static_cast<uint16_t>(h + 1));
    const auto middle = static_cast<float>((static_cast<double>(value) + next) / 2);  // exact
    REQUIRE(penstock::half_bits(middle) == (h % 2 == 0 ? h : h + 1));
    REQUIRE(penstock::half_bits(std::nextafter(middle, 0.0f)) == h);
    REQUIRE(penstock::half_bits(std::nextafter(middle, 1e9f)) == h + 1);
  }
  CHECK(penstock::half_bits(1e10f) == 0x7c00);
  CHECK(penstock::half_bits(-INFINITY) == 0xfc00);
  CHECK((penstock::half_bits(NAN) & 0x7e00) == 0x7e00);
  for (uint32_t b = 0; b < 0x7f80; ++b) {
    const auto as_float = [](uint32_t bits) {
      float f;
      std::memcpy(&f, &bits, 4);
      return f;
    };
    REQUIRE(penstock::bfloat16_bits(as_float(b << 16)) == b);
    REQUIRE(penstock::bfloat16_bits(as_float(b << 16 | 0x8000)) == (b % 2 == 0 ? b : b + 1));
    REQUIRE(penstock::bfloat16_bits(as_float(b << 16 | 0x7fff)) == b);
    REQUIRE(penstock::bfloat16_bits(as_float(b << 16 | 0x8001)) == b + 1);
  }
  CHECK((penstock::bfloat16_bits(NAN) & 0x7fc0) == 0x7fc0);
}

TEST_CASE("what images cannot be is refused by name") {
  CHECK_THROWS_WITH_AS(Finisher({.dtype = DType::int64}, 3, 8, 8), doctest::Contains("int64"), penstock::Error);
  CHECK_THROWS_AS(Finisher({}, 2, 8, 8), penstock::Error);
  CHECK_THROWS_AS(Finisher({}, 3, 0, 8), penstock::Error);
}
