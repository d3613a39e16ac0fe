#include "runtime/pixels/finish.h"

#include <cstring>

#include "runtime/base/error.h"
#include "runtime/pixels/finish_kernels.h"

namespace penstock {

namespace {

// torchvision v2's ToDtype multiplies by the rounded 1/255; ToTensor divides, which may differ in the last place.
constexpr float kScale = 1.0f / 255.0f;

// What is promised, for one value.
uint32_t finished_bits(const FinishSpec& spec, size_t channel, uint8_t x) {
  if (spec.dtype == DType::uint8) return x;
  float y = static_cast<float>(x);
  if (spec.scale) y = y * kScale;
  if (spec.normalize) {
    y = y - spec.mean[channel];
    y = y / spec.std[channel];
  }
  if (spec.dtype == DType::float16) return half_bits(y);
  if (spec.dtype == DType::bfloat16) return bfloat16_bits(y);
  uint32_t bits;
  std::memcpy(&bits, &y, sizeof bits);
  return bits;
}

void store_bits(uint8_t* destination, uint32_t bits, size_t bytes) {
  if (bytes == 4) {
    std::memcpy(destination, &bits, 4);
  } else if (bytes == 2) {
    const auto word = static_cast<uint16_t>(bits);
    std::memcpy(destination, &word, 2);
  } else {
    *destination = static_cast<uint8_t>(bits);
  }
}

FinishChannel channel_of(const FinishSpec& spec, size_t channel, const uint32_t* table) {
  // A step that is left out is one that changes nothing: x * 1, x - 0.
  return {.factor = spec.scale ? kScale : 1.0f,
          .mean = spec.normalize ? spec.mean[channel] : 0.0f,
          .std = spec.normalize ? spec.std[channel] : 1.0f,
          .table = table + channel * 256};
}

void check_shape(const FinishSpec& spec, int channels, int height, int width) {
  if ((channels != 1 && channels != 3) || height < 1 || width < 1) {
    throw Error(ErrorKind::usage, "the finishing pass takes 1 or 3 channels of at least one pixel, not " +
                                      std::to_string(channels) + " x " + std::to_string(height) + " x " +
                                      std::to_string(width));
  }
  if (spec.dtype != DType::uint8 && spec.dtype != DType::float32 && spec.dtype != DType::float16 &&
      spec.dtype != DType::bfloat16) {
    throw Error(ErrorKind::usage, std::string("images cannot be ") + name_of(spec.dtype),
                "use uint8, float32, float16 or bfloat16");
  }
}

}  // namespace

uint16_t half_bits(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t a = bits & 0x7fffffffU;
  if (a > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U);   // NaN
  if (a >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7c00U);  // 65536 and above
  if (a <= 0x33000000U) return static_cast<uint16_t>(sign);            // 2^-25 and below: half the smallest, to even
  if (a < 0x38800000U) {                                               // below 2^-14: subnormal, multiples of 2^-24
    const uint32_t shift = 126U - (a >> 23);
    const uint32_t significand = (a & 0x7fffffU) | 0x800000U;
    const uint32_t down = significand >> shift;
    const uint32_t rest = significand & ((1U << shift) - 1U);
    const uint32_t half = 1U << (shift - 1U);
    return static_cast<uint16_t>(sign | (down + ((rest > half || (rest == half && (down & 1U) != 0)) ? 1U : 0U)));
  }
  // Normal: a carry out of the significand raises the exponent, up to infinity, which is as it should be.
  return static_cast<uint16_t>(sign | (((a + 0xfffU + ((a >> 13) & 1U)) >> 13) - (112U << 10)));
}

uint16_t bfloat16_bits(float value) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

Finisher::Finisher(const FinishSpec& spec, int channels, int height, int width, int images)
    : spec_(spec), channels_(channels), height_(height), width_(width), images_(images) {
  check_shape(spec, channels, height, width);
  table_.resize(static_cast<size_t>(channels) * 256);
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    for (size_t x = 0; x < 256; ++x) table_[c * 256 + x] = finished_bits(spec, c, static_cast<uint8_t>(x));
  }
  if (spec.dtype == DType::uint8) {
    method_ = Method::copy;
  } else if (exact(Method::reciprocal)) {
    method_ = Method::reciprocal;
  } else if (exact(Method::divide)) {
    method_ = Method::divide;
  }
}

