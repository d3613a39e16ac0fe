#include "runtime/datasets/pixel_files.h"

#include <algorithm>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/datasets/containers.h"
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
  const int64_t classes = hundred ? 100 : 10;
  TableBuilder table(hundred ? "cifar100" : "cifar10");
  table.facts().pixels = {PixelLayout::planar_rgb, 32, 32};
  if (hundred) table.add_field({"coarse_label", FieldKind::tensor, DType::int64, {}});
  for (const std::string& path : container_files(input.dataset, input.files)) {
    TableFile facts;
    const std::shared_ptr<const FileReader> file = input.shards.survey(path, facts);
    uint64_t records = 0;
    if (const std::string why = check_cifar(file->size(), hundred, records); !why.empty()) refuse_shard(*file, 0, why);
    facts.path = relative_to(root, path);
    const std::string name = facts.path.substr(facts.path.rfind('/') + 1);
    const uint32_t number = table.add_file(std::move(facts));
    if (table.facts().files.size() == 1) {
      table.facts().classes =
          class_names(path.substr(0, path.rfind('/') + 1) + (hundred ? "fine_label_names.txt" : "batches.meta.txt"),
                      static_cast<size_t>(classes), input.files);
    }
    const uint64_t record = kCifarPixels + (hundred ? 2 : 1);
    // One read for many labels: a batch of CIFAR-10 is 30 MB, and its labels lie 3 KB apart.
    std::vector<std::byte> piece(static_cast<size_t>(record * std::min<uint64_t>(records, 256)));
    for (uint64_t i = 0; i < records; ++i) {
      const uint64_t within = i % 256;
      if (within == 0)
        file->read_at(i * record,
                      std::span(piece).first(static_cast<size_t>(record * std::min<uint64_t>(256, records - i))));
      const std::byte* at = piece.data() + within * record;
      const auto label = std::to_integer<int64_t>(at[hundred ? 1 : 0]);
      if (label >= classes) {
        refuse_shard(*file, i * record,
                     "label " + std::to_string(label) + "; there are " + std::to_string(classes) + " classes",
                     "is it the binary version, of CIFAR-" + std::to_string(classes) + "?");
      }
      table.add(name + "[" + std::to_string(i) + "]", label, number, i * record + record - kCifarPixels, kCifarPixels);
      if (hundred) {
        const auto coarse = std::to_integer<int64_t>(at[0]);
        table.value(0, std::as_bytes(std::span(&coarse, 1)));
      }
    }
  }
  if (table.facts().classes.empty()) {
    for (int64_t c = 0; c < classes; ++c) table.facts().classes.push_back(std::to_string(c));
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
