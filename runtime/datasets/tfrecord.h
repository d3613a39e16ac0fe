// TFRecord's framing, and tf.train.Example: pure functions over bytes.
//
//   std::string why = read_frame_header(twelve_bytes, left, length);   // empty: fine
//   why = check_frame(data, crc);
//   why = parse_example(data, max_values, [](std::string_view name, TfFeature& feature) { ... });
//
// A record: u64 length, masked CRC-32C of it, data, masked CRC-32C of the data. An Example is read without protobuf:
// map entries of bytes, float or int64 lists, packed or not; unknown fields are passed over; groups are refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

inline constexpr size_t kTfHeaderBytes = 12;
inline constexpr size_t kTfFooterBytes = 4;

// `left`: bytes of the file from the header on. Fills `length`, checked against `left`.
std::string read_frame_header(std::span<const std::byte> header, uint64_t left, uint64_t& length);
std::string check_frame(std::span<const std::byte> data, uint32_t stored_crc);
uint32_t masked_crc(std::span<const std::byte> data);

struct TfFeature {
  enum class Kind { none, bytes, floats, integers };
  Kind kind = Kind::none;
  std::vector<std::span<const std::byte>> bytes;  // into the data
  std::vector<float> floats;
  std::vector<int64_t> integers;
};

// Calls `visit` for every feature, in the order of the data. Empty: fine. A feature has at most `max_values` values.
std::string parse_example(std::span<const std::byte> data, size_t max_values,
                          const std::function<void(std::string_view name, TfFeature& feature)>& visit);

}  // namespace penstock
