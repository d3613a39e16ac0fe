#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/transforms/transforms.h"

namespace penstock {

namespace {

// What RandomApply, RandomChoice and RandomOrder have in common.
//
// Draws: the group's own values, then those of the transforms inside, in order; each draws as if it were applied, so
//   the number of values is the same for every sample.
// Draw numbers: one stream for all, the group's position; the group's own draws come first, then each inner transform's
//   where the one before it stopped.
class Group : public TransformGroup {
 public:
  explicit Group(const ParamMap& params) : inside_(transforms_param(params, "transforms")) {
    for (const Transform& inner : inside_) {
      std::vector<int64_t> values;
      DrawStream stream({}, 0);
      as<DrawingTransform>(inner)->draw(stream, {64, 64}, values);
      counts_.push_back(values.size());
    }
  }
  std::span<const Transform> inside() const noexcept override { return inside_; }

 protected:
  // Draws of inner transform `which` on an image of size `in`, and the size it would have after it.
  Size draw_inner(size_t which, DrawStream& stream, Size in, std::vector<int64_t>& values) const {
    const size_t before = values.size();
    as<DrawingTransform>(inside_[which])->draw(stream, in, values);
    if (values.size() - before != counts_[which]) {
      throw Error(ErrorKind::usage, "a transform inside a group drew " + std::to_string(values.size() - before) +
                                        " values, and " + std::to_string(counts_[which]) + " for another image");
    }
    Size out = in;
    const SampleStatus status = size_after(inside_[which], std::span(values).subspan(before), in, out);
    return status.ok() ? out : in;  // what is refused here is refused by apply(), where it is applied
  }

  void expand_inner(size_t which, std::span<const int64_t>& values, std::vector<Step>& steps) const {
    const std::span<const int64_t> mine = values.first(counts_[which]);
    if (const auto* group = as<TransformGroup>(inside_[which])) {
      group->expand(mine, steps);
    } else {
      steps.push_back({&inside_[which], mine});
    }
    values = values.subspan(counts_[which]);
  }

  size_t count_all() const noexcept { return std::accumulate(counts_.begin(), counts_.end(), size_t{0}); }

  std::optional<Size> fixed_size_of(size_t which, std::optional<Size> in) const {
    return as<SampleTransform>(inside_[which])->fixed_size(in);
  }

  std::vector<Transform> inside_;
  std::vector<size_t> counts_;  // of values, by inner transform
};

[[noreturn]] void not_drawn_here(const char* group) {
  throw Error(ErrorKind::usage, std::string(group) + ": these values are not its draws",
              "use the draws that Pipeline::draw made for this pipeline");
}

// torchvision's RandomApply. Own draw: 1 when applied, else 0.
class RandomApply final : public Group {
 public:
  explicit RandomApply(const ParamMap& params) : Group(params), p_(number_param(params, "p")) {}

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    values.push_back(stream.bernoulli(p_) ? 1 : 0);
    for (size_t i = 0; i < inside_.size(); ++i) in = draw_inner(i, stream, in, values);
  }

  void expand(std::span<const int64_t> values, std::vector<Step>& steps) const override {
    require_draws(values, 1 + count_all(), "RandomApply");
    if (values[0] != 0 && values[0] != 1) not_drawn_here("RandomApply");
    if (values[0] == 0) return;
    values = values.subspan(1);
    for (size_t i = 0; i < inside_.size(); ++i) expand_inner(i, values, steps);
  }

  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    std::optional<Size> out = in;
    for (size_t i = 0; i < inside_.size(); ++i) out = fixed_size_of(i, out);
    if (p_ == 0) return in;
    return p_ == 1 || out == in ? out : std::nullopt;
  }

 private:
  double p_;
};

// torchvision's RandomChoice. Own draw: the number of the transform that is applied.
class RandomChoice final : public Group {
 public:
  explicit RandomChoice(const ParamMap& params) : Group(params), until_(inside_.size()) {
    double sum = 0;
    for (size_t i = 0; i < until_.size(); ++i) {
      sum += is_given(params, "p") ? list_param(params, "p")[i] : 1.0;
      until_[i] = sum;
    }
    for (double& until : until_) until /= sum;
  }

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    const double u = stream.uniform01();
    size_t chosen = 0;
    while (chosen + 1 < until_.size() && u >= until_[chosen]) ++chosen;
    values.push_back(static_cast<int64_t>(chosen));
    for (size_t i = 0; i < inside_.size(); ++i) draw_inner(i, stream, in, values);
  }

  void expand(std::span<const int64_t> values, std::vector<Step>& steps) const override {
    require_draws(values, 1 + count_all(), "RandomChoice");
    if (values[0] < 0 || values[0] >= static_cast<int64_t>(inside_.size())) not_drawn_here("RandomChoice");
    const auto chosen = static_cast<size_t>(values[0]);
    values = values.subspan(1 + std::accumulate(counts_.begin(), counts_.begin() + values[0], size_t{0}));
    expand_inner(chosen, values, steps);
  }

  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    const std::optional<Size> out = fixed_size_of(0, in);
    for (size_t i = 1; i < inside_.size(); ++i) {
      if (fixed_size_of(i, in) != out) return std::nullopt;
    }
    return out;
  }

 private:
  std::vector<double> until_;  // upper ends of the transforms' shares of [0, 1)
};

