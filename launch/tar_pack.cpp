#include "launch/tar_pack.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launch/pack_folder.h"
#include "launch/pack_makers.h"
#include "launch/sample_files.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/lower_case.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/table_source.h"

namespace penstock {
namespace {

constexpr size_t kBlock = 512;
constexpr size_t kMaxName = 100;              // of a ustar header, without its prefix
constexpr const char* kTime = "02263523000";  // 1980-01-01: GNU tar calls times about 0 implausible
constexpr const char* kClasses = "classes.txt";
constexpr const char* kUnfinished = ".unfinished";  // of shards of a data set that is not there to its end

std::string tar_name(size_t number) {
  char name[40];
  std::snprintf(name, sizeof name, "shard-%05zu.tar", number);
  return name;
}

// POSIX.1-2001, "ustar Interchange Format".
std::string header_of(const std::string& name, uint64_t bytes, char type) {
  std::string header(kBlock, '\0');
  const auto put = [&](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  char size[16];
  std::snprintf(size, sizeof size, "%011llo", static_cast<unsigned long long>(bytes));
  put(0, name);
  put(100, "0000644");
  put(108, "0000000");
  put(116, "0000000");
  put(124, size);
  put(136, kTime);
  put(148, "        ");
  header[156] = type;
  put(257, std::string("ustar\0"
                       "00",
                       8));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  char check[8];
  std::snprintf(check, sizeof check, "%06o", sum);
  put(148, std::string(check, 7));  // with its zero; the space behind it is there
  return header;
}

// POSIX.1-2001, "pax Extended Header": the length counts its own digits.
std::string pax_comment(std::string_view text) {
  const size_t rest = std::strlen(" comment=\n") + text.size();
  size_t length = rest + 1;
  while (std::to_string(length).size() + rest != length) ++length;
  return std::to_string(length) + " comment=" + std::string(text) + "\n";
}

struct Member {
  std::string name;
  std::vector<std::byte> owned{};
  std::span<const std::byte> bytes{};
  char type = '0';
};

uint64_t size_of(const std::vector<Member>& members) {
  uint64_t bytes = 0;
  for (const Member& member : members) bytes += kBlock + (member.bytes.size() + kBlock - 1) / kBlock * kBlock;
  return bytes;
}

// A file that is written; or, where it is there already, compared with what would be.
class Shard {
 public:
  explicit Shard(const std::string& path) {
    for (const std::string& name : {path, path + kUnfinished}) {
      try {
        there_ = posix_file_system().open_file(name);
        return;
      } catch (const FileError& error) {
        if (error.code() != ENOENT) throw;
      }
    }
    file_.emplace(path + kUnfinished);
  }

  bool was_there() const { return there_ != nullptr; }
  uint64_t size() const { return size_; }

  void add(std::span<const std::byte> bytes) {
    if (file_) {
      file_->write(bytes);
    } else {
      compare(bytes);
    }
    size_ += bytes.size();
  }
  void add_member(const Member& member) {
    static constexpr std::byte kZeros[kBlock] = {};
    add(as_bytes_of(header_of(member.name, member.bytes.size(), member.type)));
    add(member.bytes);
    add(std::span(kZeros).first((kBlock - member.bytes.size() % kBlock) % kBlock));
  }
  void finish() {
    if (!file_) {
      if (there_->size() != size_) differs();
      return;
    }
    file_->close();
    file_->publish();
  }

 private:
  void compare(std::span<const std::byte> bytes) {
    if (size_ + bytes.size() > there_->size()) differs();
    found_.resize(bytes.size());
    there_->read_at(size_, found_);
    if (!std::equal(bytes.begin(), bytes.end(), found_.begin())) differs();
  }
  [[noreturn]] void differs() const {
    throw Error(ErrorKind::usage,
                "'" + there_->path() +
                    "' is there, and is not what would be written: the data set or the options were "
                    "others, or it is damaged",
                "remove it to have it made again, or the whole folder, or name another one");
  }

  std::unique_ptr<const FileReader> there_;
  std::optional<AtomicFile> file_;
  std::vector<std::byte> found_;
  uint64_t size_ = 0;
};

class TarWriter {
 public:
  TarWriter(const PackInput& input, const PackOptions& options)
      : input_(input), options_(options), digits_(std::max<size_t>(9, std::to_string(input.size() - 1).size())) {}

  PackResult run() {
    const UniqueFd held = open_pack_folder(input_, options_.folder);
    check_what_is_there();
    if (!write_shards()) return std::move(result_);
    refuse_more_shards();
    write_classes();
    if (const std::string what = input_.changed(); !what.empty()) {
      throw Error(ErrorKind::dataset, what + " was changed while it was packed",
                  "remove '" + options_.folder + "' and pack again when nothing changes the data any more");
    }
    publish(held);
    result_.finished = true;
    return std::move(result_);
  }

 private:
  // All names at last, so that nobody reads a part for the whole.
  void publish(const UniqueFd& folder) const {
    for (size_t number = 0; number < result_.shards; ++number) {
      const std::string name = path(tar_name(number));
      if (::rename((name + kUnfinished).c_str(), name.c_str()) == 0 || errno == ENOENT) continue;
      const int code = errno;
      throw FileError(code, name, "cannot rename '" + name + kUnfinished + "': " + std::strerror(code));
    }
    (void)::fsync(folder.get());
  }

  std::string path(const std::string& name) const { return options_.folder + "/" + name; }

  void check_what_is_there() const {
    for (const DirectoryEntry& entry : posix_file_system().list_directory(options_.folder).entries) {
      std::string_view name = without_part_suffix(entry.name);
      if (name.ends_with(kUnfinished)) name.remove_suffix(std::strlen(kUnfinished));
      const bool shard = name.starts_with("shard-") && name.ends_with(".tar");
      if (shard || name == kClasses) continue;
      refuse_pack_folder(options_.folder, "it holds something else than tar shards: '" + entry.name + "'",
                         "name an empty or new folder, or one with shards of this command");
    }
  }

  // What readers would take for a part of the data set.
  void refuse_more_shards() const {
    std::set<std::string> mine;
    for (size_t number = 0; number < result_.shards; ++number) mine.insert(tar_name(number));
    for (const DirectoryEntry& entry : posix_file_system().list_directory(options_.folder).entries) {
      if (!entry.name.ends_with(".tar") || mine.contains(entry.name)) continue;
      refuse_pack_folder(options_.folder, "'" + entry.name + "' is there, and no sample is left for it", "remove it");
    }
  }

  std::string stem(int64_t index) const {
    const std::string number = std::to_string(index);
    return std::string(digits_ - number.size(), '0') + number;
  }

  std::string field_suffix(const FieldSpec& field, std::span<const std::byte> value) const {
    std::string name = field.name;
    std::replace(name.begin(), name.end(), '/', '_');
    switch (field.kind) {
      case FieldKind::tensor: return name == "npy" || name.ends_with(".npy") ? name : name + ".npy";
      case FieldKind::text: return is_text_member(name) ? name : name + ".txt";
      case FieldKind::image:
      case FieldKind::mask: return name + extension_of(value);
      default: return name;
    }
  }

  std::vector<Member> members_of(int64_t index, const PackedSample& made) const {
    const SampleTable& table = input_.table();
    const TableFacts& facts = table.facts();
    const std::string row = stem(index);
    std::vector<Member> members;
    const auto add = [&](std::string name, std::vector<std::byte> owned, std::span<const std::byte> bytes, char type) {
      Member& member = members.emplace_back(Member{std::move(name), std::move(owned), bytes, type});
      if (!member.owned.empty()) member.bytes = member.owned;
    };
    const auto text = [](const std::string& value) {
      const auto bytes = as_bytes_of(value);
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    members.reserve(input_.fields() + 3);
    add("PaxHeaders/" + row, text(pax_comment(table.key(index))), {}, 'x');
    const auto image = std::span(made.record).first(static_cast<size_t>(made.image_bytes));
    if (const PixelFormat& pixels = facts.pixels; pixels.layout == PixelLayout::encoded) {
      add(row + extension_of(image), {}, image, '0');
    } else {
      const bool grey = pixels.layout == PixelLayout::grey;
      std::vector<std::byte> rgb(static_cast<size_t>(pixels.width) * static_cast<size_t>(pixels.height) * 3);
      pixels_to_rgb(pixels, image, rgb.data());
      add(row + (grey ? ".pgm" : ".ppm"), netpbm_of(grey, pixels.width, pixels.height, rgb), {}, '0');
    }
    if (facts.labelled) add(row + ".cls", text(std::to_string(table.row(index).label)), {}, '0');
    size_t at = image.size();
    for (size_t f = 0; f < input_.fields(); ++f) {
      std::span<const std::byte> value;
      if (input_.in_table(f, index)) {
        value = table.value(table.place(f, index));
      } else {
        value = std::span(made.record).subspan(at, static_cast<size_t>(made.field_bytes[f]));
        at += value.size();
      }
      const FieldSpec& field = facts.fields[f];
      const std::string name = row + "." + field_suffix(field, value);
      if (field.kind == FieldKind::tensor) {
        add(name, npy_of(field, value), {}, '0');
      } else {
        add(name, {}, value, '0');
      }
    }
    check_names(members);
    return members;
  }

  // WebDataset and `dataset: {tar: …}` tell members of a sample apart by their names in small letters.
  void check_names(const std::vector<Member>& members) const {
    std::set<std::string> names;
    for (const Member& member : members) {
      std::string name = lower_case(member.name);
      if (name.size() > kMaxName) {
        throw Error(ErrorKind::usage,
                    "a member of a tar shard would be called '" + name.substr(0, 200) + "', which is longer than " +
                        std::to_string(kMaxName) + " bytes",
                    "give the field a shorter name");
      }
      if (!names.insert(std::move(name)).second) {
        throw Error(ErrorKind::usage, "two members of a sample would be called '" + member.name + "' in a tar shard",
                    "give the fields other names than each other's, 'cls' and pictures' extensions");
      }
    }
  }

  void finish(std::optional<Shard>& shard, int64_t samples) {
    static constexpr std::byte kEnd[2 * kBlock] = {};
    shard->add(kEnd);
    shard->finish();
    ++result_.shards;
    result_.bytes += shard->size();
    if (shard->was_there()) result_.found += samples;
    shard.reset();
  }

  bool write_shards() {
    PackMakers makers(input_, options_.content, options_.limits, options_.threads, 0);
    std::optional<Shard> shard;
    int64_t begin = 0;
    uint64_t written = 0;
    for (int64_t index = 0; index < input_.size();) {
      const PackProgress progress{shard && shard->was_there(), index, input_.size(), written, result_.shards};
      if (options_.go_on && !options_.go_on(progress)) return false;
      const std::optional<PackedSample> made = makers.take();
      if (!made) continue;
      const std::vector<Member> members = members_of(index, *made);
      if (shard && shard->size() + size_of(members) + 2 * kBlock > options_.shard_bytes) finish(shard, index - begin);
      if (!shard) {
        shard.emplace(path(tar_name(result_.shards)));
        begin = index;
      }
      for (const Member& member : members) shard->add_member(member);
      written += size_of(members);
      result_.source_bytes += made->source_bytes;
      result_.rewritten += made->notes.rewritten ? 1 : 0;
      if (!made->notes.bad.empty()) result_.bad[index] = made->notes.bad;
      result_.samples = ++index;
    }
    finish(shard, input_.size() - begin);
    if (options_.go_on) (void)options_.go_on({false, input_.size(), input_.size(), written, result_.shards});
    return true;
  }

  void write_classes() const {
    const std::vector<std::string>& classes = input_.table().facts().classes;
    if (classes.empty()) return;
    std::string lines;
    for (const std::string& name : classes) lines += name + "\n";
    write_new_file(path(kClasses), as_bytes_of(lines));
  }

  const PackInput& input_;
  const PackOptions& options_;
  size_t digits_;
  PackResult result_;
};

}  // namespace

PackResult write_tar_shards(const PackInput& input, const PackOptions& options) {
  return TarWriter(input, options).run();
}

}  // namespace penstock
