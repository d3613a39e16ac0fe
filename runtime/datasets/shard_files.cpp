#include "runtime/datasets/shard_files.h"

#include <utility>

namespace penstock {

std::shared_ptr<const FileReader> ShardFiles::get(const std::string& path, Codec codec) {
  if (codec != Codec::none) {
    MutexLock lock(spool_mutex_);
    std::shared_ptr<const FileReader>& known = spooled_[path];
    if (!known) {
      known = spool_.decompress(*files_.open_file(path), codec);
      spooled_bytes_ += static_cast<int64_t>(known->size());
    }
    return known;
  }
  {
    MutexLock lock(mutex_);
    if (const auto found = plain_.find(path); found != plain_.end()) return found->second;
  }
  std::shared_ptr<const FileReader> opened = files_.open_file(path);
  MutexLock lock(mutex_);
  // Which one goes hardly matters: with more shards than this, a shuffled epoch misses whatever is kept.
  if (plain_.size() >= kMaxOpen) plain_.erase(plain_.begin());
  return plain_.try_emplace(path, std::move(opened)).first->second;
}

std::shared_ptr<const FileReader> ShardFiles::opened(const std::string& path) {
  MutexLock lock(mutex_);
  const auto found = plain_.find(path);
  return found == plain_.end() ? nullptr : found->second;
}

std::shared_ptr<const FileReader> ShardFiles::survey(const std::string& path, TableFile& facts,
                                                     std::optional<Codec> codec) {
  facts.codec = codec ? *codec : codec_named(path);
  for (const char* end : {".bz2", ".tbz2", ".xz", ".txz", ".lzma", ".lz4", ".br", ".zip", ".7z", ".Z"}) {
    if (!path.ends_with(end)) continue;
    throw Error(ErrorKind::dataset, "'" + path + "' is compressed in a way that is not read here (" + end + ")",
                "unpack it, or pack it with gzip (.gz) or zstd (.zst); JPEG gains nothing from any of them");
  }
  // A compressed one is not read from again.
  const std::shared_ptr<const FileReader> file =
      facts.codec == Codec::none ? get(path, Codec::none) : files_.open_file(path);
  facts.path = path;
  facts.bytes = file->size();
  facts.modified_ns = file->modified_ns();
  if (facts.codec == Codec::none) {
    facts.content_bytes = facts.bytes;
    return file;
  }
  const std::shared_ptr<const FileReader> plain = get(path, facts.codec);
  facts.content_bytes = plain->size();
  return plain;
}

}  // namespace penstock
