#include "launch/pack_shard.h"

#include <algorithm>
#include <utility>

namespace penstock {

Sum128 stamp_of(const std::vector<uint64_t>& stamps) {
  return hash128(std::as_bytes(std::span(stamps)));
}

ShardWriter::ShardWriter(const PackInput& input, const std::string& folder, size_t number, int64_t first,
                         const Sum128& id, bool restart_points)
    : input_(input), file_(folder + "/" + shard_name(number)), builder_(input.table().facts().kind), first_(first) {
  PackHeader header;
  header.number = static_cast<uint32_t>(number);
  header.first_sample = static_cast<uint64_t>(first);
  header.id[0] = id.low;
  header.id[1] = id.high;
  header = sealed(header);
  file_.write(std::as_bytes(std::span(&header, 1)));
  TableFacts& facts = builder_.facts();
  facts = input.table().facts();
  facts.options.clear();
  facts.files.clear();
  facts.fields.clear();
  builder_.add_file({shard_name(number), 0, 0, Codec::none, 0});
  for (size_t f = 0; f < input.fields(); ++f) builder_.add_field(input.table().facts().fields[f]);
  if (restart_points) entry_field_ = builder_.add_field({kRestartPoints, FieldKind::bytes, DType::uint8, {}});
}

void ShardWriter::add(const PackedSample& sample) {
  const int64_t index = first_ + builder_.size();
  const SampleTable& source = input_.table();
  const int64_t here = builder_.size();
  uint64_t at = file_.size();
  builder_.add(source.key(index), source.row(index).label, 0, at, sample.image_bytes);
  SampleRow& row = builder_.row(here);
  row.width = sample.width;
  row.height = sample.height;
  row.check = check_of(sample.record);
  at += sample.image_bytes;
  for (size_t f = 0; f < input_.fields(); ++f) {
    if (input_.in_table(f, index)) {
      builder_.value(f, source.value(source.place(f, index)));
    } else {
      builder_.place(f, 0, at, sample.field_bytes[f]);
      at += sample.field_bytes[f];
    }
  }
  if (entry_field_) builder_.place(*entry_field_, 0, at, sample.entry_bytes);
  file_.write(sample.record);
  pad();
  notes_.push_back(as_text(sample.notes));
  stamps_.insert(stamps_.end(), sample.stamp.begin(), sample.stamp.end());
}

FinishedShard ShardWriter::finish() {
  TableFile& data = builder_.facts().files[0];
  data.bytes = data.content_bytes = file_.size();
  const bool noted = std::any_of(notes_.begin(), notes_.end(), [](const std::string& text) { return !text.empty(); });
  if (noted) {
    const size_t field = builder_.add_field({kNotes, FieldKind::bytes, DType::uint8, {}});
    for (const std::string& text : notes_) builder_.value(field, as_bytes_of(text));
  }
  PackTrailer trailer;
  trailer.table_offset = file_.size();
  SampleTable table = builder_.finish();
  const Sum128 sum = hash128(table.bytes());
  trailer.table_bytes = table.bytes().size();
  trailer.samples = static_cast<uint64_t>(table.size());
  trailer.shard_bytes = trailer.table_offset + trailer.table_bytes + sizeof trailer;
  trailer.table_sum[0] = sum.low;
  trailer.table_sum[1] = sum.high;
  trailer = sealed(trailer);
  file_.write(table.bytes());
  file_.write(std::as_bytes(std::span(&trailer, 1)));
  file_.close();
  return {std::move(table), trailer, stamp_of(stamps_)};
}

void ShardWriter::pad() {
  static constexpr std::byte kZeros[kPackAlignment] = {};
  file_.write(std::span(kZeros).first(static_cast<size_t>(pack_padded(file_.size()) - file_.size())));
}

}  // namespace penstock
