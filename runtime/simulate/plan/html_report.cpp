#include "runtime/simulate/plan/html_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "runtime/job/suggest.h"
#include "runtime/report/svg_plot.h"
#include "runtime/simulate/plan/figure_text.h"
#include "runtime/simulate/plan/validated_points.h"

namespace penstock {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --grid: #d8dde3; --s1: #1f6feb; --s2: #d1552b; --s3: #2f8f4e; --s4: #8250df; --s5: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ed; --back: #14181d; --grid: #39414b; --s1: #6ca8ff; --s2: #ff9067; --s3: #69c98a; --s4: #c0a1ff; --s5: #e0b04c; } }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
h1 { font-size: 1.35rem; line-height: 1.35; }
h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; display: block; overflow-x: auto; }
th, td { text-align: right; padding: .25rem .6rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 12rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
svg { width: 100%; height: auto; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; }
svg .title { font-weight: 600; font-size: 14px; }
svg .small { font-size: 10px; }
svg .grid { stroke: var(--grid); }
svg .axis { stroke: var(--text); }
svg .mark { stroke: var(--text); stroke-dasharray: 4 4; }
code { font-size: .85rem; overflow-wrap: anywhere; }
p.note { font-size: .9rem; opacity: .85; }
)";

std::string family_of(const FleetChoice& choice) {
  if (choice.kind.empty()) return "beside the trainers";
  return choice.beside > 0 ? "beside the trainers, and " + choice.kind : choice.kind;
}

std::string row(const std::string& what, const FleetChoice& choice, const std::string& currency) {
  const Prediction& p = choice.prediction;
  std::string fields = "<td>" + html_escaped(what.empty() ? choice.name() : what + ": " + choice.name()) + "</td>";
  for (const std::string& field :
       {std::to_string(choice.threads),
        printed("%.0f", p.images_per_s.mean) + " ± " + printed("%.0f", p.images_per_s.half_width),
        percent_text(choice.lost), percent_text(p.stalled.mean),
        printed("%.1f", static_cast<double>(p.waits.quantile(0.99)) * 1e-6), percent_text(p.loaders_busy),
        percent_text(p.busiest_link), html_escaped(currency) + printed("%.2f", choice.price_per_hour)}) {
    fields += "<td>" + field + "</td>";
  }
  return "<tr>" + fields + "</tr>";
}

std::string table(const std::string& rows) {
  return "<table><thead><tr><th>fleet</th><th>loader threads</th><th>images/s (95 %)</th><th>lost to "
         "loading</th><th>programs wait</th><th>99 of 100 "
         "waits below, ms</th><th>threads busy</th><th>busiest link</th><th>an hour</th></tr></thead><tbody>" +
         rows + "</tbody></table>";
}

