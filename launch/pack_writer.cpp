#include "launch/pack_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "launch/pack_folder.h"
#include "launch/pack_makers.h"
#include "launch/pack_shard.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/datasets/json_numbers.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

class PackWriter {
 public:
  PackWriter(const PackInput& input, const PackOptions& options) : input_(input), options_(options) {
    const std::string what = json_text(Json{{"pack", kPackVersion},
                                            {"samples", input.table().fingerprint().hex()},
                                            {"shard_bytes", options.shard_bytes},
                                            {"rewrite", options.content.rewrite},
                                            {"restart_points", options.content.restart_points}});
    id_ = hash128(std::string_view(what));
  }

  PackResult run() {
    if (!open_folder()) return std::move(result_);
    int64_t first = 0;
    for (const FinishedShard& shard : finished_) first += shard.table.size();
    result_.found = first;
    if (!write_shards(first)) return std::move(result_);
    if (const std::string what = input_.changed(); !what.empty()) {
      throw Error(ErrorKind::dataset, what + " was changed while it was packed",
                  "remove '" + options_.folder + "' and pack again when nothing changes the data any more");
    }
    write_index();
    result_.finished = true;
    return std::move(result_);
  }

 private:
  std::string path(const std::string& name) const { return options_.folder + "/" + name; }

  Json options_json() const {
    return {{"shard size", options_.shard_bytes},
            {"--rewrite", options_.content.rewrite},
            {"--no-verify", !options_.content.verify},
            {"--no-restart-points", !options_.content.restart_points},
            {"decoders", decoder_versions()}};
  }

  // False: go_on said stop.
  bool open_folder() {
    folder_ = open_pack_folder(input_, options_.folder);
    bool state = false;
    bool index = false;
    std::string other;
    for (const DirectoryEntry& entry : posix_file_system().list_directory(options_.folder).entries) {
      state = state || entry.name == kPackState;
      index = index || entry.name == kPackIndex;
      if (without_part_suffix(entry.name) != kPackState) other = entry.name;
    }
    if (index && !state) {
      refuse_pack_folder(options_.folder, "it holds a finished pack",
                         "use it as it is, name another folder, or remove this one first");
    }
    if (state) return resume();  // also with an index: the run before this one ended between its last two steps
    if (!other.empty()) {
      refuse_pack_folder(options_.folder, "it is not empty: '" + other + "' is in it", "name an empty or new folder");
    }
    write_state();
    return true;
  }

  void write_state() const {
    Json shards = Json::array();
    for (const FinishedShard& shard : finished_) {
      shards.push_back({shard.table.size(), Sum128{shard.trailer.table_sum[0], shard.trailer.table_sum[1]}.hex(),
                        shard.stamp.hex()});
    }
    const Json state = {{"penstock_pack", kPackVersion},
                        {"source", input_.description()},
                        {"options", options_json()},
                        {"shards", shards}};
    std::string text;
    try {
      text = json_text(state, 1) + "\n";
    } catch (const Json::exception&) {
      throw Error(ErrorKind::dataset,
                  "the data set '" + input_.title() + "', or a file of it, has a path that is not UTF-8", "rename it");
    }
    write_new_file(path(kPackState), as_bytes_of(text));
  }

