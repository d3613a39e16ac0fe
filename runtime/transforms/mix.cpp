// MixUp and CutMix, as torchvision v2 has them: every sample is mixed with the one before it in the batch, the first
// with the last, all by one share.
//
// Exactness: each product and each sum is rounded to the images' type on its own, in the order torchvision's
//   `rolled.mul_(1 - lam).add_(image.mul(lam))` has them; so a batch has the same bits on every machine. The share is a
//   float32 for all types (torch 1.13 rounds it to float16 or bfloat16 first).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "runtime/pixels/draw_math.h"
#include "runtime/transforms/draw_gamma.h"
#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// The logarithm of a draw of Gamma(a, 1) (Marsaglia and Tsang, 2000); of a small `a` the draw itself may be too small
// for a double.
double log_gamma_draw(DrawStream& stream, double a) {
  double boost = 0;
  if (a < 1) {
    boost = draw_log(1.0 - stream.uniform01()) / a;
    a += 1;
  }
  const double d = a - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (int attempt = 0; attempt < 1000; ++attempt) {  // 19 of 20 are taken at once
    const double x = draw_normal(stream);
    const double u = 1.0 - stream.uniform01();
    const double root = 1.0 + c * x;
    if (root <= 0) continue;
    const double log_v = 3.0 * draw_log(root);
    if (draw_log(u) < 0.5 * x * x + d - d * (root * root * root) + d * log_v) return draw_log(d) + log_v + boost;
  }
  return draw_log(d) + boost;
}

// Beta(alpha, alpha). Takes as many draw numbers as the rejections need.
double beta_draw(DrawStream& stream, double alpha) {
  const double a = log_gamma_draw(stream, alpha);
  const double b = log_gamma_draw(stream, alpha);
  return 1.0 / (1.0 + draw_exp(b - a));
}

float half_value(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 31U;
  const uint32_t significand = bits & 0x3ffU;
  uint32_t out = 0;
  if (exponent == 31) {
    out = sign | 0x7f800000U | significand << 13;
  } else if (exponent != 0) {
    out = sign | (exponent + 112) << 23 | significand << 13;
  } else {
    const float value = static_cast<float>(significand) * 0x1p-24f;
    std::memcpy(&out, &value, sizeof out);
    out |= sign;
  }
  float value;
  std::memcpy(&value, &out, sizeof value);
  return value;
}

float bfloat16_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

void blend(float* mine, const float* partner, size_t count, float share, float rest) {
  for (size_t i = 0; i < count; ++i) mine[i] = partner[i] * rest + mine[i] * share;
}

// Every value of a small type times a factor, rounded to the type: a product is then one look-up.
template <class Value, class Bits>
std::vector<float> products(float factor, Value value, Bits bits) {
  std::vector<float> out(65536);
  for (size_t i = 0; i < out.size(); ++i) out[i] = value(bits(value(static_cast<uint16_t>(i)) * factor));
  return out;
}

// Calls change(sample's bytes, its partner's bytes) for each sample; the partner is as it was before.
template <class Change>
void with_partners(void* data, int64_t samples, size_t bytes, Change change) {
  if (samples < 1) return;
  auto* first = static_cast<std::byte*>(data);
  std::byte* last = first + static_cast<size_t>(samples - 1) * bytes;
  const std::vector<std::byte> of_first(last, last + bytes);
  for (std::byte* at = last; at > first; at -= bytes) change(at, at - bytes);
  change(first, of_first.data());
}

void mix_labels(const MixBatch& batch, double share) {
  const auto own = static_cast<float>(share);
  const auto other = static_cast<float>(1.0 - share);
  with_partners(batch.labels, batch.samples, static_cast<size_t>(batch.classes) * sizeof(float),
                [&](std::byte* mine, const std::byte* partner) {
                  blend(reinterpret_cast<float*>(mine), reinterpret_cast<const float*>(partner),
                        static_cast<size_t>(batch.classes), own, other);
                });
}

class Mixing : public BatchTransform {
 public:
  explicit Mixing(const ParamMap& params)
      : alpha_(number_param(params, "alpha")), classes_(integer_param(params, "num_classes")) {}
  int64_t classes() const noexcept override { return classes_; }

 protected:
  double alpha_;
  int64_t classes_;
};

// Draws: [the bits of the share, a double].
class MixUp final : public Mixing {
 public:
  using Mixing::Mixing;
  bool needs_float() const noexcept override { return true; }

  void draw(DrawStream& stream, Size, std::vector<int64_t>& values) const override {
    values.push_back(static_cast<int64_t>(draw_detail::bits_of(beta_draw(stream, alpha_))));
  }

