#include "launch/pack_samples.h"

#include <cstring>
#include <utility>

#include "launch/jpeg_rewrite.h"
#include "runtime/datasets/table_source.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/decode/orientation.h"

namespace penstock {
namespace {

Box whole_of(const ImageHeader& header) {
  return {0, 0, header.width, header.height};
}

bool same_pixels(const PixelView& a, const PixelView& b) {
  if (a.width != b.width || a.height != b.height) return false;
  for (int y = 0; y < a.height; ++y) {
    if (std::memcmp(a.row(y), b.row(y), static_cast<size_t>(a.width) * 3) != 0) return false;
  }
  return true;
}

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

PackMaker::PackMaker(const PackInput& input, const PackContent& content, const DecodeLimits& limits)
    : input_(input), content_(content), limits_(limits), decoder_(limits) {}

SampleStatus PackMaker::look_at_image(bool decode, ImageHeader& header) {
  if (std::ssize(stored_.image) > limits_.max_encoded_bytes) {
    return SampleStatus::bad("the image has " + std::to_string(stored_.image.size()) +
                             " bytes, more than limits.max_encoded_bytes (" +
                             std::to_string(limits_.max_encoded_bytes) + ")");
  }
  SampleStatus status = read_header(stored_.image, limits_, header);
  if (status.ok() && decode) status = decoder_.decode(stored_.image, header, whole_of(header), before_, pixels_);
  return status;
}

// As `penstock check --decode` does.
SampleStatus PackMaker::look_at_fields(const ImageHeader& image) {
  const std::vector<FieldSpec>& fields = input_.table().facts().fields;
  for (size_t f = 0; f < input_.fields(); ++f) {
    const std::vector<std::byte>& value = stored_.fields[f];
    const std::string which = "its " + fields[f].name + ": ";
    if (fields[f].kind == FieldKind::image || fields[f].kind == FieldKind::mask) {
      const bool mask = fields[f].kind == FieldKind::mask;
      ImageHeader header;
      PixelView pixels;
      SampleStatus status = std::ssize(value) > limits_.max_encoded_bytes
                                ? SampleStatus::bad("more bytes than limits.max_encoded_bytes")
                                : read_header(value, limits_, header);
      if (status.ok() && mask) status = check_mask(header);
      if (status.ok()) {
        status = mask ? decoder_.decode_mask(value, header, whole_of(header), after_, pixels)
                      : decoder_.decode(value, header, whole_of(header), after_, pixels);
      }
      if (status.ok() && (header.width != image.width || header.height != image.height)) {
        status = SampleStatus::bad("another size than the image's");
      }
      if (!status.ok()) return SampleStatus::bad(which + status.reason);
    }
  }
  return SampleStatus::good();
}

bool PackMaker::rewrite(const ImageHeader& header) {
  std::vector<std::byte> fresh;
  if (!rewrite_jpeg(stored_.image, fresh).empty()) return false;
  ImageHeader now;
  PixelView pixels;
  const bool same = read_header(fresh, limits_, now).ok() && now.width == header.width && now.height == header.height &&
                    exif_orientation(fresh, now.format) == exif_orientation(stored_.image, header.format) &&
                    decoder_.decode(fresh, now, whole_of(now), after_, pixels).ok() && same_pixels(pixels_, pixels);
  if (same) stored_.image = std::move(fresh);
  return same;
}

PackedSample PackMaker::make(int64_t index) {
  PackedSample out;
  input_.stamp(index, out.stamp);
  input_.read(index, stored_);
  out.notes.partners = input_.partners(index);
  out.source_bytes = stored_.image.size();
  for (const auto& field : stored_.fields) out.source_bytes += field.size();

  const PixelFormat& format = input_.table().facts().pixels;
  std::string restart_points;
  if (format.layout == PixelLayout::encoded) {
    ImageHeader header;
    SampleStatus status = look_at_image(content_.verify, header);
    if (header.width > 0 && status.ok()) {
      out.width = static_cast<uint32_t>(header.width);
      out.height = static_cast<uint32_t>(header.height);
    }
    if (status.ok() && content_.verify) status = look_at_fields(header);
    const bool jpeg = status.ok() && header.format == ImageFormat::jpeg;
    if (jpeg && content_.rewrite) {
      if (content_.verify || decoder_.decode(stored_.image, header, whole_of(header), before_, pixels_).ok()) {
        out.notes.rewritten = rewrite(header);
      }
    }
    SideIndex found;
    if (jpeg && content_.restart_points && build_side_index(stored_.image, {}, found))
      restart_points = found.serialise();
    out.notes.bad = status.reason;
  } else {
    out.width = static_cast<uint32_t>(format.width);
    out.height = static_cast<uint32_t>(format.height);
    out.notes.bad = check_pixels(format, limits_).reason;
  }

  out.image_bytes = stored_.image.size();
  append(out.record, stored_.image);
  for (const auto& field : stored_.fields) {
    out.field_bytes.push_back(field.size());
    append(out.record, field);
  }
  if (out.record.size() + restart_points.size() > kMaxRecordBytes) restart_points.clear();
  out.entry_bytes = restart_points.size();
  append(out.record, std::as_bytes(std::span(restart_points)));
  return out;
}

}  // namespace penstock
