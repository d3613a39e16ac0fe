#include "launch/pack_check.h"

#include <algorithm>
#include <new>

#include "runtime/base/error.h"
#include "runtime/datasets/pack_format.h"

namespace penstock {
namespace {

// Whether the shard's own table says of sample `here` what the index says of sample `index`.
bool agree(const SampleTable& table, int64_t index, const SampleTable& own, int64_t here) {
  const SampleRow& a = table.row(index);
  const SampleRow& b = own.row(here);
  return table.key(index) == own.key(here) && a.offset == b.offset && a.bytes == b.bytes && a.label == b.label &&
         a.check == b.check && record_of(table, index).bytes == record_of(own, here).bytes;
}

}  // namespace

PackFindings check_whole_pack(const std::string& folder, const std::function<bool(int64_t, int64_t, uint64_t)>& go_on) {
  FileSystem& files = posix_file_system();
  const SampleTable table = open_pack_table(folder, files);
  const PackFacts facts = pack_facts(table.facts().options);
  PackFindings found;
  int64_t index = 0;
  std::vector<std::byte> bytes;
  for (size_t s = 0; s < facts.shards.size(); ++s) {
    const std::unique_ptr<FileReader> shard = files.open_file(folder + "/" + shard_name(s));
    const int64_t first = index;
    const int64_t end = first + static_cast<int64_t>(facts.shards[s].samples);
    try {
      const PackHeader header = read_pack_header(*shard);
      if (Sum128{header.id[0], header.id[1]} != facts.id || header.number != s ||
          header.first_sample != static_cast<uint64_t>(first)) {
        throw Error(ErrorKind::dataset, "'" + shard->path() + "' has the header of another shard");
      }
      const SampleTable own = read_shard_table(*shard, read_trailer(*shard), table.bytes().size());
      for (int64_t i = first; i < end; ++i) {
        if (agree(table, i, own, i - first)) continue;
        throw Error(ErrorKind::dataset, "'" + shard->path() + "' has a table that says of '" +
                                            std::string(table.key(i)) + "' something else than the index");
      }
    } catch (const Error& error) {
      found.damaged.push_back(error.message());
    }
    for (; index < end; ++index) {
      if (!go_on(index, table.size(), found.bytes)) return found;
      const PackRecord record = record_of(table, index);
      const std::string where = "'" + shard->path() + "': sample '" + std::string(table.key(index)) + "' at byte " +
                                std::to_string(record.offset);
      const uint64_t stored = pack_padded(record.bytes);
      try {
        bytes.resize(static_cast<size_t>(stored));
        shard->read_at(record.offset, bytes);
        const auto whole = std::span(bytes).first(static_cast<size_t>(record.bytes));
        const auto rest = std::span(bytes).subspan(whole.size());
        if (check_of(whole) != table.row(index).check) {
          found.damaged.push_back(where + ": wrong checksum");
        } else if (std::any_of(rest.begin(), rest.end(), [](std::byte b) { return b != std::byte{0}; })) {
          found.damaged.push_back(where + ": bytes behind it that nobody wrote");
        }
      } catch (const Error& error) {
        found.damaged.push_back(error.message());
      } catch (const std::bad_alloc&) {
        found.damaged.push_back(where + ": there is no memory for its " + std::to_string(stored) + " bytes");
      }
      const PackNotes notes = notes_of(table, index);
      found.rewritten += notes.rewritten ? 1 : 0;
      if (!notes.bad.empty()) found.bad.push_back("'" + std::string(table.key(index)) + "': " + notes.bad);
      found.bytes += stored;
      ++found.samples;
    }
    ++found.shards;
  }
  found.finished = true;
  return found;
}

}  // namespace penstock
