#include "runtime/balancer/event_log.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/json_text.h"
#include "runtime/base/members.h"

namespace penstock {

namespace {

using Json = nlohmann::json;

constexpr int kVersion = 6;

// What the log calls a struct, and its members in the order in which they are declared.
template <class T>
constexpr int kNames = 0;
template <>
constexpr std::array kNames<LoaderJoined> = {"loader_joined", "loader",         "depth",  "chunk_buffers",
                                             "node",          "executor_class", "threads"};
template <>
constexpr std::array kNames<LoaderAlive> = {"loader_alive", "loader"};
template <>
constexpr std::array kNames<LoaderLost> = {"loader_lost", "loader", "reason"};
template <>
constexpr std::array kNames<LoaderDraining> = {"loader_draining", "loader"};
template <>
constexpr std::array kNames<LoaderDrained> = {"loader_drained", "loader"};
template <>
constexpr std::array kNames<LoaderAhead> = {"loader_ahead", "loader", "leases"};
template <>
constexpr std::array kNames<LeaseStreamOpened> = {
    "lease_stream_opened", "lease_stream",     "receiver",     "node", "first_step", "steps",
    "chunks_per_step",     "chunks_last_step", "payload_bytes"};
template <>
constexpr std::array kNames<BatchBufferReserved> = {"batch_buffer_reserved", "lease_stream", "step", "chunk_bytes",
                                                    "groups"};
template <>
constexpr std::array kNames<SamplesHeld> = {"samples_held", "lease_stream", "loader", "groups"};
template <>
constexpr std::array kNames<CursorMoved> = {"cursor_moved", "lease_stream", "cursor", "waiting"};
template <>
constexpr std::array kNames<LeaseStreamClosed> = {"lease_stream_closed", "lease_stream"};
template <>
constexpr std::array kNames<ChunkProduced> = {"chunk_produced", "loader", "lease",  "busy_ns",
                                              "bytes",          "pixels", "held_ns"};
template <>
constexpr std::array kNames<ChunkFailed> = {"chunk_failed", "loader", "lease", "reason"};
template <>
constexpr std::array kNames<ChunkAccepted> = {"chunk_accepted", "lease"};
template <>
constexpr std::array kNames<ChunkBufferFreed> = {"chunk_buffer_freed", "loader", "receiver"};
template <>
constexpr std::array kNames<Tick> = {"tick"};
template <>
constexpr std::array kNames<Grant> = {"grant", "loader", "receiver", "lease", "deadline", "compared"};
template <>
constexpr std::array kNames<Revoke> = {"revoke", "loader", "lease"};
template <>
constexpr std::array kNames<GiveUpLoader> = {"give_up_loader", "loader", "reason"};
template <>
constexpr std::array kNames<FailLeaseStream> = {"fail_lease_stream", "lease_stream", "reason", "unreadable"};

template <class T, class Visitor>
void visit_members(T& of, Visitor& visitor) {
  constexpr auto& names = kNames<std::remove_const_t<T>>;
  std::apply(
      [&](auto&... member) {
        static_assert(names.size() == 1 + sizeof...(member));
        [[maybe_unused]] auto name = names.begin();
        (visitor(*++name, member), ...);
      },
      members_of(of));
}

struct Writer {
  Json& out;

  template <class T>
  void operator()(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, LeaseKey>) {
      if (value.lease_stream != 0) out[name] = {value.lease_stream, value.step, value.chunk, value.generation};
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      if (!value.empty()) out[name] = value;
    } else {
      out[name] = value;
    }
  }
};

template <class T>
T integer_from(const Json& value, const char* name) {
  const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                               : value.is_number_integer() && std::in_range<T>(value.get<int64_t>());
  if (!fits) throw Error(ErrorKind::usage, std::string("balancer log: '") + name + "' is no integer in its range");
  return value.get<T>();
}

struct Reader {
  const Json& in;

  template <class T>
  void operator()(const char* name, T& value) {
    const auto at = in.find(name);
    if (at == in.end()) return;
    const auto wrong = [name](const char* what) {
      return Error(ErrorKind::usage, std::string("balancer log: '") + name + "' is not " + what);
    };
    if constexpr (std::is_same_v<T, LeaseKey>) {
      if (!at->is_array() || at->size() != 4) throw wrong("[lease stream, step, chunk, generation]");
      value.lease_stream = integer_from<uint64_t>((*at)[0], name);
      value.step = integer_from<int64_t>((*at)[1], name);
      value.chunk = integer_from<int32_t>((*at)[2], name);
      value.generation = integer_from<uint32_t>((*at)[3], name);
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      if (!at->is_array()) throw wrong("a list of integers");
      for (const Json& item : *at) value.push_back(integer_from<int64_t>(item, name));
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!at->is_string()) throw wrong("a text");
      value = at->get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!at->is_boolean()) throw wrong("true or false");
      value = at->get<bool>();
    } else {
      value = integer_from<T>(*at, name);
    }
  }
};

template <class Options, class Visitor>
void visit_options(Options& o, Visitor& f) {
  f("random_seed", o.random_seed), f("lease_timeout_ns", o.lease_timeout_ns), f("lost_after_ns", o.lost_after_ns);
  f("all_lost_ns", o.all_lost_ns);
  f("max_attempts", o.max_attempts), f("retry_for_ns", o.retry_for_ns), f("receivers", o.receivers);
  f("remake_every", o.remake_every);
}

std::string text_of(const Json& json) {
  return json_text_replacing(json);
}

