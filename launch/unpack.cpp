#include "launch/unpack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/memory.h"
#include "runtime/dataset/pack_source.h"
#include "runtime/dataset/table_source.h"
#include "runtime/observe/npy.h"

namespace penstock {
namespace {

constexpr size_t kMaxStep = 255;  // of a name, between slashes

// A folder that nothing is written out of: each step of a name is opened by itself, and links are no steps.
class Folder {
 public:
  Folder(const std::string& path, bool overwrite) : path_(path), overwrite_(overwrite) {
    std::error_code code;
    std::filesystem::create_directories(path, code);
    if (code) {
      throw FileError(code.value(), path, "cannot create the folder '" + path + "': " + code.message(),
                      "check the path and its permissions");
    }
    top_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!top_) fail("open", path);
  }

  // False: it was there, the same.
  bool write(const std::string& name, std::span<const std::byte> bytes) {
    if (const std::string why = unsafe_name(name); !why.empty()) {
      throw Error(ErrorKind::usage, "'" + name.substr(0, 200) + "' cannot be written below '" + path_ + "': " + why);
    }
    const size_t slash = name.rfind('/');
    const std::string leaf = slash == std::string::npos ? name : name.substr(slash + 1);
    const int parent = enter(slash == std::string::npos ? "" : name.substr(0, slash));
    if (!overwrite_ && exists(parent, leaf)) {
      if (same(parent, leaf, bytes)) return false;
      refuse_to_replace(name);
    }
    const std::string part = ".penstock-unpack." + std::to_string(::getpid()) + ".part";
    (void)::unlinkat(parent, part.c_str(), 0);
    try {
      UniqueFd fd(::openat(parent, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
      if (!fd) fail("create", path_ + "/" + name);
      for (size_t done = 0; done < bytes.size();) {
        const ssize_t put = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail("write", path_ + "/" + name);
        done += static_cast<size_t>(put);
      }
      if (::close(fd.release()) != 0 && errno != EINTR) fail("finish writing", path_ + "/" + name);
      // A link in the way is replaced, never followed.
      if (overwrite_) {
        if (::renameat(parent, part.c_str(), parent, leaf.c_str()) != 0) fail("rename to", path_ + "/" + name);
      } else {
        name_it(parent, part, leaf, name);
      }
    } catch (...) {
      (void)::unlinkat(parent, part.c_str(), 0);
      throw;
    }
    return true;
  }

  void save() {
    if (::syncfs(top_.get()) != 0) fail("save", path_);
  }

 private:
  [[noreturn]] static void fail(const std::string& action, const std::string& path) {
    const int code = errno;
    const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
    throw FileError(code, path, "cannot " + action + " '" + path + "': " + std::strerror(code),
                    full ? "make room, or write to another disk" : "");
  }
  [[noreturn]] void refuse_to_replace(const std::string& name) const {
    throw Error(ErrorKind::usage, "'" + path_ + "/" + name + "' is there already, and is another file",
                "name an empty folder, or say --overwrite to replace what is in the way");
  }

  // Replaces nothing. Some network disks know no such rename, others no second name of a file.
  void name_it(int parent, const std::string& part, const std::string& leaf, const std::string& name) const {
    if (::renameat2(parent, part.c_str(), parent, leaf.c_str(), RENAME_NOREPLACE) == 0) return;
    if (errno == EINVAL || errno == ENOSYS) {
      if (::linkat(parent, part.c_str(), parent, leaf.c_str(), 0) == 0) {
        (void)::unlinkat(parent, part.c_str(), 0);
        return;
      }
    }
    if (errno == EEXIST) refuse_to_replace(name);
    fail("create", path_ + "/" + name);
  }

  static bool exists(int parent, const std::string& leaf) {
    struct stat status {};
    return ::fstatat(parent, leaf.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  }
  static bool same(int parent, const std::string& leaf, std::span<const std::byte> bytes) {
    const UniqueFd fd(::openat(parent, leaf.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<uint64_t>(status.st_size) != bytes.size()) {
      return false;
    }
    std::vector<std::byte> buffer(size_t{1} << 16);
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t got = ::read(fd.get(), buffer.data(), std::min(buffer.size(), bytes.size() - done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || std::memcmp(buffer.data(), bytes.data() + done, static_cast<size_t>(got)) != 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  }

  int enter(const std::string& folder) {
    if (parent_ && folder == entered_) return parent_.get();
    UniqueFd at = top_.duplicate();
    for (size_t begin = 0; begin < folder.size();) {
      const size_t end = std::min(folder.find('/', begin), folder.size());
      const std::string step = folder.substr(begin, end - begin);
      if (::mkdirat(at.get(), step.c_str(), 0777) != 0 && errno != EEXIST) {
        fail("create the folder", path_ + "/" + folder.substr(0, end));
      }
      UniqueFd next(::openat(at.get(), step.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (!next && (errno == ELOOP || errno == ENOTDIR)) {
        throw Error(ErrorKind::usage,
                    "'" + path_ + "/" + folder.substr(0, end) + "' is a link or a file, and a folder is needed there",
                    "remove it, or name another folder");
      }
      if (!next) fail("open the folder", path_ + "/" + folder.substr(0, end));
      at = std::move(next);
      begin = end + 1;
    }
    parent_ = std::move(at);
    entered_ = folder;
    return parent_.get();
  }

  std::string path_;
  bool overwrite_;
  UniqueFd top_;
  UniqueFd parent_;  // of the file written last
  std::string entered_;
};

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

// All that extension_of() may say.
constexpr const char* kExtensions[] = {".jpg", ".png", ".gif", ".webp", ".tiff", ".bmp", ".ppm", ".bin"};

const char* extension_of(std::span<const std::byte> image) {
  const std::string_view text(reinterpret_cast<const char*>(image.data()), std::min<size_t>(image.size(), 16));
  using namespace std::string_view_literals;
  if (text.starts_with("\xFF\xD8"sv)) return ".jpg";
  if (text.starts_with("\x89PNG"sv)) return ".png";
  if (text.starts_with("GIF8"sv)) return ".gif";
  if (text.starts_with("RIFF"sv)) return ".webp";
  if (text.starts_with("II*\0"sv) || text.starts_with("MM\0*"sv)) return ".tiff";
  if (text.starts_with("BM"sv)) return ".bmp";
  if (text.size() > 1 && text[0] == 'P' && text[1] >= '1' && text[1] <= '6') return ".ppm";
  return ".bin";
}

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

std::string cell_of(const FieldSpec& field, std::span<const std::byte> value) {
  if (field.kind == FieldKind::text) {
    return csv_cell({reinterpret_cast<const char*>(value.data()), value.size()});
  }
  char text[40];
  switch (field.dtype) {
    case DType::uint8:
      return std::to_string(value_of<uint8_t>(value));
    case DType::int32:
      return std::to_string(value_of<int32_t>(value));
    case DType::int64:
      return std::to_string(value_of<int64_t>(value));
    case DType::float32:
      std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value_of<float>(value)));
      break;
    default:
      std::snprintf(text, sizeof text, "%.17g", value_of<double>(value));
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
    Folder folder(options_.folder, options_.overwrite);
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
    return facts().kind == "folder" || pairs() || facts().kind == "csv" || facts().kind == "list";
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
    return stem + "." + name + (field.kind == FieldKind::tensor ? ".npy" : "");
  }

  struct File {
    std::string name;
    uint64_t part;  // 1: the picture; others: fields by their places
  };
  std::vector<File> files_of(int64_t index, const PackNotes& notes) {
    const std::string stem = source_.key(index);
    std::vector<File> files = {{picture_file(stem, extension(index, stem)), 1}};
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

  // Of pictures that had no file; where it makes no difference to what is checked, any.
  std::string extension(int64_t index, const std::string& stem) {
    if (own_files() || pixels()) return {};
    constexpr size_t kLongest = 5;
    const bool like_one = std::any_of(source_.fields().begin() + 2, source_.fields().end(), [](const FieldSpec& field) {
      return std::any_of(std::begin(kExtensions), std::end(kExtensions),
                         [&](const char* end) { return ("." + field.name).ends_with(end); });
    });
    if (!like_one && stem.size() - (stem.rfind('/') + 1) + kLongest <= kMaxStep) return ".jpg";
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

  void put(Folder& folder, const std::string& name, std::span<const std::byte> bytes) {
    ++(folder.write(name, bytes) ? result_.written : result_.there);
    result_.bytes += bytes.size();
  }

  // Pixels as a picture of their own.
  void write_pixels(Folder& folder, const std::string& name) {
    const bool grey = facts().pixels.layout == PixelLayout::grey;
    std::string head = std::string(grey ? "P5\n" : "P6\n") + std::to_string(sample_.width) + " " +
                       std::to_string(sample_.height) + "\n255\n";
    std::vector<std::byte> bytes(as_bytes_of(head).begin(), as_bytes_of(head).end());
    for (size_t i = 0; i < sample_.image.size(); i += grey ? 3 : 1) bytes.push_back(sample_.image[i]);
    put(folder, name, bytes);
  }

  // The one that was loaded.
  void write_sample(Folder& folder, int64_t index) {
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
        line += "," + cell_of(field, value);
      } else if (!pairs() && field.kind == FieldKind::tensor) {
        const std::string head = npy_header(npy_type_of(field.dtype), field.shape);
        std::vector<std::byte> bytes(as_bytes_of(head).begin(), as_bytes_of(head).end());
        bytes.insert(bytes.end(), value.begin(), value.end());
        put(folder, file, bytes);
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
    if (const Verdict verdict = source_.load(key, sample_); !verdict.ok()) {
      throw Error(ErrorKind::dataset, "'" + source_.key(index) + "' cannot be unpacked: " + verdict.reason);
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

}  // namespace

std::string unsafe_name(const std::string& name) {
  if (name.empty()) return "it is empty";
  if (name.front() == '/') return "it is absolute";
  if (name.find('\0') != std::string::npos) return "it has a NUL in it";
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view step = std::string_view(name).substr(begin, end - begin);
    if (step == "..") return "'..' leads out of the folder";
    if (step.empty() || step == ".") return "it has an empty step, or '.', in it";
    if (step.size() > kMaxStep) return "a step of it is longer than 255 bytes";
    begin = end + 1;
  }
  return {};
}

UnpackResult unpack(const UnpackOptions& options) {
  return Unpacker(options).run();
}

}  // namespace penstock
