#include "runtime/pixels/finish_kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/pixels/finish_kernels.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <hwy/cache_control.h>

HWY_BEFORE_NAMESPACE();
namespace penstock {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

// No vectors: looking up is the fastest way.
static void look_up(DType dtype, const uint32_t* table, uint8_t x, uint8_t* destination) {
  const uint32_t bits = dtype == DType::uint8 ? x : table[x];
  const auto word = static_cast<uint16_t>(bits);
  if (dtype == DType::uint8) {
    *destination = x;
  } else if (dtype == DType::float32) {
    std::memcpy(destination, &bits, sizeof bits);
  } else {
    std::memcpy(destination, &word, sizeof word);
  }
}

void FinishPlane(DType dtype, bool, const FinishChannel& channel, const uint8_t* source, size_t count,
                 uint8_t* destination) {
  for (size_t i = 0; i < count; ++i) look_up(dtype, channel.table, source[i], destination + i * size_of(dtype));
}

void FinishInterleaved(DType dtype, bool, const FinishChannel channels[3], const uint8_t* const planes[3], size_t count,
                       uint8_t* destination) {
  for (size_t i = 0; i < 3 * count; ++i) {
    look_up(dtype, channels[i % 3].table, planes[i % 3][i / 3], destination + i * size_of(dtype));
  }
}

void CopyStreaming(const uint8_t* source, size_t count, uint8_t* destination) {
  std::memcpy(destination, source, count);
}

#else

namespace {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using WordTag = hn::ScalableTag<uint16_t>;
using ByteTag = hn::ScalableTag<uint8_t>;

template <bool kReciprocal>
class Arithmetic {
 public:
  explicit Arithmetic(const FinishChannel& c)
      : factor_(hn::Set(FloatTag(), c.factor)),
        mean_(hn::Set(FloatTag(), c.mean)),
        std_(hn::Set(FloatTag(), c.std)),
        std_reciprocal_(c.std) {}

  // Lanes(FloatTag()) elements.
  HWY_INLINE FloatVec operator()(const uint8_t* source) const {
    const FloatTag df;
    const hn::Rebind<uint8_t, FloatTag> d8;
    const hn::Rebind<int32_t, FloatTag> d32;
    const FloatVec x = hn::ConvertTo(df, hn::PromoteTo(d32, hn::LoadU(d8, source)));
    const FloatVec y = hn::Sub(hn::Mul(x, factor_), mean_);
    return divide(y, std_, std_reciprocal_);
  }

 private:
  // 1 / b in two floats. a * (high + low) with one fused multiply-add is within 2^-47 of a / b before its one rounding,
  // so it is the rounded quotient unless a / b lies that close to a tie; Finisher checks all 256 values.
  struct Reciprocal {
    explicit Reciprocal(float b)
        : high(hn::Set(FloatTag(), 1.0f / b)),
          low(hn::Set(FloatTag(), static_cast<float>(1.0 / static_cast<double>(b) - static_cast<double>(1.0f / b)))) {}
    FloatVec high, low;
  };

  static HWY_INLINE FloatVec divide(FloatVec a, FloatVec b, const Reciprocal& r) {
    if constexpr (!kReciprocal) return hn::Div(a, b);
    return hn::MulAdd(a, r.high, hn::Mul(a, r.low));
  }

