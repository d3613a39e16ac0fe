#include "runtime/sample/pipeline_identity.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/json_text.h"
#include "runtime/decode/decoder.h"
#include "runtime/job/saved_difference.h"
#include "runtime/pixels/opencv_resize.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr size_t kMaxStateBytes = size_t{2} << 20;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::config, "saved pipeline: " + why,
              "give what Preprocessor.state_dict() or DataLoader.state_dict() gave, unchanged");
}

std::string text_of(const json& state, const char* key) {
  if (!state.contains(key) || !state[key].is_string()) refuse(std::string("'") + key + "' is missing or no text");
  return state[key].get<std::string>();
}

// "libpng 1.6.39" by "libpng".
std::map<std::string, std::string> libraries_of(const std::string& text) {
  std::map<std::string, std::string> out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find("; ", begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    out[one.substr(0, one.find(' '))] = one;
    begin = end + 2;
  }
  return out;
}

}  // namespace

std::string decoders_of(Arithmetic arithmetic) {
  const std::string versions = decoder_versions();
  return arithmetic == Arithmetic::opencv ? versions + "; opencv " + opencv_version() : versions;
}

std::string decoders_of(const ResolvedSplit& split) {
  return decoders_of(arithmetic_of(split.arithmetic));
}

DecoderChange decoder_change(const std::string& then, const std::string& now) {
  if (then == now) return {};
  DecoderChange out;
  const auto before = libraries_of(then);
  const auto after = libraries_of(now);
  bool harmless = true;
  for (const auto& [name, version] : before) {
    const auto it = after.find(name);
    harmless =
        harmless && it != after.end() && ((name != "libjpeg-turbo" && name != "opencv") || it->second == version);
  }
  harmless = harmless && before.size() == after.size();
  (harmless ? out.noted : out.refused) = then + " then, " + now + " now";
  return out;
}

std::string pipeline_fingerprint(const ResolvedSplit& split) {
  const json spec = parse_json(canonical_json(split));
  json identity{{"arithmetic", split.arithmetic},
                {"decoders", decoders_of(split)},
                {"pipeline", spec.at("split").at("pipeline")},
                {"version", kVersion}};
  for (const char* key : {"gpu_pipeline", "cpu_fraction"}) {
    if (spec.at("split").contains(key)) identity[key] = spec.at("split").at(key);
  }
  for (const char* key : {"color", "exif"}) {
    if (spec.contains(key)) identity[key] = spec.at(key);
  }
  return hash128(json_text(identity)).hex();
}

std::string pipeline_state(const ResolvedSplit& split) {
  return json_text(json{{"penstock_pipeline", kVersion},
                        {"split", split.name},
                        {"fingerprint", pipeline_fingerprint(split)},  // for people; what counts is the rest
                        {"decoders", decoders_of(split)},
                        {"spec", canonical_json(split)}});
}

void check_pipeline(const std::string& state_text, const ResolvedSplit& split) {
  if (state_text.size() > kMaxStateBytes) refuse("longer than " + std::to_string(kMaxStateBytes) + " bytes");
  const json state = parse_json_or_nothing(state_text);
  if (!state.is_object()) refuse("it is no JSON object");
  if (!state.contains("penstock_pipeline") && !state.contains("penstock_state")) {
    refuse("it has neither 'penstock_pipeline' nor 'penstock_state'");
  }
  const ResolvedSplit then = split_from_json(text_of(state, "spec"));
  const std::string who = "the pipeline of split '" + split.name + "' is not the one that was saved" +
                          (then.name == split.name ? "" : " (with split '" + then.name + "')") + ": ";
  ResolvedSplit saved = split;
  saved.arithmetic = then.arithmetic;
  saved.color = then.color;
  saved.exif = then.exif;
  saved.split.pipeline = then.split.pipeline;
  saved.split.gpu_pipeline = then.split.gpu_pipeline;
  saved.split.cpu_fraction = then.split.cpu_fraction;
  if (const std::string difference = difference_since_saved(canonical_json(saved), canonical_json(split));
      !difference.empty()) {
    throw Error(ErrorKind::config, who + difference,
                "use the pipeline that the model was trained and validated with, or the state of the right split");
  }
  if (const auto change = decoder_change(text_of(state, "decoders"), decoders_of(split)); !change.refused.empty()) {
    throw Error(ErrorKind::config, who + "decoders: " + change.refused,
                "use the same libraries; or, once you have compared tensors of both, save a new state with these");
  }
}

}  // namespace penstock
