#include "runtime/datasets/pixel_files.h"

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/datasets/containers.h"
#include "runtime/datasets/plain_pickle.h"
#include "runtime/datasets/tar_reader.h"

namespace penstock {
namespace {

constexpr uint64_t kMaxClassText = uint64_t{1} << 20;
constexpr uint32_t kMaxSide = 65500;

// Class names, one a line, where such a file is; torchvision's archives have it.
std::vector<std::string> class_names(const std::string& path, size_t count, FileSystem& files) {
  std::vector<std::byte> bytes;
  try {
    if (!files.read_file(path, kMaxClassText, bytes)) return {};
  } catch (const FileError&) {
    return {};
  }
  std::vector<std::string> out;
  std::string line;
  for (const std::byte byte : bytes) {
    const char c = std::to_integer<char>(byte);
    if (c == '\n') {
      if (!line.empty()) out.push_back(line);
      line.clear();
    } else if (c != '\r') {
      line += c;
    }
  }
  if (!line.empty()) out.push_back(line);
  return out.size() == count ? out : std::vector<std::string>{};
}

IdxHeader idx_header(const FileReader& file, int dimensions) {
  std::vector<std::byte> begin(static_cast<size_t>(std::min<uint64_t>(file.size(), kMaxIdxHeader)));
  if (!begin.empty()) file.read_at(0, begin);
  IdxHeader header;
  std::string why = read_idx_header(begin, file.size(), header);
  if (why.empty() && header.dimensions != dimensions) {
    why = "it has " + std::to_string(header.dimensions) + " dimensions instead of " + std::to_string(dimensions);
  }
  if (!why.empty()) refuse_shard(file, 0, why);
  return header;
}

constexpr const char* kBinary = ".bin";
constexpr uint64_t kMostPickle = uint64_t{200} << 20;  // of CIFAR-100's 50,000 pictures it is 155 MB

struct CifarFile {
  const FileReader& file;
  uint32_t number;
  std::string name;
  bool hundred;
  size_t classes;

