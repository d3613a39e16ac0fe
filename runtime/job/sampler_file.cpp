#include "runtime/job/sampler_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/job/source_text.h"

namespace penstock {
namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& why, const std::string& remedy = {}) {
  throw Error(ErrorKind::dataset, "sampler file " + in_quotes(path) + ": " + why, remedy);
}

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

template <class Number>
std::vector<Number> numbers_of_text(const std::string& path, std::string_view text) {
  std::vector<Number> out;
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view word = trimmed(text.substr(0, text.find('\n')));
    const size_t end_of_line = text.find('\n');
    text.remove_prefix(end_of_line == std::string_view::npos ? text.size() : end_of_line + 1);
    if (word.empty()) continue;
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc{} || end != word.data() + word.size()) {
      refuse(path,
             "line " + std::to_string(line) + " is no " + (std::is_integral_v<Number> ? "whole " : "") +
                 "number: " + in_quotes(std::string(word.substr(0, 40))),
             "write one number a line, or a .npy file");
    }
    out.push_back(number);
  }
  return out;
}

struct NpyHeader {
  std::string dtype;  // "<i8"
  int64_t count = 0;
  size_t begin = 0;  // of the data
};

// What follows 'key': in the header, a Python dict on one line.
std::string_view value_of(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  const size_t colon = header.find(':', at);
  return colon == std::string_view::npos ? std::string_view{} : trimmed(header.substr(colon + 1));
}

NpyHeader npy_header(const std::string& path, std::string_view bytes) {
  constexpr std::string_view magic("\x93NUMPY", 6);
  const auto damaged = [&](const char* why) {
    refuse(path, std::string("it is no .npy file: ") + why, "write it with numpy.save");
  };
  if (bytes.size() < 12 || bytes.substr(0, 6) != magic) damaged("it does not begin as one");
  const bool first_version = bytes[6] == 1;
  size_t length = static_cast<uint8_t>(bytes[8]) | size_t{static_cast<uint8_t>(bytes[9])} << 8;
  if (!first_version) {
    length |= size_t{static_cast<uint8_t>(bytes[10])} << 16 | size_t{static_cast<uint8_t>(bytes[11])} << 24;
  }
  NpyHeader out;
  const size_t begin = first_version ? 10 : 12;
  if (length > bytes.size() - begin) damaged("its header ends early");
  out.begin = begin + length;
  const std::string_view header = bytes.substr(begin, length);
  const std::string_view descr = value_of(header, "'descr'");
  if (descr.size() < 2 || descr[0] != '\'') damaged("its header has no dtype");
  out.dtype = std::string(descr.substr(1, std::min<size_t>(descr.find('\'', 1), 9) - 1));
  const std::string_view shape = value_of(header, "'shape'");
  const auto [end, error] =
      std::from_chars(shape.data() + (shape.empty() ? 0 : 1), shape.data() + shape.size(), out.count);
  if (shape.empty() || shape[0] != '(' || error != std::errc{} || out.count < 0 ||
      std::string_view(end, std::min<size_t>(2, static_cast<size_t>(shape.data() + shape.size() - end))) != ",)") {
    refuse(path, "its array is not one-dimensional", "save it with numpy.save(file, array.ravel())");
  }
  return out;
}

template <class Stored, class Number>
std::vector<Number> stored(const std::string& path, std::string_view bytes, const NpyHeader& header) {
  const size_t there = (bytes.size() - header.begin) / sizeof(Stored);
  if (static_cast<uint64_t>(header.count) > there) {
    refuse(path,
           "its header promises " + std::to_string(header.count) + " numbers, and it holds " + std::to_string(there),
           "copy it again");
  }
  std::vector<Number> out(static_cast<size_t>(header.count));
  for (size_t i = 0; i < out.size(); ++i) {
    Stored value;
    std::memcpy(&value, bytes.data() + header.begin + i * sizeof(Stored), sizeof value);
    out[i] = static_cast<Number>(value);
  }
  return out;
}