// torchvision's RandomOrder. Own draws: the order, as the transforms' numbers; their values follow in that order.
class RandomOrder final : public Group {
 public:
  using Group::Group;

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    std::vector<int64_t> order(inside_.size());
    stream.permutation(order.data(), static_cast<uint32_t>(order.size()));
    values.insert(values.end(), order.begin(), order.end());
    for (const int64_t which : order) in = draw_inner(static_cast<size_t>(which), stream, in, values);
  }

  void expand(std::span<const int64_t> values, std::vector<Step>& steps) const override {
    require_draws(values, inside_.size() + count_all(), "RandomOrder");
    const std::span<const int64_t> order = values.first(inside_.size());
    std::vector<bool> seen(inside_.size());
    for (const int64_t which : order) {
      if (which < 0 || which >= static_cast<int64_t>(inside_.size()) || seen[static_cast<size_t>(which)]) {
        not_drawn_here("RandomOrder");
      }
      seen[static_cast<size_t>(which)] = true;
    }
    values = values.subspan(inside_.size());
    for (const int64_t which : order) expand_inner(static_cast<size_t>(which), values, steps);
  }

  // Where every transform keeps the size; other orders could end in other sizes.
  std::optional<Size> fixed_size(std::optional<Size> in) const override {
    for (size_t i = 0; i < inside_.size(); ++i) {
      if (fixed_size_of(i, in) != in) return std::nullopt;
    }
    return in;
  }
};

// What MixUp and CutMix inside a group make of it: a batch transform.
class BatchGroup final : public BatchTransform {
 public:
  explicit BatchGroup(std::unique_ptr<TransformGroup> group) : group_(std::move(group)) {}

  void draw(DrawStream& stream, Size in, std::vector<int64_t>& values) const override {
    group_->draw(stream, in, values);
  }
  void mix(const MixBatch& batch, std::span<const int64_t> values) const override {
    std::vector<Step> steps;
    group_->expand(values, steps);
    for (const Step& step : steps) as<BatchTransform>(*step.transform)->mix(batch, step.values);
  }
  int64_t classes() const noexcept override { return as<BatchTransform>(group_->inside().front())->classes(); }
  bool needs_float() const noexcept override {
    const std::span<const Transform> inside = group_->inside();
    return std::any_of(inside.begin(), inside.end(),
                       [](const Transform& inner) { return as<BatchTransform>(inner)->needs_float(); });
  }

 private:
  std::unique_ptr<TransformGroup> group_;
};

// Those inside are all for samples or all for batches (check_inside).
template <class Kind>
Transform group_of(const ParamMap& params) {
  auto group = std::make_unique<Kind>(params);
  if (as<BatchTransform>(group->inside().front()) == nullptr) return Transform(std::move(group));
  return std::make_unique<BatchGroup>(std::move(group));
}

std::string check_inside(const ParamMap& params, std::string& culprit) {
  culprit = "transforms";
  const std::vector<Transform> inside = transforms_param(params, "transforms");
  const auto* first = as<BatchTransform>(inside.front());
  for (const Transform& inner : inside) {
    const auto* batch = as<BatchTransform>(inner);
    if ((batch == nullptr) != (first == nullptr)) {
      return "MixUp and CutMix, which change batches, cannot stand beside transforms of samples";
    }
    if (batch != nullptr && batch->classes() != first->classes()) return "all must have the same num_classes";
    if (std::holds_alternative<PythonFunction>(inner)) return "Python cannot stand inside another transform";
    if (as<FinishingTransform>(inner) != nullptr) return "ToDtype and Normalize cannot stand inside another transform";
    if (std::holds_alternative<ExifTranspose>(inner)) return "ExifTranspose cannot stand inside another transform";
    if (as<ViewsTransform>(inner) != nullptr) return "FiveCrop and TenCrop cannot stand inside another transform";
  }
  return {};
}

std::string check_choice(const ParamMap& params, std::string& culprit) {
  if (is_given(params, "p")) {
    culprit = "p";
    const std::vector<double>& p = list_param(params, "p");
    const size_t count = std::get<std::vector<TransformSpec>>(params.at("transforms")).size();
    if (p.size() != count) return "must have one number for each of the " + std::to_string(count) + " transforms";
    if (std::all_of(p.begin(), p.end(), [](double share) { return share == 0; })) return "must not be 0 throughout";
  }
  return check_inside(params, culprit);
}

ParamInfo transforms_info(const char* doc) {
  return {.name = "transforms", .kind = ParamKind::transforms, .doc = doc};
}

}  // namespace

TransformInfo random_apply_info() {
  return {.name = "RandomApply",
          .doc = "a list of transforms, all applied with probability p, else none",
          .params = {transforms_info("the transforms, in order"),
                     probability_info(0.5, "probability that they are applied")},
          .check = check_inside,
          .make = group_of<RandomApply>};
}

TransformInfo random_choice_info() {
  return {
      .name = "RandomChoice",
      .doc = "one transform of a list",
      .params = {transforms_info("the transforms to choose from"),
                 numbers_info("p", ParamValue{}, 0, 1e6, {}, "one weight for each transform; not given: all alike")},
      .check = check_choice,
      .make = group_of<RandomChoice>};
}

TransformInfo random_order_info() {
  return {.name = "RandomOrder",
          .doc = "a list of transforms in a random order",
          .params = {transforms_info("the transforms")},
          .check = check_inside,
          .make = group_of<RandomOrder>};
}

}  // namespace penstock
