#include "runtime/datasets/mds_shards.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/base/error.h"
#include "runtime/datasets/bounded_json.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/json_numbers.h"
#include "runtime/datasets/label_column.h"
#include "runtime/datasets/spool.h"
#include "runtime/datasets/tar_reader.h"
#include "runtime/datasets/window_reader.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxIndexBytes = uint64_t{128} << 20;
constexpr size_t kMaxColumns = 1024;
constexpr size_t kMaxPath = 4096;

[[noreturn]] void refuse_listing(const std::string& why) {
  throw Error(ErrorKind::dataset, why, "write the data set again, or copy it again");
}

bool is_name(std::string_view part) {
  return !part.empty() && part.size() <= 255 && part != "." && part != ".." &&
         part.find('\0') == std::string_view::npos;
}

// A file of the folder, or of a folder below it: what writers in parallel wrote, each into a folder of its own, and
// streaming's merge_index put together. The names are untrusted, so none may lead out of the folder.
std::string file_below(const Json& json) {
  std::string path = json.get<std::string>();
  bool good = path.size() <= kMaxPath;
  for (size_t begin = 0; good && begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    good = is_name(std::string_view(path).substr(begin, end - begin));
    begin = end + 1;
  }
  if (good) return path;
  throw Error(ErrorKind::dataset, "it names a shard '" + path.substr(0, 60) + "', which is no file below its folder",
              "an index.json is read where its shards lie: in its folder or in folders below it");
}

std::vector<MdsColumn> columns_of(const Json& shard) {
  const Json& names = shard.at("column_names");
  const Json& encodings = shard.at("column_encodings");
  const Json& sizes = shard.at("column_sizes");
  if (!names.is_array() || names.empty() || names.size() > kMaxColumns || encodings.size() != names.size() ||
      sizes.size() != names.size() || !encodings.is_array() || !sizes.is_array()) {
    refuse_listing("a shard's columns have not as many names as encodings and sizes");
  }
  std::vector<MdsColumn> out;
  std::set<std::string> seen;
  for (size_t i = 0; i < names.size(); ++i) {
    MdsColumn column{names[i].get<std::string>(), encodings[i].get<std::string>(), -1};
    if (!sizes[i].is_null()) {
      if (!whole_number(sizes[i], column.size) || column.size < 0 || column.size > static_cast<int64_t>(kMaxFieldBytes))
        refuse_listing("a column has an impossible size");
    }
    if (!seen.insert(column.name).second) refuse_listing("a shard has a column twice");
    out.push_back(std::move(column));
  }
  return out;
}

// The tensor that a column's bytes are as they stand; none: they are something else.
std::optional<FieldSpec> tensor_of(const MdsColumn& column) {
  FieldSpec field;
  field.name = column.name;
  std::string type = column.encoding == "int" ? "int64" : column.encoding;
  std::string shape;
  if (type.starts_with("ndarray:")) {
    type.erase(0, 8);
    const size_t colon = type.find(':');
    if (colon == std::string::npos) return std::nullopt;
    shape = type.substr(colon + 1);
    type.erase(colon);
  }
  bool known = false;
  for (const DType dtype : {DType::uint8, DType::int32, DType::int64, DType::float16, DType::float32, DType::float64}) {
    if (type == name_of(dtype)) {
      field.dtype = dtype;
      known = true;
    }
  }
  if (!known) return std::nullopt;
  uint64_t bytes = size_of(field.dtype);
  for (const std::string& part : names_in(shape)) {
    int64_t extent = 0;
    if (!integer_of(part, extent) || extent < 1 || static_cast<uint64_t>(extent) > kMaxFieldBytes / bytes ||
        field.shape.size() == 32)
      return std::nullopt;
    bytes *= static_cast<uint64_t>(extent);
    field.shape.push_back(extent);
  }
  if (column.size != static_cast<int64_t>(bytes)) return std::nullopt;
  return field;
}

