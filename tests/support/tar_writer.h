// Tar archives byte by byte, wrong ones as well.
//
//   TarWriter tar;
//   tar.member("a.jpg", bytes);
//   tar.member("b", "", {.type = '2', .link = "/etc/passwd"});
//   folder.write("shard.tar", tar.finish());
#pragma once

#include <cstdio>
#include <string>

namespace penstock {

struct TarOptions {
  char type = '0';
  std::string link{};
  std::string prefix{};
  std::string size{};  // the 12 bytes of the size field; empty: the right ones
  std::string magic = std::string(
      "ustar\0"
      "00",
      8);
  bool wrong_sum = false;
};

class TarWriter {
 public:
  // Returns the offset of the header.
  size_t member(const std::string& name, const std::string& data, const TarOptions& options = {}) {
    const size_t at = bytes_.size();
    std::string header(512, '\0');
    header.replace(0, std::min<size_t>(name.size(), 100), name, 0, 100);
    header.replace(100, 7, "0000644");
    header.replace(108, 7, "0000000");
    header.replace(116, 7, "0000000");
    header.replace(124, 12, options.size.empty() ? octal(data.size(), 11) + std::string(1, '\0') : options.size);
    header.replace(136, 11, "14371573000");
    header[156] = options.type;
    header.replace(157, options.link.size(), options.link);
    header.replace(257, options.magic.size(), options.magic);
    header.replace(345, options.prefix.size(), options.prefix);
    header.replace(148, 8, 8, ' ');
    unsigned sum = options.wrong_sum ? 1 : 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    header.replace(148, 8, octal(sum, 6) + std::string("\0 ", 2));
    bytes_ += header + data;
    bytes_.resize((bytes_.size() + 511) / 512 * 512);
    return at;
  }
  // "27 path=...\n": the length counts itself.
  static std::string pax(const std::string& key, const std::string& value) {
    const std::string body = " " + key + "=" + value + "\n";
    size_t length = body.size() + 1;
    while (std::to_string(length).size() + body.size() != length) ++length;
    return std::to_string(length) + body;
  }
  std::string& bytes() { return bytes_; }
  std::string finish() const { return bytes_ + std::string(1024, '\0'); }

 private:
  static std::string octal(size_t value, int digits) {
    char text[32];
    std::snprintf(text, sizeof text, "%0*zo", digits, value);
    return text;
  }
  std::string bytes_;
};

}  // namespace penstock
