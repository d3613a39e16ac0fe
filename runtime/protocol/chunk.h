// A chunk on its way: consecutive samples of one batch, from the loader that made them to the receiver that wants them.
//
//   Message envelope = encode_envelope(header, records);
//   ChunkHeader header; std::vector<SampleRecord> records;
//   decode_envelope(envelope, header, records);               // Error(peer_lost) naming what is wrong
//
// Envelope: u32 magic "PSC2", the header, a record for each sample, member by member (base/codec.h), then u32 CRC-32C
//   of everything before it.
// Payload: for each fixed-size field of the split's table, in order: samples x bytes_per_sample, each field beginning
//   at a multiple of 64 bytes; of the images, those that are on a GPU and hashed there have no place. Then for each
//   bytes or text field, in order: for each sample a u32 length and the value, nothing between them. While a chunk
//   buffer is being filled these have rooms of the longest value (base/field_value.h); pack_chunk() moves them together
//   before the chunk is sent, so that what travels is what there is.
// Which samples, and their bytes, do not depend on who made the chunk; the generation does, and where its images are:
//   the buffer range, the records' `on_gpu` and `pixel_hash`, and which images the payload has.
// Thread-safety: functions without state; pack_chunk() writes to memory that is the caller's alone until it is sent.
// Ownership: an envelope is a copy; what packed_values() gives points into the payload.
// Failure: Error(peer_lost), naming what is wrong, from the two that read what has arrived: decode_envelope() and
//   packed_values(). The others have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/fields.h"
#include "runtime/base/hash.h"
#include "runtime/base/sample_record.h"
#include "runtime/protocol/messages.h"

namespace penstock {

// Where in the memory that a loader's GPU exports (runtime/gpu/buffer_ranges.h) images of a chunk are: room for all of
// field "image", one after the other, as the payload has them; the records say which are there.
struct ChunkBufferRange {
  int32_t gpu = 0;
  uint64_t id = 0;
  uint64_t at = 0;
  uint64_t bytes = 0;

  friend bool operator==(const ChunkBufferRange&, const ChunkBufferRange&) = default;
};

struct ChunkHeader {
  LeaseKey lease;
  Fingerprint fingerprint = 0;
  int64_t epoch = 0;
  int32_t replica = 0;
  uint8_t arithmetic = 0;  // base/arithmetic.h
  bool compared = false;   // as LeaseGranted
  int32_t first_row = 0;
  int32_t samples = 0;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0;  // CRC-32C; 0: not made
  std::optional<ChunkBufferRange> buffer_range;
};

// What is hashed of a sample besides its fields (base/hash.h).
std::vector<std::byte> hashed_record_of(const std::string& split, int64_t epoch, const SampleRecord& record,
                                        int64_t label);

// Is the image of a sample on a GPU alone? Of a chunk: how many are.
inline bool elsewhere(const SampleRecord& record) {
  return record.on_gpu && record.pixel_hash;
}
int64_t images_elsewhere(const std::vector<SampleRecord>& records);

Message encode_envelope(const ChunkHeader& header, const std::vector<SampleRecord>& records);
void decode_envelope(std::span<const std::byte> bytes, ChunkHeader& header, std::vector<SampleRecord>& records);

// Where each field of a chunk begins while it is made. Fields of varying length stand behind the others.
struct FieldLayout {
  std::vector<size_t> offsets;
  size_t fixed_bytes = 0;  // of the fixed-size fields
  size_t total_bytes = 0;
};
FieldLayout chunk_layout(const FieldTable& fields, int64_t samples);
// The same of a payload whose fixed-size fields are wanted: so many of its images are elsewhere.
FieldLayout payload_layout(const FieldTable& fields, int64_t samples, int64_t absent);

// Makes the payload of a chunk buffer that is filled; returns its size. To be called once: rooms are gone afterwards.
// `records` say which images are elsewhere; no records: none.
size_t pack_chunk(const FieldTable& fields, int64_t samples, std::byte* memory,
                  const std::vector<SampleRecord>& records = {});

// The stored bytes (base/field_value.h) of a payload's fields of varying length: of each such field, in order, each
// sample's. Error(peer_lost) where they are not exactly what the payload has behind its fixed-size fields.
std::vector<std::vector<std::span<const std::byte>>> packed_values(const FieldTable& fields, int64_t samples,
                                                                   std::span<const std::byte> payload,
                                                                   int64_t absent = 0);

}  // namespace penstock
