// Little-endian bytes for messages and records: a writer that grows and a reader that cannot run over.
//
//   WireWriter out; out.u32(7); out.text("train");
//   WireReader in(bytes); in.u32(); in.text();  in.end();
//
// The reader throws Error(peer_lost) naming what was read when bytes are missing: a message that cannot be parsed means
// the two ends do not speak the same protocol. Lengths are checked before memory is taken.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace penstock {

static_assert(std::endian::native == std::endian::little, "wire format and hashes assume a little-endian machine");

class WireWriter {
 public:
  void raw(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  void u8(uint8_t v) { raw(&v, sizeof v); }
  void u16(uint16_t v) { raw(&v, sizeof v); }
  void u32(uint32_t v) { raw(&v, sizeof v); }
  void u64(uint64_t v) { raw(&v, sizeof v); }
  void i32(int32_t v) { raw(&v, sizeof v); }
  void i64(int64_t v) { raw(&v, sizeof v); }
  void f64(double v) { raw(&v, sizeof v); }
  void text(std::string_view v) {
    u32(static_cast<uint32_t>(v.size()));
    raw(v.data(), v.size());
  }
  size_t size() const noexcept { return bytes_.size(); }
  const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  std::vector<std::byte> take() { return std::exchange(bytes_, {}); }

 private:
  std::vector<std::byte> bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes, const char* what = "message") : bytes_(bytes), what_(what) {}

  std::span<const std::byte> raw(size_t size) {
    if (size > bytes_.size() - offset_) {
      throw Error(ErrorKind::peer_lost,
                  std::string("a ") + what_ + " ends early: " + std::to_string(bytes_.size()) + " bytes",
                  "all ranks must run the same version of penstock");
    }
    const auto part = bytes_.subspan(offset_, size);
    offset_ += size;
    return part;
  }
  template <class T>
  T value() {
    T v;
    std::memcpy(&v, raw(sizeof(T)).data(), sizeof(T));
    return v;
  }
  uint8_t u8() { return value<uint8_t>(); }
  uint16_t u16() { return value<uint16_t>(); }
  uint32_t u32() { return value<uint32_t>(); }
  uint64_t u64() { return value<uint64_t>(); }
  int32_t i32() { return value<int32_t>(); }
  int64_t i64() { return value<int64_t>(); }
  double f64() { return value<double>(); }
  std::string text() {
    const uint32_t size = u32();
    const auto part = raw(size);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  size_t left() const noexcept { return bytes_.size() - offset_; }
  void end() {
    if (left() != 0) {
      throw Error(ErrorKind::peer_lost,
                  std::string("a ") + what_ + " has " + std::to_string(left()) + " bytes too many",
                  "all ranks must run the same version of penstock");
    }
  }

 private:
  std::span<const std::byte> bytes_;
  size_t offset_ = 0;
  const char* what_;
};

}  // namespace penstock
