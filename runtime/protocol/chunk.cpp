#include "runtime/protocol/chunk.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/codec.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/field_value.h"
#include "runtime/base/wire.h"

namespace penstock {
namespace {
constexpr uint32_t kMagic = 0x32435350;  // "PSC2"
}  // namespace

Message encode_envelope(const ChunkHeader& header, const std::vector<SampleRecord>& records) {
  WireWriter out;
  codec::put(out, kMagic);
  codec::put(out, header);
  for (const SampleRecord& record : records) codec::put(out, record);
  codec::put(out, crc32c(out.bytes().data(), out.size()));
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
  codec::get(in, header);
  if (header.samples < 1 || header.first_row < 0 || header.lease.chunk < 0) {
    throw Error(ErrorKind::peer_lost,
                "a chunk's envelope announces " + std::to_string(header.samples) + " samples from row " +
                    std::to_string(header.first_row),
                "all ranks must run the same version of penstock");
  }
  records.clear();
  for (int32_t i = 0; i < header.samples; ++i) codec::get(in, records.emplace_back());
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
