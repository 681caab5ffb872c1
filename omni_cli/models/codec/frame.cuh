// Parts of `frame.cu`: what a device does, how programs exchange values, products of matrices, and norms.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#ifdef __CUDACC__
__device__ bf16 narrow(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

// Read what programs have written.
__device__ uint4 fresh(const void* at) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
__device__ u32 fresh_pair(const void* at) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
__device__ bf16 fresh_one(const bf16* at) {
    bf16 v;
    asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"(at) : "memory");
    return v;
}

__device__ uint4 constant(const void* at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}

// sums (16 x 8) += left (16 x 16) times right (16 x 8), as the fragments of a warp's threads.
__device__ void multiply(float* sums, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Complete this program's writes so far, before those after the next __syncthreads.
__device__ void complete_writes() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }

// Copies to shared memory: a barrier is there for a number of them, and is filled once for each time that they have come.
__device__ u32 shared_address(const void* at) { return __cvta_generic_to_shared(at); }
__device__ void prepare(u64* barrier, int copies) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;\n\tfence.proxy.async.shared::cta;"
                 : : "r"(shared_address(barrier)), "r"(copies) : "memory");
}
// What is copied leaves the second-level cache first: no cache holds all weights, and this one should hold the rest.
__device__ void copy(void* to, const void* from, u32 bytes, u64* barrier) {
    asm volatile("{ .reg .b64 policy; createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
                 "mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;\n\t"
                 "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%2], [%3], %1, [%0], policy; }"
                 : : "r"(shared_address(barrier)), "r"(bytes), "r"(shared_address(to)), "l"(from) : "memory");
}
__device__ bool filled(u64* barrier, u32 parity) {
    u32 done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    return done;
}
__device__ void yield_program() {}
__device__ char* shared_memory() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<char*>(memory);
}
#endif

constexpr int WARPS = 8, THREADS = 32 * WARPS, STRIDE = WIDTH + 32, ROWS = 8 * TILES;
constexpr u32 ALL = 0xffffffff;
__device__ constexpr int share(int total) { return (total + PROGRAMS - 1) / PROGRAMS; }
__device__ constexpr int padded(int count) { return count < 2 ? 1 : 2 * padded((count + 1) / 2); }
__device__ constexpr int tiles(int columns) { return (columns + 15) / 16; }
constexpr int QKV = (HEADS + 2 * SHARED) * SIZE, LENGTH = NUM_CODES + 1;
constexpr int MOST_ROWS = 16 * (2 * share(INNER) > share(QKV) ? tiles(2 * share(INNER)) : tiles(share(QKV)));

__device__ float wide(u32 bits) { return __uint_as_float(bits << 16); }
__device__ float rounded(float value) { return wide(narrow(value)); }
__device__ int lane() { return threadIdx.x % 32; }
__device__ int warp() { return threadIdx.x / 32; }
// The compiler knows then that it is the same in all threads of a warp, which must all call this.
__device__ int uniform(int value) { return __shfl_sync(ALL, value, 0); }

// Programs exchange values in rooms where each number is NOTHING until it is written: its reader waits for the number
// itself. No sum is NOTHING, since `narrow` has one other NaN. A room has two halves, for alternating uses: who writes one
// clears its part of the other, which all programs have read by then, and will not read before they have got what this
// program writes later.
constexpr u32 NOTHING = 0xffff;

// Pairs of numbers, of which each half is the greatest so far.
__device__ u32 greatest(u32 so_far, uint4 v) { return __vimax3_u16x2(__vimax3_u16x2(so_far, v.x, v.y), v.z, v.w); }
// True if any thread of a warp lacks a number.
__device__ bool lacks(u32 greatest) {
    return __any_sync(ALL, greatest >= NOTHING << 16 || (greatest & 0xffff) == NOTHING);
}

