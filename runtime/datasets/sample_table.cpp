#include "runtime/datasets/sample_table.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/utf8.h"
#include "runtime/datasets/bounded_json.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/json_numbers.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr char kMagic[8] = {'p', 'e', 'n', 's', 't', 'o', 'c', 'k'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kMaxFacts = uint64_t{256} << 20;
constexpr uint64_t kMaxSamples = uint64_t{1} << 40;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t crc;  // CRC-32C of the header, this word being 0
  uint64_t total_bytes;
  uint64_t samples;
  uint64_t names_bytes;
  uint64_t values_bytes;
  uint64_t facts_bytes;
  uint32_t fields;
  uint32_t reserved;
  uint64_t content[2];  // XXH3-128 of all that follows the header
  uint64_t fingerprint[2];
};
static_assert(sizeof(Header) == 96 && sizeof(Header) % 8 == 0);

[[noreturn]] void refuse_table(const std::string& why) {
  throw Error(ErrorKind::dataset, why, "make it again with `penstock index`");
}

uint64_t padded(uint64_t bytes) {
  return (bytes + 7) / 8 * 8;
}

uint32_t header_crc(Header header) {
  header.crc = 0;
  return crc32c(&header, sizeof header);
}

const char* codec_name(Codec codec) {
  return codec == Codec::gzip ? "gzip" : codec == Codec::zstd ? "zstd" : "none";
}
const char* layout_name(PixelLayout layout) {
  return layout == PixelLayout::planar_rgb ? "planar_rgb" : layout == PixelLayout::grey ? "grey" : "encoded";
}
const char* field_kind_name(FieldKind kind) {
  switch (kind) {
    case FieldKind::bytes: return "bytes";
    case FieldKind::text: return "text";
    case FieldKind::image: return "image";
    case FieldKind::mask: return "mask";
    case FieldKind::tensor: break;
  }
  return "tensor";
}

template <class Value, class Name>
Value value_named(const std::string& text, std::initializer_list<Value> values, Name name, const char* what) {
  for (const Value value : values) {
    if (text == name(value)) return value;
  }
  refuse_table(std::string("its description has the unknown ") + what + " '" + text.substr(0, 40) + "'");
}

Json description(const TableFacts& facts) {
  Json out;
  out["kind"] = facts.kind;
  out["options"] = facts.options;
  out["labelled"] = facts.labelled;
  if (facts.passed_over_above != 0) out["passed_over_above"] = facts.passed_over_above;
  out["classes"] = facts.classes;
  out["pixels"] = {layout_name(facts.pixels.layout), facts.pixels.width, facts.pixels.height};
  out["files"] = Json::array();
  for (const TableFile& file : facts.files) {
    out["files"].push_back({file.path, file.bytes, file.modified_ns, codec_name(file.codec), file.content_bytes});
  }
  out["fields"] = Json::array();
  for (const FieldSpec& field : facts.fields) {
    out["fields"].push_back({field.name, field_kind_name(field.kind), name_of(field.dtype), field.shape});
  }
  return out;
}

// Names in a data set may be any bytes; JSON holds UTF-8 only, and Python's way around it (surrogateescape) is not
// JSON.
std::string as_json(const TableFacts& facts) {
  std::vector<std::string_view> names(facts.classes.begin(), facts.classes.end());
  for (const TableFile& file : facts.files) names.push_back(file.path);
  for (const FieldSpec& field : facts.fields) names.push_back(field.name);
  for (const std::string_view name : names) {
    if (first_not_utf8(name) == name.size()) continue;
    throw Error(
        ErrorKind::dataset,
        "a folder, file, class or field of the data set has a name that is not UTF-8: '" + std::string(name) + "'",
        "rename it");
  }
  return json_text(description(facts));
}

void check_path(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos || path.size() > 4096)
    refuse_table("a file in it has no valid path");
}

