#include "runtime/receiver/chunk_intake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/sample/split_fields.h"

namespace penstock {
namespace {

// Sample number `at`'s bytes of field `f` into the batch buffer's array of it: images as they are delivered, everything
// else as it is.
void take_field(const ReceiverSplit& split, size_t f, std::span<const std::byte> bytes, std::byte* field, size_t at,
                BatchBuffer& batch_buffer) {
  if (split.raw_fields[f].kind != FieldKind::image) {
    std::memcpy(field + at * split.raw_fields[f].bytes_per_sample(), bytes.data(), bytes.size());
    return;
  }
  split.finisher->run(reinterpret_cast<const uint8_t*>(bytes.data()), field + at * split.finisher->bytes_per_sample());
  if (!batch_buffer.raw.empty())
    std::memcpy(batch_buffer.raw[f].data() + at * bytes.size(), bytes.data(), bytes.size());
}

void mix(const ReceiverSplit& split, const ChunkExpectation& expected, const BatchBufferLayout& layout, std::byte* base,
         BatchBuffer& batch_buffer) {
  const auto epoch = static_cast<uint32_t>(expected.epoch);
  batch_buffer.draws = split.pipeline().draw_batch(split.resolved.seed, epoch, batch_buffer.step, expected.replica);
  batch_buffer.hash.add_batch(
      batch_record(split.resolved.name, epoch, batch_buffer.step, expected.replica, batch_buffer.draws));
  if (!batch_buffer.problem.empty()) return;  // nobody will see it
  batch_buffer.problem = mix_batch(split.pipeline(), split.delivered, batch_buffer.draws, base + layout.fields[0],
                                   batch_buffer.labels, reinterpret_cast<float*>(base + layout.fields[1]),
                                   [&](size_t i) { return batch_buffer.records[i].key; });
  if (!batch_buffer.problem.empty())
    batch_buffer.remedy = "give num_classes as many as there are, or correct the label";
}

// A payload by sample and field.
class PayloadView {
 public:
  PayloadView(const ReceiverSplit& split, const std::vector<SampleRecord>& records, std::span<const std::byte> payload)
      : fields_(split.raw_fields),
        payload_(payload),
        absent_(images_elsewhere(records)),
        layout_(payload_layout(fields_, std::ssize(records), absent_)) {
    size_t images = 0;
    for (const SampleRecord& record : records) image_places_.push_back(elsewhere(record) ? images : images++);
  }

  bool fits() const noexcept { return payload_.size() >= layout_.fixed_bytes; }
  int64_t absent() const noexcept { return absent_; }
  // Where it fits, before field(): Error(peer_lost) for values of varying length that lie outside.
  void read() { varying_ = packed_values(fields_, std::ssize(image_places_), payload_, absent_); }

  int64_t label(size_t sample) const {
    int64_t label = 0;
    std::memcpy(&label, payload_.data() + layout_.offsets[1] + sample * sizeof label, sizeof label);
    return label;
  }
  // What is hashed of a sample: all fields but the label, and but an image that is elsewhere.
  void content(size_t sample, const SampleRecord& record, std::vector<std::span<const std::byte>>& content) const {
    content.clear();
    auto column = varying_.begin();
    for (size_t f = 0; f < fields_.size(); ++f) {
      if (f == 1 || (f == 0 && elsewhere(record))) continue;
      const size_t room = fields_[f].bytes_per_sample();
      const size_t place = f == 0 ? image_places_[sample] : sample;
      content.push_back(fields_[f].fixed_size() ? payload_.subspan(layout_.offsets[f] + place * room, room)
                                                : (*column++)[sample]);
    }
  }

