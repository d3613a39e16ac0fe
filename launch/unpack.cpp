#include "launch/unpack.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/contained_folder.h"
#include "launch/sample_files.h"
#include "runtime/base/error.h"
#include "runtime/datasets/pack_format.h"
#include "runtime/datasets/pack_source.h"
#include "runtime/datasets/table_source.h"

namespace penstock {
namespace {

// Names of files to be, by their sums: there may be very many.
class NameClashes {
 public:
  static Sum128 sum_of(const std::string& name) {
    Sum128 sum = hash128(std::string_view(name));
    sum.high &= ~kPart;
    return sum;
  }

  // Files of one name are one file where both are of the same part, and that is not 0.
  void add(const std::string& name, uint64_t part) {
    Sum128 sum = sum_of(name);
    sum.high |= part & kPart;
    sums_.push_back(sum);
    const std::string folder = name.substr(0, name.rfind('/') == std::string::npos ? 0 : name.rfind('/'));
    if (folder == last_folder_) return;
    last_folder_ = folder;
    for (size_t end = folder.find('/'); end != std::string::npos; end = folder.find('/', end + 1)) {
      folders_.insert(folder.substr(0, end));
    }
    folders_.insert(folder);
  }

  // The sum of a name that different files have, or a file and a folder.
  std::optional<Sum128> find() {
    const auto before = [](const Sum128& a, const Sum128& b) {
      return std::pair(a.low, a.high) < std::pair(b.low, b.high);
    };
    const auto plain = [](Sum128 sum) {
      sum.high &= ~kPart;
      return sum;
    };
    std::sort(sums_.begin(), sums_.end(), before);
    for (size_t i = 1; i < sums_.size(); ++i) {
      const bool one_file = sums_[i] == sums_[i - 1] && (sums_[i].high & kPart) != 0;
      if (plain(sums_[i]) == plain(sums_[i - 1]) && !one_file) return plain(sums_[i]);
    }
    for (const std::string& folder : folders_) {
      const Sum128 sum = sum_of(folder);
      const auto at = std::lower_bound(sums_.begin(), sums_.end(), sum, before);
      if (at != sums_.end() && plain(*at) == sum) return sum;
    }
    return {};
  }

 private:
  static constexpr uint64_t kPart = 0xFFFF;
  std::vector<Sum128> sums_;
  std::set<std::string> folders_;
  std::string last_folder_;
};

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos && !text.empty()) return std::string(text);
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

template <class T>
T value_of(std::span<const std::byte> bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

// Whether the field is a column of samples.csv.
bool is_column(const FieldSpec& field) {
  if (field.kind == FieldKind::text) return true;
  return field.kind == FieldKind::tensor && field.shape.empty() && field.dtype != DType::float16 &&
         field.dtype != DType::bfloat16;
}

std::string csv_text_of(const FieldSpec& field, std::span<const std::byte> value) {
  if (field.kind == FieldKind::text) {
    return csv_cell({reinterpret_cast<const char*>(value.data()), value.size()});
  }
  char text[40];
  switch (field.dtype) {
    case DType::uint8: return std::to_string(value_of<uint8_t>(value));
    case DType::int32: return std::to_string(value_of<int32_t>(value));
    case DType::int64: return std::to_string(value_of<int64_t>(value));
    case DType::float32: std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value_of<float>(value))); break;
    default: std::snprintf(text, sizeof text, "%.17g", value_of<double>(value));
  }
  return text;
}

class Unpacker {
 public:
  explicit Unpacker(const UnpackOptions& options)
      : options_(options),
        source_(open_pack_table(options.pack, posix_file_system()), options.pack, no_limits(), posix_file_system()) {}

  UnpackResult run() {
    const SampleTable& table = source_.table();
    check_names();
    ContainedFolder folder(options_.folder, options_.overwrite);
    if (own_table()) csv_ = csv_head();
    for (int64_t i = 0; i < table.size(); ++i) {
      if (options_.go_on && !options_.go_on(i, table.size(), result_.bytes)) return result_;
      try {
        load(i);
      } catch (const FileError& error) {
        result_.damaged.push_back(error.message());
        continue;
      }
      write_sample(folder, i);
    }
    if (own_table()) put(folder, "samples.csv", as_bytes_of(csv_));
    folder.save();
    result_.finished = true;
    return result_;
  }

