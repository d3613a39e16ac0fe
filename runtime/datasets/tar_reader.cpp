#include "runtime/datasets/tar_reader.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/datasets/window_reader.h"

namespace penstock {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMaxName = 4096;
constexpr uint64_t kMaxPax = uint64_t{1} << 20;
constexpr uint64_t kMaxMark = uint64_t{1} << 20;  // of what follows the end mark, so much is looked at

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A field's text ends at a zero byte or the field's end.
std::string_view until_zero(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

class TarWalk {
 public:
  TarWalk(const FileReader& file, const std::function<void(const TarMember&)>& visit)
      : file_(file), window_(file), visit_(visit) {}

  void run() {
    if (file_.size() == 0) refuse_shard(file_, 0, "the file is empty");
    while (one_member()) {
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& why, const std::string& remedy = {}) const {
    remedy.empty() ? refuse_shard(file_, where_, why) : refuse_shard(file_, where_, why, remedy);
  }

  // False: the end mark.
  bool one_member() {
    where_ = at_;
    if (file_.size() - at_ < kBlock) {
      refuse("the archive ends without its end mark: it was cut off",
             "copy the file again; nothing may be appended to it");
    }
    const std::string_view header = text_of(window_.at(at_, kBlock));
    if (header.find_first_not_of('\0') == std::string_view::npos) {
      check_end();
      return false;
    }
    check_sum(header);
    const uint64_t stored = number(header.substr(124, 12), "size");
    const char type = header[156];
    if (type == 'L' || type == 'x' || type == 'g') {
      const std::string body = extension(stored, type == 'L' ? kMaxName : kMaxPax);
      if (type == 'L') {
        if (name_) refuse("two long names follow each other");
        name_ = std::string(until_zero(body));
      } else {
        pax(body, type == 'g');
      }
      return true;
    }
    member(header, type, stored);
    return true;
  }

  void member(std::string_view header, char type, uint64_t stored) {
    TarMember out;
    out.header = at_;
    out.name = name_ ? *name_ : plain_name(header);
    out.size = size_ ? *size_ : stored;
    out.folder = type == '5' || (type == '\0' && out.name.ends_with('/'));
    name_.reset();
    size_.reset();
    check_type(type, out.name);
    check_name(out.name);
    while (out.name.starts_with("./")) out.name.erase(0, 2);
    if (out.folder) {
      // POSIX lets a folder have a size without data; GNU tar and Python write 0 and read data after it otherwise.
      if (out.size != 0) refuse("folder '" + shown(out.name) + "' has a size");
    }
    out.data = at_ + kBlock;
    advance(out.size, out.name);
    if (!out.name.empty()) visit_(out);
  }

  void check_type(char type, const std::string& name) const {
    const char* what = nullptr;
    switch (type) {
      case '0':
      case '\0':
      case '7':  // "contiguous": an ordinary file
      case '5': return;
      case '1': what = "is a hard link"; break;
      case '2': what = "is a symbolic link"; break;
      case 'K': what = "is a link with a long target"; break;
      case '3':
      case '4': what = "is a device"; break;
      case '6': what = "is a pipe"; break;
      case 'S': what = "is a sparse file"; break;
      case 'M':
      case 'V': what = "belongs to an archive of several volumes"; break;
      default: break;
    }
    std::string kind = what == nullptr
                           ? "is of an unknown type (byte " + std::to_string(static_cast<unsigned char>(type)) + ")"
                           : what;
    refuse("'" + shown(name) + "' " + kind + "; shards hold plain files only",
           "make the archive of plain files: tar --dereference --hard-dereference");
  }

  void check_name(const std::string& name) const {
    const char* remedy = "make the archive with names relative to its folder";
    if (name.empty()) refuse("a member without a name", remedy);
    if (name.find('\0') != std::string::npos) refuse("a name with a zero byte", remedy);
    if (name.front() == '/') refuse("the name '" + shown(name) + "' is absolute", remedy);
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('/', begin), name.size());
      if (name.compare(begin, end - begin, "..") == 0) refuse("the name '" + shown(name) + "' has '..' in it", remedy);
      begin = end + 1;
    }
  }

  static std::string shown(const std::string& name) {
    std::string out;
    for (const char c : name.substr(0, 200)) out += static_cast<unsigned char>(c) < 32 || c == 127 ? '?' : c;
    return out;
  }

  std::string plain_name(std::string_view header) const {
    std::string name(until_zero(header.substr(0, 100)));
    const bool posix = header.substr(257, 6) == std::string_view("ustar\0", 6);
    const std::string_view prefix = until_zero(header.substr(345, 155));
    if (posix && !prefix.empty()) name = std::string(prefix) + "/" + name;
    return name;
  }

  // Octal digits, or base 256 with the first bit set.
  uint64_t number(std::string_view field, const char* what) const {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(field[i]); };
    if ((byte(0) & 0x80) != 0) {
      if (byte(0) == 0xFF) refuse(std::string("the ") + what + " is negative");
      uint64_t value = byte(0) & 0x7F;
      for (size_t i = 1; i < field.size(); ++i) {
        if (value > (uint64_t{1} << 54)) refuse(std::string("the ") + what + " is too large for any file");
        value = value << 8 | byte(i);
      }
      if (value > (uint64_t{1} << 62)) refuse(std::string("the ") + what + " is too large for any file");
      return value;
    }
    size_t i = 0;
    while (i < field.size() && field[i] == ' ') ++i;
    uint64_t value = 0;
    for (; i < field.size() && field[i] != ' ' && field[i] != '\0'; ++i) {
      if (field[i] < '0' || field[i] > '7') refuse(std::string("the ") + what + " is no octal number");
      value = value * 8 + static_cast<uint64_t>(field[i] - '0');  // 12 digits at most
    }
    return value;
  }

