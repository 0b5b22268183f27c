#include "pool.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "simd.h"

namespace lr {
namespace {

constexpr int kThreadsMax = 256;
constexpr std::chrono::microseconds kSpin{50};  // the usual gap between two ops of a layer
constexpr int kSpinsBeforeYield = 2000;
constexpr int64_t kRangesMax = 0xffff;

// One job at a time. `ticket` is generation << 32 | ranges << 16 | next range: a worker that wakes
// late fails to draw from it and touches nothing else, so the job may be gone by then.
struct Job {
  Task task;
  void* context;
  int64_t count;
  int64_t grain;
};

Job job;
std::atomic<uint64_t> ticket{0};
std::atomic<uint32_t> num_done{0};
std::atomic<int> num_sleeping{0};
std::atomic<int> num_wanted{1};
std::atomic_flag is_busy = ATOMIC_FLAG_INIT;
int num_started = 0;
// Plain pointers: after fork() a child leaves these behind instead of touching their state.
std::mutex* sleep_lock = new std::mutex;
std::condition_variable* wake_up = new std::condition_variable;

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool is_open(uint64_t drawn) { return (drawn & 0xffff) < ((drawn >> 16) & 0xffff); }

void draw_until_empty() {
  uint64_t drawn = ticket.load(std::memory_order_acquire);
  while (is_open(drawn)) {
    if (!ticket.compare_exchange_weak(drawn, drawn + 1, std::memory_order_acq_rel)) continue;
    int64_t begin = (int64_t)(drawn & 0xffff) * job.grain;
    int64_t end = begin + job.grain < job.count ? begin + job.grain : job.count;
    job.task(job.context, begin, end);
    num_done.fetch_add(1, std::memory_order_release);
    drawn = ticket.load(std::memory_order_acquire);
  }
}

// True when there is a job within `kSpin`.
bool spin_for_job() {
  auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 8; ++i) {
      if (is_open(ticket.load(std::memory_order_relaxed))) return true;
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

void work(int index) {
  for (;;) {
    draw_until_empty();
    if (spin_for_job()) continue;
    std::unique_lock<std::mutex> held(*sleep_lock);
    num_sleeping.fetch_add(1, std::memory_order_seq_cst);
    wake_up->wait(held, [index] {
      return is_open(ticket.load(std::memory_order_seq_cst)) &&
             index < num_wanted.load(std::memory_order_relaxed);
    });
    num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void forget_threads() {
  num_started = 0;
  num_sleeping.store(0);
  ticket.store(0);
  is_busy.clear();
  sleep_lock = new std::mutex;
  wake_up = new std::condition_variable;
}

}  // namespace

int num_threads() { return num_wanted.load(std::memory_order_relaxed); }

void run_ranges(int64_t count, int64_t grain, Task task, void* context) {
  if (grain < 1) grain = 1;
  if (count <= grain || num_threads() == 1) return task(context, 0, count);
  if (count > grain * kRangesMax) grain = (count + kRangesMax - 1) / kRangesMax;
  // Another thread of this process is inside: two jobs do not mix, one of them goes alone.
  if (is_busy.test_and_set(std::memory_order_acquire)) return task(context, 0, count);
  uint64_t num_ranges = (uint64_t)((count + grain - 1) / grain);
  uint64_t generation = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
  job = Job{task, context, count, grain};
  num_done.store(0, std::memory_order_relaxed);
  ticket.store(generation << 32 | num_ranges << 16, std::memory_order_seq_cst);
  if (num_sleeping.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> held(*sleep_lock);
    wake_up->notify_all();
  }
  draw_until_empty();
  for (int spins = 0; num_done.load(std::memory_order_acquire) < num_ranges; ++spins) {
    pause_briefly();
    if (spins > kSpinsBeforeYield) sched_yield();
  }
  is_busy.clear(std::memory_order_release);
}

void* scratch(int slot, int64_t bytes) {
  struct Buffer {
    void* memory = nullptr;
    int64_t bytes = 0;
    ~Buffer() { std::free(memory); }
  };
  static thread_local Buffer buffers[kNumSlots];
  Buffer& buffer = buffers[slot];
  if (buffer.bytes < bytes) {
    std::free(buffer.memory);
    buffer.bytes = 0;
    int64_t rounded = (bytes + bytes / 4 + 4095) / 4096 * 4096;
    buffer.memory = std::aligned_alloc(64, (size_t)rounded);
    if (buffer.memory != nullptr) buffer.bytes = rounded;
  }
  return buffer.memory;
}

}  // namespace lr

extern "C" LR_EXPORT int32_t lr_set_num_threads(int32_t wanted) {
  using namespace lr;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_threads);
  (void)registered;
  if (wanted < 1) wanted = 1;
  if (wanted > kThreadsMax) wanted = kThreadsMax;
  while (is_busy.test_and_set(std::memory_order_acquire)) pause_briefly();
  for (; num_started < wanted - 1; ++num_started) {
    try {
      std::thread(work, num_started + 1).detach();
    } catch (...) {
      wanted = num_started + 1;
      break;
    }
  }
  num_wanted.store(wanted);
  is_busy.clear(std::memory_order_release);
  return wanted;
}

extern "C" LR_EXPORT int32_t lr_num_threads() { return lr::num_threads(); }