  // What the state says is there, as far as it is. False: go_on said stop.
  bool resume() {
    const std::string remedy = "remove '" + options_.folder + "' to pack anew, or pack as before";
    std::vector<std::byte> bytes;
    const bool read = posix_file_system().read_file(path(kPackState), int64_t{256} << 20, bytes);
    const auto damaged = [&] {
      throw Error(ErrorKind::usage, "'" + path(kPackState) + "' is not what `penstock pack` wrote", remedy);
    };
    const Json state = parse_json_or_nothing({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    if (!read || !state.is_object()) damaged();
    try {
      if (state.at("penstock_pack") != kPackVersion) damaged();
      const Json now = options_json();
      for (const auto& [name, value] : now.items()) {
        if (state.at("options").at(name) == value) continue;
        refuse_pack_folder(options_.folder,
                           "it holds a part of a pack made with other options: " + name + " was " +
                               json_text(state.at("options").at(name)) + " and is " + json_text(value),
                           remedy);
      }
      const std::string why = PackInput::difference(state.at("source"), input_.description());
      if (!why.empty()) {
        throw Error(ErrorKind::dataset,
                    "the data set was changed, or is another one, since a part of it was packed to '" +
                        options_.folder + "': " + why,
                    remedy);
      }
      int64_t first = 0;
      const Json& shards = state.at("shards");
      for (const Json& shard : shards) {
        int64_t samples = 0;
        if (!whole_number(shard.at(0), samples) || samples < 1 || samples > input_.size() - first) damaged();
        const Taken taken = take_shard(first, samples, Sum128::from_hex(shard.at(1).get<std::string>()), shards.size());
        if (taken == Taken::stopped) return false;
        if (taken == Taken::damaged) break;
        check_stamps(first, samples, Sum128::from_hex(shard.at(2).get<std::string>()), remedy);
        first += samples;
      }
    } catch (const Json::exception&) {
      damaged();
    }
    return true;
  }

  enum class Taken { whole, damaged, stopped };  // damaged: not what was written, and made again

  Taken take_shard(int64_t first, int64_t samples, const Sum128& sum, size_t known_shards) {
    const std::string name = shard_name(finished_.size());
    try {
      const std::unique_ptr<FileReader> file = posix_file_system().open_file(path(name));
      const PackTrailer trailer = read_trailer(*file);
      SampleTable table = read_shard_table(*file, trailer, file->size());
      const PackHeader header = read_pack_header(*file);
      if (table.size() != samples || Sum128{trailer.table_sum[0], trailer.table_sum[1]} != sum ||
          Sum128{header.id[0], header.id[1]} != id_ || header.first_sample != static_cast<uint64_t>(first)) {
        throw Error(ErrorKind::dataset, "'" + file->path() + "' is another shard");
      }
      if (!check_records_of(*file, table, first, known_shards)) return Taken::stopped;
      for (int64_t i = 0; i < samples; ++i) note(first + i, notes_of(table, i), entry_bytes(table, i));
      finished_.push_back({std::move(table), trailer, {}});
      return Taken::whole;
    } catch (const Error& error) {
      result_.again = error.message();
      return Taken::damaged;
    }
  }

  // What a machine that lost its power had not written yet reads as zeros, under a name that says it is whole. False:
  // go_on said stop; shards may be many, and disks slow.
  bool check_records_of(const FileReader& file, const SampleTable& table, int64_t first, size_t known_shards) {
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < table.size(); ++i) {
      if (options_.go_on && !options_.go_on({true, first + i, input_.size(), checked_, known_shards})) return false;
      const PackRecord record = record_of(table, i);
      bytes.resize(static_cast<size_t>(record.bytes));
      file.read_at(record.offset, bytes);
      checked_ += record.bytes;
      if (check_of(bytes) == table.row(i).check) continue;
      throw Error(ErrorKind::dataset,
                  "'" + file.path() + "' is damaged: sample '" + std::string(table.key(i)) + "' has a wrong checksum");
    }
    return true;
  }

  void check_stamps(int64_t first, int64_t samples, const Sum128& then, const std::string& remedy) {
    std::vector<uint64_t> stamps;
    for (int64_t i = first; i < first + samples; ++i) input_.stamp(i, stamps);
    finished_.back().stamp = stamp_of(stamps);
    if (finished_.back().stamp == then) return;
    throw Error(ErrorKind::dataset,
                "a file of the data set was changed since it was packed to '" + options_.folder + "': one of samples " +
                    std::to_string(first) + " ('" + std::string(input_.table().key(first)) + "') to " +
                    std::to_string(first + samples - 1),
                remedy);
  }

  static uint64_t entry_bytes(const SampleTable& table, int64_t index) {
    const std::vector<FieldSpec>& fields = table.facts().fields;
    for (size_t f = 0; f < fields.size(); ++f) {
      if (fields[f].name == kRestartPoints) return table.place(f, index).bytes;
    }
    return 0;
  }

  void note(int64_t index, const PackNotes& notes, uint64_t restart_points) {
    ++result_.samples;
    result_.rewritten += notes.rewritten ? 1 : 0;
    result_.entered += restart_points > 0 ? 1 : 0;
    if (!notes.bad.empty()) result_.bad[index] = notes.bad;
  }

  bool goes_on() {
    if (!options_.go_on) return true;
    return options_.go_on({false, result_.samples, input_.size(), written_, finished_.size()});
  }

  void finish(std::optional<ShardWriter>& shard) {
    finished_.push_back(shard->finish());
    // Before it gets its name: a shard with a name is one that the state knows, or is made again.
    write_state();
    shard->publish();
    shard.reset();
  }

  bool write_shards(int64_t first) {
    if (first == input_.size()) return true;
    PackMakers makers(input_, options_.content, options_.limits, options_.threads, first);
    std::optional<ShardWriter> shard;
    for (int64_t index = first; index < input_.size();) {
      if (!goes_on()) return false;
      const std::optional<PackedSample> made = makers.take();
      if (!made) continue;
      if (shard && !shard->empty() && shard->size() + made->record.size() > options_.shard_bytes) finish(shard);
      if (!shard) shard.emplace(input_, options_.folder, finished_.size(), index, id_, options_.content.restart_points);
      shard->add(*made);
      note(index, made->notes, made->entry_bytes);
      written_ += made->record.size();
      result_.source_bytes += made->source_bytes;
      ++index;
    }
    finish(shard);
    (void)goes_on();
    return true;
  }

  // The tables of the shards, one after the other.
  void write_index() {
    TableBuilder builder(input_.table().facts().kind);
    builder.facts() = finished_[0].table.facts();
    builder.facts().files.clear();
    builder.facts().fields.clear();
    bool noted = false;
    for (const FinishedShard& shard : finished_) {
      noted = noted || (!shard.table.facts().fields.empty() && shard.table.facts().fields.back().name == kNotes);
    }
    std::vector<FieldSpec> fields = finished_[0].table.facts().fields;
    if (!fields.empty() && fields.back().name == kNotes) fields.pop_back();
    for (const FieldSpec& field : fields) builder.add_field(field);
    if (noted) builder.add_field({kNotes, FieldKind::bytes, DType::uint8, {}});

    PackFacts facts;
    facts.id = id_;
    for (const FinishedShard& shard : finished_) {
      const SampleTable& table = shard.table;
      const uint64_t bytes = shard.trailer.shard_bytes;
      const uint32_t file = builder.add_file({shard_name(facts.shards.size()), bytes, 0, Codec::none, bytes});
      facts.shards.push_back({shard.trailer.samples,
                              shard.trailer.table_offset,
                              {shard.trailer.table_sum[0], shard.trailer.table_sum[1]}});
      result_.bytes += bytes;
      for (int64_t i = 0; i < table.size(); ++i) {
        SampleRow row = table.row(i);
        builder.add(table.key(i), row.label, file, row.offset, row.bytes);
        row.key_end = builder.row(builder.size() - 1).key_end;
        row.file = file;
        builder.row(builder.size() - 1) = row;
        for (size_t f = 0; f < fields.size() + (noted ? 1 : 0); ++f) {
          if (f >= table.facts().fields.size()) {
            builder.value(f, {});
          } else if (const FieldPlace& place = table.place(f, i); place.file == kInTable) {
            builder.value(f, table.value(place));
          } else {
            builder.place(f, file, place.offset, place.bytes);
          }
        }
      }
    }
    builder.facts().options = pack_options(facts);
    const SampleTable table = builder.finish();
    if (table.facts().kind != "images" && table.fingerprint() != input_.table().fingerprint()) {
      throw Error(ErrorKind::runtime, "the pack's samples are not those of its source");
    }
    result_.shards = facts.shards.size();
    result_.bytes += table.bytes().size();
    write_new_file(path(kPackIndex), table.bytes());
    if (::unlink(path(kPackState).c_str()) == 0 || errno == ENOENT) return;
    const int number = errno;
    throw FileError(number, path(kPackState), "cannot remove '" + path(kPackState) + "': " + std::strerror(number));
  }

  const PackInput& input_;
  const PackOptions& options_;
  Sum128 id_;
  UniqueFd folder_;
  std::vector<FinishedShard> finished_;
  uint64_t checked_ = 0;  // bytes of what was there
  uint64_t written_ = 0;
  PackResult result_;
};

}  // namespace

PackResult write_pack(const PackInput& input, const PackOptions& options) {
  return PackWriter(input, options).run();
}

}  // namespace penstock
