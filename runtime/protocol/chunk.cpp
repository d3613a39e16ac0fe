#include "runtime/protocol/chunk.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/crc32c.h"
#include "runtime/base/field_value.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {
constexpr uint32_t kMagic = 0x31435350;  // "PSC1"
constexpr uint8_t kValid = 1;
constexpr uint8_t kBad = 2;
constexpr uint8_t kSubstituted = 4;
constexpr uint8_t kOnGpu = 8;
constexpr uint8_t kHashed = 16;
constexpr uint8_t kPadding = 32;
}  // namespace

Message encode_envelope(const ChunkHeader& header, const std::vector<SampleRecord>& records) {
  WireWriter out;
  out.u32(kMagic);
  out.u64(header.lease.lease_stream);
  out.u64(header.fingerprint);
  out.i64(header.epoch);
  out.i64(header.lease.step);
  out.i32(header.replica);
  out.i32(header.lease.chunk);
  out.u32(header.lease.generation);
  out.u8(header.arithmetic);
  out.u8(header.compared ? 1 : 0);
  out.i32(header.first_row);
  out.i32(header.samples);
  out.u64(header.payload_bytes);
  out.u32(header.payload_crc);
  out.i32(header.buffer_range ? header.buffer_range->gpu : -1);
  if (header.buffer_range) {
    out.u64(header.buffer_range->id);
    out.u64(header.buffer_range->at);
    out.u64(header.buffer_range->bytes);
  }
  for (const SampleRecord& r : records) {
    out.i64(r.planned.position);
    out.i64(r.planned.index);
    out.i64(r.index);
    out.u16(r.planned.occurrence);
    out.u8(static_cast<uint8_t>((r.planned.valid ? kValid : 0) | (r.bad ? kBad : 0) |
                                (r.substituted ? kSubstituted : 0) | (r.on_gpu ? kOnGpu : 0) |
                                (r.pixel_hash ? kHashed : 0) | (r.padding ? kPadding : 0)));
    out.u16(r.attempts);
    out.i32(r.width);
    out.i32(r.height);
    out.text(r.key);
    out.text(r.substitute);
    out.text(r.reason);
    out.u16(static_cast<uint16_t>(r.draws.size()));
    for (const TransformDraw& draw : r.draws) {
      out.u16(draw.position);
      out.u16(static_cast<uint16_t>(draw.values.size()));
      for (const int64_t value : draw.values) out.i64(value);
    }
    if (r.pixel_hash) {
      out.u64(r.pixel_hash->low);
      out.u64(r.pixel_hash->high);
    }
  }
  out.u32(crc32c(out.bytes().data(), out.size()));
  return out.take();
}

void decode_envelope(std::span<const std::byte> bytes, ChunkHeader& header, std::vector<SampleRecord>& records) {
  if (bytes.size() < 8) throw Error(ErrorKind::peer_lost, "a chunk's envelope is too short");
  WireReader tail(bytes.subspan(bytes.size() - 4), "chunk checksum");
  const auto body = bytes.first(bytes.size() - 4);
  if (tail.u32() != crc32c(body.data(), body.size())) {
    throw Error(ErrorKind::peer_lost, "a chunk's envelope arrived damaged (CRC-32C differs)",
                "check the network between the nodes");
  }
  WireReader in(body, "chunk envelope");
  if (in.u32() != kMagic) {
    throw Error(ErrorKind::peer_lost, "a chunk's envelope has another layout",
                "all ranks must run the same version of penstock");
  }
  header.lease.lease_stream = in.u64();
  header.fingerprint = in.u64();
  header.epoch = in.i64();
  header.lease.step = in.i64();
  header.replica = in.i32();
  header.lease.chunk = in.i32();
  header.lease.generation = in.u32();
  header.arithmetic = in.u8();
  header.compared = in.u8() != 0;
  header.first_row = in.i32();
  header.samples = in.i32();
  header.payload_bytes = in.u64();
  header.payload_crc = in.u32();
  header.buffer_range.reset();
  if (const int32_t gpu = in.i32(); gpu >= 0) {
    header.buffer_range.emplace();
    header.buffer_range->gpu = gpu;
    header.buffer_range->id = in.u64();
    header.buffer_range->at = in.u64();
    header.buffer_range->bytes = in.u64();
  }
  if (header.samples < 1 || header.first_row < 0 || header.lease.chunk < 0) {
    throw Error(ErrorKind::peer_lost,
                "a chunk's envelope announces " + std::to_string(header.samples) + " samples from row " +
                    std::to_string(header.first_row),
                "all ranks must run the same version of penstock");
  }
  records.clear();
  for (int32_t i = 0; i < header.samples; ++i) {
    SampleRecord r;
    r.planned.position = in.i64();
    r.planned.index = in.i64();
    r.index = in.i64();
    r.planned.occurrence = in.u16();
    const uint8_t flags = in.u8();
    r.planned.valid = (flags & kValid) != 0;
    r.bad = (flags & kBad) != 0;
    r.substituted = (flags & kSubstituted) != 0;
    r.on_gpu = (flags & kOnGpu) != 0;
    r.padding = (flags & kPadding) != 0;
    r.attempts = in.u16();
    r.width = in.i32();
    r.height = in.i32();
    r.key = in.text();
    r.substitute = in.text();
    r.reason = in.text();
    const uint16_t draws = in.u16();
    for (uint16_t d = 0; d < draws; ++d) {
      TransformDraw draw;
      draw.position = in.u16();
      const uint16_t count = in.u16();
      for (uint16_t v = 0; v < count; ++v) draw.values.push_back(in.i64());
      r.draws.push_back(std::move(draw));
    }
    if ((flags & kHashed) != 0) {
      r.pixel_hash.emplace();
      r.pixel_hash->low = in.u64();
      r.pixel_hash->high = in.u64();
    }
    records.push_back(std::move(r));
  }
  in.end();
}