  // `label_at`: where the label stands.
  void add_to(TableBuilder& table, uint64_t i, uint64_t offset, uint64_t label_at, int64_t label,
              int64_t coarse) const {
    if (label < 0 || label >= static_cast<int64_t>(classes)) {
      refuse_shard(file, label_at,
                   "label " + std::to_string(label) + "; there are " + std::to_string(classes) + " classes",
                   "is it of CIFAR-" + std::to_string(classes) + "?");
    }
    table.add(name + "[" + std::to_string(i) + "]", label, number, offset, kCifarPixels);
    if (hundred) table.value(0, std::as_bytes(std::span(&coarse, 1)));
  }
};

void add_binary(TableBuilder& table, const CifarFile& cifar) {
  uint64_t records = 0;
  if (const std::string why = check_cifar(cifar.file.size(), cifar.hundred, records); !why.empty()) {
    refuse_shard(cifar.file, 0, why);
  }
  const uint64_t record = kCifarPixels + (cifar.hundred ? 2 : 1);
  // One read for many labels: a batch of CIFAR-10 is 30 MB, and its labels lie 3 KB apart.
  std::vector<std::byte> piece(static_cast<size_t>(record * std::min<uint64_t>(records, 256)));
  for (uint64_t i = 0; i < records; ++i) {
    const uint64_t within = i % 256;
    if (within == 0) {
      const uint64_t count = std::min<uint64_t>(256, records - i);
      cifar.file.read_at(i * record, std::span(piece).first(static_cast<size_t>(record * count)));
    }
    const std::byte* at = piece.data() + within * record;
    cifar.add_to(table, i, i * record + record - kCifarPixels, i * record,
                 std::to_integer<int64_t>(at[cifar.hundred ? 1 : 0]), std::to_integer<int64_t>(at[0]));
  }
}

PlainPickle read_pickle(const FileReader& file) {
  const char* const remedy = "copy it again, or take the binary version";
  if (file.size() > kMostPickle) refuse_shard(file, 0, "it is larger than any batch of CIFAR", remedy);
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  file.read_at(0, bytes);
  PlainPickle value;
  if (const std::string why = read_plain_pickle(bytes, value); !why.empty()) refuse_shard(file, 0, why, remedy);
  return value;
}

// torchvision's layout: {"data": array [n, 3072], "labels": list}, or "fine_labels" and "coarse_labels".
void add_pickled(TableBuilder& table, const CifarFile& cifar) {
  const PlainPickle batch = read_pickle(cifar.file);
  const PlainPickle* data = batch.find("data");
  const PlainPickle* labels = batch.find(cifar.hundred ? "fine_labels" : "labels");
  const PlainPickle* coarse = batch.find(cifar.hundred ? "coarse_labels" : "labels");
  const auto of_numbers = [data](const PlainPickle* list) {
    return list != nullptr && list->kind == PlainPickle::Kind::list && list->items.size() == data->extents[0] &&
           std::all_of(list->items.begin(), list->items.end(),
                       [](const PlainPickle& one) { return one.kind == PlainPickle::Kind::number; });
  };
  const bool good = data != nullptr && data->extents.size() == 2 && data->extents[1] == kCifarPixels &&
                    of_numbers(labels) && of_numbers(coarse);
  if (!good)
    refuse_shard(cifar.file, 0, "it is no batch of CIFAR", "name the folder with the one or the other version");
  for (uint64_t i = 0; i < data->extents[0]; ++i) {
    const auto at = static_cast<size_t>(i);
    cifar.add_to(table, i, data->data + i * kCifarPixels, 0, labels->items[at].number, coarse->items[at].number);
  }
}

std::vector<std::string> cifar_classes(const std::string& path, bool binary, bool hundred, size_t classes,
                                       FileSystem& files) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  if (binary) return class_names(folder + (hundred ? "fine_label_names.txt" : "batches.meta.txt"), classes, files);
  std::vector<std::byte> bytes;
  try {
    if (!files.read_file(folder + (hundred ? "meta" : "batches.meta"), kMaxClassText, bytes)) return {};
  } catch (const FileError&) {
    return {};
  }
  PlainPickle meta;
  if (!read_plain_pickle(bytes, meta).empty()) return {};
  const PlainPickle* names = meta.find(hundred ? "fine_label_names" : "label_names");
  std::vector<std::string> out;
  for (size_t c = 0; names != nullptr && c < names->items.size(); ++c) out.push_back(names->items[c].text);
  return out.size() == classes ? out : std::vector<std::string>{};
}

}  // namespace

std::string read_idx_header(std::span<const std::byte> begin, uint64_t file_bytes, IdxHeader& out) {
  const auto byte = [&](size_t i) { return std::to_integer<uint32_t>(begin[i]); };
  if (begin.size() < 4 || byte(0) != 0 || byte(1) != 0) return "it does not begin as an idx file";
  if (byte(2) != 8) return "its elements are not unsigned bytes";
  out.dimensions = static_cast<int>(byte(3));
  if (out.dimensions < 1 || out.dimensions > 3)
    return "it has " + std::to_string(out.dimensions) + " dimensions; 1 to 3 are read";
  out.data = 4 + 4 * static_cast<uint64_t>(out.dimensions);
  if (begin.size() < out.data) return "its header is cut off";
  out.extents = {1, 1, 1};
  uint64_t count = 1;
  for (size_t d = 0; d < static_cast<size_t>(out.dimensions); ++d) {
    const size_t at = 4 + 4 * d;
    const uint32_t extent = byte(at) << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 | byte(at + 3);
    if (extent == 0 || extent > file_bytes / count)
      return "its header promises more, or nothing: it was cut off or is damaged";
    if (d > 0 && extent > kMaxSide) return "its pictures have a side of " + std::to_string(extent);
    count *= extent;
    out.extents[d] = extent;
  }
  if (file_bytes - out.data != count || file_bytes < out.data) {
    return "its header promises " + std::to_string(count) + " bytes of data, and it has " +
           std::to_string(file_bytes - std::min(file_bytes, out.data));
  }
  return {};
}

