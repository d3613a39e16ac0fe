#include "runtime/datasets/image_folder.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <tuple>
#include <utility>

#include "runtime/base/several_threads.h"
#include "runtime/datasets/folder_walk.h"
#include "runtime/job/job.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 9> kExtensions = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                                         ".pgm", ".tif",  ".tiff", ".webp"};

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string extension_list() {
  std::string list;
  for (const std::string_view extension : kExtensions) list += (list.empty() ? "" : " ") + std::string(extension);
  return list;
}

bool is_continuation(unsigned char byte) {
  return (byte & 0xC0) == 0x80;
}

// The code point at text[at], moving `at` past it; a byte that starts no well-formed sequence is what Python's
// surrogateescape makes of it.
uint32_t next_code_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t offset) { return static_cast<unsigned char>(text[at + offset]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return text[at++];
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  uint32_t code = lead & (0xFFu >> (length + 1));
  bool well_formed = lead >= 0xC2 && lead <= 0xF4 && at + length <= text.size();
  for (size_t i = 1; well_formed && i < length; ++i) {
    well_formed = is_continuation(byte(i));
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  constexpr std::array<uint32_t, 5> smallest = {0, 0, 0x80, 0x800, 0x10000};
  well_formed = well_formed && code >= smallest[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  at += well_formed ? length : 1;
  return well_formed ? code : 0xDC00u + lead;
}

std::string quoted_list(const std::vector<std::string>& names, size_t most) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < most; ++i) text += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
  return text;
}

void sort_as_python(std::vector<std::string>& names) {
  std::sort(names.begin(), names.end(), python_less);
}

}  // namespace

bool has_image_extension(std::string_view name) {
  return std::any_of(kExtensions.begin(), kExtensions.end(), [name](std::string_view extension) {
    return name.size() >= extension.size() &&
           std::equal(extension.begin(), extension.end(), name.end() - static_cast<ptrdiff_t>(extension.size()),
                      [](char a, char b) { return a == lower(b); });
  });
}

bool python_less(std::string_view a, std::string_view b) {
  const size_t common = std::min(a.size(), b.size());
  const auto differ = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(common), b.begin()).first - a.begin());
  if (differ == common) {
    // One is the beginning of the other: cutting a sequence short could change how its first bytes decode, but only
    // in a name that is no UTF-8.
    if (a.size() == b.size()) return false;
  } else if (static_cast<unsigned char>(a[differ]) < 0x80 && static_cast<unsigned char>(b[differ]) < 0x80 &&
             (differ == 0 || static_cast<unsigned char>(a[differ - 1]) < 0x80)) {
    return a[differ] < b[differ];
  }
  // Decode from the last byte that can start a sequence: no sequence is longer than four bytes.
  size_t at = differ;
  for (size_t back = 1; back <= 3 && back <= differ; ++back) {
    if (!is_continuation(static_cast<unsigned char>(a[differ - back]))) {
      at = differ - back;
      break;
    }
  }
  size_t in_a = at;
  size_t in_b = at;
  while (in_a < a.size() && in_b < b.size()) {
    const uint32_t code_a = next_code_point(a, in_a);
    const uint32_t code_b = next_code_point(b, in_b);
    if (code_a != code_b) return code_a < code_b;
  }
  return in_a == a.size() && in_b < b.size();
}

// One class's folders, in order, each with its files. Names stand in one text a folder: strings of their own would take
// three times as much while millions of files are listed, and leave the memory in pieces.
struct ImageFolder::ClassListing {
  struct Part {
    std::string path;   // relative to the data set's folder
    std::string names;  // a NUL behind each

    template <class Use>
    void for_each(const Use& use) const {
      for (size_t at = 0; at < names.size();) {
        const std::string_view name(names.data() + at);
        use(name);
        at += name.size() + 1;
      }
    }
  };
  std::vector<Part> parts;
  int64_t count = 0;
  size_t name_bytes = 0;  // without the NULs
};

ImageFolder::ClassListing ImageFolder::list_class(const std::string& root, const std::string& name, FileSystem& files) {
  ClassListing listing;
  FolderWalk walk(files, root, name);
  const auto next = [&](std::string& path, Directory& directory) {
    try {
      return walk.next(path, directory);
    } catch (const FileError& error) {
      throw Error(ErrorKind::dataset, error.message(),
                  "every folder of the data set must be readable: leaving one out would change the data set");
    }
  };
  std::string path;
  Directory directory;
  while (next(path, directory)) {
    std::vector<std::string> names;
    size_t bytes = 0;
    for (DirectoryEntry& entry : directory.entries) {
      if (entry.is_directory || !has_image_extension(entry.name)) continue;
      bytes += entry.name.size();
      names.push_back(std::move(entry.name));
    }
    if (names.empty()) continue;
    sort_as_python(names);
    ClassListing::Part part{path, {}};
    part.names.reserve(bytes + names.size());
    for (const std::string& file : names) (part.names += file) += '\0';
    listing.count += std::ssize(names);
    listing.name_bytes += bytes;
    listing.parts.push_back(std::move(part));
  }
  std::sort(listing.parts.begin(), listing.parts.end(),
            [](const auto& a, const auto& b) { return python_less(a.path, b.path); });
  return listing;
}