std::vector<std::byte> hashed_record_of(const std::string& split, int64_t epoch, const SampleRecord& record,
                                        int64_t label) {
  PlannedSample delivered = record.planned;
  delivered.index = record.index;
  return sample_record(split, static_cast<uint32_t>(epoch), delivered, record.draws, label);
}

int64_t images_elsewhere(const std::vector<SampleRecord>& records) {
  return std::count_if(records.begin(), records.end(), elsewhere);
}

FieldLayout chunk_layout(const FieldTable& fields, int64_t samples) {
  return payload_layout(fields, samples, 0);
}

FieldLayout payload_layout(const FieldTable& fields, int64_t samples, int64_t absent) {
  FieldLayout layout;
  layout.offsets.resize(fields.size());
  for (const bool fixed_size : {true, false}) {
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].fixed_size() != fixed_size) continue;
      layout.offsets[f] = layout.total_bytes;
      const size_t bytes = fields[f].bytes_per_sample() * static_cast<size_t>(f == 0 ? samples - absent : samples);
      layout.total_bytes += (bytes + 63) / 64 * 64;
    }
    if (fixed_size) layout.fixed_bytes = layout.total_bytes;
  }
  return layout;
}

namespace {

// Images that are there move together, and what is behind them follows. Everything moves towards the beginning.
void close_gaps(const FieldTable& fields, const FieldLayout& from, const FieldLayout& to, std::byte* memory,
                const std::vector<SampleRecord>& records) {
  const size_t each = fields[0].bytes_per_sample();
  size_t at = 0;
  for (size_t i = 0; i < records.size(); ++i) {
    if (elsewhere(records[i])) continue;
    if (at != i * each) std::memmove(memory + at, memory + i * each, each);
    at += each;
  }
  for (size_t f = 1; f < fields.size(); ++f) {
    if (!fields[f].fixed_size()) continue;
    std::memmove(memory + to.offsets[f], memory + from.offsets[f], fields[f].bytes_per_sample() * records.size());
  }
}

}  // namespace

size_t pack_chunk(const FieldTable& fields, int64_t samples, std::byte* memory,
                  const std::vector<SampleRecord>& records) {
  const FieldLayout layout = chunk_layout(fields, samples);
  const int64_t absent = images_elsewhere(records);
  const FieldLayout packed = payload_layout(fields, samples, absent);
  if (absent > 0) close_gaps(fields, layout, packed, memory, records);
  size_t end = packed.fixed_bytes;
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].fixed_size()) continue;
    for (int64_t i = 0; i < samples; ++i) {
      const std::byte* room = memory + layout.offsets[f] + static_cast<size_t>(i) * fields[f].bytes_per_sample();
      const auto value = stored_bytes(fields[f], room);
      std::memmove(memory + end, value.data(), value.size());  // never behind its room, nor over a later one
      end += value.size();
    }
  }
  return end;
}

std::vector<std::vector<std::span<const std::byte>>> packed_values(const FieldTable& fields, int64_t samples,
                                                                   std::span<const std::byte> payload, int64_t absent) {
  const FieldLayout layout = payload_layout(fields, samples, absent);
  WireReader in(payload, "chunk's payload");
  (void)in.raw(layout.fixed_bytes);
  std::vector<std::vector<std::span<const std::byte>>> values;
  for (const FieldSpec& field : fields) {
    if (field.fixed_size()) continue;
    auto& column = values.emplace_back();
    for (int64_t i = 0; i < samples; ++i) {
      const size_t at = payload.size() - in.left();
      const uint32_t length = in.u32();
      if (int64_t{length} > field.max_bytes) {
        throw Error(ErrorKind::peer_lost,
                    "a chunk has " + std::to_string(length) + " bytes in field '" + field.name +
                        "', above its limit of " + std::to_string(field.max_bytes),
                    "all ranks must run the same version of penstock");
      }
      (void)in.raw(length);
      column.push_back(payload.subspan(at, sizeof length + length));
    }
  }
  in.end();
  return values;
}

}  // namespace penstock
