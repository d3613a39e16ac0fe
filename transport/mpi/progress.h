// The one thread that speaks MPI: takes orders from a queue, moves bytes, hands arrivals over.
//
// Messages are two-sided and non-blocking. Tags: 1 control; 2 a chunk's envelope, preceded by its payload size (u64), the
// number of pieces that were sent to this rank before it (u64) and the CRC-32C of both (u32); 3 its payload, cut into pieces
// of at most max_message_bytes, in order. MPI keeps messages of one tag between two ranks in order, so receives that are
// posted envelope by envelope match the right pieces.
//
// Nothing waits in a call for a message to be whole, which takes its sender, who may stand still: later ones of the same
// sender wait for it, and nobody else.
//
// Receiving never touches a batch buffer: pieces land in a staging buffer that the thread owns until the event loop
//   releases it.
//
//     envelope --> staging buffer taken, receives posted --> all pieces in --> ChunkArrived --> release --> reused
//
// When the peer dies in between, the receives may never complete and MPI may still write: the staging buffer is
// quarantined (kept, never reused) until the process ends. Once it is abandoned, neither its requests nor its messages
// are looked at again (one that is whole when it is found is dropped), so that they keep the thread neither polling nor from
// flushing; sends to it, which Open MPI 4 may answer over TCP by ending this rank, are not begun. What is under way with a
// peer that was given up as silent is looked at as ever, because it may still complete, but keeps the thread neither polling
// nor from flushing until the peer is heard.
//
// An envelope that cannot be read is PeerDamaged, and its chunk is lost. The next envelope tells how many pieces belong to
// what was lost: these are received first, and dropped. Until it comes, if it does, pieces are dropped as they come, so that
// the sender does not wait for them at its end.
//
// What MPI says of one peer costs that peer: a call that fails for it, or (Open MPI 5 with ULFM) its process, is a
// PeerLost, and what is under way with it is set aside. An error that belongs to nobody loses everybody.
//
// Backing off: the thread polls while something moves, then sleeps (polling_backoff.h). An order from this rank waits
// for a sleep's end while there is traffic, and ends the long sleeps of silence.
// Sources: progress.cpp is the traffic; progress_lifetime.cpp is the way into MPI and out of it, and collectives.
// Threads: everything public is called from the event loop, or from the thread that owns the session; the thread itself
// is the only one to call MPI. mutex_ guards what both touch.
#pragma once

#include <mpi.h>

#include <deque>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/thread_annotations.h"
#include "transport/mpi/fault_tolerance.h"
#include "transport/mpi_component.h"
#include "transport/transport.h"
#include "transport/wakeup.h"