// Wait for numbers `at(index)`. Those of several requests are not asked for before the first ones are there: programs that
// ask again and again would take all the second-level cache can give.
template <int COUNT, typename At>
__device__ void receive(uint4 (&values)[COUNT], int batch, At at) {
    if (batch > 1)
        while (lacks(greatest(0, fresh(at(0))))) yield_program();
    for (bool missing = true; missing;) {
        u32 most = 0;
#pragma unroll
        for (int index = 0; index < COUNT; ++index) values[index] = fresh(at(index));
#pragma unroll
        for (int index = 0; index < COUNT; ++index) most = greatest(most, values[index]);
        missing = lacks(most);
        if (missing) yield_program();
    }
}

// A matrix (TOTAL, DEPTH) for each layer, or GROUPS of them one after the other, of which a program has COUNT rows. They
// come in slots of eight rows and PART of the depth.
__device__ constexpr int gcd(int a, int b) { return b ? gcd(b, a % b) : a; }
constexpr int PART = gcd(gcd(WIDTH, HEADS * SIZE), INNER), PART_STRIDE = PART + 32, SLOT = 8 * PART_STRIDE;
// Shared memory has normalized rows, each warp's sums of a product, the program's own columns of hidden states, and slots.
constexpr int SUMS = WARPS * MOST_ROWS * (ROWS + 1), OWNED = (ROWS * share(WIDTH) + 3) / 4 * 4;
constexpr int SLOTS = (SHARED_BYTES - ROWS * STRIDE * 2 - (SUMS + OWNED) * 4) / (SLOT * 2);
template <int DEPTH, int TOTAL, int GROUPS = 1>
struct Matrix {
    static constexpr int OWN = share(TOTAL), COUNT = GROUPS * OWN, HALVES = COUNT > 8 ? 2 : 1;
    static constexpr int PARTS = DEPTH / PART, COUNT_SLOTS = (COUNT + 7) / 8 * PARTS;

    // Return a thread's row of a slot. Rows that do not exist are others again.
    __device__ static const bf16* find(const bf16* weights, int layer, int slot) {
        const int row = min(slot / PARTS * 8 + lane(), COUNT - 1), own = min(int(blockIdx.x) * OWN + row % OWN, TOTAL - 1);
        return weights + ((layer * GROUPS + row / OWN) * TOTAL + own) * DEPTH + slot % PARTS * PART;
    }
};
using Qkv = Matrix<WIDTH, QKV>;
using Out = Matrix<HEADS * SIZE, WIDTH>;
using GateUp = Matrix<WIDTH, INNER, 2>;
using Down = Matrix<INNER, WIDTH>;
using Logits = Matrix<WIDTH, CODES>;

__device__ int wrapped(int slot) { return slot < SLOTS ? slot : slot - SLOTS; }
__device__ u64* barrier(bf16* slots, int slot) { return reinterpret_cast<u64*>(slots + slot * SLOT + PART); }

// Copies a program's weights to slots, in the order of their use.
struct Feed {
    const bf16 *qkv, *out, *gate_up, *down, *logits;
    bf16* slots;
    int position, layer, next;  // of the slot that is filled next; the last layer is the logits

    // It is one function, for the caches of instructions.
    __device__ __noinline__ void fill(int first, int count) {
        constexpr int ALL_SLOTS = Qkv::COUNT_SLOTS + Out::COUNT_SLOTS + GateUp::COUNT_SLOTS + Down::COUNT_SLOTS;
#pragma unroll 1
        for (int index = 0; index < count && position <= NUM_CODES; ++index) {
            const int slot = wrapped(first + index);
            const bool last = layer == LAYERS;
            int turn = next;
            const bf16* row;
            if (last) row = Logits::find(logits, position - 1, turn);
            else if (turn < Qkv::COUNT_SLOTS) row = Qkv::find(qkv, layer, turn);
            else if ((turn -= Qkv::COUNT_SLOTS) < Out::COUNT_SLOTS) row = Out::find(out, layer, turn);
            else if ((turn -= Out::COUNT_SLOTS) < GateUp::COUNT_SLOTS) row = GateUp::find(gate_up, layer, turn);
            else row = Down::find(down, layer, turn - GateUp::COUNT_SLOTS);
            if (lane() < 8) copy(slots + slot * SLOT + lane() * PART_STRIDE, row, PART * sizeof(bf16), barrier(slots, slot));
            if (++next < (last ? Logits::COUNT_SLOTS : ALL_SLOTS)) continue;
            next = 0;
            if (++layer < LAYERS + (position > 0)) continue;
            layer = 0;
            ++position;
        }
    }
};