std::string throughput(const FleetPlan& plan) {
  std::map<std::string, PlotSeries> families;
  for (const FleetChoice& choice : plan.looked_at) {
    PlotSeries& series = families[family_of(choice)];
    series.name = family_of(choice);
    series.points.push_back(
        {static_cast<double>(choice.threads), choice.prediction.images_per_s.mean,
         choice.prediction.images_per_s.half_width,
         choice.name() + ": " + printed("%.0f", choice.prediction.images_per_s.mean) + " images/s"});
  }
  std::vector<PlotSeries> list;
  for (auto& [name, series] : families) {
    std::sort(series.points.begin(), series.points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
    list.push_back(std::move(series));
  }
  std::vector<PlotMark> marks;
  if (plan.smallest)
    marks.push_back({static_cast<double>(plan.smallest->threads),
                     "enough: " + std::to_string(plan.smallest->threads) + " threads"});
  return line_plot({.title = "Throughput over loaders", .x = "threads of all loaders", .y = "images/s"}, list, marks);
}

// A fleet that costs no less and loses no less than another one is beaten by it.
std::string price_and_loss(const FleetPlan& plan) {
  PlotSeries all{.name = "fleets", .points = {}, .line = false}, front{.name = "that nothing beats", .points = {}};
  std::vector<const FleetChoice*> sorted;
  for (const FleetChoice& choice : plan.looked_at) sorted.push_back(&choice);
  std::sort(sorted.begin(), sorted.end(), [](const FleetChoice* a, const FleetChoice* b) {
    return std::pair(a->price_per_hour, a->lost) < std::pair(b->price_per_hour, b->lost);
  });
  double least = INFINITY;
  for (const FleetChoice* choice : sorted) {
    const PlotSeries::Point point{choice->price_per_hour, 100 * choice->lost, 0,
                                  choice->name() + ": lost " + percent_text(choice->lost)};
    all.points.push_back(point);
    if (choice->lost >= least) continue;
    least = choice->lost;
    front.points.push_back(point);
  }
  return line_plot(
      {.title = "Price against what is lost", .x = "price of what is added, an hour", .y = "lost to loading, %"},
      {all, front});
}

std::string loaders_and_batch(const PlanInput& input, const FleetChoice& best) {
  HeatMap map;
  const int n = best.kind.empty() ? best.beside : best.machines;
  std::vector<int> counts;
  for (const double share : {0.5, 0.75, 1.0, 1.25, 1.5}) {
    const int count = std::max(1, static_cast<int>(std::lround(n * share)));
    if (counts.empty() || counts.back() != count) counts.push_back(count);
  }
  const int64_t batch = input.job.splits.at(input.split).batch_size;
  for (const int64_t size : {batch * 2, batch, std::max<int64_t>(1, batch / 2), std::max<int64_t>(1, batch / 4)}) {
    if (!map.rows.empty() && map.rows.back() == std::to_string(size)) continue;
    map.rows.push_back(std::to_string(size));
    map.values.emplace_back();
    map.titles.emplace_back();
    for (const int count : counts) {
      FleetChoice choice = best;
      (best.kind.empty() ? choice.beside : choice.machines) = count;
      PlanInput changed = with_choice(input, choice);
      changed.job.splits.at(input.split).batch_size = size;
      const int64_t samples = input.samples > 0 ? input.samples : input.profile.dataset_size;
      changed.steps = std::min(changed.steps, samples / std::max<int64_t>(1, size * input.cluster.trainers()));
      changed.warmup_steps = std::min(changed.warmup_steps, changed.steps / 10);
      double rate = 0;
      if (changed.steps > 0) {
        FleetSpec spec = fleet_of(changed);
        // A program takes as long for an image, so a step is as much shorter or longer.
        for (FleetTrainer& trainer : spec.trainers) {
          trainer.step_ns = trainer.step_ns.times(static_cast<double>(size) / static_cast<double>(batch));
        }
        rate = predict(spec, {.seeds = 2}).images_per_s.mean;
      }
      map.values.back().push_back(std::round(rate));
      map.titles.back().push_back(choice.name() + ", batches of " + std::to_string(size) + ": " +
                                  printed("%.0f", rate) + " images/s");
    }
  }
  for (const int count : counts) map.columns.push_back(std::to_string(count));
  return heat_map(
      {.title = "Images/s by loaders and batch size",
       .x = best.kind.empty() ? "loaders beside the trainers of each machine" : "machines of kind " + best.kind,
       .y = "batch"},
      map);
}

std::string waits(const FleetChoice& best) {
  PlotSeries series{.name = "waits", .points = {}, .dots = false};
  for (const auto& [share, ns] : best.prediction.waits.quantiles()) {
    series.points.push_back({std::max(1e-3, static_cast<double>(ns) * 1e-6), 100 * share});
  }
  return line_plot(
      {.title = "Waits of next()", .x = "milliseconds", .y = "of 100 waits, so many are shorter", .log_x = true},
      {series});
}

// A window around the longest wait behind the first steps, which always wait.
std::string longest_step(const PlanInput& input, const FleetChoice& best) {
  constexpr int64_t kSteps = 30, kWarm = 4;
  constexpr size_t kMostLines = 40;
  FleetSpec spec = fleet_of(with_choice(input, best));
  spec.epochs = 1;
  spec.steps = std::min<int64_t>(kSteps, spec.steps > 0 ? spec.steps : kSteps);
  std::vector<FleetSpan> spans;
  (void)simulate_fleet(spec, {.spans = &spans});
  const FleetSpan* longest = nullptr;
  for (const FleetSpan& span : spans) {
    if (span.what != FleetSpan::What::wait || span.step < std::min(kWarm, spec.steps - 1)) continue;
    if (longest == nullptr || span.end - span.begin > longest->end - longest->begin) longest = &span;
  }
  if (longest == nullptr) return {};
  const Nanoseconds around = std::max<Nanoseconds>(20 * kMillisecond, 2 * (longest->end - longest->begin));
  const Nanoseconds first = longest->begin - around, last = longest->end + around / 2;
  std::map<std::pair<int, int32_t>, TimeLine> lines;
  for (const FleetSpan& span : spans) {
    const bool of_program = span.what == FleetSpan::What::wait || span.what == FleetSpan::What::step;
    if (span.end < first || span.begin > last) continue;
    // The one that waited, and who made or sent something for it.
    if (of_program ? span.who != longest->who : span.trainer != longest->who) continue;
    TimeLine& line = lines[{of_program ? 0 : 1, span.who}];
    line.name = (of_program ? "trainer " : "loader ") + std::to_string(span.who);
    static const char* const names[] = {"makes", "sends", "waits for", "works on"};
    line.spans.push_back({as_seconds(std::max(first, span.begin)), as_seconds(std::min(last, span.end)),
                          static_cast<int>(span.what) + 1,
                          line.name + " " + names[static_cast<size_t>(span.what)] + " step " +
                              std::to_string(span.step) + (of_program ? "" : ", chunk " + std::to_string(span.chunk)) +
                              ": " + printed("%.1f ms", as_seconds(span.end - span.begin) * 1e3)});
  }
  std::vector<TimeLine> list;
  for (auto& [key, line] : lines) {
    if (list.size() < kMostLines) list.push_back(std::move(line));
  }
  return time_lines({.title = "The longest wait of trainer " + std::to_string(longest->who) + ", for step " +
                              std::to_string(longest->step),
                     .x = "seconds",
                     .y = ""},
                    list, {"a loader makes", "a chunk travels", "the program waits", "it works"});
}

std::string measured() {
  if (kValidatedPoints.empty()) return {};
  PlotSeries points{.name = "points", .points = {}, .line = false}, equal{.name = "equal", .points = {}, .dots = false};
  double most = 0;
  for (const ValidatedPoint& point : kValidatedPoints) {
    points.points.push_back({point.measured, point.predicted, 0,
                             std::string(point.name) + ": predicted " + printed("%.0f", point.predicted) +
                                 ", measured " + printed("%.0f", point.measured)});
    most = std::max({most, point.measured, point.predicted});
  }
  equal.points = {{0, 0}, {most, most}};
  return line_plot({.title = "Predicted against measured", .x = "measured images/s", .y = "predicted images/s"},
                   {points, equal});
}

}  // namespace

