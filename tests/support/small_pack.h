// A pack of three samples in memory: index and one shard, as `penstock pack` writes them.
//
//   SmallPack pack = small_pack();            // keys cat/0 … cat/2, labels 0 … 2, pictures of 40 + i bytes
//   disk.add("/p/shard-00000.pack", ...);
//
// Fields: caption (text of 5 bytes, in the record), box (int32 [2] = {7, i}, in the table), restart points (i bytes)
// and notes (1 is rewritten, 2 is bad, each has a partner "a.png").
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "runtime/datasets/pack_format.h"

namespace penstock {

// Every byte of record i.
inline std::byte small_pack_byte(uint64_t i) {
  return static_cast<std::byte>('a' + i);
}

struct SmallPack {
  std::vector<uint8_t> index;
  std::vector<uint8_t> shard;
  size_t table_bytes = 0;
};

inline SmallPack small_pack() {
  const auto builder = [](uint64_t shard_bytes) {
    TableBuilder out("tar");
    out.add_file({shard_name(0), shard_bytes, 0, Codec::none, 0});
    out.add_field({"caption", FieldKind::text, DType::uint8, {}});
    out.add_field({"box", FieldKind::tensor, DType::int32, {2}});
    out.add_field({kRestartPoints, FieldKind::bytes, DType::uint8, {}});
    out.add_field({kNotes, FieldKind::bytes, DType::uint8, {}});
    uint64_t at = sizeof(PackHeader);
    for (uint64_t i = 0; i < 3; ++i) {
      out.add("cat/" + std::to_string(i), static_cast<int64_t>(i), 0, at, 40 + i);
      const std::vector<std::byte> record(45 + 2 * i, small_pack_byte(i));
      out.row(static_cast<int64_t>(i)).check = check_of(record);
      out.place(0, 0, at + 40 + i, 5);
      const int32_t box[2] = {7, static_cast<int32_t>(i)};
      out.value(1, std::as_bytes(std::span(box)));
      out.place(2, 0, at + 45 + i, i);
      out.value(3, as_bytes_of(as_text({i == 1, i == 2 ? "cut off" : "", {"a.png"}})));
      at += pack_padded(record.size());
    }
    return out;
  };
  uint64_t end = sizeof(PackHeader);
  for (uint64_t i = 0; i < 3; ++i) end += pack_padded(45 + 2 * i);
  const SampleTable own = builder(end).finish();
  const Sum128 sum = hash128(own.bytes());
  PackTrailer trailer;
  trailer.table_offset = end;
  trailer.table_bytes = own.bytes().size();
  trailer.samples = 3;
  trailer.shard_bytes = end + own.bytes().size() + sizeof trailer;
  trailer.table_sum[0] = sum.low;
  trailer.table_sum[1] = sum.high;
  trailer = sealed(trailer);
  const PackHeader header = sealed(PackHeader{});
  TableBuilder index = builder(trailer.shard_bytes);
  index.facts().options = pack_options({{}, {{3, end, sum}}});
  const SampleTable table = index.finish();

  SmallPack out;
  const auto append = [](std::vector<uint8_t>& to, const void* data, size_t bytes) {
    const auto* first = static_cast<const uint8_t*>(data);
    to.insert(to.end(), first, first + bytes);
  };
  append(out.index, table.bytes().data(), table.bytes().size());
  append(out.shard, &header, sizeof header);
  for (uint64_t i = 0; i < 3; ++i) {
    out.shard.insert(out.shard.end(), 45 + 2 * i, std::to_integer<uint8_t>(small_pack_byte(i)));
    out.shard.resize(pack_padded(out.shard.size()));
  }
  append(out.shard, own.bytes().data(), own.bytes().size());
  append(out.shard, &trailer, sizeof trailer);
  out.table_bytes = own.bytes().size();
  return out;
}

}  // namespace penstock