  void check_sum(std::string_view header) const {
    int64_t wanted = 0;
    std::string_view digits = until_zero(header.substr(148, 8));
    digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
    (void)std::from_chars(digits.data(), digits.data() + digits.size(), wanted, 8);  // what is no number is a wrong one
    int64_t sum = 0;
    int64_t old_sum = 0;  // some tars of old added signed characters
    const auto add = [&](std::string_view text, int64_t times) {
      for (const char c : text) {
        sum += times * static_cast<unsigned char>(c);
        old_sum += times * static_cast<signed char>(c);
      }
    };
    add(header, 1);
    add(header.substr(148, 8), -1);  // the sum itself counts as blanks
    add("        ", 1);
    if (wanted != sum && wanted != old_sum) {
      const bool gzip = at_ == 0 && header.starts_with("\x1F\x8B");
      const bool zstd = at_ == 0 && header.starts_with("\x28\xB5\x2F\xFD");
      if (gzip || zstd)
        refuse("it is compressed, which its name does not say",
               gzip ? "name it .tar.gz, or better decompress it" : "name it .tar.zst, or better decompress it");
      refuse("this is no tar header (its checksum is wrong)");
    }
  }

  // Past header and data, both in whole blocks.
  void advance(uint64_t size, const std::string& name) {
    const uint64_t left = file_.size() - at_ - kBlock;
    if (size > left || (kBlock - size % kBlock) % kBlock > left - size) {
      refuse("'" + shown(name) + "' should have " + std::to_string(size) + " bytes, and the archive ends after " +
             std::to_string(left) + ": it was cut off or is damaged");
    }
    at_ += kBlock + (size + kBlock - 1) / kBlock * kBlock;
  }

  std::string extension(uint64_t size, uint64_t most) {
    if (size > most)
      refuse("an extended header of " + std::to_string(size) + " bytes; at most " + std::to_string(most) + " are read");
    const uint64_t data = at_ + kBlock;
    advance(size, "extended header");
    std::string body(static_cast<size_t>(size), '\0');
    if (size > 0) file_.read_at(data, std::as_writable_bytes(std::span(body)));
    return body;
  }

  // Records "LENGTH KEY=VALUE\n", the length counting all of the record.
  void pax(std::string_view body, bool global) {
    while (!body.empty()) {
      size_t length = 0;
      const auto [end, error] = std::from_chars(body.data(), body.data() + std::min<size_t>(body.size(), 10), length);
      const auto digits = static_cast<size_t>(end - body.data());
      if (error != std::errc{} || digits >= body.size() || *end != ' ' || length < digits + 3 || length > body.size() ||
          body[length - 1] != '\n') {
        refuse("a damaged pax header");
      }
      const std::string_view record = body.substr(digits + 1, length - digits - 2);
      body.remove_prefix(length);
      const size_t equals = record.find('=');
      if (equals == std::string_view::npos) refuse("a damaged pax header");
      const std::string_view key = record.substr(0, equals);
      const std::string_view value = record.substr(equals + 1);
      if (key.starts_with("GNU.sparse"))
        refuse("a sparse file; shards hold plain files only", "make the archive without --sparse");
      if (global && (key == "path" || key == "size" || key == "linkpath"))
        refuse("a pax header that names all members alike");
      if (key == "path") {
        if (value.size() > kMaxName) refuse("a name of " + std::to_string(value.size()) + " bytes");
        name_ = std::string(value);
      } else if (key == "size") {
        uint64_t size = 0;
        const auto [last, bad] = std::from_chars(value.data(), value.data() + value.size(), size);
        if (bad != std::errc{} || last != value.data() + value.size() || size > uint64_t{1} << 62) {
          refuse("a pax header whose size is no possible number");
        }
        size_ = size;
      }
    }
  }

  // What follows the mark is padding; anything else would be lost without a word.
  void check_end() {
    if (name_ || size_) refuse("the archive ends after an extended header: it was cut off");
    const uint64_t end = std::min(file_.size(), at_ + kMaxMark);
    for (uint64_t at = at_; at < end;) {
      const auto piece = static_cast<size_t>(std::min<uint64_t>(WindowReader::kWindow, end - at));
      const std::string_view text = text_of(window_.at(at, piece));
      if (const size_t other = text.find_first_not_of('\0'); other != std::string_view::npos) {
        where_ = at + other;
        refuse("there is something after the archive's end mark: archives joined by cat?",
               "join them with tar --concatenate");
      }
      at += piece;
    }
  }

  const FileReader& file_;
  WindowReader window_;
  const std::function<void(const TarMember&)>& visit_;
  uint64_t at_ = 0;
  uint64_t where_ = 0;               // the header that complaints are about
  std::optional<std::string> name_;  // what extended headers say of the next member
  std::optional<uint64_t> size_;
};

}  // namespace

void refuse_shard(const FileReader& file, uint64_t offset, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::dataset, "'" + file.path() + "' at byte " + std::to_string(offset) + ": " + why, remedy);
}

void walk_tar(const FileReader& file, const std::function<void(const TarMember&)>& visit) {
  TarWalk(file, visit).run();
}

}  // namespace penstock
