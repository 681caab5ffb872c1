// Parts of `frame.cu`: what a device does, how programs wait for each other, products of matrices, and norms.

typedef unsigned short bf16;
typedef unsigned int u32;

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#ifdef __CUDACC__
__device__ bf16 narrow(float value) {
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

// Read what other programs have written.
__device__ uint4 fresh(const void* at) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at));
    return v;
}
__device__ u32 fresh_pair(const void* at) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(at));
    return v;
}
__device__ bf16 fresh_one(const bf16* at) {
    bf16 v;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(v) : "l"(at));
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
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ void add_released(u32* counter) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(counter)); }
__device__ u32 read_acquired(const u32* counter) {
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter));
    return value;
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
__device__ constexpr int bits(int count) { return count < 2 ? 0 : 1 + bits(count / 2); }
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

__device__ void arrive(u32* counter) {
    __syncthreads();
    if (threadIdx.x == 0) add_released(counter);
}

// Wait until all programs have arrived so many times.
__device__ void wait(const u32* counter, int times) {
    if (threadIdx.x == 0)
        while (read_acquired(counter) < u32(times) * PROGRAMS) yield_program();
    __syncthreads();
}

// Weights of a program's rows of a matrix (total, DEPTH) in the registers of its threads. A warp has an eighth of the
// depth, and a thread eight numbers of two rows of each 16 x 32: of two steps of `multiply`, whose order within the depth
// is thus another one, for the other factor as well.
template <int DEPTH, int COUNT>
struct Weights {
    static constexpr int STEPS = DEPTH / WARPS / 32, HALVES = COUNT > 8 ? 2 : 1;
    uint4 values[tiles(COUNT)][STEPS][HALVES];

    template <typename Row>
    __device__ void load(Row row) {
#pragma unroll
        for (int tile = 0; tile < tiles(COUNT); ++tile)
#pragma unroll
            for (int half = 0; half < HALVES; ++half) {
                const bf16* at = row(tile * 16 + half * 8 + lane() / 4);
#pragma unroll
                for (int step = 0; step < STEPS; ++step)
                    values[tile][step][half] =
                        at ? constant(at + (warp() * STEPS + step) * 32 + lane() % 4 * 8) : uint4{0, 0, 0, 0};
            }
    }

    // Call `done(row, request, sum)` for each row and request; `factor` are `batch` rows of DEPTH, `stride` apart.
    template <bool FRESH, typename Done>
    __device__ void multiply_by(const bf16* factor, int stride, int batch, float* partial, Done done) {
        float sums[tiles(COUNT)][TILES][4] = {};
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int n = 0; n < TILES; ++n) {
                const int request = n * 8 + lane() / 4;
                const bf16* at = factor + request * stride + (warp() * STEPS + step) * 32 + lane() % 4 * 8;
                uint4 right = {0, 0, 0, 0};
                if (request < batch) right = FRESH ? fresh(at) : *reinterpret_cast<const uint4*>(at);
#pragma unroll
                for (int tile = 0; tile < tiles(COUNT); ++tile) {
                    const uint4 upper = values[tile][step][0];
                    const uint4 lower = HALVES == 2 ? values[tile][step][HALVES - 1] : uint4{0, 0, 0, 0};
                    multiply(sums[tile][n], upper.x, lower.x, upper.y, lower.y, right.x, right.y);
                    multiply(sums[tile][n], upper.z, lower.z, upper.w, lower.w, right.z, right.w);
                }
            }
        constexpr int across = ROWS + 1;
#pragma unroll
        for (int tile = 0; tile < tiles(COUNT); ++tile)
#pragma unroll
            for (int n = 0; n < TILES; ++n)
#pragma unroll
                for (int item = 0; item < 2 * Weights::HALVES; ++item) {
                    const int row = tile * 16 + item / 2 * 8 + lane() / 4, request = n * 8 + lane() % 4 * 2 + item % 2;
                    partial[(warp() * MOST_ROWS + row) * across + request] = sums[tile][n][item];
                }
        __syncthreads();
#pragma unroll 1
        for (int index = threadIdx.x; index < COUNT * batch; index += THREADS) {
            const int row = index % COUNT, request = index / COUNT;
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
        uint4 values[TILES][PARTS];
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                if (n * WARPS + own < batch)
                    values[n][part] = fresh(hidden + (n * WARPS + own) * WIDTH + part * 256 + lane() * 8);
#pragma unroll
        for (int n = 0; n < TILES; ++n)
#pragma unroll
            for (int part = 0; part < PARTS; ++part)
                if (n * WARPS + own < batch) place(normalized, n * WARPS + own, part) = values[n][part];
#pragma unroll 1
        for (int request = own; request < batch; request += WARPS) {
            float sum = 0;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const uint4 v = values[0][part] = place(normalized, request, part);
                sum += square(v.x) + square(v.y) + square(v.z) + square(v.w);
            }
            const float scale = rsqrtf(over_warp(sum) / WIDTH + EPSILON);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const uint4 v = values[0][part], w = weights[part];
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