// Weights in shared memory. All SLOTS are full or being filled: once a product has used some, those that come next are
// copied there, while the program waits for the others.
struct Ring {
    Feed& feed;
    bf16* slots;
    int first = 0;   // the slot that the next product begins with, and of how often it was filled
    u32 parity = 1;

    __device__ void start() {
        if (threadIdx.x < SLOTS) prepare(barrier(slots, threadIdx.x), 8);
        refill(SLOTS);
    }

    // Fill slots from the first one on, which all warps have used.
    __device__ void refill(int count) {
        __syncthreads();
        if (warp() == WARPS - 2) complete_writes();
        if (warp() == WARPS - 1) feed.fill(first, count);
        first += count;
        parity ^= first >= SLOTS;
        first = wrapped(first);
    }

    // Call `done(row, request, sum)` for each row and request of a product; `factor` are `batch` rows of the depth, `stride`
    // apart. A warp has an eighth of each part of the depth, and a thread eight numbers of two rows of each 16 x 32: of two
    // steps of `multiply`, whose order within the depth is thus another one, for the other factor as well.
    template <typename M, bool FRESH, typename Done>
    __device__ void multiply_by(const bf16* factor, int stride, int batch, float* partial, Done done) {
        constexpr int STEPS = PART / WARPS / 32, TALL = tiles(M::COUNT), across = ROWS + 1;
        static_assert(M::COUNT_SLOTS <= SLOTS && M::COUNT <= MOST_ROWS);
        const int begin = warp() * STEPS * 32 + lane() % 4 * 8;
        constexpr bool ahead = M::PARTS * STEPS * TILES < 32;  // as many as there are registers for
        constexpr int LOADED = (ahead ? M::PARTS : 1) * STEPS * TILES;
        uint4 right[LOADED];
        const auto load = [&](int part) {
            // Requests that do not exist are the last one again.
            const auto at = [=](int index) {
                const int request = min(index % TILES * 8 + lane() / 4, batch - 1), step = index / TILES % STEPS;
                return factor + request * stride + (part + index / TILES / STEPS) * PART + begin + step * 32;
            };
            if constexpr (FRESH)
                receive(right, batch, at);
            else
#pragma unroll
                for (int index = 0; index < LOADED; ++index) right[index] = *reinterpret_cast<const uint4*>(at(index));
        };
        if (ahead) load(0);
        for (int slot = lane(); slot < M::COUNT_SLOTS; slot += 32)
            while (!filled(barrier(slots, wrapped(first + slot)), parity ^ (first + slot >= SLOTS))) yield_program();
        __syncwarp();
        float sums[TALL][TILES][4] = {};
#pragma unroll
        for (int part = 0; part < M::PARTS; ++part) {
            if (!ahead) load(part);
#pragma unroll
            for (int tile = 0; tile < TALL; ++tile) {
                const bf16* rows[2];
                for (int half = 0; half < 2; ++half) {
                    const int slot = wrapped(first + (tile * 2 + half) * M::PARTS + part);
                    rows[half] = slots + slot * SLOT + lane() / 4 * PART_STRIDE + begin;
                }
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const uint4 upper = *reinterpret_cast<const uint4*>(rows[0] + step * 32);
                    uint4 lower = {0, 0, 0, 0};
                    if (tile * 16 + 8 < M::COUNT) lower = *reinterpret_cast<const uint4*>(rows[1] + step * 32);
#pragma unroll
                    for (int n = 0; n < TILES; ++n) {
                        const uint4 other = right[((ahead ? part : 0) * STEPS + step) * TILES + n];
                        multiply(sums[tile][n], upper.x, lower.x, upper.y, lower.y, other.x, other.y);
                        multiply(sums[tile][n], upper.z, lower.z, upper.w, lower.w, other.z, other.w);
                    }
                }
            }
        }
#pragma unroll
        for (int tile = 0; tile < TALL; ++tile)
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int item = 0; item < 2 * M::HALVES; ++item) {
                    const int row = tile * 16 + item / 2 * 8 + lane() / 4, request = n * 8 + lane() % 4 * 2 + item % 2;
                    partial[(warp() * MOST_ROWS + row) * across + request] = sums[tile][n][item];
                }
        __syncthreads();