std::string check_cifar(uint64_t file_bytes, bool hundred, uint64_t& records) {
  const uint64_t record = kCifarPixels + (hundred ? 2 : 1);
  records = file_bytes / record;
  if (records == 0 || file_bytes % record != 0) {
    return "it is no multiple of " + std::to_string(record) + " bytes, the size of a record";
  }
  return {};
}

SampleTable list_cifar(const ContainerInput& input, bool hundred) {
  const std::string root = container_root(input.dataset);
  const size_t classes = hundred ? 100 : 10;
  TableBuilder table(hundred ? "cifar100" : "cifar10");
  table.facts().pixels = {PixelLayout::planar_rgb, 32, 32};
  if (hundred) table.add_field({"coarse_label", FieldKind::tensor, DType::int64, {}});
  for (const std::string& path : container_files(input.dataset, input.files)) {
    TableFile facts;
    const std::shared_ptr<const FileReader> file = input.shards.survey(path, facts);
    facts.path = relative_to(root, path);
    std::string name = facts.path.substr(facts.path.rfind('/') + 1);
    const bool binary = name.ends_with(kBinary);
    if (!binary) name += kBinary;  // the same samples, so the same names
    const uint32_t number = table.add_file(std::move(facts));
    if (number == 0) table.facts().classes = cifar_classes(path, binary, hundred, classes, input.files);
    (binary ? add_binary : add_pickled)(table, {*file, number, name, hundred, classes});
  }
  if (table.facts().classes.empty()) {
    for (size_t c = 0; c < classes; ++c) table.facts().classes.push_back(std::to_string(c));
  }
  return table.finish();
}

SampleTable list_mnist(const ContainerInput& input) {
  const std::string root = container_root(input.dataset);
  const std::vector<std::string> paths = container_files(input.dataset, input.files);
  TableBuilder table("mnist");
  TableFile image_facts;
  TableFile label_facts;
  const std::shared_ptr<const FileReader> images = input.shards.survey(paths[0], image_facts);
  const std::shared_ptr<const FileReader> labels = input.shards.survey(paths[1], label_facts);
  const IdxHeader image_header = idx_header(*images, 3);
  const IdxHeader label_header = idx_header(*labels, 1);
  if (image_header.extents[0] != label_header.extents[0]) {
    refuse_shard(*labels, 4,
                 "it has " + std::to_string(label_header.extents[0]) + " labels for " +
                     std::to_string(image_header.extents[0]) + " pictures");
  }
  image_facts.path = relative_to(root, paths[0]);
  label_facts.path = relative_to(root, paths[1]);
  const std::string name = image_facts.path.substr(image_facts.path.rfind('/') + 1);
  const uint32_t number = table.add_file(std::move(image_facts));
  table.add_file(std::move(label_facts));
  table.facts().pixels = {PixelLayout::grey, static_cast<int>(image_header.extents[2]),
                          static_cast<int>(image_header.extents[1])};
  const uint64_t bytes = table.facts().pixels.bytes();
  std::vector<std::byte> all(label_header.extents[0]);
  labels->read_at(label_header.data, all);
  int64_t most = 0;
  for (uint64_t i = 0; i < all.size(); ++i) {
    const auto label = std::to_integer<int64_t>(all[i]);
    most = std::max(most, label);
    table.add(name + "[" + std::to_string(i) + "]", label, number, image_header.data + i * bytes, bytes);
  }
  for (int64_t c = 0; c <= std::max<int64_t>(most, 9); ++c) table.facts().classes.push_back(std::to_string(c));
  return table.finish();
}

}  // namespace penstock