FieldSpec field_of(const Json& entry) {
  FieldSpec field;
  field.name = entry.at(0).get<std::string>();
  // Names become parts of files' names (`penstock unpack`), and words in messages.
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
  if (field.name.empty() || std::any_of(field.name.begin(), field.name.end(), is_control))
    refuse_table("a field in it has an empty name, or one with control characters");
  field.kind = value_named(entry.at(1).get<std::string>(),
                           {FieldKind::tensor, FieldKind::bytes, FieldKind::text, FieldKind::image, FieldKind::mask},
                           field_kind_name, "kind");
  field.dtype = value_named(
      entry.at(2).get<std::string>(),
      {DType::uint8, DType::int64, DType::float32, DType::float16, DType::bfloat16, DType::int32, DType::float64},
      [](DType dtype) { return name_of(dtype); }, "dtype");
  for (const Json& extent : entry.at(3)) {
    int64_t value = 0;
    if (!whole_number(extent, value)) refuse_table("a field in it has an extent that is no whole number");
    field.shape.push_back(value);
  }
  uint64_t bytes = size_of(field.dtype);
  if (field.shape.size() > 32) refuse_table("a field in it has too many dimensions");
  for (const int64_t extent : field.shape) {
    if (extent < 1 || static_cast<uint64_t>(extent) > kMaxFieldBytes / bytes)
      refuse_table("a field in it is empty or too large");
    bytes *= static_cast<uint64_t>(extent);
  }
  return field;
}

TableFacts facts_of(std::string_view text) {
  TableFacts facts;
  try {
    const Json json =
        parse_bounded(text, [](const char* why) { refuse_table(std::string("its description: ") + why); });
    facts.kind = json.at("kind").get<std::string>();
    facts.options = json.at("options").get<std::string>();
    facts.labelled = json.at("labelled").get<bool>();
    if (json.contains("passed_over_above") && !whole_number(json["passed_over_above"], facts.passed_over_above)) {
      refuse_table("the size of what was passed over is no whole number");
    }
    facts.classes = json.at("classes").get<std::vector<std::string>>();
    const Json& pixels = json.at("pixels");
    facts.pixels.layout =
        value_named(pixels.at(0).get<std::string>(), {PixelLayout::encoded, PixelLayout::planar_rgb, PixelLayout::grey},
                    layout_name, "pixel layout");
    if (!whole_number(pixels.at(1), facts.pixels.width) || !whole_number(pixels.at(2), facts.pixels.height)) {
      refuse_table("the size of its pictures is no whole number");
    }
    for (const Json& entry : json.at("files")) {
      TableFile file;
      file.path = entry.at(0).get<std::string>();
      check_path(file.path);
      if (!whole_number(entry.at(1), file.bytes) || !whole_number(entry.at(2), file.modified_ns) ||
          !whole_number(entry.at(4), file.content_bytes)) {
        refuse_table("a size or time of '" + file.path + "' in it is no whole number");
      }
      file.codec =
          value_named(entry.at(3).get<std::string>(), {Codec::none, Codec::gzip, Codec::zstd}, codec_name, "codec");
      if (file.codec == Codec::none && file.content_bytes != file.bytes)
        refuse_table("the sizes of '" + file.path + "' in it differ");
      facts.files.push_back(std::move(file));
    }
    std::set<std::string> names = {"image", "label"};
    for (const Json& entry : json.at("fields")) {
      facts.fields.push_back(field_of(entry));
      if (!names.insert(facts.fields.back().name).second) refuse_table("it has a field twice");
      // Readers stop at the first column that they hide.
      const size_t count = facts.fields.size();
      if (count > 1 && is_hidden(facts.fields[count - 2]) && !is_hidden(facts.fields[count - 1]))
        refuse_table("it has the field '" + facts.fields[count - 1].name + "' behind a hidden one");
    }
  } catch (const Json::exception&) {
    refuse_table("its description cannot be read");
  }
  const bool decoded = facts.pixels.layout != PixelLayout::encoded;
  if (decoded && (facts.pixels.width < 1 || facts.pixels.height < 1 || facts.pixels.width > 65500 ||
                  facts.pixels.height > 65500)) {
    refuse_table("its pictures have no valid size");
  }
  return facts;
}

