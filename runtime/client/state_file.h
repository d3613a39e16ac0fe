// States of DataLoaders in a file, for programs that keep no checkpoint of their own to put them in.
//
//   save_state("data.state", text);              // JSON: one state (client_state.h), or several by name
//   std::string text = load_state("data.state");
//
// The file, after a crash at any moment, is the one before or the new one, whole (base/atomic_file.h). Any rank may save
//   it, because a state is the same on all. One is enough; where several save to one path at once, also of several hosts,
//   the file is always one of theirs, whole, and the last one stays.
// Format: the line "penstock state 1", the line "CRC-32C LENGTH" of what follows (8 hexadecimal digits, a decimal number),
//   and the JSON text. Other versions have another number in the first line.
// Untrusted: at most kMaxStateFileBytes are read, nothing is executed, and what the text says is checked where it is used.
// Links: what a symbolic link leads to is replaced, and the link stays. What is there and no file is refused.
// Failure: FileError where the file cannot be read or written; Error(usage) for a path that leads to a folder, a device,
//   a pipe or a socket; Error(config) for a file that is damaged, cut off, of another version, or no state at all.
// Thread-safety: pure but for the disk.
#pragma once

#include <cstddef>
#include <string>

namespace penstock {

inline constexpr size_t kMaxStateFileBytes = size_t{64} << 20;

void save_state(const std::string& path, const std::string& json);
std::string load_state(const std::string& path);

// What is in such a file, given its bytes; `path` is for messages.
std::string state_in(const std::string& bytes, const std::string& path);

}  // namespace penstock
