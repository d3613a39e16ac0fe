// The balancer's log: what it was told and what it decided, so that any run's decisions can be replayed and looked at.
//
//   log << log_first_line(options);
//   const std::vector<Action> actions = balancer.step(now, event);
//   log << log_lines(++number, now, event, actions);
//   ...
//   const std::string difference = replay_log(whole_text).difference;   // declared in balancer.h
//
// Format: UTF-8 text, one record a line, each line ends with '\n', no line holds another newline.
//   first line   the options:   {"penstock_balancer_log":6,"policy":"deadline","random_seed":0,
//                                "lease_timeout_ns":..,"lost_after_ns":..,"max_attempts":..,"receivers":..}
//   an event     <now in ns> <number><TAB><JSON>    12000000 7<TAB>{"event":"loader_alive","loader":3}
//   its actions  <TAB><JSON>, in order, before the next event's line
// Every JSON value is one object with the fields of the struct of balancer.h under their own names; "event" or "action"
//   holds the struct's name in snake case (loader_joined, batch_buffer_reserved, give_up_loader). A lease is
//   [lease stream, step, chunk, generation]. All numbers are integers. When reading, a missing field has the struct's
//   default; an unknown event is an error, and so is another version: its balancer decided otherwise. Bytes of a reason
//   that are not UTF-8 are written as U+FFFD.
// Events count from 1, so that one which is missing is noticed even where nothing was decided by it; a log without
//   numbers is read all the same.
// A log cut off anywhere, as where a disk was full, is a log of what came before: replay_log leaves an incomplete last
//   line out, accepts that actions are missing at the end, and says that it was cut off where it can see that.
// Thread-safety: pure functions. Failure behaviour: Error(usage) names what cannot be read; replay_log adds the line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/balancer/balancer.h"

namespace penstock {

std::string log_first_line(const BalancerOptions& options);
std::string log_lines(int64_t number, int64_t now_ns, const Event& event, const std::vector<Action>& actions);
BalancerOptions options_from_first_line(const std::string& line);

}  // namespace penstock