bool Finisher::exact(Method method) const {
  if (method == Method::copy) return spec_.dtype == DType::uint8;
  if (method == Method::table) return true;
  if (spec_.dtype == DType::uint8) return false;
  const size_t element = size_of(spec_.dtype);
  // 256 is a multiple of every vector's lanes, so in an aligned destination vectors alone make all values.
  alignas(256) uint8_t made[256 * 4];
  uint8_t source[256];
  for (size_t x = 0; x < 256; ++x) source[x] = static_cast<uint8_t>(x);
  for (size_t c = 0; c < static_cast<size_t>(channels_); ++c) {
    finish_plane(spec_.dtype, method == Method::reciprocal, channel_of(spec_, c, table_.data()), source, 256, made);
    for (size_t x = 0; x < 256; ++x) {
      uint8_t wanted[4];
      store_bits(wanted, table_[c * 256 + x], element);
      if (std::memcmp(wanted, made + x * element, element) != 0) return false;
    }
  }
  return true;
}

bool Finisher::force_method(Method method) {
  if (!exact(method)) return false;
  method_ = method;
  return true;
}

size_t Finisher::bytes_per_sample() const noexcept {
  return static_cast<size_t>(images_) * static_cast<size_t>(channels_) * static_cast<size_t>(height_) *
         static_cast<size_t>(width_) * size_of(spec_.dtype);
}

void Finisher::run(const uint8_t* source_chw, void* destination) const {
  const size_t elements = static_cast<size_t>(channels_) * static_cast<size_t>(height_) * static_cast<size_t>(width_);
  for (size_t i = 0; i < static_cast<size_t>(images_); ++i) {
    run_image(source_chw + i * elements, static_cast<uint8_t*>(destination) + i * elements * size_of(spec_.dtype));
  }
}

void Finisher::run_image(const uint8_t* source_chw, uint8_t* out) const {
  const size_t area = static_cast<size_t>(height_) * static_cast<size_t>(width_);
  const size_t element = size_of(spec_.dtype);
  const auto channels = static_cast<size_t>(channels_);
  const bool interleave = channels == 3 && spec_.memory_format == MemoryFormat::channels_last;
  if (method_ == Method::table) {
    for (size_t c = 0; c < channels; ++c) {
      const uint32_t* table = table_.data() + c * 256;
      const size_t step = interleave ? 3 * element : element;
      uint8_t* to = out + (interleave ? c * element : c * area * element);
      for (size_t i = 0; i < area; ++i) store_bits(to + i * step, table[source_chw[c * area + i]], element);
    }
    return;
  }
  if (method_ == Method::copy && !interleave) {
    copy_streaming(source_chw, channels * area, out);
    return;
  }
  const bool reciprocal = method_ == Method::reciprocal;
  if (interleave) {
    const FinishChannel params[3] = {channel_of(spec_, 0, table_.data()), channel_of(spec_, 1, table_.data()),
                                     channel_of(spec_, 2, table_.data())};
    const uint8_t* const planes[3] = {source_chw, source_chw + area, source_chw + 2 * area};
    finish_interleaved(spec_.dtype, reciprocal, params, planes, area, out);
    return;
  }
  for (size_t c = 0; c < channels; ++c) {
    finish_plane(spec_.dtype, reciprocal, channel_of(spec_, c, table_.data()), source_chw + c * area, area,
                 out + c * area * element);
  }
}

void finish_reference(const FinishSpec& spec, int channels, int height, int width, const uint8_t* source_chw,
                      void* destination) {
  check_shape(spec, channels, height, width);
  const size_t area = static_cast<size_t>(height) * static_cast<size_t>(width);
  const size_t element = size_of(spec.dtype);
  auto* out = static_cast<uint8_t*>(destination);
  for (size_t c = 0; c < static_cast<size_t>(channels); ++c) {
    for (size_t i = 0; i < area; ++i) {
      const size_t place =
          spec.memory_format == MemoryFormat::channels_last ? i * static_cast<size_t>(channels) + c : c * area + i;
      store_bits(out + place * element, finished_bits(spec, c, source_chw[c * area + i]), element);
    }
  }
}

}  // namespace penstock
