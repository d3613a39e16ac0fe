// WebDataset's shards: members of tar archives grouped into samples.
#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/lower_case.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/file_pattern.h"
#include "runtime/datasets/image_folder.h"
#include "runtime/datasets/npy_header.h"
#include "runtime/datasets/tar_reader.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxLabelText = 64;

// Where base name and suffix part; 0: the member belongs to no sample.
size_t dot_of(const std::string& name) {
  const size_t slash = name.rfind('/');
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  const size_t dot = name.find('.', begin);
  return dot == std::string::npos || dot == begin ? 0 : dot;
}

// webdataset's "__meta__" members, in any folder.
bool is_meta(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = std::string_view(name).substr(begin, end - begin);
    if (part.size() >= 4 && part.starts_with("__") && part.ends_with("__")) return true;
    begin = end + 1;
  }
  return false;
}

struct Part {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t header = 0;
};

class Grouping {
 public:
  Grouping(const ContainerInput& input, TableBuilder& table)
      : input_(input),
        table_(table),
        label_name_(input.dataset.label.empty() ? "cls" : lower_case(input.dataset.label)) {
    fields_ = field_requests(input.dataset);
  }

  void shard(const FileReader& file, uint32_t number) {
    file_ = &file;
    number_ = number;
    walk_tar(file, [this](const TarMember& member) { add(member); });
    end_sample();
  }

  // Byte offset of a sample's first header, for messages.
  uint64_t header_of(int64_t index) const { return headers_[static_cast<size_t>(index)]; }

 private:
  void add(const TarMember& member) {
    if (member.folder || is_meta(member.name)) return;
    const size_t dot = dot_of(member.name);
    if (dot == 0) return;
    const std::string key = member.name.substr(0, dot);
    if (key != key_) {
      end_sample();
      key_ = key;
      first_header_ = member.header;
    }
    const std::string suffix = lower_case(member.name.substr(dot + 1));
    if (!parts_.try_emplace(suffix, Part{member.data, member.size, member.header}).second) {
      refuse_shard(*file_, member.header, "sample '" + key + "' has two members '." + suffix + "'",
                   "a sample has each member once; shards are not joined in one archive");
    }
  }

  const Part* find(const std::string& suffix) const {
    const auto found = parts_.find(suffix);
    return found == parts_.end() ? nullptr : &found->second;
  }

  void end_sample() {
    if (parts_.empty()) return;
    const Part& image = image_of();
    table_.add(key_, label_of(), number_, image.offset, image.bytes);
    headers_.push_back(first_header_);
    for (size_t i = 0; i < fields_.size(); ++i) add_field(i);
    parts_.clear();
    key_.clear();
  }

  const Part& image_of() const {
    const std::string wanted = lower_case(input_.dataset.image);
    if (!wanted.empty()) {
      if (const Part* part = find(wanted)) return *part;
      refuse_shard(
          *file_, first_header_,
          "sample '" + key_ + "' has no member '." + wanted + "', which dataset.image names; it has " + listed(),
          "name a member that every sample has");
    }
    const Part* found = nullptr;
    for (const auto& [suffix, part] : parts_) {
      if (!has_image_extension("." + suffix) || suffix.find('.') != std::string::npos) continue;
      if (found != nullptr) {
        refuse_shard(*file_, first_header_, "sample '" + key_ + "' has several pictures: " + listed(),
                     "say which one with dataset.image, as in {image: jpg}");
      }
      found = &part;
    }
    if (found != nullptr) return *found;
    refuse_shard(*file_, first_header_, "sample '" + key_ + "' has no picture; it has " + listed(),
                 "members of a sample stand one after another (tar --sort=name); or say with dataset.image which one "
                 "is the picture");
  }

  int64_t label_of() {
    const Part* part = find(label_name_);
    const bool first = table_.size() == 0;
    if (part == nullptr && first && input_.dataset.label.empty()) {
      table_.facts().labelled = false;
      return 0;
    }
    if ((part != nullptr) != table_.facts().labelled) {
      refuse_shard(*file_, first_header_,
                   "sample '" + key_ + "' has " + (part == nullptr ? "no" : "a") + " label '." + label_name_ +
                       "', and those before it have " + (part == nullptr ? "one" : "none"),
                   "all samples have a label, or none has");
    }
    if (part == nullptr) return 0;
    std::string text(static_cast<size_t>(std::min(part->bytes, kMaxLabelText + 1)), '\0');
    file_->read_at(part->offset, std::as_writable_bytes(std::span(text)));
    int64_t label = 0;
    if (part->bytes > kMaxLabelText || !integer_of(text, label)) {
      refuse_shard(*file_, part->header,
                   "the label of sample '" + key_ + "' is no integer: '" + text.substr(0, 20) + "'",
                   "write class numbers as text");
    }
    return label;
  }

