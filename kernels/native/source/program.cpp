// A list of op calls, run one after the other without the interpreter between them.
#include <cstdint>

#include "simd.h"

namespace lr {

// As Python packs it: an op of this library and the struct it takes.
struct ProgramStep {
  int32_t (*run)(const void* call);
  const void* call;
};

}  // namespace lr

// 0, or what the first op that failed returned; those behind it do not run.
extern "C" LR_EXPORT int32_t lr_run_program(const lr::ProgramStep* steps, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    int32_t failure = steps[i].run(steps[i].call);
    if (failure != 0) return failure;
  }
  return 0;
}
