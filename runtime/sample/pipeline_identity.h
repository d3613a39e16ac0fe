// What makes two pipelines the same: transforms with all parameters, arithmetic, decoders.
//
//   std::string hex = pipeline_fingerprint(split);
//   std::string kept = pipeline_state(split);            // into a checkpoint
//   check_pipeline(kept, split);                         // when serving starts: Error(config) names what differs
//
// Dataset, sampler, batch size and seed say which samples come when, and limits which files are refused: none of them
//   changes what a given file becomes, so none is part of it. A server may have tighter limits than the training had.
// A state is untrusted: bounded in size, a fixed set of keys is read, nothing is executed.
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "runtime/job/job.h"

namespace penstock {

// Names and versions of the libraries that this split's pixels depend on: decoder_versions(), and OpenCV's where its
// resize is used. Error(runtime) where that is missing.
std::string decoders_of(const ResolvedSplit& split);
std::string decoders_of(Arithmetic arithmetic);
std::string pipeline_fingerprint(const ResolvedSplit& split);
std::string pipeline_state(const ResolvedSplit& split);
// `state`: a text of pipeline_state(), or a client's state (runtime/client/client_state.h).
void check_pipeline(const std::string& state, const ResolvedSplit& split);

// Two texts of decoders_of(). Another libjpeg-turbo may give other pixels, and a library that is there or not
// other statuses: `refused`; so may another OpenCV, whose bicubic may round a few values otherwise
// (runtime/pixels/opencv/README.md). PNG and TIFF lose nothing and WebP's pixels are fixed by its format, so another
// version of those libraries can at most judge damaged files differently: `noted`.
struct DecoderChange {
  std::string refused;
  std::string noted;
};
DecoderChange decoder_change(const std::string& then, const std::string& now);

}  // namespace penstock
