#include "runtime/datasets/cached_source.h"

#include <cstring>
#include <utility>

#include "runtime/job/job.h"

namespace penstock {

struct CachedSource::Entry {
  std::vector<std::byte> bytes;  // image, padding, fields, restart points
  size_t image_bytes = 0;
  std::vector<size_t> field_ends;  // in bytes
  int width = 0;
  int height = 0;
  int64_t label = 0;
  size_t restart_points_end = 0;  // in bytes, after the fields
  std::vector<FileFacts> facts;   // when it was read
};

CachedSource::CachedSource(std::unique_ptr<Source> source, FileSystem& files, int64_t budget_bytes)
    : source_(std::move(source)),
      files_(files),
      budget_(budget_bytes),
      entries_(new std::atomic<Entry*>[static_cast<size_t>(source_->size())]) {
  for (int64_t i = 0; i < size(); ++i) entries_[static_cast<size_t>(i)].store(nullptr, std::memory_order_relaxed);
}

CachedSource::~CachedSource() {
  for (int64_t i = 0; i < size(); ++i) delete entries_[static_cast<size_t>(i)].load(std::memory_order_relaxed);
}

std::vector<FileFacts> CachedSource::facts(int64_t index) const {
  std::vector<FilePart> parts;
  source_->list_reads(index, parts);
  std::vector<FileFacts> facts;
  for (const FilePart& part : parts) {
    if (part.bytes == FilePart::kWholeFile) facts.push_back(files_.examine(part.path));
  }
  return facts;
}

// Null: it is not kept, or not what is on the disk any more.
const CachedSource::Entry* CachedSource::current(int64_t index) const {
  const Entry* entry = entries_[static_cast<size_t>(index)].load(std::memory_order_acquire);
  if (entry == nullptr || entry->facts.empty()) return entry;
  try {
    return facts(index) == entry->facts ? entry : nullptr;
  } catch (const FileError&) {
    return nullptr;  // reading it says what is wrong
  }
}

SampleStatus CachedSource::load(const DrawKey& key, SourceSample& sample) const {
  const auto index = static_cast<int64_t>(key.index);
  if (index < 0 || index >= size()) return source_->load(key, sample);  // says what is wrong
  std::atomic<Entry*>& place = entries_[static_cast<size_t>(index)];
  if (const Entry* entry = current(index)) {
    sample.image = std::span(entry->bytes).first(entry->image_bytes);
    sample.fields.clear();
    size_t begin = entry->image_bytes + PixelBuffer::kPadding;
    for (const size_t end : entry->field_ends) {
      sample.fields.push_back(std::span(entry->bytes).subspan(begin, end - begin));
      begin = end;
    }
    sample.width = entry->width;
    sample.height = entry->height;
    sample.label = entry->label;
    sample.restart_points = std::span(entry->bytes).subspan(begin, entry->restart_points_end - begin);
    return SampleStatus::good();
  }
  const bool is_new = place.load(std::memory_order_relaxed) == nullptr;
  std::vector<FileFacts> before;  // a change while it is read shows the next time
  if (is_new) before = facts(index);
  SampleStatus status = source_->load(key, sample);
  if (!status.ok() || !is_new) return status;
  size_t bytes = sample.image.size() + PixelBuffer::kPadding;
  for (const auto& field : sample.fields) bytes += field.size();
  bytes += sample.restart_points.size();
  const auto cost = static_cast<int64_t>(bytes + sizeof(Entry) + sizeof(size_t) * sample.fields.size() +
                                         sizeof(FileFacts) * before.size() + 64);
  if (taken_.fetch_add(cost, std::memory_order_relaxed) + cost > budget_) {
    taken_.fetch_sub(cost, std::memory_order_relaxed);
    return status;
  }
  auto entry = std::make_unique<Entry>();
  entry->bytes.resize(bytes);
  entry->image_bytes = sample.image.size();
  entry->width = sample.width;
  entry->height = sample.height;
  entry->label = sample.label;
  if (!sample.image.empty()) std::memcpy(entry->bytes.data(), sample.image.data(), sample.image.size());
  size_t at = entry->image_bytes + PixelBuffer::kPadding;
  for (const auto& field : sample.fields) {
    if (!field.empty()) std::memcpy(entry->bytes.data() + at, field.data(), field.size());
    at += field.size();
    entry->field_ends.push_back(at);
  }
  // They may lie in the sample's own storage, which its caller uses again.
  if (!sample.restart_points.empty()) {
    std::memcpy(entry->bytes.data() + at, sample.restart_points.data(), sample.restart_points.size());
  }
  entry->facts = std::move(before);
  entry->restart_points_end = at + sample.restart_points.size();
  Entry* none = nullptr;
  if (place.compare_exchange_strong(none, entry.get(), std::memory_order_release, std::memory_order_relaxed)) {
    (void)entry.release();
    kept_.fetch_add(1, std::memory_order_relaxed);
  } else {
    taken_.fetch_sub(cost, std::memory_order_relaxed);
  }
  return status;
}

void CachedSource::list_reads(int64_t index, std::vector<FilePart>& parts) const {
  if (index < 0 || index >= size()) return;
  // relaxed: only whether there is one
  if (entries_[static_cast<size_t>(index)].load(std::memory_order_relaxed) == nullptr)
    source_->list_reads(index, parts);
}

}  // namespace penstock
