// A balancer's log can be read back, and replaying it shows whether the decisions are the same.
#include "runtime/balancer/event_log.h"

#include <doctest/doctest.h>

#include <regex>
#include <string>
#include <vector>

#include "runtime/base/error.h"

namespace penstock {
namespace {

TEST_CASE("every event survives the way through JSON") {
  const LeaseKey lease{UINT64_MAX, 1, 2, 3};
  const std::vector<Event> events = {LoaderJoined{1, 2, 3, 4, 1, 8},
                                     LoaderAlive{1},
                                     LoaderLost{1, "said \"no\"\n\ttwice"},
                                     LoaderAhead{1, 8},
                                     LeaseStreamOpened{9, 1, 2, 3, 4, 5, 6},
                                     BatchBufferReserved{9, 3},
                                     BatchBufferReserved{9, 3, {1, 2}},
                                     BatchBufferReserved{9, 3, {}, {0, 2}},
                                     SamplesHeld{9, 1, {2, 5}},
                                     CursorMoved{9, 3, true},
                                     LeaseStreamClosed{9},
                                     ChunkProduced{1, lease, 7, 8, 9},
                                     ChunkFailed{1, lease, "EIO"},
                                     ChunkAccepted{lease},
                                     ChunkBufferFreed{1, 2},
                                     Tick{}};
  for (const Event& event : events) {
    const std::string json = to_json(event);
    CAPTURE(json);
    CHECK(json.find('\n') == std::string::npos);
    const Event back = event_from_json(json);
    CHECK(back.index() == event.index());
    CHECK(to_json(back) == json);
  }
  CHECK(to_json(Event(ChunkAccepted{lease})) == R"({"event":"chunk_accepted","lease":[18446744073709551615,1,2,3]})");
  CHECK(std::get<ChunkProduced>(event_from_json(events.size() > 11 ? to_json(events[11]) : "")).lease == lease);
}

TEST_CASE("what cannot be read is refused by name") {
  CHECK_THROWS_AS(event_from_json("{"), Error);
  CHECK_THROWS_AS(event_from_json("[]"), Error);
  CHECK_THROWS_WITH_AS(event_from_json(R"({"event":"party"})"), doctest::Contains("party"), Error);
  CHECK_THROWS_WITH_AS(event_from_json(R"({"event":"loader_alive","loader":"x"})"), doctest::Contains("loader"), Error);
  CHECK_THROWS_AS(event_from_json(R"({"event":"loader_alive","loader":99999999999})"), Error);
  CHECK_THROWS_AS(event_from_json(R"({"event":"loader_alive","loader":1.5})"), Error);
  CHECK_THROWS_AS(event_from_json(R"({"event":"chunk_accepted","lease":[1,2,3]})"), Error);
  CHECK_THROWS_AS(event_from_json(R"({"event":"cursor_moved","waiting":1})"), Error);
}

std::string sample_log() {
  BalancerOptions options;
  options.receivers = 2;
  options.lost_after_ns = 1000;
  options.all_lost_ns = 1100;
  Balancer balancer(options);
  std::string log = log_first_line(options);
  int64_t number = 0;
  const auto post = [&](int64_t now, const Event& event) {
    log += log_lines(++number, now, event, balancer.step(now, event));
  };
  post(1, LoaderJoined{0, 2, 8, 0});
  post(2, LeaseStreamOpened{1, 0, 0, 0, 5, 3, 3});
  post(3, BatchBufferReserved{1, 0, {3, 1, 2}});
  post(4, ChunkProduced{0, {1, 0, 0, 1}, 5, 6, 7});
  post(5, ChunkFailed{0, {1, 0, 2, 1}, std::string("bytes that are no text: \xff\xfe")});
  post(6, LoaderAlive{0});
  post(2000, Tick{});
  return log;
}

TEST_CASE("a log replays to the same actions, and any change of it shows") {
  const std::string log = sample_log();
  INFO(log);
  CHECK(log.find("\t{\"action\":\"grant\"") != std::string::npos);
  CHECK(log.find("fail_lease_stream") != std::string::npos);
  CHECK(log.find("give_up_loader") != std::string::npos);
  CHECK(replay_log(log).difference.empty());
  CHECK(replay_log(log).events > 3);

  std::string other = log;
  other.replace(other.find("\"lease\":[1,0,0,1]"), 17, "\"lease\":[1,0,1,1]");
  CHECK(replay_log(other).difference.find("line 5: the log has") == 0);

  const size_t action = log.find("\n\t");
  std::string missing = log;
  missing.erase(action, log.find('\n', action + 1) - action);
  CHECK_FALSE(replay_log(missing).difference.empty());

  // An event by which nothing was decided, and a log of a version that did not count.
  const size_t alive = log.find("\n6 6\t");
  std::string fewer = log;
  fewer.erase(alive, log.find('\n', alive + 1) - alive);
  CHECK_THROWS_WITH_AS(replay_log(fewer), doctest::Contains("event 7 follows event 5"), Error);
  CHECK(replay_log(std::regex_replace(log, std::regex("(^|\n)([0-9]+) [0-9]+\t"), "$1$2\t")).difference.empty());

  std::string more = log + "\t{\"action\":\"give_up_loader\"}\n";
  CHECK(replay_log(more).difference.find("the replay nothing") != std::string::npos);
}

TEST_CASE("a log that is cut off anywhere replays up to there") {
  const std::string log = sample_log();
  const size_t first = log.find('\n') + 1;
  CHECK_FALSE(replay_log(log).cut_off);
  int64_t events = 0;
  for (size_t end = first; end < log.size(); ++end) {
    CAPTURE(end);
    const Replayed replayed = replay_log(log.substr(0, end));
    CHECK(replayed.difference.empty());
    CHECK(replayed.events >= events);
    if (log[end - 1] != '\n') CHECK(replayed.cut_off);
    if (log[end] == '\t' && log[end - 1] == '\n') CHECK(replayed.cut_off);
    events = replayed.events;
  }
  CHECK(events == 7);
}

TEST_CASE("a damaged log names its line") {
  CHECK_THROWS_AS((void)replay_log(""), Error);
  CHECK_THROWS_WITH_AS(replay_log("hello\n"), doctest::Contains("line 1"), Error);
  CHECK_THROWS_WITH_AS(replay_log(R"({"penstock_balancer_log":1})"), doctest::Contains("version 6"), Error);
  CHECK_THROWS_WITH_AS(replay_log(sample_log() + "x\ty\n"), doctest::Contains("no time and event"), Error);
  CHECK_THROWS_AS((void)replay_log(sample_log() + "7\t{\n"), Error);
}

TEST_CASE("options survive the way through the first line") {
  BalancerOptions options;
  options.policy = BalancerOptions::Policy::random;
  options.random_seed = UINT64_MAX;
  options.lease_timeout_ns = 5;
  options.lost_after_ns = 6;
  options.all_lost_ns = 7;
  options.max_attempts = 7;
  options.receivers = 8;
  options.embedded = true;
  const BalancerOptions back = options_from_first_line(log_first_line(options));
  CHECK(back.embedded);
  CHECK(log_first_line(back) == log_first_line(options));
  CHECK(back.policy == options.policy);
  CHECK(back.random_seed == UINT64_MAX);
  CHECK(back.receivers == 8);
}

}  // namespace
}  // namespace penstock