void ImageFolder::find_classes() {
  Directory directory;
  try {
    directory = files_.list_directory(root_);
  } catch (const FileError& error) {
    if (error.code() == ENOENT) {
      throw Error(ErrorKind::dataset, "the dataset folder '" + root_ + "' does not exist",
                  "check dataset.folder; in a job file a relative path starts at the file's own folder");
    }
    if (error.code() == ENOTDIR) {
      throw Error(ErrorKind::dataset, "the dataset folder '" + root_ + "' is a file, not a folder",
                  "dataset.folder names the folder that holds the class folders");
    }
    throw Error(ErrorKind::dataset, error.message(), error.remedy());
  }
  std::vector<std::string> images;
  for (DirectoryEntry& entry : directory.entries) {
    if (entry.is_directory) {
      classes_.push_back(std::move(entry.name));
    } else if (has_image_extension(entry.name)) {
      images.push_back(std::move(entry.name));
    }
  }
  if (classes_.empty() && !images.empty()) {
    sort_as_python(images);
    throw Error(ErrorKind::dataset,
                "the dataset folder '" + root_ + "' holds images (" + quoted_list(images, 3) + ") but no class folders",
                "put the images of each class into a folder of their own, as in '" + root_ + "/cat/" + images.front() +
                    "'; one folder is enough where there are no classes");
  }
  if (classes_.empty()) {
    throw Error(
        ErrorKind::dataset,
        "the dataset folder '" + root_ + "' " + (directory.entries.empty() ? "is empty" : "has no class folders"),
        "it must hold one folder of images per class, as in '" + root_ +
            "/cat/1.jpg'; `penstock demo-data DIR` makes such a data set");
  }
  sort_as_python(classes_);
}

std::vector<ImageFolder::ClassListing> ImageFolder::list_classes() {
  std::vector<ClassListing> listings(classes_.size());
  // Listing waits for the disk, not for the processor, so the number of threads has nothing to do with cores.
  for_each_on_threads(classes_.size(), 8,
                      [&] { return [&](size_t i) { listings[i] = list_class(root_, classes_[i], files_); }; });
  return listings;
}

void ImageFolder::keep_part(ClassListing& listing, const FolderPart& part) {
  using Ranked = std::tuple<uint64_t, uint64_t, size_t>;  // hash, place
  std::vector<Ranked> ranked;
  ranked.reserve(static_cast<size_t>(listing.count));
  for (const ClassListing::Part& folder : listing.parts) {
    folder.for_each([&](std::string_view name) {
      const std::string key = std::to_string(part.seed) + '\0' + folder.path + '/' + std::string(name);
      const Sum128 hash = hash128(key);
      ranked.emplace_back(hash.high, hash.low, ranked.size());
    });
  }
  const auto wanted = static_cast<int64_t>(std::llround(part.val_share * static_cast<double>(listing.count)));
  const auto val = static_cast<std::ptrdiff_t>(std::clamp<int64_t>(wanted, 0, listing.count - 1));
  std::nth_element(ranked.begin(), ranked.begin() + val, ranked.end());
  std::vector<bool> of_val(ranked.size());
  for (std::ptrdiff_t i = 0; i < val; ++i) of_val[std::get<2>(ranked[static_cast<size_t>(i)])] = true;

  ClassListing kept;
  size_t place = 0;
  for (const ClassListing::Part& folder : listing.parts) {
    ClassListing::Part some{folder.path, {}};
    folder.for_each([&](std::string_view name) {
      if (of_val[place++] == part.train) return;
      (some.names += name) += '\0';
      ++kept.count;
      kept.name_bytes += name.size();
    });
    if (!some.names.empty()) kept.parts.push_back(std::move(some));
  }
  listing = std::move(kept);
}

void ImageFolder::add(const ClassListing& listing, int64_t label) {
  for (const ClassListing::Part& part : listing.parts) {
    const auto folder = static_cast<uint32_t>(folders_.size());
    folders_.push_back({part.path, label});
    part.for_each([&](std::string_view name) {
      names_ += name;
      name_end_.push_back(names_.size());
      folder_of_.push_back(folder);
    });
  }
}

FolderPart part_of(const DatasetSpec& dataset) {
  return {dataset.val_share, dataset.val_seed, dataset.train};
}

