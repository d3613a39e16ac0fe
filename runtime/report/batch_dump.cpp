#include "runtime/report/batch_dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "runtime/base/error.h"
#include "runtime/base/field_value.h"
#include "runtime/base/memory.h"
#include "runtime/report/npy.h"

namespace penstock {
namespace {

constexpr const char* kManifest = "manifest.jsonl";

nlohmann::json draws_json(const Draws& draws) {
  nlohmann::json list = nlohmann::json::array();
  for (const TransformDraw& draw : draws) list.push_back({draw.position, draw.values});
  return list;
}

// A field's name in a file's name: TFRecord's have slashes.
std::string file_part(const std::string& name) {
  std::string out;
  for (const char c : name) out += c == '/' ? std::string("%2F") : c == '%' ? std::string("%25") : std::string(1, c);
  return out;
}

// Values of varying length: all of them, and where each ends.
void write_varying(const std::string& stem, const FieldSpec& field, const std::byte* rooms, size_t samples) {
  std::vector<std::byte> values;
  std::vector<int64_t> ends;
  for (size_t i = 0; i < samples; ++i) {
    const auto value = varying_value(field, rooms + i * field.bytes_per_sample());
    values.insert(values.end(), value.begin(), value.end());
    ends.push_back(std::ssize(values));
  }
  write_npy(stem + "field_" + file_part(field.name) + ".npy", NpyType::uint8, {std::ssize(values)}, values.data());
  write_npy(stem + "ends_" + file_part(field.name) + ".npy", NpyType::int64, {std::ssize(ends)}, ends.data());
}

// "t0_s3_images.npy"
bool is_array_of_dump(std::string_view name) {
  const auto number = [&name](char before) {
    if (!name.starts_with(before)) return false;
    const size_t end = std::min(name.find_first_not_of("0123456789", 1), name.size());
    name.remove_prefix(end);
    return end > 1 && name.starts_with('_');
  };
  if (!number('t')) return false;
  name.remove_prefix(1);
  return number('s') && name.ends_with(".npy");
}

void append(const std::string& path, const std::string& text) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(ErrorKind::runtime, system_error_text("cannot write '" + path + "'"), "check the folder and the disk");
  }
}

}  // namespace

TensorView image_batch_view(void* data, const FieldSpec& field, int64_t samples, bool channels_last) {
  TensorView view = field_batch_view(data, field, samples);
  if (!channels_last) return view;
  const size_t last = view.shape.size() - 1;
  const int64_t channels = view.shape.at(last - 2);
  view.strides[last - 2] = 1;
  view.strides[last - 1] = view.shape[last] * channels;
  view.strides[last] = channels;
  return view;
}

TensorView field_batch_view(void* data, const FieldSpec& field, int64_t samples) {
  TensorView view{data, field.dtype, {samples}, {}};
  view.shape.insert(view.shape.end(), field.shape.begin(), field.shape.end());
  view.strides.assign(view.shape.size(), 1);
  for (size_t i = view.shape.size() - 1; i > 0; --i) view.strides[i - 1] = view.strides[i] * view.shape[i];
  return view;
}

void write_batch(const std::string& folder, const DumpedBatch& batch) {
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem) {
    throw Error(ErrorKind::runtime, "cannot make the folder '" + folder + "': " + problem.message(),
                "choose another folder for the dump");
  }
  const std::string stem = folder + "/t" + std::to_string(batch.trainer) + "_s" + std::to_string(batch.step) + "_";
  const std::vector<SampleRecord>& records = *batch.records;
  const auto count = std::ssize(records);
  std::vector<int64_t> indices;
  std::vector<uint8_t> valid;
  std::string lines;
  for (size_t row_index = 0; row_index < records.size(); ++row_index) {
    const SampleRecord& record = records[row_index];
    indices.push_back(record.index);
    valid.push_back(record.planned.valid ? 1 : 0);
    nlohmann::ordered_json line;
    line["trainer"] = batch.trainer;
    line["step"] = batch.step;
    line["row_index"] = row_index;
    line["index"] = record.index;
    line["path"] = record.substituted ? record.substitute : record.key;
    line["label"] = (*batch.labels)[row_index];
    line["width"] = record.width;
    line["height"] = record.height;
    line["crop"] = nullptr;
    line["flip"] = {0, 0};
    line["draws"] = nlohmann::json::array();
    if (!record.bad) {
      const ImageHeader header{ImageFormat::unknown, record.width, record.height};
      const Pipeline::Description text = batch.variants->pipeline_of(record.draws).describe(header, record.draws);
      if (const auto variant = Variants::noted(record.draws)) line["variant"] = name_of(*variant);
      if (text.has_crop) line["crop"] = {text.crop.x, text.crop.y, text.crop.width, text.crop.height};
      line["flip"] = {text.flip[0] ? 1 : 0, text.flip[1] ? 1 : 0};
      line["draws"] = draws_json(text.others);
    }
    line["split"] = batch.split;
    line["epoch"] = batch.epoch;
    line["position"] = record.planned.position;
    line["planned_index"] = record.planned.index;
    line["planned_path"] = record.key;
    line["occurrence"] = record.planned.occurrence;
    line["valid"] = record.planned.valid;
    line["reason"] = record.reason;
    if (!batch.draws.empty()) {
      line["replica"] = batch.replica;
      line["batch_draws"] = draws_json(batch.draws);
    }
    line["hash_draws"] = draws_json(record.draws);
    for (const auto& [field, data, channels_last] : batch.others) {
      line["fields"].push_back(field.name);
      if (field.kind != FieldKind::text) continue;
      line["text"][field.name] = as_text(varying_value(field, data + row_index * field.bytes_per_sample()));
    }
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  write_npy(stem + "images.npy", batch.images);
  for (const auto& [field, data, channels_last] : batch.others) {
    if (field.fixed_size()) {
      write_npy(stem + "field_" + file_part(field.name) + ".npy",
                channels_last ? image_batch_view(data, field, count, true) : field_batch_view(data, field, count));
    } else {
      write_varying(stem, field, data, records.size());
    }
  }
  write_npy(stem + "labels.npy", NpyType::int64, {count}, batch.labels->data());
  write_npy(stem + "indices.npy", NpyType::int64, {count}, indices.data());
  write_npy(stem + "valid.npy", NpyType::boolean, {count}, valid.data());
  append(folder + "/" + kManifest, lines);
}

void clear_dump(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code problem;
  if (!fs::exists(folder, problem)) return;
  const auto check = [&](const std::string& path) {
    if (!problem) return;
    throw Error(ErrorKind::runtime, "cannot clear '" + path + "' of an earlier dump: " + problem.message(),
                "choose another folder for the dump");
  };
  std::vector<fs::path> earlier;
  fs::directory_iterator entry(folder, problem);
  for (; !problem && entry != fs::directory_iterator(); entry.increment(problem)) {
    const std::string name = entry->path().filename().string();
    if (name == kManifest || is_array_of_dump(name)) earlier.push_back(entry->path());
  }
  check(folder);
  for (const fs::path& path : earlier) {
    fs::remove(path, problem);
    check(path.string());
  }
}

std::string earlier_dump(const std::string& folder, const std::vector<std::string>& splits) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  std::vector<std::string> there;
  fs::directory_iterator entry(folder, ignored);
  for (; !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    if (fs::exists(entry->path() / kManifest, ignored)) there.push_back(entry->path().filename().string());
  }
  std::sort(there.begin(), there.end());
  for (const std::string& split : splits) {
    for (const std::string& name : there) {
      if (name.starts_with(split + "_e")) return name;
    }
  }
  return {};
}

}  // namespace penstock