// Class folders: what ImageFolder makes of its listing.
Sum128 folder_fingerprint(const TableFacts& facts, std::span<const SampleRow> rows, std::string_view names) {
  FolderFingerprint out;
  std::string keys;
  int64_t count = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    (keys += names.substr(begin, rows[i].key_end - begin)) += '\0';
    begin = rows[i].key_end;
    ++count;
    if (i + 1 < rows.size() && rows[i + 1].label == rows[i].label) continue;
    const auto label = static_cast<size_t>(rows[i].label);
    out.add(label < facts.classes.size() ? facts.classes[label] : std::string(), count, keys);
    keys.clear();
    count = 0;
  }
  return out.sum();
}

Sum128 fingerprint_of(const TableFacts& facts, std::span<const SampleRow> rows, std::string_view names) {
  if (facts.kind == "folder") return folder_fingerprint(facts, rows, names);
  std::vector<uint64_t> pairs;
  pairs.reserve(rows.size() * 2);
  for (const SampleRow& row : rows) {
    pairs.push_back(row.key_end);
    pairs.push_back(static_cast<uint64_t>(row.label));
  }
  TableFacts covered;
  for (const FieldSpec& field : facts.fields) {
    if (!is_hidden(field)) covered.fields.push_back(field);
  }
  covered.classes = facts.classes;
  covered.pixels = facts.pixels;
  covered.labelled = facts.labelled;
  const std::string text = "penstock samples 1\n" + as_json(covered) + "\n" + hash128(names).hex() + "\n" +
                           hash128(std::as_bytes(std::span(pairs))).hex() + "\n";
  return hash128(std::string_view(text));
}

void check_rows(const TableFacts& facts, std::span<const SampleRow> rows, uint64_t names_bytes) {
  const bool decoded = facts.pixels.layout != PixelLayout::encoded;
  uint64_t key_end = 0;
  for (const SampleRow& row : rows) {
    const bool own = row.file == kOwnFile;
    bool good = row.key_end > key_end && row.key_end <= names_bytes && row.key_end - key_end <= 65536;
    if (!own) {
      good = good && row.file < facts.files.size() && row.offset <= facts.files[row.file].content_bytes &&
             row.bytes <= facts.files[row.file].content_bytes - row.offset;
    }
    good = good && row.bytes <= uint64_t{1} << 40 && (!decoded || (!own && row.bytes == facts.pixels.bytes()));
    good =
        good && (facts.classes.empty() || (row.label >= 0 && static_cast<uint64_t>(row.label) < facts.classes.size()));
    if (!good)
      refuse_table("sample " + std::to_string(&row - rows.data()) +
                   " in it lies outside its file, or has no valid key or label");
    key_end = row.key_end;
  }
  if (key_end != names_bytes) refuse_table("it has names of no sample");
}

void check_places(const TableFacts& facts, std::span<const FieldPlace> places, uint64_t samples,
                  uint64_t values_bytes) {
  for (size_t i = 0; i < places.size(); ++i) {
    const FieldPlace& place = places[i];
    const FieldSpec& field = facts.fields[i / samples];
    bool good = place.file == kInTable || place.file < facts.files.size();
    const uint64_t there = !good ? 0 : place.file == kInTable ? values_bytes : facts.files[place.file].content_bytes;
    good = good && place.offset <= there && place.bytes <= there - place.offset && place.bytes <= kMaxFieldBytes;
    // Pictures are stored as files, and the pipeline fixes their shape.
    const bool picture = field.kind == FieldKind::image || field.kind == FieldKind::mask;
    good = good && (picture || !field.fixed_size() || place.bytes == field.bytes_per_sample());
    if (!good)
      refuse_table("field '" + field.name + "' of sample " + std::to_string(i % samples) + " in it has no valid place");
  }
}

}  // namespace