  void add_field(size_t number) {
    const FieldRequest& asked = fields_[number];
    const std::string plain = lower_case(asked.name);
    const std::string array = plain == "npy" || plain.ends_with(".npy") ? plain : plain + ".npy";
    const bool first = table_.size() == 1;
    const bool tensor = first ? !asked.has_kind && find(array) != nullptr : table_.facts().fields[number].fixed_size();
    const Part* part = find(tensor ? array : plain);
    if (part == nullptr) {
      refuse_shard(*file_, first_header_,
                   "sample '" + key_ + "' has no member '." + (first || !tensor ? plain : array) + "' for field '" +
                       asked.name + "'; it has " + listed(),
                   "a field is a member that every sample has");
    }
    if (part->bytes > kMaxFieldBytes)
      refuse_shard(*file_, part->header, "the member for field '" + asked.name + "' is larger than 1 GiB");
    if (!tensor) {
      if (first) {
        FieldSpec field;
        field.name = asked.name;
        field.kind = asked.has_kind ? asked.kind : is_text_member(plain) ? FieldKind::text : FieldKind::bytes;
        table_.add_field(std::move(field));
      }
      table_.place(number, number_, part->offset, part->bytes);
      return;
    }
    std::vector<std::byte> begin(static_cast<size_t>(std::min<uint64_t>(part->bytes, kMaxNpyHeader)));
    if (!begin.empty()) file_->read_at(part->offset, begin);
    NpyHeader header;
    if (const std::string why = read_npy_header(begin, part->bytes, header); !why.empty()) {
      refuse_shard(*file_, part->header, "member '." + array + "' of sample '" + key_ + "': " + why,
                   "write it with numpy.save, as an array of one of these dtypes: array.astype(numpy.float32), "
                   "numpy.ascontiguousarray(array)");
    }
    if (first) {
      FieldSpec field;
      field.name = asked.name;
      field.dtype = header.dtype;
      field.shape = header.shape;
      table_.add_field(std::move(field));
    }
    const FieldSpec& field = table_.facts().fields[number];
    if (field.dtype != header.dtype || field.shape != header.shape) {
      refuse_shard(*file_, part->header,
                   "member '." + array + "' of sample '" + key_ + "' differs from the first sample's in dtype or shape",
                   "a field has one dtype and shape in all samples");
    }
    table_.place(number, number_, part->offset + header.data, part->bytes - header.data);
  }

  std::string listed() const {
    std::string out;
    for (const auto& [suffix, part] : parts_) {
      if (out.size() > 200) return out + ", ...";
      out += (out.empty() ? "." : ", .") + suffix;
    }
    return out;
  }

  const ContainerInput& input_;
  TableBuilder& table_;
  std::string label_name_;
  std::vector<FieldRequest> fields_;
  const FileReader* file_ = nullptr;
  uint32_t number_ = 0;
  std::string key_;
  uint64_t first_header_ = 0;
  std::map<std::string, Part> parts_;
  std::vector<uint64_t> headers_;
};

}  // namespace

bool is_text_member(std::string_view suffix) {
  const std::string_view end = suffix.substr(suffix.rfind('.') + 1);
  return end == "txt" || end == "text" || end == "json" || end == "xml" || end == "html";
}

SampleTable list_tar(const ContainerInput& input) {
  TableBuilder table("tar");
  const std::string root = container_root(input.dataset);
  Grouping grouping(input, table);
  for (const std::string& path : container_files(input.dataset, input.files)) {
    TableFile facts;
    const std::shared_ptr<const FileReader> file = input.shards.survey(path, facts);
    facts.path = relative_to(root, path);
    grouping.shard(*file, table.add_file(std::move(facts)));
  }
  if (table.size() == 0) {
    throw Error(ErrorKind::dataset, "'" + input.dataset.tar + "' holds no sample",
                "members are named like 0001.jpg and 0001.cls");
  }
  if (const auto [one, other] = table.equal_keys(); one >= 0) {
    const auto where = [&](int64_t index) {
      return "'" + table.facts().files[table.row(index).file].path + "' at byte " +
             std::to_string(grouping.header_of(index));
    };
    throw Error(
        ErrorKind::dataset,
        "sample '" + std::string(table.key(other)) + "' is there twice: in " + where(one) + " and in " + where(other),
        "members of a sample stand one after another (tar --sort=name), and no two shards hold the same sample");
  }
  return table.finish();
}

}  // namespace penstock