#pragma unroll 1
        for (int index = threadIdx.x; index < M::COUNT * batch; index += THREADS) {
            const int row = index % M::COUNT, request = index / M::COUNT;
            float sum = 0;
            for (int part = 0; part < WARPS; ++part) sum += partial[(part * MOST_ROWS + row) * across + request];
            done(row, request, sum);
        }
    }
};

__device__ float low(u32 pair) { return wide(pair & 0xffff); }
__device__ float high(u32 pair) { return wide(pair >> 16); }
__device__ u32 pack(float first, float second) { return narrow(first) | u32(narrow(second)) << 16; }
__device__ float over_warp(float sum) {
    for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(ALL, sum, distance);
    return sum;
}
__device__ float most_of_warp(float most) {
    for (int distance = 16; distance; distance /= 2) most = fmaxf(most, __shfl_xor_sync(ALL, most, distance));
    return most;
}

// Root-mean-square norms with weights in the registers of each warp, which has one row at a time.
struct Norm {
    static constexpr int PARTS = WIDTH / 256;
    uint4 weights[PARTS];

    __device__ void load(const bf16* weight) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) weights[part] = constant(weight + part * 256 + lane() * 8);
    }

    __device__ static float square(u32 pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
    __device__ static u32 scaled(u32 pair, u32 weight, float scale) {
        return pack(low(weight) * rounded(low(pair) * scale), high(weight) * rounded(high(pair) * scale));
    }

    // Put the norms of `hidden` (batch, WIDTH) into shared memory, STRIDE apart.
    __device__ void apply(const bf16* hidden, int batch, bf16* normalized) {
        const int own = uniform(warp());
        uint4 values[TILES * PARTS];
        if (own < batch)
            receive(values, batch, [=](int index) {
                const int request = min(index / PARTS * WARPS + own, batch - 1);
                return hidden + request * WIDTH + index % PARTS * 256 + lane() * 8;
            });
#pragma unroll
        for (int index = 0; index < TILES * PARTS; ++index)
            if (index / PARTS * WARPS + own < batch)
                place(normalized, index / PARTS * WARPS + own, index % PARTS) = values[index];
#pragma unroll 1
        for (int request = own; request < batch; request += WARPS) {
            float sum = 0;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const uint4 v = values[part] = place(normalized, request, part);
                sum += square(v.x) + square(v.y) + square(v.z) + square(v.w);
            }
            const float scale = rsqrtf(over_warp(sum) / WIDTH + EPSILON);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const uint4 v = values[part], w = weights[part];
                place(normalized, request, part) = {scaled(v.x, w.x, scale), scaled(v.y, w.y, scale),
                                                    scaled(v.z, w.z, scale), scaled(v.w, w.w, scale)};
            }
        }
        __syncthreads();
    }

    __device__ static uint4& place(bf16* normalized, int request, int part) {
        return *reinterpret_cast<uint4*>(normalized + request * STRIDE + part * 256 + lane() * 8);
    }
};