SampleTable SampleTable::parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  Header header;
  if (bytes.size() < sizeof header) refuse_table("it is too short to be an index of penstock");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) refuse_table("it is no index of penstock");
  if (header.version != kVersion) {
    refuse_table("it is of version " + std::to_string(header.version) + ", and this penstock reads version " +
                 std::to_string(kVersion));
  }
  if (header_crc(header) != header.crc) refuse_table("its header is damaged");
  if (header.total_bytes != bytes.size()) {
    refuse_table("it should be " + std::to_string(header.total_bytes) + " bytes long and is " +
                 std::to_string(bytes.size()));
  }
  // Each bounded before they are added up or multiplied.
  const uint64_t body = bytes.size() - sizeof header;
  const bool possible = header.samples >= 1 && header.samples <= kMaxSamples && header.fields <= 4096 &&
                        header.samples <= body / sizeof(SampleRow) &&
                        (header.fields == 0 || header.samples <= body / sizeof(FieldPlace) / header.fields) &&
                        header.names_bytes <= body && header.values_bytes <= body && header.facts_bytes <= body &&
                        header.facts_bytes <= kMaxFacts;
  const uint64_t rows_bytes = possible ? header.samples * sizeof(SampleRow) : 0;
  const uint64_t places_bytes = possible ? header.samples * header.fields * sizeof(FieldPlace) : 0;
  if (!possible || rows_bytes + places_bytes + padded(header.names_bytes) + padded(header.values_bytes) +
                           padded(header.facts_bytes) !=
                       body) {
    refuse_table("its parts do not add up to its size");
  }
  const auto content = bytes.subspan(sizeof header);
  if (hash128(content) != Sum128{header.content[0], header.content[1]})
    refuse_table("its checksum is wrong: it is damaged");

  SampleTable out;
  out.owner_ = std::move(owner);
  out.bytes_ = bytes;
  out.rows_ = {reinterpret_cast<const SampleRow*>(content.data()), static_cast<size_t>(header.samples)};
  out.places_ = {reinterpret_cast<const FieldPlace*>(content.data() + rows_bytes),
                 static_cast<size_t>(header.samples * header.fields)};
  const std::byte* names = content.data() + rows_bytes + places_bytes;
  const std::byte* values = names + padded(header.names_bytes);
  const std::byte* facts = values + padded(header.values_bytes);
  out.names_ = {reinterpret_cast<const char*>(names), static_cast<size_t>(header.names_bytes)};
  out.values_ = {values, static_cast<size_t>(header.values_bytes)};
  out.facts_ = std::make_shared<const TableFacts>(
      facts_of({reinterpret_cast<const char*>(facts), static_cast<size_t>(header.facts_bytes)}));
  if (out.facts_->fields.size() != header.fields)
    refuse_table("its fields are described otherwise than they are stored");
  check_rows(*out.facts_, out.rows_, header.names_bytes);
  check_places(*out.facts_, out.places_, header.samples, header.values_bytes);
  out.fingerprint_ = fingerprint_of(*out.facts_, out.rows_, out.names_);
  if (out.fingerprint_ != Sum128{header.fingerprint[0], header.fingerprint[1]})
    refuse_table("its fingerprint is not that of its samples");
  return out;
}

std::string_view SampleTable::key(int64_t index) const noexcept {
  // parse() has checked them; of a large mapped index that somebody writes to they may be anything.
  const uint64_t begin = std::min<uint64_t>(index == 0 ? 0 : row(index - 1).key_end, names_.size());
  return names_.substr(begin, std::max(row(index).key_end, begin) - begin);
}

TableBuilder::TableBuilder(const SampleTable& table) : facts_(table.facts()), places_(table.facts().fields.size()) {
  for (int64_t i = 0; i < table.size(); ++i) {
    names_ += table.key(i);
    rows_.push_back(table.row(i));
    for (size_t f = 0; f < places_.size(); ++f) places_[f].push_back(table.place(f, i));
  }
  values_.assign(table.values().begin(), table.values().end());
}

uint32_t TableBuilder::add_file(TableFile file) {
  if (file.codec == Codec::none) file.content_bytes = file.bytes;
  facts_.files.push_back(std::move(file));
  return static_cast<uint32_t>(facts_.files.size() - 1);
}

size_t TableBuilder::add_field(FieldSpec field) {
  facts_.fields.push_back(std::move(field));
  places_.emplace_back();
  return places_.size() - 1;
}

void TableBuilder::add(std::string_view key, int64_t label, uint32_t file, uint64_t offset, uint64_t bytes) {
  names_ += key;
  SampleRow row;
  row.offset = offset;
  row.bytes = bytes;
  row.key_end = names_.size();
  row.label = label;
  row.file = file;
  rows_.push_back(row);
}

