#include "runtime/client/state_file.h"

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/base/atomic_file.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/json_text.h"

namespace penstock {
namespace {

constexpr std::string_view kFileName = "penstock state ";
constexpr std::string_view kFileVersion = "1";

uint32_t text_checksum(std::string_view text) {
  return crc32c(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

[[noreturn]] void refuse_file(const std::string& path, const std::string& why, const std::string& remedy) {
  throw Error(ErrorKind::config, "'" + path + "' " + why, remedy);
}

// The file to be written for `path`: where links lead.
std::string follow_links(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel has it
  namespace fs = std::filesystem;
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::usage, "cannot save a state to '" + path + "': " + why, "name a file");
  };
  fs::path at = path;
  for (int links = 0;; ++links) {
    std::error_code error;
    const fs::file_status status = fs::symlink_status(at, error);
    if (status.type() == fs::file_type::directory) refuse("it is a folder");
    if (status.type() == fs::file_type::none || status.type() == fs::file_type::not_found ||
        status.type() == fs::file_type::regular) {
      return at.string();  // where that cannot be seen, the writing says why
    }
    if (status.type() != fs::file_type::symlink) refuse("it is a device, a pipe or a socket");
    if (links == kMostLinks) refuse("its links lead in a circle");
    const fs::path target = fs::read_symlink(at, error);
    if (error) return at.string();
    at = target.is_absolute() ? target : at.parent_path() / target;
  }
}

}  // namespace

void save_state(const std::string& path, const std::string& json) {
  if (!parse_json_or_nothing(json).is_object()) {
    throw Error(ErrorKind::usage, "save_state: the state is not a JSON object", "give what a DataLoader's state is");
  }
  char head[64];
  std::snprintf(head, sizeof head, "%.*s%.*s\n%08x %zu\n", static_cast<int>(kFileName.size()), kFileName.data(),
                static_cast<int>(kFileVersion.size()), kFileVersion.data(), text_checksum(json), json.size());
  const std::string text = head + json;
  if (text.size() > kMaxStateFileBytes) {
    throw Error(ErrorKind::usage, "save_state: the state has " + std::to_string(text.size()) + " bytes, more than " +
                                      std::to_string(kMaxStateFileBytes) + " that a file may have");
  }
  const std::string file = follow_links(path);
  try {
    write_new_file(file, std::as_bytes(std::span(text)));
  } catch (const FileError& error) {
    if (file == path) throw;
    throw FileError(error.code(), path, "cannot save a state to the link '" + path + "': " + error.message(),
                    error.remedy());
  }
}

std::string load_state(const std::string& path) {
  std::vector<std::byte> bytes;
  if (!posix_file_system().read_file(path, kMaxStateFileBytes, bytes)) {
    refuse_file(path, "is larger than any state file", "name the file that save_state() wrote");
  }
  return state_in({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

std::string state_in(const std::string& bytes, const std::string& path) {
  const std::string_view all = bytes;
  const size_t first_end = all.find('\n');
  if (!all.starts_with(kFileName) || first_end == std::string_view::npos || first_end > 64) {
    refuse_file(path, "is no file of save_state()", "name the file that save_state() wrote");
  }
  const std::string_view version = all.substr(kFileName.size(), first_end - kFileName.size());
  if (version != kFileVersion) {
    refuse_file(path,
                "is a state file of another version (this penstock reads version " + std::string(kFileVersion) + ")",
                "load it with the penstock that wrote it");
  }
  const std::string damaged = "is damaged, or was cut off";
  const std::string remedy = "take an earlier checkpoint";
  const size_t second_end = all.find('\n', first_end + 1);
  if (second_end == std::string_view::npos || second_end - first_end > 40) refuse_file(path, damaged, remedy);
  const std::string_view facts = all.substr(first_end + 1, second_end - first_end - 1);
  uint32_t crc = 0;
  size_t size = 0;
  const char* const end = facts.data() + facts.size();
  const auto read_crc = std::from_chars(facts.data(), facts.data() + std::min<size_t>(8, facts.size()), crc, 16);
  if (read_crc.ec != std::errc() || facts.size() < 10 || read_crc.ptr != facts.data() + 8 || facts[8] != ' ') {
    refuse_file(path, damaged, remedy);
  }
  const auto read_size = std::from_chars(facts.data() + 9, end, size);
  const std::string_view text = all.substr(second_end + 1);
  if (read_size.ec != std::errc() || read_size.ptr != end || text.size() != size || text_checksum(text) != crc) {
    refuse_file(path, damaged, remedy);
  }
  std::string json(text);
  if (!parse_json_or_nothing(json).is_object()) refuse_file(path, damaged, remedy);
  return json;
}

}  // namespace penstock
