#include "runtime/receiver/chunk_intake.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/sample/split_context.h"

namespace penstock {
namespace {

// Sample number `at`'s bytes of field `f` into the slot's array of it: images as they are delivered, everything else as
// it is.
void take_field(const PortSplit& split, size_t f, std::span<const std::byte> bytes, std::byte* field, size_t at,
                Slot& slot) {
  if (split.raw_fields[f].kind != FieldKind::image) {
    std::memcpy(field + at * split.raw_fields[f].bytes_per_sample(), bytes.data(), bytes.size());
    return;
  }
  split.finisher->run(reinterpret_cast<const uint8_t*>(bytes.data()), field + at * split.finisher->bytes_per_sample());
  if (!slot.raw.empty()) std::memcpy(slot.raw[f].data() + at * bytes.size(), bytes.data(), bytes.size());
}

void mix(const PortSplit& split, const ChunkExpectation& expected, const SlotLayout& layout, std::byte* base,
         Slot& slot) {
  const auto epoch = static_cast<uint32_t>(expected.epoch);
  slot.draws = split.pipeline().draw_batch(split.resolved.seed, epoch, slot.step, expected.replica);
  slot.hash.add_batch(batch_record(split.resolved.name, epoch, slot.step, expected.replica, slot.draws));
  if (!slot.problem.empty()) return;  // nobody will see it
  slot.problem =
      mix_batch(split.pipeline(), split.delivered, slot.draws, base + layout.fields[0], slot.labels,
                reinterpret_cast<float*>(base + layout.fields[1]), [&](size_t i) { return slot.records[i].key; });
  if (!slot.problem.empty()) slot.remedy = "give num_classes as many as there are, or correct the label";
}

// Neighbours together.
void add_images_on_card(const std::vector<SampleRecord>& records, const ChunkHeader& header, int32_t share, Slot& slot) {
  const uint64_t each = header.piece->bytes / static_cast<uint64_t>(header.samples);
  bool goes_on = false;
  for (int32_t i = 0; i < header.samples; ++i) {
    if (!records[static_cast<size_t>(i)].on_card) {
      goes_on = false;
      continue;
    }
    if (!goes_on) {
      slot.on_cards.push_back({share, header.first_slot + i, 0, header.piece->at + static_cast<uint64_t>(i) * each, 0});
    }
    ++slot.on_cards.back().samples;
    slot.on_cards.back().bytes += each;
    goes_on = true;
  }
}

}  // namespace

void begin_slot(const PortSplit& split, int64_t step, int64_t samples, int32_t chunk_samples, bool keep_raw,
                Slot& slot) {
  slot.state = Slot::State::filling;
  slot.step = step;
  slot.samples = slot.samples_missing = samples;
  slot.chunk_taken.assign(static_cast<size_t>((slot.samples + chunk_samples - 1) / chunk_samples), false);
  slot.hash = {};
  slot.num_valid = 0;
  slot.pieces.clear();
  slot.on_cards.clear();
  slot.problem.clear();
  slot.remedy.clear();
  slot.records.assign(static_cast<size_t>(slot.samples), {});
  slot.labels.assign(static_cast<size_t>(slot.samples), 0);
  slot.raw.clear();
  for (const FieldSpec& field : split.raw_fields) {
    if (!keep_raw) break;
    const size_t bytes = field.kind == FieldKind::image ? field.bytes_per_sample() : 0;
    slot.raw.emplace_back(static_cast<size_t>(slot.samples) * bytes);
  }
}

bool wanted(const Slot& slot, const ChunkHeader& header) noexcept {
  const auto chunk = static_cast<size_t>(header.lease.chunk);
  return chunk >= slot.chunk_taken.size() || !slot.chunk_taken[chunk];
}

void take_chunk(const PortSplit& split, const ChunkExpectation& expected, SlotPool& pool, int32_t slot_index,
                const ChunkHeader& header, std::vector<SampleRecord>& records, std::span<const std::byte> payload,
                std::optional<int32_t> share) {
  Slot& slot = pool.slots[static_cast<size_t>(slot_index)];
  const auto chunk = static_cast<size_t>(header.lease.chunk);
  const int64_t absent = images_elsewhere(records);
  const FieldLayout layout = payload_layout(split.raw_fields, header.samples, absent);
  const bool fits = slot.state == Slot::State::filling && chunk < slot.chunk_taken.size() &&
                    header.fingerprint == split.fingerprint &&
                    header.arithmetic == static_cast<uint8_t>(arithmetic_of(split.resolved.arithmetic)) &&
                    header.epoch == expected.epoch &&
                    header.first_slot == header.lease.chunk * expected.chunk_samples &&
                    header.samples == std::min<int64_t>(expected.chunk_samples, slot.samples - header.first_slot) &&
                    header.payload_bytes == payload.size() && payload.size() >= layout.fixed_bytes &&
                    (!header.piece || header.piece->bytes == static_cast<size_t>(header.samples) *
                                                                 split.raw_fields[0].bytes_per_sample()) &&
                    (absent == 0 || (share && split.raw_fields.size() == 2)) &&
                    std::none_of(records.begin(), records.end(),
                                 [](const SampleRecord& one) { return one.pixel_hash && !one.on_card; });
  if (!fits) {
    throw Error(ErrorKind::peer_lost,
                "rank " + std::to_string(expected.sender) + " sent a chunk that does not fit its lease",
                "all ranks must run the same version of penstock");
  }
  if (header.payload_crc != 0 && crc32c(payload.data(), payload.size()) != header.payload_crc) {
    throw Error(ErrorKind::peer_lost,
                "a chunk from rank " + std::to_string(expected.sender) + " arrived damaged (CRC-32C differs)",
                "check the network between the nodes");
  }
  const auto varying = packed_values(split.raw_fields, header.samples, payload, absent);
  size_t images = 0;  // of the payload, so far
  slot.chunk_taken[chunk] = true;
  if (share) {
    slot.pieces.push_back({expected.sender, *header.piece, *share});
    add_images_on_card(records, header, *share, slot);
  }
  const bool soft = split.pipeline().soft_classes() > 0;
  std::byte* base = pool.slot_data(static_cast<size_t>(slot_index));
  std::vector<std::span<const std::byte>> content;  // what is hashed: all fields but the label
  for (int32_t i = 0; i < header.samples; ++i) {
    const auto at = static_cast<size_t>(header.first_slot + i);
    int64_t label = 0;
    std::memcpy(&label, payload.data() + layout.offsets[1] + static_cast<size_t>(i) * sizeof label, sizeof label);
    SampleRecord& record = records[static_cast<size_t>(i)];
    const std::vector<std::byte> hashed = hashed_record_of(split.resolved.name, expected.epoch, record, label);
    content.clear();
    auto column = varying.begin();
    const size_t image = images;
    if (!elsewhere(record)) ++images;
    for (size_t f = 0; f < split.raw_fields.size(); ++f) {
      if (f == 1) continue;
      const FieldSpec& field = split.raw_fields[f];
      if (f == 0 && elsewhere(record)) continue;
      const size_t room = field.bytes_per_sample();
      const size_t place = f == 0 ? image : static_cast<size_t>(i);
      content.push_back(field.fixed_size() ? payload.subspan(layout.offsets[f] + place * room, room)
                                           : (*column++)[static_cast<size_t>(i)]);
      if (f > 0 || !share || !record.on_card) take_field(split, f, content.back(), base + pool.layout.fields[f], at, slot);
    }
    if (record.pixel_hash) {
      slot.hash.add(hashed, *record.pixel_hash);
    } else {
      slot.hash.add(hashed, content);
    }
    if (!soft) std::memcpy(base + pool.layout.fields[1] + at * sizeof label, &label, sizeof label);
    std::memcpy(base + pool.layout.indices + at * sizeof(int64_t), &record.index, sizeof(int64_t));
    base[pool.layout.valid + at] = static_cast<std::byte>(record.planned.valid ? 1 : 0);
    base[pool.layout.substituted + at] = static_cast<std::byte>(record.substituted ? 1 : 0);
    slot.num_valid += record.planned.valid ? 1 : 0;
    slot.labels[at] = label;
    if (record.bad && !split.masks_bad_samples() && slot.problem.empty()) {
      slot.problem = "unusable sample '" + record.key + "' (index " + std::to_string(record.planned.index) + ") in " +
                     split.resolved.split.dataset.title() + ": " + record.reason;
    }
    slot.records[at] = std::move(record);
  }
  slot.samples_missing -= header.samples;
  if (slot.samples_missing > 0) return;
  if (soft) mix(split, expected, pool.layout, base, slot);
  slot.state = Slot::State::ready;
}

}  // namespace penstock