template <class Number>
std::vector<Number> numbers_of(const std::string& path, FileSystem& files) {
  std::vector<std::byte> content;
  if (!files.read_file(path, kMaxSamplerFileBytes, content)) {
    refuse(path, "it is larger than " + std::to_string(kMaxSamplerFileBytes >> 30) + " GiB");
  }
  const std::string_view bytes(reinterpret_cast<const char*>(content.data()), content.size());
  std::vector<Number> out;
  if (!path.ends_with(".npy")) {
    out = numbers_of_text<Number>(path, bytes);
  } else {
    const NpyHeader header = npy_header(path, bytes);
    if (header.dtype == "<i8") {
      out = stored<int64_t, Number>(path, bytes, header);
    } else if (header.dtype == "<i4") {
      out = stored<int32_t, Number>(path, bytes, header);
    } else if (std::is_floating_point_v<Number> && header.dtype == "<f8") {
      out = stored<double, Number>(path, bytes, header);
    } else if (std::is_floating_point_v<Number> && header.dtype == "<f4") {
      out = stored<float, Number>(path, bytes, header);
    } else {
      refuse(path, "its dtype is " + in_quotes(header.dtype),
             std::is_floating_point_v<Number> ? "save float64 or float32" : "save int64 or int32");
    }
  }
  if (out.empty()) refuse(path, "it holds no number");
  return out;
}

template <class Number>
std::string hash_of(const std::vector<Number>& numbers) {
  return hash128(std::as_bytes(std::span<const Number>(numbers))).hex();
}

struct Content {
  SamplerNumbers numbers;
  std::string hash;
  int64_t count = 0;
};

std::optional<Content> content_of(const ResolvedSplit& split, FileSystem& files) {
  const SamplerSpec& sampler = split.split.sampler;
  if (sampler.file().empty()) return std::nullopt;
  Content content;
  try {
    if (!sampler.indices.empty()) {
      content.numbers.indices = numbers_of<int64_t>(sampler.indices, files);
      content.hash = hash_of(content.numbers.indices);
      content.count = std::ssize(content.numbers.indices);
      const auto [smallest, largest] =
          std::minmax_element(content.numbers.indices.begin(), content.numbers.indices.end());
      if (content.count > 0)
        std::tie(content.numbers.smallest, content.numbers.largest) = std::pair(*smallest, *largest);
    } else {
      content.numbers.weights = numbers_of<double>(sampler.weights, files);
      content.hash = hash_of(content.numbers.weights);
      content.count = std::ssize(content.numbers.weights);
    }
  } catch (const FileError& error) {
    throw Error(ErrorKind::dataset, "sampler file of split " + in_quotes(split.name) + ": " + error.message(),
                "make the file visible under the same path on every node");
  }
  return content;
}

}  // namespace

ResolvedSplit with_sampler_file(ResolvedSplit split, FileSystem& files) {
  const auto content = content_of(split, files);
  if (!content) return split;
  SamplerSpec& sampler = split.split.sampler;
  if (!sampler.file_hash.empty() && sampler.file_hash != content->hash) {
    throw Error(ErrorKind::config,
                "sampler file " + in_quotes(sampler.file()) + " has the hash " + content->hash +
                    ", and sampler.file_hash says " + in_quotes(sampler.file_hash),
                "use the file that is meant, or leave file_hash out");
  }
  sampler.file_hash = content->hash;
  sampler.file_count = content->count;
  return split;
}

SamplerNumbers read_sampler_file(const ResolvedSplit& split, FileSystem& files) {
  auto content = content_of(split, files);
  if (!content) return {};
  const SamplerSpec& sampler = split.split.sampler;
  if (sampler.file_hash != content->hash) {
    throw Error(ErrorKind::config,
                "sampler file " + in_quotes(sampler.file()) + " of split " + in_quotes(split.name) +
                    " holds other numbers on trainer 0's node, or was changed since a program read it: hash " +
                    content->hash + ", not " + in_quotes(sampler.file_hash),
                "make the same file visible on every node, and do not write to it while the job runs");
  }
  return std::move(content->numbers);
}

}  // namespace penstock