 private:
  const TableFacts& facts() const { return source_.table().facts(); }
  bool pairs() const { return facts().kind == "images"; }
  // Pictures have names of files already.
  bool own_files() const {
    const DatasetKind* kind = find_dataset_kind(facts().kind);
    return kind != nullptr && kind->own_pictures;
  }
  bool own_table() const { return facts().kind != "folder" && !pairs(); }

  bool pixels() const { return facts().pixels.layout != PixelLayout::encoded; }

  std::string picture_file(const std::string& stem, const std::string& extension) const {
    if (pixels()) return stem + (facts().pixels.layout == PixelLayout::grey ? ".pgm" : ".ppm");
    return pairs() ? "images/" + stem : stem + extension;
  }

  // Empty: the field is a column of samples.csv.
  std::string field_file(const std::string& stem, size_t f, const PackNotes& notes) const {
    const FieldSpec& field = source_.fields()[f];
    std::string name = field.name;
    for (char& c : name) c = c == '/' ? '_' : c;
    if (pairs()) return name + "s/" + (f - 2 < notes.partners.size() ? notes.partners[f - 2] : stem);
    if (is_column(field)) return {};
    const bool tensor = field.kind == FieldKind::tensor;
    return stem + "." + name + (tensor && name != "npy" && !name.ends_with(".npy") ? ".npy" : "");
  }

  struct File {
    std::string name;
    uint64_t part;  // 1: the picture; others: fields by their places
  };
  // None where its record would have to be read for that and is damaged: run() leaves such a sample out.
  std::vector<File> files_of(int64_t index, const PackNotes& notes) {
    const std::string stem = source_.key(index);
    std::vector<File> files;
    try {
      files.push_back({picture_file(stem, extension(index, stem)), 1});
    } catch (const FileError&) {
      return files;
    }
    for (size_t f = 2; f < source_.fields().size(); ++f) {
      if (std::string name = field_file(stem, f, notes); !name.empty()) files.push_back({std::move(name), f});
    }
    return files;
  }

  // Finds everything that would fail midway because of how things are called.
  void check_names() {
    NameClashes clashes;
    if (own_table()) clashes.add("samples.csv", 0);
    const int64_t samples = source_.table().size();
    for (int64_t i = 0; i < samples; ++i) {
      const PackNotes notes = notes_of(source_.table(), i);
      check_name(i, source_.key(i));
      for (const std::string& partner : notes.partners) check_name(i, partner);
      for (const File& file : files_of(i, notes)) {
        check_name(i, file.name);
        // A list may name a picture twice: it is one file then.
        clashes.add(file.name, own_files() ? file.part : 0);
      }
    }
    const std::optional<Sum128> clash = clashes.find();
    if (!clash) return;
    std::string name;
    std::string who;
    for (int64_t i = 0; i < samples; ++i) {
      for (const File& file : files_of(i, notes_of(source_.table(), i))) {
        if (NameClashes::sum_of(file.name) != *clash) continue;
        name = file.name;
        who += (who.empty() ? "" : ", ") + std::to_string(i);
        if (who.size() > 60) i = samples - 1;
      }
    }
    throw Error(ErrorKind::usage,
                "'" + name.substr(0, 200) + "' would be two files that '" + options_.pack +
                    "' unpacks to, or a file and a folder (samples " + who + ")",
                "read the pack as it is, or pack the data set with other names of fields or samples");
  }

  void check_name(int64_t index, const std::string& name) const {
    if (const std::string why = unsafe_name(name); !why.empty()) {
      throw Error(ErrorKind::usage, "sample " + std::to_string(index) + " of '" + options_.pack + "' is called '" +
                                        name.substr(0, 200) + "', and cannot be written below '" + options_.folder +
                                        "': " + why);
    }
  }