 private:
  const FieldTable& fields_;
  std::span<const std::byte> payload_;
  int64_t absent_;
  FieldLayout layout_;
  std::vector<size_t> image_places_;
  std::vector<std::vector<std::span<const std::byte>>> varying_;
};

StreamHash hash_of(const ReceiverSplit& split, int64_t epoch, const SampleRecord& record, int64_t label,
                   std::span<const std::span<const std::byte>> content) {
  StreamHash hash;
  const std::vector<std::byte> hashed = hashed_record_of(split.resolved.name, epoch, record, label);
  if (record.pixel_hash) {
    hash.add(hashed, *record.pixel_hash);
  } else {
    hash.add(hashed, content);
  }
  return hash;
}

void check_crc(const ChunkHeader& header, PeerId sender, std::span<const std::byte> payload) {
  if (header.payload_crc == 0 || crc32c(payload.data(), payload.size()) == header.payload_crc) return;
  throw Error(ErrorKind::peer_lost,
              "a chunk from rank " + std::to_string(sender) + " arrived damaged (CRC-32C differs)",
              "check the network between the nodes");
}

[[noreturn]] void does_not_fit(PeerId sender) {
  throw Error(ErrorKind::peer_lost, "rank " + std::to_string(sender) + " sent a chunk that does not fit its lease",
              "all ranks must run the same version of penstock");
}

// The rows of a chunk's samples, in order; empty where they do not fit the batch buffer.
std::vector<int64_t> rows_of(const ReceiverSplit& split, const ChunkExpectation& expected, const ChunkHeader& header,
                             const std::vector<SampleRecord>& records, const BatchBuffer& batch_buffer) {
  std::vector<int64_t> rows;
  if (!expected.by_holder) {
    if (header.first_row != header.lease.chunk * expected.chunk_samples ||
        header.samples != std::min<int64_t>(expected.chunk_samples, batch_buffer.samples - header.first_row)) {
      return {};
    }
    for (int32_t i = 0; i < header.samples; ++i) rows.push_back(header.first_row + i);
    return rows;
  }
  if (header.samples > expected.chunk_samples) return {};
  for (const SampleRecord& record : records) {
    const int64_t position = record.planned.position;
    const int64_t row = position / expected.num_replicas - batch_buffer.step * split.shape.batch_size;
    const bool fits = position % expected.num_replicas == expected.replica && row >= 0 && row < batch_buffer.samples &&
                      (rows.empty() ? row == header.first_row : row > rows.back()) &&
                      !batch_buffer.row_taken[static_cast<size_t>(row)];
    if (!fits) return {};
    rows.push_back(row);
  }
  return rows;
}

// Notes which of the chunk's images are on a GPU; neighbouring rows become one entry.
void add_images_on_gpu(const std::vector<SampleRecord>& records, const std::vector<int64_t>& rows,
                       const ChunkHeader& header, int32_t exported, BatchBuffer& batch_buffer) {
  const uint64_t each = header.buffer_range->bytes / static_cast<uint64_t>(header.samples);
  bool goes_on = false;
  for (int32_t i = 0; i < header.samples; ++i) {
    const auto at = static_cast<size_t>(i);
    if (!records[at].on_gpu) {
      goes_on = false;
      continue;
    }
    if (!goes_on || rows[at] != rows[at - 1] + 1) {
      batch_buffer.on_gpus.push_back(
          {exported, static_cast<int32_t>(rows[at]), 0, header.buffer_range->at + static_cast<uint64_t>(i) * each, 0});
    }
    ++batch_buffer.on_gpus.back().samples;
    batch_buffer.on_gpus.back().bytes += each;
    goes_on = true;
  }
}

}  // namespace

void begin_batch_buffer(const ReceiverSplit& split, int64_t step, int64_t samples, int32_t chunk_samples,
                        bool by_holder, bool keep_raw, BatchBuffer& batch_buffer) {
  batch_buffer.state = BatchBuffer::State::filling;
  batch_buffer.step = step;
  batch_buffer.samples = batch_buffer.samples_missing = samples;
  // Where samples lie on different disks, each may be a chunk of its own.
  const int64_t most_chunks = by_holder ? samples : (samples + chunk_samples - 1) / chunk_samples;
  batch_buffer.chunk_taken.assign(static_cast<size_t>(most_chunks), false);
  batch_buffer.row_taken.assign(by_holder ? static_cast<size_t>(samples) : 0, false);
  batch_buffer.hash = {};
  batch_buffer.num_valid = 0;
  batch_buffer.buffer_ranges.clear();
  batch_buffer.on_gpus.clear();
  batch_buffer.problem.clear();
  batch_buffer.remedy.clear();
  batch_buffer.records.assign(static_cast<size_t>(batch_buffer.samples), {});
  batch_buffer.labels.assign(static_cast<size_t>(batch_buffer.samples), 0);
  batch_buffer.raw.clear();
  for (const FieldSpec& field : split.raw_fields) {
    if (!keep_raw) break;
    const size_t bytes = field.kind == FieldKind::image ? field.bytes_per_sample() : 0;
    batch_buffer.raw.emplace_back(static_cast<size_t>(batch_buffer.samples) * bytes);
  }
}

bool wanted(const BatchBuffer& batch_buffer, const ChunkHeader& header) noexcept {
  const auto chunk = static_cast<size_t>(header.lease.chunk);
  return chunk >= batch_buffer.chunk_taken.size() || !batch_buffer.chunk_taken[chunk];
}

ChunkHashes take_chunk(const ReceiverSplit& split, const ChunkExpectation& expected, BatchBufferPool& pool,
                       int32_t batch_buffer_index, const ChunkHeader& header, std::vector<SampleRecord>& records,
                       std::span<const std::byte> payload, std::optional<int32_t> exported) {
  BatchBuffer& batch_buffer = pool.batch_buffers[static_cast<size_t>(batch_buffer_index)];
  const auto chunk = static_cast<size_t>(header.lease.chunk);
  PayloadView view(split, records, payload);
  const std::vector<int64_t> rows = rows_of(split, expected, header, records, batch_buffer);
  const bool fits =
      batch_buffer.state == BatchBuffer::State::filling && chunk < batch_buffer.chunk_taken.size() && !rows.empty() &&
      header.fingerprint == split.fingerprint &&
      header.arithmetic == static_cast<uint8_t>(arithmetic_of(split.resolved.arithmetic)) &&
      header.epoch == expected.epoch && std::ssize(rows) == header.samples && header.payload_bytes == payload.size() &&
      view.fits() &&
      (!header.buffer_range ||
       header.buffer_range->bytes == static_cast<size_t>(header.samples) * split.raw_fields[0].bytes_per_sample()) &&
      (view.absent() == 0 || (exported && split.raw_fields.size() == 2)) &&
      std::none_of(records.begin(), records.end(),
                   [](const SampleRecord& one) { return one.pixel_hash && !one.on_gpu; });
  if (!fits) does_not_fit(expected.sender);
  check_crc(header, expected.sender, payload);
  view.read();
  batch_buffer.chunk_taken[chunk] = true;
  if (exported) {
    batch_buffer.buffer_ranges.push_back({expected.sender, *header.buffer_range, *exported});
    add_images_on_gpu(records, rows, header, *exported, batch_buffer);
  }
  const bool soft = split.pipeline().soft_classes() > 0;
  std::byte* base = pool.batch_buffer_data(static_cast<size_t>(batch_buffer_index));
  ChunkHashes hashes;
  std::vector<std::span<const std::byte>> content;
  for (int32_t i = 0; i < header.samples; ++i) {
    const auto at = static_cast<size_t>(rows[static_cast<size_t>(i)]);
    if (expected.by_holder) batch_buffer.row_taken[at] = true;
    SampleRecord& record = records[static_cast<size_t>(i)];
    const int64_t label = view.label(static_cast<size_t>(i));
    view.content(static_cast<size_t>(i), record, content);
    auto bytes = content.begin();
    for (size_t f = 0; f < split.raw_fields.size(); ++f) {
      if (f == 1 || (f == 0 && elsewhere(record))) continue;
      if (f > 0 || !exported || !record.on_gpu)
        take_field(split, f, *bytes, base + pool.layout.fields[f], at, batch_buffer);
      ++bytes;
    }
    const StreamHash hash = hash_of(split, expected.epoch, record, label, content);
    batch_buffer.hash += hash;
    if (header.compared) hashes.push_back(hash.pixel);
    if (!soft) std::memcpy(base + pool.layout.fields[1] + at * sizeof label, &label, sizeof label);
    std::memcpy(base + pool.layout.indices + at * sizeof(int64_t), &record.index, sizeof(int64_t));
    base[pool.layout.valid + at] = static_cast<std::byte>(record.planned.valid ? 1 : 0);
    base[pool.layout.substituted + at] = static_cast<std::byte>(record.substituted ? 1 : 0);
    batch_buffer.num_valid += record.planned.valid ? 1 : 0;
    batch_buffer.labels[at] = label;
    if (record.bad && !split.masks_bad_samples() && batch_buffer.problem.empty()) {
      batch_buffer.problem = "unusable sample '" + record.key + "' (index " + std::to_string(record.planned.index) +
                             ") in " + split.resolved.split.dataset.title() + ": " + record.reason;
    }
    batch_buffer.records[at] = std::move(record);
  }
  batch_buffer.samples_missing -= header.samples;
  if (batch_buffer.samples_missing > 0) return hashes;
  if (soft) mix(split, expected, pool.layout, base, batch_buffer);
  batch_buffer.state = BatchBuffer::State::ready;
  return hashes;
}

ChunkHashes hash_chunk(const ReceiverSplit& split, const ChunkExpectation& expected, const ChunkHeader& header,
                       const std::vector<SampleRecord>& records, std::span<const std::byte> payload) {
  PayloadView view(split, records, payload);
  const bool fits = header.fingerprint == split.fingerprint && header.epoch == expected.epoch &&
                    header.payload_bytes == payload.size() && view.fits() && std::ssize(records) == header.samples;
  if (!fits) does_not_fit(expected.sender);
  check_crc(header, expected.sender, payload);
  view.read();
  ChunkHashes hashes;
  std::vector<std::span<const std::byte>> content;
  for (size_t i = 0; i < records.size(); ++i) {
    view.content(i, records[i], content);
    hashes.push_back(hash_of(split, expected.epoch, records[i], view.label(i), content).pixel);
  }
  return hashes;
}

}  // namespace penstock