std::string trust_line(const FleetChoice& choice, const PlanInput& input) {
  const ValidatedPoint* nearest = nullptr;
  double least = INFINITY;
  const int trainers = std::max(1, input.cluster.trainers());
  const auto apart = [](double a, double b) { return std::abs(std::log(a / b)); };
  for (const ValidatedPoint& point : kValidatedPoints) {
    const double distance = apart(std::max(1, choice.loaders), point.loaders) + apart(trainers, point.trainers) +
                            apart(input.job.loader.threads, point.threads);
    if (distance >= least) continue;
    least = distance;
    nearest = &point;
  }
  if (nearest == nullptr) return "No point of this simulation has been measured.";
  const double error = nearest->predicted / nearest->measured - 1;
  std::string text = "The nearest measured point is '" + std::string(nearest->name) + "' (" +
                     std::to_string(nearest->trainers) + " trainers, " + std::to_string(nearest->loaders) +
                     " loaders of " + std::to_string(nearest->threads) + " threads), where the prediction was off by " +
                     percent_text(error) + ".";
  int most_loaders = 0, most_trainers = 0;
  for (const ValidatedPoint& point : kValidatedPoints) {
    most_loaders = std::max(most_loaders, point.loaders);
    most_trainers = std::max(most_trainers, point.trainers);
  }
  std::string beyond;
  if (choice.loaders > most_loaders)
    beyond = std::to_string(choice.loaders) + " loaders (measured: up to " + std::to_string(most_loaders) + ")";
  if (trainers > most_trainers)
    beyond += (beyond.empty() ? "" : " and ") + std::to_string(trainers) + " trainers (up to " +
              std::to_string(most_trainers) + ")";
  if (input.cluster.storage.kind != StorageKind::memory)
    beyond += (beyond.empty() ? "" : ", ") + std::string("the storage (not measured)");
  if (!beyond.empty()) text += " Extrapolated: " + beyond + ".";
  return text;
}

