// A JPEG file written anew without loss: the same coefficients as one baseline scan with Huffman tables of its own.
//
//   std::vector<std::byte> fresh;
//   const std::string why_not = rewrite_jpeg(file, fresh);    // empty: `fresh` is the file
//
// Why: of a progressive file all scans are read to their ends for any crop, as it has no restart points; and tables
//   made for the file are smaller than the usual ones.
// What stays as it is, and says why: whatever could come out with other pixels, or with less than it had. Files that
//   libjpeg warns of; progressive ones that do not go to the last bit (decoders smooth those); arithmetic coding, more
//   than 8 bits, CMYK; quantisation tables of 16 bits or with zeros, or exchanged between scans; coefficients
//   that 8-bit JPEG cannot have; bytes behind the end (second pictures, films). All APPn and COM segments (JFIF, Adobe,
//   EXIF, ICC, XMP) go into the new file as they are, in their order, and no other is added: so colours and
//   orientation are told as before. Restart markers go.
// The caller still compares the pixels of both (launch/pack_samples.h).
// Thread-safety: a function without state. Failure: Error(runtime) when memory runs out.
#pragma once

#include <string>
#include <vector>

#include "runtime/decode/image.h"

namespace penstock {

// Also where there is nothing to gain: a baseline file that would not become smaller.
std::string rewrite_jpeg(EncodedView file, std::vector<std::byte>& fresh);

}  // namespace penstock