  FloatVec factor_, mean_, std_;
  Reciprocal std_reciprocal_;
};

// Each policy makes one full vector of its elements from as many source bytes.
template <bool kReciprocal>
struct Float32 {
  using Tag = FloatTag;
  using Element = float;
  explicit Float32(const FinishChannel& c) : arithmetic(c), table(c.table) {}
  HWY_INLINE FloatVec vector(const uint8_t* source) const { return arithmetic(source); }
  float element(uint8_t x) const {
    float value;
    std::memcpy(&value, table + x, sizeof value);
    return value;
  }
  Arithmetic<kReciprocal> arithmetic;
  const uint32_t* table;
};

template <bool kReciprocal>
struct Float16 {
  using Tag = WordTag;
  using Element = uint16_t;
  explicit Float16(const FinishChannel& c) : arithmetic(c), table(c.table) {}
  HWY_INLINE hn::Vec<WordTag> vector(const uint8_t* source) const {
    const hn::Rebind<hwy::float16_t, FloatTag> d16;
    const hn::Rebind<uint16_t, FloatTag> du;
    const auto low = hn::BitCast(du, hn::DemoteTo(d16, arithmetic(source)));
    const auto high = hn::BitCast(du, hn::DemoteTo(d16, arithmetic(source + hn::Lanes(FloatTag()))));
    return hn::Combine(WordTag(), high, low);
  }
  uint16_t element(uint8_t x) const { return static_cast<uint16_t>(table[x]); }
  Arithmetic<kReciprocal> arithmetic;
  const uint32_t* table;
};

template <bool kReciprocal>
struct BFloat16 {
  using Tag = WordTag;
  using Element = uint16_t;
  explicit BFloat16(const FinishChannel& c) : arithmetic(c), table(c.table) {}
  HWY_INLINE hn::Vec<WordTag> vector(const uint8_t* source) const {
    return hn::Combine(WordTag(), rounded(arithmetic(source + hn::Lanes(FloatTag()))), rounded(arithmetic(source)));
  }
  uint16_t element(uint8_t x) const { return static_cast<uint16_t>(table[x]); }