namespace penstock::mpi {

class Progress : public std::enable_shared_from_this<Progress> {
 public:
  // Starts the thread, which calls MPI_Init_thread, or duplicates the program's communicator, and waits for that.
  // Error(runtime) where options.asked_to_end says so, Error(peer_lost) after options.start_timeout_s; the thread, which
  // nothing can call back from MPI, is then left behind with all it uses.
  static std::shared_ptr<Progress> start(const MpiOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  const MpiWorldInfo& world() const noexcept { return world_; }
  std::vector<std::string> all_gather(const std::string& mine);
  void barrier();
  int communicator_of(bool in);
  bool finish(bool all_alive, Nanoseconds timeout_ns);
  const std::string& why_unfinished() const noexcept { return why_unfinished_; }
  bool asked_to_end() const { return is_asked(asked_to_end_); }

  // The endpoint's side.
  void send(PeerId peer, Message message) PENSTOCK_EXCLUDES(mutex_);
  void send_chunk(PeerId peer, Message envelope, ChunkBufferRef chunk_buffer, const std::byte* payload, size_t bytes)
      PENSTOCK_EXCLUDES(mutex_);
  void release(uint64_t token) PENSTOCK_EXCLUDES(mutex_);
  void abandon(PeerId peer) PENSTOCK_EXCLUDES(mutex_);
  void give_up(PeerId peer) PENSTOCK_EXCLUDES(mutex_);
  bool poll(Incoming& incoming) PENSTOCK_EXCLUDES(mutex_);
  int wakeup_fd() const noexcept { return wakeup_.fd(); }
  bool flush(Nanoseconds timeout_ns) PENSTOCK_EXCLUDES(mutex_);

 private:
  struct Order {
    PeerId peer = 0;
    Message message;
    bool chunk = false;
    ChunkBufferRef chunk_buffer;
    const std::byte* payload = nullptr;
    size_t bytes = 0;
  };
  struct Outgoing {  // keeps what MPI reads from alive until its requests complete
    Message message;
    std::vector<MPI_Request> requests;
    bool chunk = false;
    PeerId peer = 0;
    ChunkBufferRef chunk_buffer;
    Nanoseconds begun = 0;
  };
  struct Reading {  // a message, or an envelope, that is not whole yet
    PeerId peer = 0;
    int tag = 0;
    Message message;
    std::vector<MPI_Request> requests;
  };
  struct Arriving {
    PeerId peer = 0;
    Message envelope;
    std::unique_ptr<std::vector<std::byte>> staging;
    size_t bytes = 0;
    std::vector<MPI_Request> requests;
    bool dropped = false;  // a piece of a chunk whose envelope could not be read
  };

  explicit Progress(const MpiOptions& options);
  void run();
  void initialise();
  void start_mpi();
  void take_communicator(int handle);
  bool meet_at_end(Nanoseconds timeout_ns) PENSTOCK_EXCLUDES(mutex_);
  std::optional<std::string> finalise(Nanoseconds timeout_ns) PENSTOCK_EXCLUDES(mutex_);
  void take_result(std::future<void>& finished) PENSTOCK_EXCLUDES(mutex_);
  void end_thread() PENSTOCK_EXCLUDES(mutex_);
  void leave_behind() PENSTOCK_EXCLUDES(mutex_);
  bool at_end();
  static int on_finalize(MPI_Comm, int, void* progress, void*);
  void loop();
  void set_aside();
  bool succeeds(PeerId peer, int code, const char* call);
  bool complete(PeerId peer, std::vector<MPI_Request>& requests);
  void lose(PeerId peer, const std::string& why);
  void find_who_failed(int code);
  void begin_send(const Order& order, Outgoing& out);
  bool start_orders();
  void begin_receive(PeerId peer, const Message& message);
  bool drop_piece(PeerId peer);
  bool drop_pieces(PeerId peer, uint64_t before);
  bool drop_stray_pieces();
  bool receive_messages();
  bool complete_messages();
  void complete_sends();
  bool complete_receives();
  bool must_drive(Nanoseconds now) const;
  bool any_send_to_wait_for() const;
  void call_in_thread(std::function<void()> work) PENSTOCK_EXCLUDES(mutex_);
  void deliver(Incoming incoming);
  std::unique_ptr<std::vector<std::byte>> staging_buffer(size_t bytes);

  MpiWorldInfo world_;
  const int64_t max_message_bytes_;
  const double start_timeout_s_;
  const std::optional<int> programs_communicator_;
  const std::function<void()> before_finalize_;
  const AskedToEnd asked_to_end_;  // called by the session's owner alone, never by the thread
  MPI_Comm comm_ = MPI_COMM_NULL;  // our own duplicate, with MPI_ERRORS_RETURN
  std::promise<void> started_;
  std::thread thread_;
  Wakeup wakeup_;
  std::string why_unfinished_;  // written by the thread that calls finish()

  // Used by the thread alone:
  bool finalised_ = false;
  int finalize_key_ = MPI_KEYVAL_INVALID;        // of an attribute that MPI_Finalize deletes
  MPI_Comm programs_ = MPI_COMM_NULL;            // what was joined
  MPI_Request last_barrier_ = MPI_REQUEST_NULL;  // of who joined: never waited for
  std::list<Outgoing> sending_;
  std::list<Reading> reading_;
  std::list<Arriving> arriving_;
  std::map<PeerId, uint64_t> pieces_sent_;
  std::map<PeerId, uint64_t> pieces_taken_;  // that a receive was begun for
  std::set<PeerId> unclear_;                 // a chunk of theirs was lost, and no readable envelope has come since
  FaultTolerance ulfm_;
  std::set<PeerId> dead_;    // as of the last look at abandoned_, and those that MPI has lost since
  size_t set_aside_ = 0;     // of those, so many have nothing under way any more
  std::set<PeerId> silent_;  // given up, and not heard since
  size_t acknowledged_ = 0;  // to MPI
  std::vector<MPI_Status> statuses_;
  // What belongs to dead peers. Their requests may never complete, and MPI may use their memory as long as it lives:
  // nobody looks at them again.
  std::list<Outgoing> sends_set_aside_;
  std::list<Reading> messages_set_aside_;
  std::list<Arriving> arrivals_set_aside_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Order> orders_ PENSTOCK_GUARDED_BY(mutex_);
  std::deque<Incoming> arrived_ PENSTOCK_GUARDED_BY(mutex_);
  std::set<PeerId> abandoned_ PENSTOCK_GUARDED_BY(mutex_);
  std::set<PeerId> given_up_ PENSTOCK_GUARDED_BY(mutex_);                    // and not in silent_ yet
  std::deque<std::packaged_task<void()>> work_ PENSTOCK_GUARDED_BY(mutex_);  // collective calls, for the thread to make
  std::map<uint64_t, std::unique_ptr<std::vector<std::byte>>> staged_ PENSTOCK_GUARDED_BY(mutex_);  // by token
  std::vector<std::unique_ptr<std::vector<std::byte>>> spare_ PENSTOCK_GUARDED_BY(mutex_);
  uint64_t next_token_ PENSTOCK_GUARDED_BY(mutex_) = 1;
  bool busy_ PENSTOCK_GUARDED_BY(mutex_) = false;         // the thread has sends under way
  bool order_wakes_ PENSTOCK_GUARDED_BY(mutex_) = false;  // the thread sleeps for longer than an order may wait
  bool stopping_ PENSTOCK_GUARDED_BY(mutex_) = false;
  bool ends_now_ PENSTOCK_GUARDED_BY(mutex_) = false;  // whatever is under way
  bool left_behind_ PENSTOCK_GUARDED_BY(mutex_) = false;
  bool all_met_ PENSTOCK_GUARDED_BY(mutex_) = false;  // at the barrier of the end
  bool failed_ PENSTOCK_GUARDED_BY(mutex_) = false;
  std::string failure_ PENSTOCK_GUARDED_BY(mutex_);
};

}  // namespace penstock::mpi