void TableBuilder::place(size_t field, uint32_t file, uint64_t offset, uint64_t bytes) {
  FieldPlace place;
  place.offset = offset;
  place.bytes = bytes;
  place.file = file;
  places_[field].push_back(place);
}

void TableBuilder::value(size_t field, std::span<const std::byte> bytes) {
  place(field, kInTable, values_.size(), bytes.size());
  values_.insert(values_.end(), bytes.begin(), bytes.end());
}

void TableBuilder::header(int64_t index, uint32_t width, uint32_t height) {
  row(index).width = width;
  row(index).height = height;
}

void TableBuilder::restart_points(std::span<const std::string> values) {
  const size_t field = add_field({kRestartPoints, FieldKind::bytes, DType::uint8, {}});
  for (const std::string& text : values) value(field, std::as_bytes(std::span(text)));
}

std::string_view TableBuilder::key(int64_t index) const noexcept {
  const auto i = static_cast<size_t>(index);
  const uint64_t begin = i == 0 ? 0 : rows_[i - 1].key_end;
  return std::string_view(names_).substr(begin, rows_[i].key_end - begin);
}

std::pair<int64_t, int64_t> TableBuilder::equal_keys() const {
  std::vector<std::pair<uint64_t, int64_t>> hashes(rows_.size());
  for (int64_t i = 0; i < size(); ++i) hashes[static_cast<size_t>(i)] = {hash128(key(i)).low, i};
  std::sort(hashes.begin(), hashes.end());
  std::pair<int64_t, int64_t> first{-1, -1};
  for (size_t begin = 0; begin < hashes.size();) {
    size_t end = begin + 1;
    while (end < hashes.size() && hashes[end].first == hashes[begin].first) ++end;
    for (size_t i = begin + 1; i < end; ++i) {
      for (size_t earlier = begin; earlier < i; ++earlier) {
        if (key(hashes[earlier].second) != key(hashes[i].second)) continue;
        if (first.second < 0 || hashes[i].second < first.second) first = {hashes[earlier].second, hashes[i].second};
        break;
      }
    }
    begin = end;
  }
  return first;
}

SampleTable TableBuilder::finish() {
  if (rows_.empty()) throw Error(ErrorKind::dataset, "the data set holds no sample");
  for (const std::vector<FieldPlace>& places : places_) {
    if (places.size() != rows_.size()) throw Error(ErrorKind::usage, "a field without a place for each sample");
  }
  const std::string facts = as_json(facts_);
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.samples = rows_.size();
  header.fields = static_cast<uint32_t>(places_.size());
  header.names_bytes = names_.size();
  header.values_bytes = values_.size();
  header.facts_bytes = facts.size();
  header.total_bytes = sizeof header + rows_.size() * sizeof(SampleRow) +
                       rows_.size() * places_.size() * sizeof(FieldPlace) + padded(names_.size()) +
                       padded(values_.size()) + padded(facts.size());
  // 64-bit words: aligned, and the padding is zero.
  auto words = std::make_shared<std::vector<uint64_t>>(header.total_bytes / 8);
  auto* const begin = reinterpret_cast<std::byte*>(words->data());
  std::byte* at = begin + sizeof header;
  const auto put = [&at](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(at, data, bytes);
    at += padded(bytes);
  };
  put(rows_.data(), rows_.size() * sizeof(SampleRow));
  for (const std::vector<FieldPlace>& places : places_) put(places.data(), places.size() * sizeof(FieldPlace));
  put(names_.data(), names_.size());
  put(values_.data(), values_.size());
  put(facts.data(), facts.size());
  const Sum128 fingerprint = fingerprint_of(facts_, rows_, names_);
  header.fingerprint[0] = fingerprint.low;
  header.fingerprint[1] = fingerprint.high;
  const std::span<const std::byte> whole(begin, header.total_bytes);
  const Sum128 content = hash128(whole.subspan(sizeof header));
  header.content[0] = content.low;
  header.content[1] = content.high;
  header.crc = header_crc(header);
  std::memcpy(begin, &header, sizeof header);
  *this = TableBuilder(std::string());
  return SampleTable::parse(whole, words);
}

}  // namespace penstock