  static HWY_INLINE hn::Vec<hn::Rebind<uint16_t, FloatTag> > rounded(FloatVec v) {
    const hn::Rebind<uint32_t, FloatTag> du;
    const hn::Rebind<int32_t, FloatTag> di;
    const auto bits = hn::BitCast(du, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto sum = hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
    return hn::DemoteTo(hn::Rebind<uint16_t, FloatTag>(), hn::BitCast(di, hn::ShiftRight<16>(sum)));
  }
  Arithmetic<kReciprocal> arithmetic;
  const uint32_t* table;
};

struct Bytes {
  using Tag = ByteTag;
  using Element = uint8_t;
  explicit Bytes(const FinishChannel&) {}
  HWY_INLINE hn::Vec<ByteTag> vector(const uint8_t* source) const { return hn::LoadU(ByteTag(), source); }
  uint8_t element(uint8_t x) const { return x; }
};

template <class Element>
bool aligned(const uint8_t* p) {
  return reinterpret_cast<uintptr_t>(p) % sizeof(Element) == 0;
}

template <class Policy>
void plane(const FinishChannel& channel, const uint8_t* source, size_t count, uint8_t* destination) {
  using Element = typename Policy::Element;
  const typename Policy::Tag d;
  const size_t lanes = hn::Lanes(d);
  const Policy policy(channel);
  const auto single = [&](size_t i) {
    const Element value = policy.element(source[i]);
    std::memcpy(destination + i * sizeof(Element), &value, sizeof value);
  };
  size_t i = 0;
  if (aligned<Element>(destination)) {
    const size_t vector_bytes = lanes * sizeof(Element);
    while (i < count && reinterpret_cast<uintptr_t>(destination + i * sizeof(Element)) % vector_bytes != 0) single(i++);
    for (; i + lanes <= count; i += lanes) {
      hn::Stream(policy.vector(source + i), d, reinterpret_cast<Element*>(destination + i * sizeof(Element)));
    }
    hwy::FlushStream();
  } else {
    HWY_ALIGN Element block[hn::MaxLanes(typename Policy::Tag())];
    for (; i + lanes <= count; i += lanes) {
      hn::Store(policy.vector(source + i), d, block);
      std::memcpy(destination + i * sizeof(Element), block, lanes * sizeof(Element));
    }
  }
  while (i < count) single(i++);
}

template <class Policy>
void interleaved(const FinishChannel channels[3], const uint8_t* const planes[3], size_t count, uint8_t* destination) {
  using Element = typename Policy::Element;
  const typename Policy::Tag d;
  const size_t lanes = hn::Lanes(d);
  const Policy policy[3] = {Policy(channels[0]), Policy(channels[1]), Policy(channels[2])};
  constexpr size_t kPixel = 3 * sizeof(Element);
  const auto single = [&](size_t i) {
    for (size_t c = 0; c < 3; ++c) {
      const Element value = policy[c].element(planes[c][i]);
      std::memcpy(destination + i * kPixel + c * sizeof(Element), &value, sizeof value);
    }
  };
  size_t i = 0;
  const bool stream = aligned<Element>(destination);
  if (stream) {
    // 3 is coprime with the lanes of a vector, so every alignment is reached within one vector's worth of pixels.
    const size_t vector_bytes = lanes * sizeof(Element);
    while (i < count && reinterpret_cast<uintptr_t>(destination + i * kPixel) % vector_bytes != 0) single(i++);
  }
  HWY_ALIGN Element block[3 * hn::MaxLanes(typename Policy::Tag())];
  for (; i + lanes <= count; i += lanes) {
    hn::StoreInterleaved3(policy[0].vector(planes[0] + i), policy[1].vector(planes[1] + i),
                          policy[2].vector(planes[2] + i), d, block);
    if (stream) {
      auto* out = reinterpret_cast<Element*>(destination + i * kPixel);
      hn::Stream(hn::Load(d, block), d, out);
      hn::Stream(hn::Load(d, block + lanes), d, out + lanes);
      hn::Stream(hn::Load(d, block + 2 * lanes), d, out + 2 * lanes);
    } else {
      std::memcpy(destination + i * kPixel, block, lanes * kPixel);
    }
  }
  if (stream) hwy::FlushStream();
  while (i < count) single(i++);
}

template <bool kReciprocal>
void plane_of(DType dtype, const FinishChannel& channel, const uint8_t* source, size_t count, uint8_t* destination) {
  if (dtype == DType::float32) return plane<Float32<kReciprocal> >(channel, source, count, destination);
  if (dtype == DType::float16) return plane<Float16<kReciprocal> >(channel, source, count, destination);
  return plane<BFloat16<kReciprocal> >(channel, source, count, destination);
}

template <bool kReciprocal>
void interleaved_of(DType dtype, const FinishChannel channels[3], const uint8_t* const planes[3], size_t count,
                    uint8_t* destination) {
  if (dtype == DType::float32) return interleaved<Float32<kReciprocal> >(channels, planes, count, destination);
  if (dtype == DType::float16) return interleaved<Float16<kReciprocal> >(channels, planes, count, destination);
  return interleaved<BFloat16<kReciprocal> >(channels, planes, count, destination);
}

}  // namespace

void FinishPlane(DType dtype, bool reciprocal, const FinishChannel& channel, const uint8_t* source, size_t count,
                 uint8_t* destination) {
  if (reciprocal) return plane_of<true>(dtype, channel, source, count, destination);
  return plane_of<false>(dtype, channel, source, count, destination);
}

void FinishInterleaved(DType dtype, bool reciprocal, const FinishChannel channels[3], const uint8_t* const planes[3],
                       size_t count, uint8_t* destination) {
  if (dtype == DType::uint8) return interleaved<Bytes>(channels, planes, count, destination);
  if (reciprocal) return interleaved_of<true>(dtype, channels, planes, count, destination);
  return interleaved_of<false>(dtype, channels, planes, count, destination);
}

void CopyStreaming(const uint8_t* source, size_t count, uint8_t* destination) {
  plane<Bytes>(FinishChannel{}, source, count, destination);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace penstock
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace penstock {

HWY_EXPORT(FinishPlane);
HWY_EXPORT(FinishInterleaved);
HWY_EXPORT(CopyStreaming);

void finish_plane(DType dtype, bool reciprocal, const FinishChannel& channel, const uint8_t* source, size_t count,
                  void* destination) {
  HWY_DYNAMIC_DISPATCH(FinishPlane)(dtype, reciprocal, channel, source, count, static_cast<uint8_t*>(destination));
}

void finish_interleaved(DType dtype, bool reciprocal, const FinishChannel channels[3], const uint8_t* const planes[3],
                        size_t count, void* destination) {
  HWY_DYNAMIC_DISPATCH(FinishInterleaved)
  (dtype, reciprocal, channels, planes, count, static_cast<uint8_t*>(destination));
}

void copy_streaming(const uint8_t* source, size_t count, uint8_t* destination) {
  HWY_DYNAMIC_DISPATCH(CopyStreaming)(source, count, destination);
}

}  // namespace penstock
#endif  // HWY_ONCE
