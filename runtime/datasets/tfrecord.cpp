#include "runtime/datasets/tfrecord.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/label_column.h"
#include "runtime/datasets/table_source.h"
#include "runtime/datasets/tar_reader.h"

namespace penstock {
namespace {

constexpr const char* kDamaged = "its tf.train.Example is damaged";
constexpr uint64_t kBesidesImage = uint64_t{16} << 20;
constexpr size_t kMaxValues = size_t{1} << 20;

// Fields of one message.
class Fields {
 public:
  explicit Fields(std::span<const std::byte> bytes) : bytes_(bytes) {}

  // False: the end, or damage (good() tells).
  bool next() {
    if (at_ == bytes_.size() || !good_) return false;
    const uint64_t tag = varint();
    number_ = tag >> 3;
    type_ = static_cast<int>(tag & 7);
    payload_ = {};
    value_ = 0;
    if (number_ == 0) good_ = false;
    switch (type_) {
      case 0: value_ = varint(); break;
      case 1: take(8); break;
      case 2: take(varint()); break;
      case 5: take(4); break;
      default: good_ = false;
    }
    return good_;
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) break;
      const auto byte = std::to_integer<uint64_t>(bytes_[at_++]);
      value |= (byte & 0x7F) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    good_ = false;
    return 0;
  }
  bool done() const { return at_ == bytes_.size(); }
  bool good() const { return good_; }
  bool is(uint64_t number, int type) const { return number_ == number && type_ == type; }
  uint64_t value() const { return value_; }
  std::span<const std::byte> payload() const { return payload_; }

