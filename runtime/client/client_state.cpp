#include "runtime/client/client_state.h"

#include <nlohmann/json.hpp>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/decode/decoder.h"
#include "runtime/job/saved_difference.h"
#include "runtime/sample/pipeline_identity.h"
#include "sampler/position.h"

namespace penstock {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::config, "saved state: " + why, "use what state_dict() gave, unchanged, with this version");
}

std::string text_of(const json& state, const char* key) {
  if (!state.contains(key) || !state[key].is_string()) refuse(std::string("'") + key + "' is missing or no text");
  return state[key].get<std::string>();
}

}  // namespace

std::string state_text(const ResolvedSplit& split, const PlanSpec& plan, const std::string& dataset_fingerprint,
                       Cursor cursor) {
  json state;
  state["penstock_state"] = kVersion;
  state["split"] = split.name;
  // For people; what counts is the position.
  state["epoch"] = cursor.epoch;
  state["batch"] = cursor.step;
  state["position"] = to_text(position_at(plan, cursor.epoch, cursor.step));
  state["dataset"] = dataset_fingerprint;
  state["decoders"] = decoders_of(split);
  state["spec"] = canonical_json(split);
  return json_text(state);
}

Cursor resume_state(const std::string& text, const ResolvedSplit& split, const PlanSpec& plan,
                    const std::string& dataset_fingerprint, std::string& warning) {
  if (text.size() > kMaxStateBytes) refuse("longer than " + std::to_string(kMaxStateBytes) + " bytes");
  const json state = parse_json_or_nothing(text);
  if (!state.is_object()) refuse("it is no JSON object");
  if (!state.contains("penstock_state") || state["penstock_state"] != kVersion) {
    refuse("'penstock_state' is not " + std::to_string(kVersion));
  }
  const std::string who = "cannot resume split '" + split.name + "': ";
  if (const std::string saved = text_of(state, "split"); saved != split.name) {
    throw Error(ErrorKind::config, who + "the state is that of split '" + saved + "'",
                "keep one state for each split, and give each its own");
  }
  const Position position = resume(position_from_text(text_of(state, "position")), plan, split.name);
  // What resume() has judged (the global batch may be cut otherwise now), and where the data lies, may differ.
  ResolvedSplit then = split_from_json(text_of(state, "spec"));
  then.split.batch_size = split.split.batch_size;
  for (const DatasetKind& kind : kDatasetKinds) {
    // The same kind, elsewhere; another kind is another dataset.
    std::string& place = then.split.dataset.*kind.value;
    if (kind.place != DatasetPlace::none && !place.empty() && !(split.split.dataset.*kind.value).empty())
      place = split.split.dataset.*kind.value;
  }
  then.split.dataset.index = split.split.dataset.index;  // another way to the same samples
  then.split.dataset.targets = split.split.dataset.targets;
  then.split.dataset.masks = split.split.dataset.masks;
  then.split.sampler.indices = split.split.sampler.indices;  // their hash tells
  then.split.sampler.weights = split.split.sampler.weights;
  then.split.dataset.path = split.split.dataset.path;
  then.split.dataset.main = split.split.dataset.main;
  // In this process or in workers; the fingerprint compares what there is to compare.
  if (then.split.dataset.is_own() && split.split.dataset.is_own())
    then.split.dataset.pickle = split.split.dataset.pickle;
  if (const std::string difference = difference_since_saved(canonical_json(then), canonical_json(split));
      !difference.empty()) {
    throw Error(ErrorKind::config, who + difference, "resume with the settings that were saved");
  }
  if (text_of(state, "dataset") != dataset_fingerprint) {
    throw Error(ErrorKind::config, who + "the dataset has the same size, but other samples or labels",
                "resume with the dataset that the state was saved with");
  }
  const DecoderChange change = decoder_change(text_of(state, "decoders"), decoders_of(split));
  if (!change.noted.empty()) {
    warning = "split '" + split.name + "' resumes with other versions of decoders: " + change.noted +
              "; pictures stay the same, but damaged files may be judged differently";
  }
  if (!change.refused.empty()) {
    throw Error(ErrorKind::config, who + "decoders: " + change.refused,
                "resume with the same libraries; or, once you have compared their pixels, write the new text over the "
                "state's 'decoders'");
  }
  return {position.epoch, position.step};
}

}  // namespace penstock
