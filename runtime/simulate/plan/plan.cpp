#include "runtime/simulate/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/simulate/plan/figure_text.h"

namespace penstock {
namespace {

std::string number_of(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// A plan is for a job that runs for hours: of its steady state, and of as many steps as show it.
constexpr int64_t kSteps = 150;
constexpr int64_t kWarmup = 15;

// What to change where a part limits, by the name that bounds_of() gives it.
std::string remedy_for(const std::string& limit) {
  const auto is_of = [&limit](const char* what) { return limit.find(what) != std::string::npos; };
  if (is_of("the training program")) return "shorten program.step_ms";
  if (is_of("the receivers")) return "raise trainers of a kind of machine, so that each takes less";
  if (is_of("NICs")) return "raise network_gbit of the machines under nodes";
  if (is_of("uplinks")) return "raise network.rack_uplink_gbit";
  if (is_of("storage's reads")) return "raise storage.reads_per_s";
  if (is_of("storage")) return "raise storage.mb_per_s";
  return "raise count or cores of a kind of machine under nodes";
}

using Key = std::tuple<std::string, int, int>;  // kind, loaders beside trainers, machines

PlanInput with_key(PlanInput input, const Key& key) {
  const auto& [kind_wanted, beside, machines] = key;
  for (auto& [name, kind] : input.cluster.nodes) {
    if (kind.trainers > 0) {
      kind.loaders = std::min(beside, loaders_on(kind, input.job.loader.threads));
    } else {
      kind.loaders = loaders_on(kind, input.job.loader.threads);
      kind.count = name == kind_wanted ? machines : 0;
    }
  }
  return input;
}

class Search {
 public:
  Search(const PlanInput& input, const PlanTarget& target, const PlanOptions& options)
      : input_(with_steps(input)), options_(options) {
    plan_.target = target;
    for (const auto& [name, kind] : input.cluster.nodes) {
      if (kind.trainers > 0 && kind.count > 0)
        most_beside_ = std::max(most_beside_, loaders_on(kind, input.job.loader.threads));
      if (kind.trainers == 0 && kind.count > 0 && loaders_on(kind, input.job.loader.threads) > 0)
        kinds_.push_back(name);
    }
  }

  FleetPlan run() {
    set_target();
    if (look_at_closest_if_hopeless()) {
      for (const auto& [key, choice] : seen_) plan_.looked_at.push_back(choice);
      say_why_not();
      return std::move(plan_);
    }
    std::vector<FleetChoice> reaching;
    const auto take = [&](const std::optional<FleetChoice>& found) {
      if (found) reaching.push_back(*found);
    };
    take(least({"", 0}, most_beside_));
    const bool beside_is_enough = !reaching.empty();
    for (const std::string& kind : kinds_) take(least({kind, 0}, input_.cluster.nodes.at(kind).count));
    if (!beside_is_enough && most_beside_ > 0) {
      for (const std::string& kind : kinds_) take(least({kind, most_beside_}, input_.cluster.nodes.at(kind).count));
    }
    plan_.reachable = !reaching.empty();
    for (const auto& [key, choice] : seen_) plan_.looked_at.push_back(choice);
    if (!plan_.reachable) {
      say_why_not();
      return std::move(plan_);
    }
    const auto by = [&](auto key) {
      return *std::min_element(reaching.begin(), reaching.end(),
                               [&](const FleetChoice& a, const FleetChoice& b) { return key(a) < key(b); });
    };
    plan_.smallest = by([](const FleetChoice& c) { return std::tuple(c.threads, c.price_per_hour); });
    plan_.cheapest =
        by([](const FleetChoice& c) { return std::tuple(c.price_per_hour, static_cast<double>(c.threads)); });
    find_safe(reaching);
    look_along_curves(reaching);
    plan_.looked_at.clear();
    for (const auto& [key, choice] : seen_) plan_.looked_at.push_back(choice);
    say_it(beside_is_enough);
    return std::move(plan_);
  }

 private:
  // What does not vary along a family: the kind of machines, and how many loaders are beside trainers besides.
  struct Family {
    std::string kind;
    int beside = 0;
  };
  static Key key_of(const Family& family, int n) {
    return family.kind.empty() ? Key{"", n, 0} : Key{family.kind, family.beside, n};
  }

  const FleetChoice& look_at(const Key& key, int64_t seeds) {
    const auto known = seen_.find(key);
    if (known != seen_.end() && known->second.prediction.seeds >= seeds) return known->second;
    const auto& [kind, beside, machines] = key;
    FleetChoice choice;
    choice.beside = beside;
    choice.kind = kind;
    choice.machines = machines;
    const PlanInput input = with_key(input_, key);
    const FleetSpec spec = fleet_of(input);
    choice.loaders = static_cast<int>(spec.loaders.size());
    choice.threads = choice.loaders * input.job.loader.threads;
    if (!kind.empty()) choice.price_per_hour = machines * input.cluster.nodes.at(kind).price_per_hour;
    if (options_.progress) options_.progress(choice.name());
    choice.prediction = predict(spec, {.seeds = seeds, .threads = options_.threads});
    if (ideal_images_per_s_ > 0) {
      choice.lost = std::max(0.0, 1 - choice.prediction.images_per_s.mean / ideal_images_per_s_);
    }
    choice.reaches =
        choice.prediction.failure.empty() && choice.prediction.images_per_s.mean >= plan_.wanted_images_per_s;
    return seen_[key] = std::move(choice);
  }

  // The least number of the family that reaches the target, between 1 and `most`.
  std::optional<FleetChoice> least(const Family& family, int most) {
    if (most < 1) return std::nullopt;
    const auto reaches = [&](int n, int64_t seeds) { return look_at(key_of(family, n), seeds).reaches; };
    const FleetChoice& all = look_at(key_of(family, most), options_.screening_seeds);
    // A tenth less is not the few seeds' bad luck.
    const bool far_off = all.prediction.images_per_s.mean < 0.9 * plan_.wanted_images_per_s;
    if (!all.reaches && (far_off || !reaches(most, options_.seeds))) return std::nullopt;
    int enough = first_that(1, most, [&](int n) { return reaches(n, options_.screening_seeds); });
    // With all seeds, as the few may have been lucky.
    if (!reaches(enough, options_.seeds)) {
      enough = first_that(enough + 1, most, [&](int n) { return reaches(n, options_.seeds); });
    }
    if (enough > most || !reaches(enough, options_.seeds)) return std::nullopt;
    return look_at(key_of(family, enough), options_.seeds);
  }

  // The least of `first` to `most` that is good, where all behind a good one are; by doubling steps, then by halving them.
  // `most` where none before it is.
  template <class Good>
  static int first_that(int first, int most, const Good& good) {
    int bad = first - 1, found = std::min(first, most);
    for (int step = 1; found < most && !good(found); step *= 2) {
      bad = found;
      found = std::min(most, found + step);
    }
    while (found - bad > 1) {
      const int middle = bad + (found - bad) / 2;
      (good(middle) ? found : bad) = middle;
    }
    return found;
  }

  // The programs with as many loaders as there are room and machines for, and links and disks that cost nothing.
  void set_target() {
    const std::string kind = kinds_.empty() ? "" : kinds_.front();
    PlanInput input = with_key(input_, {kind, most_beside_, kind.empty() ? 0 : input_.cluster.nodes.at(kind).count});
    for (auto& [name, node] : input.cluster.nodes) {
      if (node.trainers == 0 || !kind.empty() || most_beside_ > 0) continue;
      node.loaders = 1;  // that makes nothing here, and has a core for it
      node.cores = node.cores_for_training + input.job.loader.threads;
    }
    FleetSpec spec = fleet_of(input);
    for (FleetNode& node : spec.nodes) node.bytes_per_s = 0;
    spec.racks.clear();
    spec.storage = {};
    spec.samples.work_ns = Distribution::constant(1);
    spec.samples.ns_per_byte = 0;
    if (options_.progress) options_.progress("the programs, were data always there");
    const Prediction ideal = predict(spec, {.seeds = options_.screening_seeds, .threads = options_.threads});
    ideal_images_per_s_ = ideal.images_per_s.mean;
    ideal_half_width_ = ideal.images_per_s.half_width;
    if (!ideal.failure.empty() || !(ideal_images_per_s_ > 0)) {
      throw Error(ErrorKind::config,
                  "this job cannot be planned: " + (ideal.failure.empty() ? "no step of it counts" : ideal.failure),
                  "give it more samples or steps");
    }
    plan_.wanted_images_per_s =
        plan_.target.images_per_s > 0 ? plan_.target.images_per_s : (1 - plan_.target.lost) * ideal_images_per_s_;
  }

  // A target that the programs do not take, or that is by far more than one part of the largest fleets does alone, needs
  // no search: only the fleet that comes closest is simulated, for the highest figure there is.
  bool look_at_closest_if_hopeless() {
    std::vector<Key> largest;
    for (const std::string& kind : kinds_)
      largest.emplace_back(kind, most_beside_, input_.cluster.nodes.at(kind).count);
    if (largest.empty() && most_beside_ > 0) largest.emplace_back("", most_beside_, 0);
    if (largest.empty()) return false;
    const Key* closest = nullptr;
    double most = 0;
    for (const Key& key : largest) {
      const Bounds bounds = bounds_of(fleet_of(with_key(input_, key)));
      const double bound = bounds.parts.empty() ? INFINITY : bounds.images_per_s;
      if (closest != nullptr && bound <= most) continue;
      closest = &key;
      most = bound;
    }
    // Batches that were ready when counting began are more than a part does in that time.
    const auto counted = static_cast<double>(std::max<int64_t>(1, input_.steps - input_.warmup_steps));
    const double ready = std::max(2, input_.job.loader.prefetch) + 1 + input_.job.trainer.hold;
    // Where an index knows the samples' sizes, the bounds go by others, which the profile has.
    const bool beyond_parts = !input_.sizes && plan_.wanted_images_per_s > 1.1 * most * (1 + ready / counted);
    if (!beyond_parts && plan_.wanted_images_per_s <= ideal_images_per_s_ + ideal_half_width_) return false;
    look_at(*closest, options_.screening_seeds);
    return true;
  }

  void find_safe(const std::vector<FleetChoice>& reaching) {
    // Where all cores beside the trainers are needed, a machine besides.
    const bool all_beside = std::any_of(reaching.begin(), reaching.end(), [this](const FleetChoice& choice) {
      return choice.kind.empty() && choice.beside == most_beside_;
    });
    for (const std::string& kind : all_beside ? kinds_ : std::vector<std::string>()) {
      const FleetChoice& more = look_at({kind, most_beside_, 1}, options_.seeds);
      if (more.reaches && (!plan_.safe || more.price_per_hour < plan_.safe->price_per_hour)) plan_.safe = more;
    }
    for (const FleetChoice& choice : reaching) {
      const Family family{choice.kind, choice.beside};
      const int n = choice.kind.empty() ? choice.beside : choice.machines;
      const int most = choice.kind.empty() ? most_beside_ : input_.cluster.nodes.at(choice.kind).count;
      if (n + 1 > most) continue;
      const FleetChoice& one_more = look_at(key_of(family, n + 1), options_.seeds);
      if (!one_more.reaches) continue;
      if (!plan_.safe || std::tuple(one_more.price_per_hour, one_more.threads) <
                             std::tuple(plan_.safe->price_per_hour, plan_.safe->threads)) {
        plan_.safe = one_more;
      }
    }
  }

  // From one to twice what is enough.
  void look_along_curves(const std::vector<FleetChoice>& reaching) {
    for (const FleetChoice& choice : reaching) {
      const int n = choice.kind.empty() ? choice.beside : choice.machines;
      const int most = choice.kind.empty() ? most_beside_ : input_.cluster.nodes.at(choice.kind).count;
      const int last = std::min(most, 2 * n);
      for (int i = 1; i <= options_.curve_points; ++i) {
        const int at = std::max(1, last * i / options_.curve_points);
        look_at(key_of({choice.kind, choice.beside}, at), options_.screening_seeds);
      }
    }
  }

  void say_why_not() {
    const auto fastest = std::max_element(plan_.looked_at.begin(), plan_.looked_at.end(),
                                          [](const FleetChoice& a, const FleetChoice& b) {
                                            return a.prediction.images_per_s.mean < b.prediction.images_per_s.mean;
                                          });
    const bool of_program = plan_.wanted_images_per_s > ideal_images_per_s_;
    double reached = 0;
    const std::string start =
        std::string(of_program || kinds_.size() < 2 ? "no fleet of this cluster reaches "
                                                    : "no fleet with machines of one kind added reaches ") +
        printed("%.0f", plan_.wanted_images_per_s) + " images/s; ";
    if (of_program) {
      plan_.why_not = start + "the bound is " + printed("%.0f", ideal_images_per_s_) +
                      ", because the training program takes no more, even where data is always there";
      plan_.remedy = remedy_for("the training program") + ", or give the job more trainers";
      reached = ideal_images_per_s_;
      if (fastest != plan_.looked_at.end()) reached = std::min(reached, fastest->prediction.images_per_s.mean);
    } else if (fastest == plan_.looked_at.end()) {
      plan_.why_not = start + "it has no core that a loader could use";
      plan_.remedy =
          "raise cores of the machines that train, or lower cores_for_training or loader.threads; or add a kind "
          "of machine without trainers";
    } else {
      plan_.why_not = start + "the bound is " + printed("%.0f", fastest->prediction.images_per_s.mean) + " with " +
                      fastest->name() + ", because of " + fastest->prediction.naive.limit;
      plan_.remedy = remedy_for(fastest->prediction.naive.limit);
      reached = fastest->prediction.images_per_s.mean;
    }
    if (reached >= 1)
      plan_.remedy += ", or ask for less: --target " + printed("%.0f", std::floor(0.98 * reached)) + "img/s";
    if (fastest != plan_.looked_at.end()) plan_.largest = *fastest;
    plan_.sentence = plan_.why_not;
    plan_.sentence[0] = 'N';
    plan_.sentence += ".";
  }

  void say_it(bool beside_is_enough) {
    const FleetChoice& best = *plan_.cheapest;
    std::string text;
    if (best.kind.empty()) {
      text = "No machine has to be added, as " + best.name() + (best.beside == 1 ? " is" : " are") + " enough";
    } else {
      text = best.name() + (best.machines == 1 && best.beside == 0 ? " is" : " are") + " enough";
      text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    }
    text += ": " + printed("%.0f", best.prediction.images_per_s.mean) +
            " images/s (wanted: " + printed("%.0f", plan_.wanted_images_per_s) + "), " + percent_text(best.lost) +
            " of the programs\' pace lost to loading";
    if (best.price_per_hour > 0) {
      char price[64];
      std::snprintf(price, sizeof price, ", for %s%.2f an hour", input_.cluster.currency.c_str(), best.price_per_hour);
      text += price;
    }
    const Family family{best.kind, best.beside};
    const int n = best.kind.empty() ? best.beside : best.machines;
    if (n > 1) {
      const FleetChoice& fewer = look_at(key_of(family, n - 1), options_.screening_seeds);
      text += "; with one fewer " + printed("%.0f", fewer.prediction.images_per_s.mean) + " images/s, " +
              percent_text(fewer.lost) + " lost";
    }
    if (!beside_is_enough && most_beside_ > 0 && !best.kind.empty()) {
      text += "; the cores beside the trainers are not enough";
    }
    plan_.sentence = text + ".";
  }

  PlanInput input_;
  PlanOptions options_;
  FleetPlan plan_;
  std::map<Key, FleetChoice> seen_;
  int most_beside_ = 0;
  std::vector<std::string> kinds_;
  double ideal_images_per_s_ = 0;
  double ideal_half_width_ = 0;
};

}  // namespace

std::string FleetChoice::name() const {
  std::string text;
  if (beside > 0) text = number_of(beside, "loader") + " beside the trainers of each machine";
  if (!kind.empty() && machines > 0) {
    text += (text.empty() ? "" : " and ") + number_of(machines, "machine") + " of kind " + kind;
  }
  return text.empty() ? "no loader" : text;
}

PlanInput with_steps(PlanInput input) {
  const auto split = input.job.splits.find(input.split);
  const int64_t known = input.sizes ? std::ssize(*input.sizes) : input.profile.dataset_size;
  const int64_t samples = input.samples > 0 ? input.samples : known;
  const int64_t batch = split == input.job.splits.end() ? 1 : split->second.batch_size;
  const int64_t global =
      std::max<int64_t>(1, batch * input.cluster.trainers() / std::max(1, input.job.roles.ranks_per_replica));
  if (input.steps == 0) input.steps = kSteps;
  constexpr int64_t kFewest = 4;
  input.steps = std::min(input.steps, samples / global);
  if (input.steps < kFewest) {
    throw Error(ErrorKind::config,
                "an epoch of " + std::to_string(samples) + " samples has " + std::to_string(input.steps) +
                    " steps of all trainers, and a plan needs " + std::to_string(kFewest),
                "say how large the data set is (--samples), or lower the batch size");
  }
  if (input.warmup_steps < 0) input.warmup_steps = std::clamp<int64_t>(input.steps / 10, 1, kWarmup);
  return input;
}

PlanInput with_choice(const PlanInput& input, const FleetChoice& choice) {
  return with_key(input, {choice.kind, choice.beside, choice.machines});
}

FleetPlan find_plan(const PlanInput& input, const PlanTarget& target, const PlanOptions& options) {
  return Search(input, target, options).run();
}

}  // namespace penstock
