// Messages with random contents, for any struct of message members: the struct itself says which members there are, so
// a member that its codec forgets is found.
//
//   auto message = random_message<ControlMessage>(kind, random);
//   same_message(message, decode(encode(message)));
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/balancer/balancer.h"
#include "runtime/base/fields.h"
#include "runtime/base/members.h"
#include "runtime/base/sample.h"

namespace penstock::testing {

using Random = std::mt19937_64;

inline void fill(bool& v, Random& random) {
  v = (random() & 1) != 0;
}
inline void fill(int32_t& v, Random& random) {
  v = static_cast<int32_t>(random());
}
inline void fill(uint32_t& v, Random& random) {
  v = static_cast<uint32_t>(random());
}
inline void fill(int64_t& v, Random& random) {
  v = static_cast<int64_t>(random());
}
inline void fill(uint64_t& v, Random& random) {
  v = random();
}
inline void fill(uint16_t& v, Random& random) {
  v = static_cast<uint16_t>(random());
}
inline void fill(std::string& v, Random& random) {
  v.resize(random() % 40);
  for (char& c : v) c = static_cast<char>(random());
}
inline void fill(LeaseKey& v, Random& random) {
  fill(v.lease_stream, random);
  fill(v.step, random);
  fill(v.chunk, random);
  fill(v.generation, random);
}
inline void fill(PlannedSample& v, Random& random) {
  fill(v.position, random);
  fill(v.index, random);
  fill(v.occurrence, random);
  fill(v.valid, random);
}
inline void fill(MemoryRange& v, Random& random) {
  fill(v.at, random);
  fill(v.bytes, random);
}
inline void fill(FieldSpec& v, Random& random);
template <class T>
void fill(std::vector<T>& v, Random& random) {
  v.resize(random() % 9);
  for (T& item : v) fill(item, random);
}
inline void fill(FieldSpec& v, Random& random) {
  fill(v.name, random);
  v.kind = static_cast<FieldKind>(random() % 5);
  v.dtype = static_cast<DType>(random() % 7);
  fill(v.shape, random);
  fill(v.max_bytes, random);
}

template <class AnyMessage>
constexpr size_t kKinds = std::variant_size_v<typename AnyMessage::variant>;

template <class AnyMessage, size_t I = 0>
AnyMessage random_message(size_t kind, Random& random) {
  if constexpr (I < kKinds<AnyMessage>) {
    if (kind != I) return random_message<AnyMessage, I + 1>(kind, random);
    std::variant_alternative_t<I, typename AnyMessage::variant> message;
    std::apply([&](auto&... member) { (fill(member, random), ...); }, members_of(message));
    return message;
  } else {
    throw std::out_of_range("no such kind of message");
  }
}

template <class AnyMessage>
bool same_message(const AnyMessage& a, const AnyMessage& b) {
  if (a.index() != b.index()) return false;
  return std::visit(
      [&](const auto& x) {
        using T = std::decay_t<decltype(x)>;
        return members_of(x) == members_of(std::get<T>(b));
      },
      a);
}

// A message as a bad network, an old version or somebody's finger would have it: cut, lengthened, bits and counts
//   wrong.
inline void damage(std::vector<std::byte>& bytes, Random& random) {
  const size_t changes = 1 + random() % 4;
  for (size_t i = 0; i < changes; ++i) {
    switch (random() % 5) {
      case 0: bytes.resize(random() % (bytes.size() + 1)); break;
      case 1: bytes.insert(bytes.end(), random() % 20, std::byte{0}); break;
      case 2:
        if (!bytes.empty()) bytes[random() % bytes.size()] ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 3:
        if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random());
        break;
      default:
        for (size_t at = bytes.empty() ? 0 : random() % bytes.size(), end = std::min(at + 4, bytes.size()); at < end;
             ++at) {
          bytes[at] = std::byte{0xff};
        }
    }
  }
}

}  // namespace penstock::testing