template <class Variant>
std::string named_json(const char* kind, const Variant& variant) {
  return std::visit(
      [kind](const auto& value) {
        Json json;
        json[kind] = kNames<std::decay_t<decltype(value)>>[0];
        Writer writer{json};
        visit_members(value, writer);
        return text_of(json);
      },
      variant);
}

Json parse(std::string_view text) {
  Json json = parse_json_or_nothing(text);
  if (!json.is_object()) throw Error(ErrorKind::usage, "balancer log: not a JSON object: '" + std::string(text) + "'");
  return json;
}

template <size_t I = 0>
Event event_named(const std::string& name, const Json& json) {
  if constexpr (I == std::variant_size_v<Event>) {
    throw Error(ErrorKind::usage, "balancer log: no event is called '" + name + "'");
  } else {
    using T = std::variant_alternative_t<I, Event>;
    if (name != kNames<T>[0]) return event_named<I + 1>(name, json);
    T event;
    Reader reader{json};
    visit_members(event, reader);
    return event;
  }
}

}  // namespace

std::string to_json(const Event& event) {
  return named_json("event", event);
}
std::string to_json(const Action& action) {
  return named_json("action", action);
}

Event event_from_json(const std::string& text) {
  const Json json = parse(text);
  const auto name = json.find("event");
  if (name == json.end() || !name->is_string()) {
    throw Error(ErrorKind::usage, "balancer log: no event in '" + text + "'");
  }
  return event_named(name->get<std::string>(), json);
}

std::string log_first_line(const BalancerOptions& options) {
  Json json;
  json["penstock_balancer_log"] = kVersion;
  json["policy"] = options.policy == BalancerOptions::Policy::random ? "random" : "deadline";
  if (options.embedded) json["embedded"] = true;
  Writer writer{json};
  visit_options(options, writer);
  return text_of(json) + "\n";
}

std::string log_lines(int64_t number, int64_t now_ns, const Event& event, const std::vector<Action>& actions) {
  std::string lines = std::to_string(now_ns) + " " + std::to_string(number) + "\t" + to_json(event) + "\n";
  for (const Action& action : actions) lines += "\t" + to_json(action) + "\n";
  return lines;
}

BalancerOptions options_from_first_line(const std::string& line) {
  const Json json = parse(line);
  if (json.value("penstock_balancer_log", Json()) != Json(kVersion)) {
    throw Error(ErrorKind::usage,
                "balancer log: the first line is not that of a balancer log of version " + std::to_string(kVersion));
  }
  BalancerOptions options;
  const Json policy = json.value("policy", Json("deadline"));
  if (policy == "random") {
    options.policy = BalancerOptions::Policy::random;
  } else if (policy != "deadline") {
    throw Error(ErrorKind::usage, "balancer log: unknown policy " + text_of(policy));
  }
  options.embedded = json.value("embedded", Json(false)) == Json(true);
  Reader reader{json};
  visit_options(options, reader);
  return options;
}

Replayed replay_log(const std::string& log_text) {
  std::vector<std::string_view> lines;
  std::string_view rest = log_text;
  for (size_t end = 0; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
    lines.push_back(rest.substr(0, end));
  }
  bool cut_off = !rest.empty();  // in the middle of a line
  if (lines.empty() && cut_off) lines.push_back(rest);
  const auto at_line = [](size_t i) { return "line " + std::to_string(i + 1) + ": "; };
  if (lines.empty()) throw Error(ErrorKind::usage, "balancer log: it is empty");
  size_t i = 0;
  int64_t events = 0;
  try {
    Balancer balancer(options_from_first_line(std::string(lines[0])));
    for (i = 1; i < lines.size();) {
      const size_t tab = lines[i].find('\t');
      int64_t now = 0;
      int64_t number = events + 1;
      const char* const end = lines[i].data() + std::min(tab, lines[i].size());
      auto read = std::from_chars(lines[i].data(), end, now);
      if (read.ec == std::errc() && read.ptr < end && *read.ptr == ' ')
        read = std::from_chars(read.ptr + 1, end, number);
      if (tab == 0 || tab == std::string_view::npos || read.ec != std::errc() || read.ptr != end) {
        throw Error(ErrorKind::usage, "balancer log: no time and event");
      }
      if (number != events + 1) {
        throw Error(ErrorKind::usage, "balancer log: event " + std::to_string(number) + " follows event " +
                                          std::to_string(events) + ", and what was between them is missing");
      }
      const std::vector<Action> actions = balancer.step(now, event_from_json(std::string(lines[i].substr(tab + 1))));
      const size_t event_line = i++;
      ++events;
      for (const Action& action : actions) {
        const std::string expected = to_json(action);
        if (i == lines.size()) {  // before the last event's actions were written
          cut_off = true;
          break;
        }
        if (lines[i].empty() || lines[i][0] != '\t') {
          return {events, at_line(event_line) + "the replay also decides " + expected, cut_off};
        }
        if (lines[i].substr(1) != expected) {
          return {events, at_line(i) + "the log has " + std::string(lines[i].substr(1)) + ", the replay " + expected,
                  cut_off};
        }
        ++i;
      }
      if (i < lines.size() && !lines[i].empty() && lines[i][0] == '\t') {
        return {events, at_line(i) + "the log has " + std::string(lines[i].substr(1)) + ", the replay nothing",
                cut_off};
      }
    }
  } catch (const Error& error) {
    throw Error(error.kind(), at_line(i) + error.message(), error.remedy());
  }
  return {events, {}, cut_off};
}

}  // namespace penstock