  // The extension for pictures that had no file; any where the check does not depend on it.
  std::string extension(int64_t index, const std::string& stem) {
    if (own_files() || pixels()) return {};
    constexpr size_t kLongest = 5;
    const bool like_one = std::any_of(source_.fields().begin() + 2, source_.fields().end(), [](const FieldSpec& field) {
      return std::any_of(std::begin(kPictureExtensions), std::end(kPictureExtensions),
                         [&](const char* end) { return ("." + field.name).ends_with(end); });
    });
    if (!like_one && stem.size() - (stem.rfind('/') + 1) + kLongest <= kMaxNameStep) return ".jpg";
    load(index);
    return extension_of(sample_.image);
  }

  std::string csv_head() const {
    std::string line = "image";
    if (facts().labelled) line += ",label";
    for (size_t f = 2; f < source_.fields().size(); ++f) {
      if (is_column(source_.fields()[f])) line += "," + csv_cell(source_.fields()[f].name);
    }
    return line + "\n";
  }

  void put(ContainedFolder& folder, const std::string& name, std::span<const std::byte> bytes) {
    ++(folder.write(name, bytes) ? result_.written : result_.there);
    result_.bytes += bytes.size();
  }

  // Pixels as a picture of their own.
  void write_pixels(ContainedFolder& folder, const std::string& name) {
    const bool grey = facts().pixels.layout == PixelLayout::grey;
    put(folder, name, netpbm_of(grey, sample_.width, sample_.height, sample_.image));
  }

  // The one that was loaded.
  void write_sample(ContainedFolder& folder, int64_t index) {
    const PackNotes notes = notes_of(source_.table(), index);
    const std::string stem = source_.key(index);
    const std::string image = picture_file(stem, own_files() ? "" : extension_of(sample_.image));
    if (pixels()) {
      write_pixels(folder, image);
    } else {
      put(folder, image, sample_.image);
    }
    std::string line = csv_cell(image);
    if (facts().labelled) {
      const auto label = static_cast<size_t>(sample_.label);
      line += "," + (facts().classes.empty() ? std::to_string(sample_.label) : csv_cell(facts().classes.at(label)));
    }
    for (size_t f = 2; f < source_.fields().size(); ++f) {
      const FieldSpec& field = source_.fields()[f];
      const std::span<const std::byte> value = sample_.fields.at(f - 2);
      const std::string file = field_file(stem, f, notes);
      if (file.empty()) {
        line += "," + csv_text_of(field, value);
      } else if (!pairs() && field.kind == FieldKind::tensor) {
        put(folder, file, npy_of(field, value));
      } else {
        put(folder, file, value);
      }
    }
    if (own_table()) csv_ += line + "\n";
    result_.rewritten += notes.rewritten ? 1 : 0;
    ++result_.samples;
  }

  void load(int64_t index) {
    DrawKey key;
    key.index = static_cast<uint64_t>(index);
    if (const SampleStatus status = source_.load(key, sample_); !status.ok()) {
      throw Error(ErrorKind::dataset, "'" + source_.key(index) + "' cannot be unpacked: " + status.reason);
    }
  }

  static DecodeLimits no_limits() {
    DecodeLimits limits;
    limits.max_encoded_bytes = limits.max_field_bytes = int64_t{1} << 40;
    return limits;
  }

  UnpackOptions options_;
  PackSource source_;
  SourceSample sample_;
  std::string csv_;
  UnpackResult result_;
};

// Tar shards need no program of ours.
void refuse_tar_shards(const std::string& pack) {
  namespace fs = std::filesystem;
  const auto is_shard = [](const fs::path& path) { return path.filename().string().find(".tar") != std::string::npos; };
  std::error_code ignored;
  bool found = is_shard(pack) && fs::is_regular_file(pack, ignored);
  fs::directory_iterator entry(pack, ignored);
  for (; !found && !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    found = is_shard(entry->path());
  }
  if (!found) return;
  throw Error(ErrorKind::usage, "'" + pack + "' is no pack, but tar shards",
              "tar unpacks them: for shard in SHARDS/*.tar; do tar -C FOLDER -xf \"$shard\"; done");
}

}  // namespace

UnpackResult unpack(const UnpackOptions& options) {
  if (is_pack(options.folder)) {
    throw Error(ErrorKind::usage, "'" + options.folder + "' is a pack itself, and files do not belong in one",
                "name another folder");
  }
  if (!is_pack(options.pack)) refuse_tar_shards(options.pack);
  return Unpacker(options).run();
}

}  // namespace penstock
