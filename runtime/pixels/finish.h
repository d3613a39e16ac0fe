// The finishing pass: uint8 pixels to the tensor a network wants, in the copy that moves them into the batch buffer.
//
//   FinishSpec spec{.dtype = DType::float32, .scale = true, .normalize = true, .mean = {...}, .std = {...}};
//   Finisher finish(spec, /*channels=*/3, height, width);
//   finish.run(source_chw, destination);       // one sample; destination has finish.bytes_per_sample() bytes
//
// Semantics: per element, in float32 and in this order, each operation rounded on its own (torchvision's ToTensor
//   and Normalize on float32 tensors): y = x * float32(1/255) when scale, else x; then (y - mean) / std when normalize;
//   then a cast to dtype (round to nearest even). uint8 is a copy. As x has 256 values, the whole chain is a 3 x 256
//   table built on the host with exactly those operations, so it is equal on every machine by construction.
// Layout: source is planar [3, h, w]; the destination is planar (NCHW) or interleaved (channels_last).
// How: the table is what is promised; what runs is vector arithmetic, which is several times faster than looking up.
//   The constructor runs that arithmetic on all 256 values of each channel and compares with the table, and takes the
//   next slower way (multiplication by a two-part reciprocal with FMA; true division; the table itself) wherever a
//   bit differs. So equality does not rest on an argument about rounding, nor on the CPU at hand.
// Alignment: any. Streaming needs the destination aligned to its elements; otherwise ordinary stores are used. The
//   destination is written exactly, never past its end; run() ends with a store fence, so the bytes are visible to
//   whoever synchronises with this thread afterwards.
// Failure: Error(usage) for channels other than 1 or 3, sizes below 1 and dtypes that images do not have.
// Stores are streaming (non-temporal): the consumer is another core or a GPU, and a batch is larger than any cache.
// Thread-safety: run() is const and may be called from any thread. Ownership: source and destination are the caller's.
// Reference: finish_reference(), plain loops.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/fields.h"

namespace penstock {

enum class MemoryFormat : uint8_t { contiguous = 0, channels_last = 1 };

struct FinishSpec {
  DType dtype = DType::uint8;  // uint8, float32, float16 or bfloat16
  bool scale = false;
  bool normalize = false;
  std::array<float, 3> mean{0, 0, 0};
  std::array<float, 3> std{1, 1, 1};
  MemoryFormat memory_format = MemoryFormat::contiguous;

  friend bool operator==(const FinishSpec&, const FinishSpec&) = default;
};

class Finisher {
 public:
  // `images`: of one sample, one after the other.
  Finisher(const FinishSpec& spec, int channels, int height, int width, int images = 1);

  void run(const uint8_t* source_chw, void* destination) const;
  size_t bytes_per_sample() const noexcept;
  const FinishSpec& spec() const noexcept { return spec_; }
  size_t pixels_per_image() const noexcept { return static_cast<size_t>(height_) * static_cast<size_t>(width_); }
  int channels() const noexcept { return channels_; }
  int images_per_sample() const noexcept { return images_; }
  // What is promised, for who finishes elsewhere: channels x 256 bit patterns of the dtype, in the low bits.
  const std::vector<uint32_t>& table() const noexcept { return table_; }

  // What runs, for tests and logs.
  enum class Method : uint8_t { copy, reciprocal, divide, table };
  Method method() const noexcept { return method_; }
  // For tests: the same Finisher by a given way, if that way is exact here; returns false and changes nothing if not.
  bool force_method(Method method);

 private:
  void run_image(const uint8_t* source_chw, uint8_t* out) const;
  bool exact(Method method) const;

  FinishSpec spec_;
  int channels_ = 0;
  int height_ = 0;
  int width_ = 0;
  int images_ = 1;
  Method method_ = Method::table;
  std::vector<uint32_t> table_;
};

// Round to nearest, ties to even; NaN stays a quiet NaN. Integer code, so equal everywhere.
uint16_t half_bits(float value) noexcept;
uint16_t bfloat16_bits(float value) noexcept;

// The same in plain loops; tests compare bit for bit.
void finish_reference(const FinishSpec& spec, int channels, int height, int width, const uint8_t* source_chw,
                      void* destination);

}  // namespace penstock
