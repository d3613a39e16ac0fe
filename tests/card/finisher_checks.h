// What CardFinisher must show on every card, the one that is this CPU and real ones.
//
//   check_finisher(open_host_card(0, bytes));        // in a doctest test case
#pragma once

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "runtime/card/card_finisher.h"

namespace penstock_test {

// Batches of random pixels, one after the other by one finisher, from an image a piece to all in one; what lies around
// the tensor is watched.
inline void check_finisher(const std::shared_ptr<penstock::Card>& card) {
  using namespace penstock;
  constexpr size_t kGuard = 512;
  struct Shape {
    int height;
    int width;
    int images;
  };
  std::mt19937 random(21);
  for (const DType dtype : {DType::uint8, DType::float32, DType::float16, DType::bfloat16}) {
    for (const MemoryFormat format : {MemoryFormat::contiguous, MemoryFormat::channels_last}) {
      for (const Shape shape : {Shape{1, 1, 1}, Shape{7, 5, 1}, Shape{16, 16, 5}, Shape{33, 61, 1}, Shape{24, 18, 2}}) {
        FinishSpec spec{.dtype = dtype, .memory_format = format};
        if (dtype != DType::uint8) {
          spec.scale = spec.normalize = true;
          spec.mean = {0.485F, 0.456F, 0.406F};
          spec.std = {0.229F, 0.224F, 0.225F};
        }
        const Finisher finisher(spec, 3, shape.height, shape.width, shape.images);
        const size_t each = size_t{3} * finisher.pixels_per_image() * static_cast<size_t>(shape.images);
        for (const size_t memory_bytes : {size_t{0}, 5 * each + 8192, size_t{1} << 20}) {
          CardFinisher finishing(card, finisher, nullptr, {.memory_bytes = memory_bytes});
          int64_t samples = 0;
          for (const int64_t count : {7, 1, 16}) {
            CAPTURE(name_of(dtype));
            CAPTURE(static_cast<int>(format));
            CAPTURE(shape.height);
            CAPTURE(memory_bytes);
            std::vector<uint8_t> images(static_cast<size_t>(count) * each);
            for (uint8_t& value : images) value = static_cast<uint8_t>(random());
            const size_t bytes = static_cast<size_t>(count) * finisher.bytes_per_sample();
            std::vector<std::byte> wanted(bytes + 2 * kGuard, std::byte{0xEE});
            for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
              finisher.run(images.data() + i * each, wanted.data() + kGuard + i * finisher.bytes_per_sample());
            }
            std::vector<std::byte> got(wanted.size(), std::byte{0xEE});
            const CardBlock memory(*card, got.size(), CardMemory::device);
            const auto stream = card->stream();
            stream->upload(memory.data(), got.data(), got.size());
            stream->wait(10 * kSecond);
            finishing.finish(images.data(), count, memory.data() + kGuard);
            finishing.wait();
            stream->download(got.data(), memory.data(), got.size());
            stream->wait(10 * kSecond);
            REQUIRE(got == wanted);
            samples += count;
          }
          CHECK(finishing.figures().samples == samples);
          CHECK(finishing.figures().uploaded_bytes == samples * static_cast<int64_t>(each));
        }
      }
    }
  }
}

}  // namespace penstock_test
