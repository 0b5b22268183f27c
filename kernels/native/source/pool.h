// Threads that wait for work in this process; none exist, and nothing synchronises, at one thread.
#pragma once

#include <cstdint>

namespace lr {

using Task = void (*)(void* context, int64_t begin, int64_t end);

int num_threads();

// Calls `task(context, begin, end)` for ranges that cover [0, count) once, `grain` items each (the
// last may be shorter), on this thread and on whichever workers are awake. A worker that the
// system does not run costs nothing: its share is taken by the others.
void run_ranges(int64_t count, int64_t grain, Task task, void* context);

template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, const Body& body) {
  run_ranges(
      count, grain,
      [](void* context, int64_t begin, int64_t end) { (*(const Body*)context)(begin, end); },
      (void*)&body);
}

// Memory of the calling thread, at least `bytes`, aligned to 64; valid until its next call with
// the same `slot`. Null when there is no memory.
void* scratch(int slot, int64_t bytes);

enum ScratchSlot : int {
  kQuantized,
  kRowScales,
  kAttention,
  kPartials,
  kWeights,
  kCandidates,
  kLatents,
  kBiases,
  kNumSlots
};

}  // namespace lr
