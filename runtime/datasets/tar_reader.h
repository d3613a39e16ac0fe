// The members of a tar archive, in place: names, offsets and sizes. Nothing is ever extracted.
//
//   walk_tar(file, [](const TarMember& member) { ... member.name, member.data, member.size ... });
//
// Reads ustar, GNU (long names, base-256 sizes) and pax headers (path, size), as GNU tar and Python's tarfile write
//   them; old archives without a magic too. Only headers are read, in pieces of 4 KiB.
// Refused, each with the archive's name and the header's offset: links, devices, pipes, sparse and multi-volume
//   members, absolute names and names with "..", sizes that are negative, too large or beyond the archive's end, wrong
//   header checksums, an archive without its end mark (cut off), one with data after it (two archives joined).
// Folders and members named otherwise than files are passed over only after these checks.
// Bounds: a name of at most 4 KiB, a pax header of at most 1 MiB.
// Failure: Error(dataset); FileError for the disk. Thread-safety: a function without state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/file_system.h"

namespace penstock {

struct TarMember {
  std::string name;     // without leading "./"
  uint64_t header = 0;  // offset of its (last) header block
  uint64_t data = 0;
  uint64_t size = 0;
  bool folder = false;
};

void walk_tar(const FileReader& file, const std::function<void(const TarMember&)>& visit);

// "'/data/000.tar' at byte 512: why", the way every complaint about a shard begins.
[[noreturn]] void refuse_shard(const FileReader& file, uint64_t offset, const std::string& why,
                               const std::string& remedy = "copy the file again, or make it again");

}  // namespace penstock