 private:
  void take(uint64_t size) {
    if (!good_ || size > bytes_.size() - at_) {
      good_ = false;
      return;
    }
    payload_ = bytes_.subspan(at_, static_cast<size_t>(size));
    at_ += static_cast<size_t>(size);
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  uint64_t number_ = 0;
  int type_ = 0;
  uint64_t value_ = 0;
  std::span<const std::byte> payload_;
  bool good_ = true;
};

float float_at(std::span<const std::byte> bytes) {
  float value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// What is in a BytesList, FloatList or Int64List: field 1, repeated.
bool read_list(std::span<const std::byte> list, size_t max_values, TfFeature& out) {
  Fields fields(list);
  while (fields.next()) {
    if (out.bytes.size() + out.floats.size() + out.integers.size() > max_values) return false;
    if (out.kind == TfFeature::Kind::bytes && fields.is(1, 2)) out.bytes.push_back(fields.payload());
    if (out.kind == TfFeature::Kind::floats && fields.is(1, 5)) out.floats.push_back(float_at(fields.payload()));
    if (out.kind == TfFeature::Kind::integers && fields.is(1, 0))
      out.integers.push_back(static_cast<int64_t>(fields.value()));
    if (!fields.is(1, 2) || out.kind == TfFeature::Kind::bytes) continue;
    const auto packed = fields.payload();  // at least a byte a value, so the data bounds the memory
    if (out.kind == TfFeature::Kind::floats) {
      if (packed.size() % 4 != 0 || packed.size() / 4 > max_values) return false;
      for (size_t i = 0; i < packed.size(); i += 4) out.floats.push_back(float_at(packed.subspan(i, 4)));
    } else {
      if (packed.size() > max_values * 10) return false;
      Fields values(packed);
      while (!values.done() && values.good()) out.integers.push_back(static_cast<int64_t>(values.varint()));
      if (!values.good()) return false;
    }
  }
  return fields.good();
}

bool read_feature(std::span<const std::byte> bytes, size_t max_values, TfFeature& out) {
  Fields fields(bytes);
  while (fields.next()) {
    TfFeature::Kind kind = TfFeature::Kind::none;
    if (fields.is(1, 2)) kind = TfFeature::Kind::bytes;
    if (fields.is(2, 2)) kind = TfFeature::Kind::floats;
    if (fields.is(3, 2)) kind = TfFeature::Kind::integers;
    if (kind == TfFeature::Kind::none) continue;
    out = TfFeature{};  // of several the last counts, as in protobuf's oneof
    out.kind = kind;
    if (!read_list(fields.payload(), max_values, out)) return false;
  }
  return fields.good();
}

}  // namespace

uint32_t masked_crc(std::span<const std::byte> data) {
  const uint32_t crc = crc32c(data.data(), data.size());
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

std::string read_frame_header(std::span<const std::byte> header, uint64_t left, uint64_t& length) {
  if (header.size() < kTfHeaderBytes || left < kTfHeaderBytes + kTfFooterBytes)
    return "the file ends in the middle of a record";
  uint32_t crc = 0;
  std::memcpy(&length, header.data(), 8);
  std::memcpy(&crc, header.data() + 8, 4);
  if (masked_crc(header.first(8)) != crc) return "this is no TFRecord: the checksum of a record's length is wrong";
  if (length > left - kTfHeaderBytes - kTfFooterBytes)
    return "a record of " + std::to_string(length) + " bytes reaches beyond the file's end";
  return {};
}

std::string check_frame(std::span<const std::byte> data, uint32_t stored_crc) {
  return masked_crc(data) == stored_crc ? std::string() : "a record's checksum is wrong: the file is damaged";
}

std::string parse_example(std::span<const std::byte> data, size_t max_values,
                          const std::function<void(std::string_view name, TfFeature& feature)>& visit) {
  Fields example(data);
  while (example.next()) {
    if (!example.is(1, 2)) continue;
    Fields features(example.payload());
    while (features.next()) {
      if (!features.is(1, 2)) continue;
      Fields entry(features.payload());
      std::string_view name;
      std::span<const std::byte> value;
      while (entry.next()) {
        if (entry.is(1, 2)) name = {reinterpret_cast<const char*>(entry.payload().data()), entry.payload().size()};
        if (entry.is(2, 2)) value = entry.payload();
      }
      TfFeature feature;
      if (!entry.good() || !read_feature(value, max_values, feature)) return kDamaged;
      visit(name, feature);
    }
    if (!features.good()) return kDamaged;
  }
  return example.good() ? std::string() : kDamaged;
}

namespace {

constexpr const char* kCopyAgain = "copy the file again, or make it again";

class TfListing {
 public:
  TfListing(const ContainerInput& input, TableBuilder& table)
      : input_(input),
        table_(table),
        image_(input.dataset.image.empty() ? "image/encoded" : input.dataset.image),
        label_(input.dataset.label.empty() ? "image/class/label" : input.dataset.label),
        fields_(field_requests(input.dataset)) {}

  void one_file(const FileReader& file, uint32_t number, const std::string& name) {
    std::vector<std::byte> record;
    std::byte header[kTfHeaderBytes];
    int64_t place = 0;
    for (uint64_t at = 0; at < file.size(); ++place) {
      const uint64_t left = file.size() - at;
      file.read_at(at, std::span(header).first(static_cast<size_t>(std::min<uint64_t>(left, kTfHeaderBytes))));
      uint64_t length = 0;
      std::string why = read_frame_header(header, left, length);
      if (!why.empty()) refuse_shard(file, at, why, kCopyAgain);
      const std::string key = name + "[" + std::to_string(place) + "]";
      if (const auto limit = static_cast<uint64_t>(input_.max_encoded_bytes); length > limit + kBesidesImage) {
        if (table_.size() == 0) {
          refuse_shard(file, at,
                       "the first record has " + std::to_string(length) +
                           " bytes, more than limits.max_encoded_bytes allows, and says what all of them hold",
                       "raise limits.max_encoded_bytes, or write this record elsewhere");
        }
        add_too_large(key, number, at + kTfHeaderBytes, length);
        table_.facts().passed_over_above = limit;
        at += kTfHeaderBytes + length + kTfFooterBytes;
        continue;
      }
      record.resize(static_cast<size_t>(length) + kTfFooterBytes);
      file.read_at(at + kTfHeaderBytes, record);
      const std::span<const std::byte> data = std::span(record).first(static_cast<size_t>(length));
      uint32_t crc = 0;
      std::memcpy(&crc, record.data() + length, 4);
      remedy_ = kCopyAgain;  // until somebody knows better
      why = check_frame(data, crc);
      if (why.empty()) why = one_sample(data, at + kTfHeaderBytes, number, key);
      if (!why.empty()) refuse_shard(file, at, why, remedy_);
      at += kTfHeaderBytes + length + kTfFooterBytes;
    }
  }

  void finish() {
    if (table_.size() > 0 && table_.facts().labelled) labels_.finish(table_);
  }

 private:
  // A bad sample: nobody reads what is in it. Its picture is said to be the whole record, which is above the limit.
  void add_too_large(const std::string& key, uint32_t number, uint64_t offset, uint64_t bytes) {
    table_.add(key, 0, number, offset, bytes);
    if (table_.facts().labelled) labels_.add_nothing();
    for (size_t f = 0; f < fields_.size(); ++f) {
      const FieldSpec& field = table_.facts().fields[f];
      table_.value(f, std::vector<std::byte>(field.fixed_size() ? field.bytes_per_sample() : 0));
    }
  }

  std::string one_sample(std::span<const std::byte> data, uint64_t offset, uint32_t number, const std::string& key) {
    std::map<std::string, TfFeature, std::less<>> found;
    std::string names;
    std::string why = parse_example(data, kMaxValues, [&](std::string_view name, TfFeature& feature) {
      if (names.size() < 300) ((names += names.empty() ? "'" : ", '") += name.substr(0, 60)) += "'";
      const bool field =
          std::any_of(fields_.begin(), fields_.end(), [&](const FieldRequest& asked) { return asked.name == name; });
      const bool wanted = name == image_ || name == label_ || field;
      if (wanted) found.insert_or_assign(std::string(name), std::move(feature));
    });
    if (!why.empty()) return why;
    const auto image = found.find(image_);
    if (image == found.end() || image->second.kind != TfFeature::Kind::bytes || image->second.bytes.size() != 1) {
      remedy_ =
          "say with dataset.image which feature is the picture; the record has " + (names.empty() ? "none" : names);
      return "feature '" + image_ + "' is not there, or is not one text of bytes";
    }
    const auto bytes = image->second.bytes.front();
    table_.add(key, 0, number, offset + static_cast<uint64_t>(bytes.data() - data.data()), bytes.size());
    table_.row(table_.size() - 1).check = check_of(bytes);
    why = add_label(found);
    for (size_t f = 0; f < fields_.size() && why.empty(); ++f) {
      why = add_field(f, found, [&](std::span<const std::byte> value) {
        table_.place(f, number, offset + static_cast<uint64_t>(value.data() - data.data()), value.size());
      });
    }
    return why;
  }

  using Found = std::map<std::string, TfFeature, std::less<>>;

  std::string add_label(const Found& found) {
    const auto label = found.find(label_);
    const bool first = table_.size() == 1;
    if (first && label == found.end() && input_.dataset.label.empty()) table_.facts().labelled = false;
    if (!table_.facts().labelled && label == found.end()) return {};
    remedy_ = "say with dataset.label which feature is the label";
    if (label == found.end()) return "feature '" + label_ + "' is not there";
    if (!table_.facts().labelled) return "feature '" + label_ + "' is there, and was not in those before it";
    const TfFeature& feature = label->second;
    if (feature.integers.size() == 1) return labels_.add_integer(feature.integers[0]);
    if (feature.bytes.size() == 1) {
      return labels_.add_text({reinterpret_cast<const char*>(feature.bytes[0].data()), feature.bytes[0].size()});
    }
    return "feature '" + label_ + "' is neither one integer nor one text";
  }

  std::string add_field(size_t number, const Found& found,
                        const std::function<void(std::span<const std::byte>)>& place) {
    const FieldRequest& asked = fields_[number];
    const std::string& name = asked.name;
    const auto feature = found.find(name);
    remedy_ = "fields are features of int64 or float with as many values in every record, or of one text of bytes";
    if (feature == found.end()) return "feature '" + name + "' is not there";
    const TfFeature& values = feature->second;
    if (values.kind == TfFeature::Kind::bytes || asked.has_kind) {
      if (values.bytes.size() != 1) return "feature '" + name + "' is not one text of bytes";
      FieldSpec field;
      field.name = name;
      field.kind = asked.has_kind ? asked.kind : FieldKind::bytes;
      if (table_.size() == 1) table_.add_field(field);
      if (table_.facts().fields[number] != field)
        return "feature '" + name + "' has another type than in the first record";
      place(values.bytes.front());
      return {};
    }
    const bool floats = values.kind == TfFeature::Kind::floats;
    const size_t count = floats ? values.floats.size() : values.integers.size();
    if (count == 0) return "feature '" + name + "' has no numbers";
    FieldSpec field;
    field.name = name;
    field.dtype = floats ? DType::float32 : DType::int64;
    if (count > 1) field.shape = {static_cast<int64_t>(count)};
    if (table_.size() == 1) table_.add_field(field);
    if (table_.facts().fields[number] != field)
      return "feature '" + name + "' has another type, or another number of values, than in the first record";
    floats ? table_.value(number, std::as_bytes(std::span(values.floats)))
           : table_.value(number, std::as_bytes(std::span(values.integers)));
    return {};
  }

  const ContainerInput& input_;
  TableBuilder& table_;
  std::string image_;
  std::string label_;
  std::vector<FieldRequest> fields_;
  LabelColumn labels_;
  std::string remedy_;
};

// TensorFlow compresses without telling by the name. A record of 559,903 bytes begins as gzip does, so that the
// checksum of the first record's length has the first word.
Codec codec_of(const ContainerInput& input, const std::string& path) {
  const Codec named = codec_named(path);
  if (named != Codec::none) return named;
  const std::shared_ptr<const FileReader> file = input.shards.get(path, Codec::none);
  std::byte header[kTfHeaderBytes];
  if (file->size() < sizeof header) return Codec::none;
  file->read_at(0, header);
  uint64_t length = 0;
  if (read_frame_header(header, ~uint64_t{0}, length).empty()) return Codec::none;
  const auto byte = [&](size_t i) { return std::to_integer<unsigned>(header[i]); };
  if (byte(0) == 0x1F && byte(1) == 0x8B && byte(2) == 8) return Codec::gzip;
  // zlib (RFC 1950): deflate, a window of up to 32 KiB, and two bytes that 31 divides.
  if ((byte(0) & 0x0F) == 8 && byte(0) >> 4 <= 7 && (byte(0) * 256 + byte(1)) % 31 == 0) {
    throw Error(ErrorKind::dataset, "'" + path + "' is no TFRecord, or compressed as zlib, which is not read",
                "write it with GZIP or uncompressed (tf.io.TFRecordOptions); JPEG gains nothing from either");
  }
  return Codec::none;
}

}  // namespace

SampleTable list_tfrecord(const ContainerInput& input) {
  TableBuilder table("tfrecord");
  const std::string root = container_root(input.dataset);
  TfListing listing(input, table);
  for (const std::string& path : container_files(input.dataset, input.files)) {
    TableFile facts;
    const std::shared_ptr<const FileReader> file = input.shards.survey(path, facts, codec_of(input, path));
    facts.path = relative_to(root, path);
    const std::string name = facts.path;
    listing.one_file(*file, table.add_file(std::move(facts)), name);
  }
  listing.finish();
  if (table.size() == 0) throw Error(ErrorKind::dataset, "'" + input.dataset.tfrecord + "' holds no record");
  return table.finish();
}

}  // namespace penstock