class MdsListing {
 public:
  MdsListing(const ContainerInput& input, TableBuilder& table, std::vector<MdsShard> shards, const std::string& index)
      : input_(input), table_(table), shards_(std::move(shards)), index_(index) {}

  void run() {
    choose_columns(shards_.front().columns);
    for (const MdsShard& shard : shards_) {
      if (shard.columns != shards_.front().columns) {
        throw Error(ErrorKind::dataset,
                    "'" + index_ + "': shard '" + shard.raw + "' has other columns than '" + shards_.front().raw + "'",
                    "a data set has the same columns in all shards");
      }
      one_shard(shard);
    }
    if (label_) labels_.finish(table_);
  }

 private:
  struct Extent {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  size_t column_named(const std::vector<MdsColumn>& columns, const std::string& name) const {
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].name == name) return i;
    }
    std::vector<std::string> known;
    for (const MdsColumn& column : columns) known.push_back(column.name);
    no_such_name(index_, "column", name, known);
  }

  void choose_columns(const std::vector<MdsColumn>& columns) {
    const auto is_picture = [](const MdsColumn& column) {
      return column.encoding == "jpeg" || column.encoding == "png";
    };
    if (!input_.dataset.image.empty()) {
      image_ = column_named(columns, input_.dataset.image);
    } else {
      const auto found = std::find_if(columns.begin(), columns.end(), is_picture);
      if (std::count_if(columns.begin(), columns.end(), is_picture) == 1) {
        image_ = static_cast<size_t>(found - columns.begin());
      } else {
        image_ = column_named(columns, "image");
      }
    }
    const MdsColumn& image = columns[image_];
    if (!is_picture(image) && image.encoding != "bytes") {
      throw Error(ErrorKind::dataset,
                  "'" + index_ + "': column '" + image.name + "' is stored as '" + image.encoding.substr(0, 40) +
                      "', and pictures are read from jpeg, png and bytes",
                  "name another column with dataset.image, or write the data set with one of these");
    }
    for (size_t i = 0; i < columns.size(); ++i) {
      if (columns[i].name == (input_.dataset.label.empty() ? "label" : input_.dataset.label)) label_ = i;
    }
    if (!label_ && !input_.dataset.label.empty()) label_ = column_named(columns, input_.dataset.label);
    if (!label_) {
      std::vector<std::string> names;
      for (const MdsColumn& column : columns) names.push_back(column.name);
      refuse_near_label(index_, "column", names);
    }
    table_.facts().labelled = label_.has_value();
    if (label_) {
      const MdsColumn& label = columns[*label_];
      label_tensor_ = tensor_of(label);
      const bool whole = label_tensor_ && label_tensor_->shape.empty() &&
                         (label_tensor_->dtype == DType::int64 || label_tensor_->dtype == DType::int32 ||
                          label_tensor_->dtype == DType::uint8);
      if (!whole && label.encoding != "str" && label.encoding != "str_int") {
        throw Error(ErrorKind::dataset,
                    "'" + index_ + "': column '" + label.name + "' is stored as '" + label.encoding.substr(0, 40) +
                        "', which is no label",
                    "a label is int, uint8, int32, int64, str or str_int");
      }
      if (!whole) label_tensor_.reset();
    }
    for (const FieldRequest& asked : field_requests(input_.dataset)) {
      const size_t place = column_named(columns, asked.name);
      const std::string& encoding = columns[place].encoding;
      std::optional<FieldSpec> field = tensor_of(columns[place]);
      const bool varies = encoding == "str" || encoding == "json" || encoding == "bytes" || is_picture(columns[place]);
      if (varies) {
        field = FieldSpec{};
        field->name = asked.name;
        field->kind = asked.has_kind                            ? asked.kind
                      : encoding == "str" || encoding == "json" ? FieldKind::text
                                                                : FieldKind::bytes;
      }
      if (!field || (asked.has_kind && !varies)) {
        throw Error(ErrorKind::dataset,
                    "'" + index_ + "': column '" + asked.name + "' is stored as '" +
                        columns[place].encoding.substr(0, 40) + "', which is no such field",
                    "fields are numbers, ndarray with dtype and shape, str, json and bytes");
      }
      fields_.push_back(place);
      table_.add_field(*field);
    }
  }

  // The uncompressed file where it is there, as Streaming itself prefers it.
  std::string path_of(const MdsShard& shard) const {
    const std::string raw = input_.dataset.mds + "/" + shard.raw;
    if (shard.compressed.empty()) return raw;
    try {
      (void)input_.files.file_size(raw);
      return raw;
    } catch (const FileError&) {
    }
    const std::string path = input_.dataset.mds + "/" + shard.compressed;
    if (codec_named(path) == Codec::none) {
      throw Error(ErrorKind::dataset,
                  "'" + path + "' is compressed as '" + shard.compression.substr(0, 40) + "'; zstd and gz are read",
                  "decompress it, as streaming does in its cache");
    }
    return path;
  }

  void one_shard(const MdsShard& shard) {
    const std::string path = path_of(shard);
    TableFile facts;
    const std::shared_ptr<const FileReader> file = input_.shards.survey(path, facts);
    facts.path = relative_to(input_.dataset.mds, path);
    const uint32_t number = table_.add_file(std::move(facts));
    if (file->size() != shard.raw_bytes) {
      refuse_shard(
          *file, 0,
          "it has " + std::to_string(file->size()) + " bytes, and index.json says " + std::to_string(shard.raw_bytes));
    }
    uint32_t count = 0;
    if (file->size() >= 4) file->read_at(0, std::as_writable_bytes(std::span(&count, 1)));
    if (count == 0 || count != shard.samples || (uint64_t{count} + 2) * 4 > file->size()) {
      refuse_shard(*file, 0,
                   "it says that it holds " + std::to_string(count) + " samples, and index.json says " +
                       std::to_string(shard.samples));
    }
    std::vector<uint32_t> offsets(size_t{count} + 1);
    file->read_at(4, std::as_writable_bytes(std::span(offsets)));
    uint64_t before = 4 + uint64_t{4} * offsets.size();
    for (const uint32_t offset : offsets) {
      if (offset < before || offset > file->size())
        refuse_shard(*file, 4, "the offsets of its samples are out of order or outside the file");
      before = offset;
    }
    WindowReader window(*file);
    for (uint32_t i = 0; i < count; ++i) one_sample(*file, window, number, shard, i, offsets[i], offsets[i + 1]);
  }

  void one_sample(const FileReader& file, WindowReader& window, uint32_t number, const MdsShard& shard, uint32_t place,
                  uint64_t begin, uint64_t end) {
    size_t variable = 0;
    for (const MdsColumn& column : shard.columns) variable += column.size < 0 ? 1 : 0;
    if (variable * 4 > end - begin)
      refuse_shard(file, begin, "sample " + std::to_string(place) + " is too short for its columns");
    std::vector<uint32_t> sizes(variable);
    if (variable > 0) std::memcpy(sizes.data(), window.at(begin, variable * 4).data(), variable * 4);
    std::vector<Extent> extents;
    uint64_t at = begin + variable * 4;
    size_t next = 0;
    for (const MdsColumn& column : shard.columns) {
      const uint64_t bytes = column.size < 0 ? sizes[next++] : static_cast<uint64_t>(column.size);
      if (bytes > end - at)
        refuse_shard(file, begin,
                     "column '" + column.name + "' of sample " + std::to_string(place) + " reaches beyond the sample");
      extents.push_back({at, bytes});
      at += bytes;
    }
    if (at != end) refuse_shard(file, begin, "sample " + std::to_string(place) + " is longer than its columns");
    const Extent& image = extents[image_];
    table_.add(shard.raw + "[" + std::to_string(place) + "]", 0, number, image.offset, image.bytes);
    if (label_) {
      const std::string why = add_label(window, extents[*label_]);
      if (!why.empty()) refuse_shard(file, begin, "sample " + std::to_string(place) + ": " + why);
    }
    for (const size_t column : fields_) {
      if (extents[column].bytes > kMaxFieldBytes)
        refuse_shard(file, begin, "column '" + shard.columns[column].name + "' is larger than 1 GiB");
    }
    for (size_t f = 0; f < fields_.size(); ++f)
      table_.place(f, number, extents[fields_[f]].offset, extents[fields_[f]].bytes);
  }

  std::string add_label(WindowReader& window, const Extent& extent) {
    if (extent.bytes > 4096) return "a label of " + std::to_string(extent.bytes) + " bytes";
    const auto bytes = window.at(extent.offset, static_cast<size_t>(extent.bytes));
    if (!label_tensor_) return labels_.add_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    switch (label_tensor_->dtype) {
      case DType::uint8: return labels_.add_integer(std::to_integer<int64_t>(bytes[0]));
      case DType::int32: {
        int32_t value = 0;
        std::memcpy(&value, bytes.data(), sizeof value);
        return labels_.add_integer(value);
      }
      default: {
        int64_t value = 0;
        std::memcpy(&value, bytes.data(), sizeof value);
        return labels_.add_integer(value);
      }
    }
  }

  const ContainerInput& input_;
  TableBuilder& table_;
  std::vector<MdsShard> shards_;
  std::string index_;
  size_t image_ = 0;
  std::optional<size_t> label_;
  std::optional<FieldSpec> label_tensor_;
  std::vector<size_t> fields_;  // columns
  LabelColumn labels_;
};

}  // namespace