  void mix(const MixBatch& batch, std::span<const int64_t> values) const override {
    require_draws(values, 1, "MixUp");
    const double share = draw_detail::double_of(static_cast<uint64_t>(values[0]));
    const auto own = static_cast<float>(share);
    const auto other = static_cast<float>(1.0 - share);
    const size_t count = static_cast<size_t>(batch.views * 3 * batch.size.height * batch.size.width);
    if (batch.dtype == DType::float32) {
      with_partners(batch.images, batch.samples, count * sizeof(float), [&](std::byte* mine, const std::byte* partner) {
        blend(reinterpret_cast<float*>(mine), reinterpret_cast<const float*>(partner), count, own, other);
      });
    } else if (batch.dtype == DType::float16) {
      mix_small(batch, count, own, other, half_value, half_bits);
    } else {
      mix_small(batch, count, own, other, bfloat16_value, bfloat16_bits);
    }
    mix_labels(batch, share);
  }

 private:
  template <class Value, class Bits>
  static void mix_small(const MixBatch& batch, size_t count, float own, float other, Value value, Bits bits) {
    const std::vector<float> of_own = products(own, value, bits);
    const std::vector<float> of_other = products(other, value, bits);
    with_partners(batch.images, batch.samples, count * sizeof(uint16_t),
                  [&](std::byte* mine, const std::byte* partner) {
                    auto* to = reinterpret_cast<uint16_t*>(mine);
                    const auto* from = reinterpret_cast<const uint16_t*>(partner);
                    for (size_t i = 0; i < count; ++i) to[i] = bits(of_other[from[i]] + of_own[to[i]]);
                  });
  }
};

// Draws: [the bits of the share, x, y], the middle of the box that is taken from the partner.
class CutMix final : public Mixing {
 public:
  using Mixing::Mixing;

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    // x and y first: how many draw numbers the share takes depends on the values.
    const int64_t x = stream.below(static_cast<uint32_t>(in.width));
    const int64_t y = stream.below(static_cast<uint32_t>(in.height));
    values.insert(values.end(), {static_cast<int64_t>(draw_detail::bits_of(beta_draw(stream, alpha_))), x, y});
  }

  void mix(const MixBatch& batch, std::span<const int64_t> values) const override {
    require_draws(values, 3, "CutMix");
    const double share = draw_detail::double_of(static_cast<uint64_t>(values[0]));
    const double half = 0.5 * std::sqrt(1.0 - share);
    const int width = batch.size.width, height = batch.size.height;
    const int half_width = static_cast<int>(half * width), half_height = static_cast<int>(half * height);
    const int left = std::max(static_cast<int>(values[1]) - half_width, 0);
    const int top = std::max(static_cast<int>(values[2]) - half_height, 0);
    const int right = std::min(static_cast<int>(values[1]) + half_width, width);
    const int bottom = std::min(static_cast<int>(values[2]) + half_height, height);
    const size_t element = size_of(batch.dtype);
    const bool last = batch.format == MemoryFormat::channels_last;
    const auto planes = static_cast<size_t>(last ? batch.views : batch.views * 3);
    const size_t pixel = element * (last ? 3 : 1);
    const size_t row = static_cast<size_t>(width) * pixel;
    with_partners(batch.images, batch.samples, planes * row * static_cast<size_t>(height),
                  [&](std::byte* mine, const std::byte* partner) {
                    for (size_t plane = 0; plane < planes; ++plane) {
                      for (int y = top; y < bottom; ++y) {
                        const size_t at = (plane * static_cast<size_t>(height) + static_cast<size_t>(y)) * row +
                                          static_cast<size_t>(left) * pixel;
                        std::memcpy(mine + at, partner + at, static_cast<size_t>(right - left) * pixel);
                      }
                    }
                  });
    // What the box took after it was cut off at the borders.
    mix_labels(batch, 1.0 - static_cast<double>(int64_t{right - left} * (bottom - top)) /
                                static_cast<double>(int64_t{width} * height));
  }
};

std::vector<ParamInfo> mixing_params() {
  return {
      number_info("alpha", 1.0, 1e-3, 1e3, "the share is drawn from Beta(alpha, alpha), once a batch"),
      integer_info("num_classes", {}, 1, 1 << 20, "labels become shares of so many classes: float32 [n, num_classes]")};
}

}  // namespace

TransformInfo mix_up_info() {
  return {
      .name = "MixUp",
      .doc =
          "each sample of a finished batch plus the one before it, by a share that is drawn once a batch; stands last",
      .params = mixing_params(),
      .make = [](const ParamMap& params) { return std::make_unique<MixUp>(params); },
      .batch = true};
}

TransformInfo cut_mix_info() {
  return {.name = "CutMix",
          .doc = "a box of each sample of a finished batch is the one before it's; stands last",
          .params = mixing_params(),
          .make = [](const ParamMap& params) { return std::make_unique<CutMix>(params); },
          .batch = true};
}

}  // namespace penstock
