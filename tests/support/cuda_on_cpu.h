// CUDA's threads as fibers of one CPU thread, for a test of a kernel's logic without a GPU: all blocks run at once, each
// thread until it has to wait for others. Has what `frame.cu` uses.

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#define __device__ inline
#define __global__
#define __noinline__
#define __launch_bounds__(...)

using std::max;
using std::min;

struct uint4 {
    unsigned x, y, z, w;
};
struct Index {
    int x;
};
inline Index threadIdx, blockIdx;

namespace emulated {
struct Barrier {
    int count = 0, generation = 0;
};
struct Block {
    Barrier all;
    std::vector<Barrier> warps;
    std::vector<std::array<uint32_t, 6>> slots;
    std::vector<uint4> memory;
};
struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    Index thread, block;
    bool done = false;
};
struct Copies {
    int count;
    unsigned parity = 0;
    std::vector<std::function<void()>> waiting;
};
inline std::map<void*, Copies> copies;
inline std::vector<Fiber> fibers;
inline std::vector<Block> blocks;
inline ucontext_t scheduler;
inline int current;
inline std::function<void()> body;

inline void yield() { swapcontext(&fibers[current].context, &scheduler); }
inline void wait(Barrier& barrier, int count) {
    const int generation = barrier.generation;
    if (++barrier.count == count) {
        barrier.count = 0;
        ++barrier.generation;
    } else {
        while (barrier.generation == generation) yield();
    }
}
inline Block& block() { return blocks[blockIdx.x]; }
inline void wait_for_warp() { wait(block().warps[threadIdx.x / 32], 32); }
inline std::array<uint32_t, 6>* slots() { return &block().slots[threadIdx.x / 32 * 32]; }
inline void run_fiber() {
    body();
    fibers[current].done = true;
    yield();
}
inline void launch(int num_blocks, int num_threads, size_t shared_bytes, std::function<void()> function) {
    body = std::move(function);
    blocks.assign(num_blocks, {});
    for (Block& each : blocks) {
        each.warps.resize(num_threads / 32);
        each.slots.resize(num_threads);
        each.memory.resize(shared_bytes / sizeof(uint4) + 1);
    }
    fibers.clear();
    fibers.resize(num_blocks * num_threads);
    for (int index = 0; index < int(fibers.size()); ++index) {
        Fiber& fiber = fibers[index];
        fiber.thread.x = index % num_threads;
        fiber.block.x = index / num_threads;
        fiber.stack.reset(new char[1 << 18]);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = 1 << 18;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (size_t finished = 0; finished < fibers.size();) {
        finished = 0;
        for (current = 0; current < int(fibers.size()); ++current) {
            Fiber& fiber = fibers[current];
            if (fiber.done) {
                ++finished;
                continue;
            }
            threadIdx = fiber.thread;
            blockIdx = fiber.block;
            swapcontext(&scheduler, &fiber.context);
        }
    }
}
}  // namespace emulated

template <typename To, typename From>
To same_bits(From value) {
    To result;
    static_assert(sizeof(To) == sizeof(From));
    std::memcpy(&result, &value, sizeof(To));
    return result;
}
inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
inline float rsqrtf(float value) { return 1 / std::sqrt(value); }

inline void __syncthreads() { emulated::wait(emulated::block().all, 32 * emulated::block().warps.size()); }
inline void __syncwarp() { emulated::wait_for_warp(); }
inline float __expf(float value) { return std::exp(value); }
inline float __fdividef(float left, float right) { return left / right; }
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
    emulated::slots()[threadIdx.x % 32][0] = same_bits<uint32_t>(value);
    emulated::wait_for_warp();
    const T result = same_bits<T>(emulated::slots()[source][0]);
    emulated::wait_for_warp();
    return result;
}
template <typename T>
T __shfl_xor_sync(unsigned all, T value, int distance) {
    return __shfl_sync(all, value, threadIdx.x % 32 ^ distance);
}
inline unsigned __vimax3_u16x2(unsigned a, unsigned b, unsigned c) {
    return max({a >> 16, b >> 16, c >> 16}) << 16 | max({a & 0xffff, b & 0xffff, c & 0xffff});
}
inline unsigned __reduce_add_sync(unsigned all, unsigned value) {
    for (int distance = 16; distance; distance /= 2) value += __shfl_xor_sync(all, value, distance);
    return value;
}

inline bool __any_sync(unsigned all, bool value) { return __reduce_add_sync(all, value); }

inline unsigned short narrow(float value) {
    const unsigned bits = __float_as_uint(value);
    return std::isnan(value) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline uint4 fresh(const void* at) { return *static_cast<const uint4*>(at); }
inline unsigned fresh_pair(const void* at) { return *static_cast<const unsigned*>(at); }
inline unsigned short fresh_one(const unsigned short* at) { return *at; }
inline uint4 constant(const void* at) { return *static_cast<const uint4*>(at); }
inline unsigned atomicAdd(unsigned* at, unsigned value) { return (*at += value) - value; }
inline void complete_writes() {}
// A copy comes once its barrier is asked after, and before that its place has no numbers.
inline void prepare(unsigned long long* barrier, int copies) { emulated::copies[barrier] = {copies}; }
inline void copy(void* to, const void* from, unsigned bytes, unsigned long long* barrier) {
    std::memset(to, 0xff, bytes);
    emulated::copies[barrier].waiting.push_back([=] { std::memcpy(to, from, bytes); });
}
inline bool filled(unsigned long long* barrier, unsigned parity) {
    emulated::Copies& copies = emulated::copies[barrier];
    if (int(copies.waiting.size()) == copies.count) {
        for (const auto& each : copies.waiting) each();
        copies.waiting.clear();
        copies.parity ^= 1;
    }
    return copies.parity != parity;
}
inline void yield_program() { emulated::yield(); }
inline char* shared_memory() { return reinterpret_cast<char*>(emulated::block().memory.data()); }

// The fragments of mma.m16n8k16: thread 4 g + t of a warp holds rows g and g + 8 of the left factor and of the sums, column
// g of the right factor, and pairs of the depth at 2 t and 2 t + 8.
inline void multiply(float* sums, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
    const int lane = threadIdx.x % 32;
    emulated::slots()[lane] = {a0, a1, a2, a3, b0, b1};
    emulated::wait_for_warp();
    for (int item = 0; item < 4; ++item) {
        const int row = lane / 4 + item / 2 * 8, column = lane % 4 * 2 + item % 2;
        for (int depth = 0; depth < 16; ++depth) {
            const int thread = depth % 8 / 2, shift = depth % 2 * 16;
            const unsigned left = emulated::slots()[row % 8 * 4 + thread][row / 8 + depth / 8 * 2] >> shift & 0xffff;
            const unsigned right = emulated::slots()[column * 4 + thread][4 + depth / 8] >> shift & 0xffff;
            sums[item] += __uint_as_float(left << 16) * __uint_as_float(right << 16);
        }
    }
    emulated::wait_for_warp();
}