std::vector<MdsShard> parse_mds_index(std::string_view text) {
  if (text.size() > kMaxIndexBytes) refuse_listing("it is larger than 128 MiB");
  std::vector<MdsShard> out;
  try {
    const Json json = parse_bounded(text, [](const char* why) { refuse_listing(why); });
    const Json& shards = json.at("shards");
    if (!shards.is_array() || shards.empty()) refuse_listing("it lists no shards");
    for (const Json& entry : shards) {
      if (entry.at("format") != "mds") refuse_listing("a shard is not in format mds");
      if (entry.value("version", 2) != 2) refuse_listing("a shard is of another version than 2");
      MdsShard shard;
      shard.raw = file_below(entry.at("raw_data").at("basename"));
      if (!whole_number(entry.at("raw_data").at("bytes"), shard.raw_bytes) ||
          !whole_number(entry.at("samples"), shard.samples)) {
        refuse_listing("a shard's size or number of samples is no whole number");
      }
      if (entry.contains("zip_data") && !entry["zip_data"].is_null()) {
        shard.compressed = file_below(entry["zip_data"].at("basename"));
        if (entry.contains("compression") && entry["compression"].is_string())
          shard.compression = entry["compression"].get<std::string>();
      }
      shard.columns = columns_of(entry);
      out.push_back(std::move(shard));
    }
  } catch (const Json::exception&) {
    refuse_listing("it cannot be read as the index of MDS shards");
  }
  return out;
}

SampleTable list_mds(const ContainerInput& input) {
  const std::string path = input.dataset.mds + "/index.json";
  std::vector<std::byte> bytes;
  if (!input.files.read_file(path, static_cast<int64_t>(kMaxIndexBytes), bytes)) {
    throw Error(ErrorKind::dataset, "'" + path + "' is larger than 128 MiB");
  }
  TableBuilder table("mds");
  TableFile facts;  // so that an index is seen to be old when this file was changed
  (void)input.shards.survey(path, facts);
  facts.path = relative_to(input.dataset.mds, path);
  table.add_file(std::move(facts));
  std::vector<MdsShard> shards;
  try {
    shards = parse_mds_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const Error& error) {
    throw Error(error.kind(), "'" + path + "': " + error.message(), error.remedy());
  }
  MdsListing(input, table, std::move(shards), path).run();
  return table.finish();
}

}  // namespace penstock