std::string plan_page(const FleetPlan& plan, const PlanInput& given, const std::string& command) {
  const PlanInput input = with_steps(given);
  const std::string& currency = input.cluster.currency;
  const FleetChoice* const best = plan.cheapest ? &*plan.cheapest : plan.largest ? &*plan.largest : nullptr;
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\"><title>penstock plan</title><style>" +
      std::string(kStyle) + "</style></head><body>\n<h1>" + html_escaped(plan.sentence) + "</h1>\n";
  if (!plan.remedy.empty()) page += "<p>To reach it: " + html_escaped(plan.remedy) + ".</p>\n";
  std::string rows;
  for (const auto& [what, choice] : {std::pair{"smallest", &plan.smallest},
                                     {"cheapest", &plan.cheapest},
                                     {"safe", &plan.safe},
                                     {"largest", &plan.largest}}) {
    if (*choice) rows += row(what, **choice, currency);
  }
  if (!rows.empty()) page += table(rows);
  if (best != nullptr) page += "<p class=\"note\">" + html_escaped(trust_line(*best, input)) + "</p>\n";
  page += "<div class=\"plots\">";
  if (!plan.looked_at.empty()) page += "<div>" + throughput(plan) + "</div><div>" + price_and_loss(plan) + "</div>";
  if (best != nullptr) {
    page += "<div>" + loaders_and_batch(input, *best) + "</div><div>" + waits(*best) + "</div><div>" +
            longest_step(input, *best) + "</div>";
  }
  page += "<div>" + measured() + "</div></div>\n<h2>All fleets that were simulated</h2>\n";
  rows.clear();
  for (const FleetChoice& choice : plan.looked_at) rows += row("", choice, currency);
  page += table(rows);
  page += "<h2>From what</h2><p class=\"note\">Profile " + html_escaped(input.profile.hash) + " of " +
          html_escaped(input.profile.machine) + ", " + html_escaped(input.profile.date) + ", by " +
          html_escaped(input.profile.made_by) + ": " + std::to_string(input.profile.sample_ns.count()) +
          " samples of " + html_escaped(input.profile.dataset) + ", " +
          printed("%.2f", input.profile.sample_ns.mean() * 1e-6) +
          " ms of a thread each. Simulated with the production balancer; intervals are of the simulation's seeds, not "
          "of what a profile may miss.";
  const std::string by_hand = list_of(entered_by_hand(input), "and");
  if (!by_hand.empty()) page += " Entered by hand, and not measured: " + html_escaped(by_hand) + ".";
  return page + "</p><p><code>" + html_escaped(command) + "</code></p></body></html>\n";
}

}  // namespace penstock