void FolderFingerprint::add(std::string_view name, int64_t count, std::string_view keys) {
  ((summary_ += name) += '\0') += std::to_string(count);
  ((summary_ += '\0') += hash128(keys).hex()) += '\n';
}

ImageFolder::ImageFolder(std::string folder, int64_t max_encoded_bytes, FileSystem& files, const FolderPart& part)
    : root_(std::move(folder)),
      max_encoded_bytes_(max_encoded_bytes),
      files_(files),
      fields_({{"image", FieldKind::image, DType::uint8, {}}, {"label", FieldKind::tensor, DType::int64, {}}}) {
  while (root_.size() > 1 && root_.back() == '/') root_.pop_back();
  find_classes();
  std::vector<ClassListing> listings = list_classes();

  std::vector<std::string> empty;
  for (size_t i = 0; i < classes_.size(); ++i) {
    if (listings[i].count == 0) empty.push_back(classes_[i]);
  }
  if (!empty.empty()) {
    throw Error(
        ErrorKind::dataset,
        std::string(empty.size() == 1 ? "the class folder " : "the class folders ") + quoted_list(empty, 5) + " of '" +
            root_ + (empty.size() == 1 ? "' holds" : "' hold") + " no image",
        "remove or fill " + std::string(empty.size() == 1 ? "it" : "them") + "; images end in " + extension_list());
  }

  if (part.val_share > 0) {
    for (ClassListing& listing : listings) keep_part(listing, part);
  }
  size_t count = 0;
  size_t name_bytes = 0;
  for (const ClassListing& listing : listings) {
    count += static_cast<size_t>(listing.count);
    name_bytes += listing.name_bytes;
  }
  if (count == 0) {
    throw Error(ErrorKind::dataset, "val_share leaves no picture of '" + root_ + "' for validation",
                "raise dataset.val_share: each class has too few for it");
  }
  names_.reserve(name_bytes);
  name_end_.reserve(count);
  folder_of_.reserve(count);
  FolderFingerprint fingerprint;
  std::string keys;
  for (size_t i = 0; i < classes_.size(); ++i) {
    add(listings[i], static_cast<int64_t>(i));
    keys.clear();
    for (const ClassListing::Part& one : listings[i].parts) {
      one.for_each([&](std::string_view name) { (((keys += one.path) += '/') += name) += '\0'; });
    }
    fingerprint.add(classes_[i], listings[i].count, keys);
    listings[i] = {};  // its memory is wanted
  }
  fingerprint_ = fingerprint.sum();
  sizes_ = std::make_unique<std::atomic<int64_t>[]>(folder_of_.size());
  for (size_t i = 0; i < folder_of_.size(); ++i) sizes_[i].store(-1, std::memory_order_relaxed);
}

void ImageFolder::check_index(int64_t index) const {
  if (index < 0 || index >= size()) {
    throw Error(ErrorKind::usage, "sample " + std::to_string(index) + " is outside the data set '" + root_ + "' of " +
                                      std::to_string(size()) + " samples");
  }
}

std::string ImageFolder::key(int64_t index) const {
  check_index(index);
  const auto i = static_cast<size_t>(index);
  const uint64_t start = i == 0 ? 0 : name_end_[i - 1];
  std::string key = folders_[folder_of_[i]].path;
  key += '/';
  return key.append(names_, start, name_end_[i] - start);
}

int64_t ImageFolder::label(int64_t index) const {
  check_index(index);
  return folders_[folder_of_[static_cast<size_t>(index)]].label;
}

int64_t ImageFolder::encoded_size(int64_t index) const {
  check_index(index);
  std::atomic<int64_t>& known = sizes_[static_cast<size_t>(index)];
  int64_t bytes = known.load(std::memory_order_relaxed);
  if (bytes < 0) {
    bytes = files_.file_size(path(index));
    known.store(bytes, std::memory_order_relaxed);
  }
  return bytes;
}

SampleStatus ImageFolder::read(int64_t index, std::vector<std::byte>& bytes) const {
  if (!files_.read_file(path(index), max_encoded_bytes_, bytes)) {
    return SampleStatus::bad("the file is larger than limits.max_encoded_bytes (" + std::to_string(max_encoded_bytes_) +
                             " bytes)");
  }
  sizes_[static_cast<size_t>(index)].store(static_cast<int64_t>(bytes.size()), std::memory_order_relaxed);
  return SampleStatus::good();
}

void ImageFolder::list_reads(int64_t index, std::vector<FilePart>& parts) const {
  if (index < 0 || index >= size()) return;
  FilePart& part = parts.emplace_back();
  part.path = path(index);
  part.max_bytes = max_encoded_bytes_;
}

}  // namespace penstock
