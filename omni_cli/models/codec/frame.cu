// A frame's codes after the first in one kernel: all layers, heads and draws of all positions.
//
// Launched operation by operation, a frame is a thousand kernels of three microseconds, most of which wait for the one
// before. Here as many programs (blocks) as the device has room for stay for the whole frame. Each computes its share of
// the columns of every matrix product, from values that it waits for; meanwhile the weights of the next products come.
// Values are rounded where transformers' layers round them.
//
// LAYERS, NUM_CODES, WIDTH, INNER, HEADS, SHARED, SIZE, CODES, TILES, PROGRAMS, SHARED_BYTES, TOP_K, TOP_P, TEMPERATURE
// and EPSILON are defined by `frame_kernel.py`: numbers of layers and of codes after the first; widths of the layers and
// inside their MLPs; heads of queries, of keys and values, and their size; the codes of a codebook; eights of requests;
// and a program's shared memory.
//
// It fits into the caches of instructions: unrolled further, each phase waits for its own code.

#include "frame.cuh"

constexpr int PAIRS = SIZE / 64;  // pairs of a head's numbers in a thread

// A head's numbers in the threads of a warp.
struct Head {
    u32 pairs[PAIRS];

    __device__ void load(const bf16* at) {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) pairs[pair] = fresh_pair(at + (lane() * PAIRS + pair) * 2);
    }
    __device__ u32 greatest(u32 so_far) const {
        for (int pair = 0; pair < PAIRS; ++pair) so_far = __vimax3_u16x2(so_far, so_far, pairs[pair]);
        return so_far;
    }
    __device__ void store(bf16* at) const {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) reinterpret_cast<u32*>(at)[lane() * PAIRS + pair] = pairs[pair];
    }
    // Normalize the head and rotate it to its position; the other half of a number's rotation is 16 threads away.
    __device__ void rotate(const Head& weight, const Head& cosines, const Head& sines) {
        float sum = 0;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) sum += Norm::square(pairs[pair]);
        const float scale = rsqrtf(over_warp(sum) / SIZE + EPSILON), sign = lane() < 16 ? -1 : 1;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const u32 own = Norm::scaled(pairs[pair], weight.pairs[pair], scale), other = __shfl_xor_sync(ALL, own, 16);
            const u32 cosine = cosines.pairs[pair], sine = sines.pairs[pair];
            pairs[pair] = pack(rounded(low(own) * low(cosine)) + rounded(sign * low(other) * low(sine)),
                               rounded(high(own) * high(cosine)) + rounded(sign * high(other) * high(sine)));
        }
    }
    __device__ float product(const Head& with) const {
        float sum = 0;
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair)
            sum += low(pairs[pair]) * low(with.pairs[pair]) + high(pairs[pair]) * high(with.pairs[pair]);
        return sum;
    }
    __device__ void widen(float* to) const {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            to[(lane() * PAIRS + pair) * 2] = low(pairs[pair]);
            to[(lane() * PAIRS + pair) * 2 + 1] = high(pairs[pair]);
        }
    }
    __device__ void add_to(float* sums, float weight) const {
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            sums[2 * pair] += weight * low(pairs[pair]);
            sums[2 * pair + 1] += weight * high(pairs[pair]);
        }
    }
};

// Attention to the positions so far. A warp has the queries of one head of keys and values.
struct Attention {
    static constexpr int GROUP = HEADS / SHARED;
    static constexpr int THREADS_PER_KEY = 32 / padded(LENGTH), PART = SIZE / THREADS_PER_KEY;
    static_assert(PART % 8 == 0 && share(ROWS * SHARED) * GROUP * SIZE <= WARPS * MOST_ROWS * (ROWS + 1));
    Head query_weight, key_weight, cosines, sines;

    // `norms` are of queries and of keys.
    __device__ void load(const bf16* norms, const bf16* cosine, const bf16* sine) {
        query_weight.load(norms);
        key_weight.load(norms + SIZE);
        cosines.load(cosine);
        sines.load(sine);
    }

    // Attend, and keep the new keys and values in `cache` (max_batch, 2, SHARED, LENGTH, SIZE).
    __device__ void apply(const bf16* qkv, bf16* cache, bf16* attended, bf16* cleared, int batch, int position, float* room) {
        const int own = uniform(warp()), past = lane() / THREADS_PER_KEY, begin = lane() % THREADS_PER_KEY * PART;
        float* numbers = room + own * GROUP * SIZE;  // the queries
#pragma unroll 1
        for (int unit = blockIdx.x + PROGRAMS * own; unit < batch * SHARED; unit += PROGRAMS * WARPS) {
            const int request = unit / SHARED, head = unit % SHARED;
            const bf16* row = qkv + request * QKV;
            bf16* keys = cache + (request * 2 * SHARED + head) * LENGTH * SIZE;
            bf16* values = keys + SHARED * LENGTH * SIZE;
            Head key, value, query[GROUP], old[LENGTH];
            uint4 parts[PART / 8];
#pragma unroll
            for (int part = 0; part < PART / 8; ++part)
                parts[part] = past < position ? fresh(keys + past * SIZE + begin + part * 8) : uint4{0, 0, 0, 0};
#pragma unroll
            for (int index = 0; index < LENGTH; ++index) {
                old[index] = {};
                if (index < position) old[index].load(values + index * SIZE);
            }
            for (bool missing = true; missing;) {
                key.load(row + (HEADS + head) * SIZE);
                value.load(row + (HEADS + SHARED + head) * SIZE);
                u32 most = key.greatest(value.greatest(0));
#pragma unroll
                for (int member = 0; member < GROUP; ++member) query[member].load(row + (head * GROUP + member) * SIZE);
#pragma unroll
                for (int member = 0; member < GROUP; ++member) most = query[member].greatest(most);
                missing = lacks(most);
                if (missing) yield_program();
            }
            key.rotate(key_weight, cosines, sines);
            key.store(keys + position * SIZE);
            value.store(values + position * SIZE);
            float scores[GROUP] = {}, newest[GROUP], results[GROUP][2 * PAIRS] = {};
#pragma unroll
            for (int member = 0; member < GROUP; ++member) {
                query[member].rotate(query_weight, cosines, sines);
                newest[member] = over_warp(query[member].product(key)) * rsqrtf(SIZE);
                query[member].widen(numbers + member * SIZE);
            }
            __syncwarp();
#pragma unroll
            for (int part = 0; part < PART / 8; ++part) {
                const u32 pairs[4] = {parts[part].x, parts[part].y, parts[part].z, parts[part].w};
#pragma unroll
                for (int member = 0; member < GROUP; ++member)
#pragma unroll
                    for (int pair = 0; pair < 4; ++pair) {
                        const float* at = numbers + member * SIZE + begin + part * 8 + pair * 2;
                        scores[member] += low(pairs[pair]) * at[0] + high(pairs[pair]) * at[1];
                    }
            }
            __syncwarp();
#pragma unroll
            for (int member = 0; member < GROUP; ++member) {
                for (int distance = 1; distance < THREADS_PER_KEY; distance *= 2)
                    scores[member] += __shfl_xor_sync(ALL, scores[member], distance);
                const float score = past < position ? scores[member] * rsqrtf(SIZE) : -INFINITY;
                const float most = fmaxf(most_of_warp(score), newest[member]);
                scores[member] = __expf(score - most);
                newest[member] = __expf(newest[member] - most);
                const float sum = over_warp(scores[member]) / THREADS_PER_KEY + newest[member];
                scores[member] = __fdividef(scores[member], sum);
                newest[member] = __fdividef(newest[member], sum);
#pragma unroll
                for (int index = 0; index < LENGTH; ++index)
                    old[index].add_to(results[member], __shfl_sync(ALL, scores[member], index * THREADS_PER_KEY));
                value.add_to(results[member], newest[member]);
                Head result;
#pragma unroll
                for (int pair = 0; pair < PAIRS; ++pair)
                    result.pairs[pair] = pack(results[member][2 * pair], results[member][2 * pair + 1]);
                result.store(attended + (request * HEADS + head * GROUP + member) * SIZE);
                for (int pair = 0; pair < PAIRS; ++pair) result.pairs[pair] = NOTHING << 16 | NOTHING;
                result.store(cleared + (request * HEADS + head * GROUP + member) * SIZE);
            }
        }
    }
};

// A key orders codes: 16 bits of the logit, then those of the code, of which the lower comes first.
constexpr int PADDED = padded(CODES), KEYS = (CODES + THREADS - 1) / THREADS, MOST_KEPT = TOP_K < CODES ? TOP_K : CODES;
constexpr float WHOLE = 1 << 20;  // the share of the most probable code

__device__ float find_logit(u32 key) {
    const u32 order = key / PADDED;
    return wide(order & 0x8000 ? order - 0x8000 : 0xffff - order);
}

// Return how many of `count` keys, a multiple of four, are greater than this one.
__device__ int find_rank(u32 key, const u32* keys, int count) {
    int rank = 0;
#pragma unroll 4
    for (int item = 0; item < count; item += 4) {
        const uint4 others = *reinterpret_cast<const uint4*>(keys + item);
        rank += (others.x > key) + (others.y > key) + (others.z > key) + (others.w > key);
    }
    return rank;
}

// In shared memory: the greatest key of each thread; keys that may be kept, in any order; kept keys in their order, and the
// sums of shares up to them; and the number of those that may be kept, the greatest key, and a lower bound of the kept ones.
struct Draw {
    u32 greatest[THREADS], listed[CODES + 4], kept[MOST_KEPT], sums[MOST_KEPT], count, first, bound;

    // Return the first of the kept keys up to which the shares are at least `least`, by one warp.
    __device__ int find(u32 least, int num_kept) const {
        int before = 0;
        for (int begin = 0; begin < num_kept; begin += 32)
            before += __reduce_add_sync(ALL, u32(begin + lane() < num_kept && sums[min(begin + lane(), num_kept - 1)] < least));
        return before;
    }

    // Draw a code by inverting the distribution function of the most probable ones.
    __device__ int apply(const bf16* logits, float drawn) {
        u32 keys[KEYS], own = 0;
#pragma unroll
        for (int item = 0; item < KEYS; ++item) {
            const int code = item * THREADS + threadIdx.x;
            keys[item] = 0;
            if (code >= CODES) continue;
            u32 bits;
            while ((bits = fresh_one(logits + code)) == NOTHING) yield_program();
            keys[item] = (bits & 0x8000 ? 0xffff - bits : 0x8000 + bits) * PADDED + PADDED - 1 - code;
            own = max(own, keys[item]);
        }
        greatest[threadIdx.x] = own;
        if (threadIdx.x == 0) count = 0, bound = 1;
        __syncthreads();
        const int rank = find_rank(own, greatest, THREADS);
        if (rank == 0) first = own;
        if (rank == TOP_K - 1 && own) bound = own;  // as many keys are no less
        __syncthreads();
#pragma unroll
        for (int item = 0; item < KEYS; ++item)
            if (keys[item] >= bound) listed[atomicAdd(&count, 1u)] = keys[item];
        __syncthreads();
        const int num_listed = count, num_kept = min(num_listed, MOST_KEPT);
        if (threadIdx.x < 4) listed[num_listed + threadIdx.x] = 0;
        __syncthreads();
        for (int item = threadIdx.x; item < num_listed; item += THREADS) {
            const int place = find_rank(listed[item], listed, (num_listed + 3) / 4 * 4);
            if (place >= num_kept) continue;
            kept[place] = listed[item];
            sums[place] = __expf((find_logit(listed[item]) - find_logit(first)) * (1 / TEMPERATURE)) * WHOLE + 0.5f;
        }
        __syncthreads();
        if (warp() == 0) {
            u32 total = 0;
#pragma unroll 1
            for (int begin = 0; begin < num_kept; begin += 32) {
                const int item = begin + lane();
                u32 sum = item < num_kept ? sums[item] : 0;
                for (int distance = 1; distance < 32; distance *= 2) {
                    const u32 before = __shfl_sync(ALL, sum, max(lane() - distance, 0));
                    if (lane() >= distance) sum += before;
                }
                sum += total;
                if (item < num_kept) sums[item] = sum;
                total = __shfl_sync(ALL, sum, 31);
            }
            __syncwarp();
            total = max(total, 1u);
            if (TOP_P < 1) {
                const u32 least = min(max(u32(ceilf(TOP_P * total)), 1u), total);
                total = max(sums[min(find(least, num_kept), num_kept - 1)], 1u);
            }
            const int index = find(min(u32(drawn * total), total - 1) + 1, num_kept);
            // Where the greatest logit is infinite or no number, no code has a share: the first one is drawn.
            if (lane() == 0) count = PADDED - 1 - kept[index < num_kept ? index : 0] % PADDED;
        }
        __syncthreads();
        const int code = count;
        __syncthreads();
        return code;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) frame(
    const bf16* given, const float* draws, long long* codes, const bf16* qkv_weight, const bf16* out_weight,
    const bf16* gate_up_weight, const bf16* down_weight, const bf16* norms, const bf16* head_norms, const bf16* last_norm,
    const bf16* head_weight, const bf16* tables, const bf16* cosines, const bf16* sines, bf16* hidden, bf16* qkv,
    bf16* attended, bf16* inner, bf16* logits, bf16* cache, int batch, int max_batch) {
    // Write `codes` (batch, NUM_CODES) that follow the rows `given` (batch, 2, WIDTH).
    const int program = blockIdx.x;
    bf16* normalized = reinterpret_cast<bf16*>(shared_memory());
    float* partial = reinterpret_cast<float*>(normalized + ROWS * STRIDE);
    float* owned = partial + SUMS;
    bf16* slots = reinterpret_cast<bf16*>(owned + OWNED);
    Feed feed = {qkv_weight, out_weight, gate_up_weight, down_weight, head_weight, slots};
    Ring ring = {feed, slots};
    ring.start();
    constexpr int COUNT = share(WIDTH), INNER_COUNT = share(INNER);
    // One half of a room (2, max_batch, columns).
    const auto half = [=](bf16* room, int columns, int use) { return room + use % 2 * max_batch * columns; };
    const auto write = [=](bf16* room, int columns, int use, int request, int column, bf16 value) {
        if (column >= columns) return;
        half(room, columns, use)[request * columns + column] = value;
        half(room, columns, use + 1)[request * columns + column] = NOTHING;
    };
    const auto add = [=](bf16* room, int use, int row, int request, float sum) {
        float& own = owned[request * COUNT + row];
        own = rounded(own + rounded(sum));
        write(room, WIDTH, use, request, program * COUNT + row, narrow(own));
    };
    // Rooms of hidden states: of the codes' embeddings, after attention, and after an MLP.
    bf16 *embedded = hidden, *middle = embedded + 2 * max_batch * WIDTH, *ended = middle + 2 * max_batch * WIDTH;
    const auto copy_row = [=](const bf16* from, int position, int request) {
        for (int item = threadIdx.x * 8; item < WIDTH; item += THREADS * 8) {
            uint4 v = {NOTHING << 16 | NOTHING, NOTHING << 16 | NOTHING, NOTHING << 16 | NOTHING, NOTHING << 16 | NOTHING};
            const auto known = [](u32 pair) { return pack(low(pair), high(pair)); };  // one NaN
            if (from) v = constant(from + item), v = {known(v.x), known(v.y), known(v.z), known(v.w)};
            *reinterpret_cast<uint4*>(half(embedded, WIDTH, position) + request * WIDTH + item) = v;
        }
    };
    for (int request = program; request < batch; request += PROGRAMS)
        for (int position = 0; position < 2; ++position) copy_row(given + (request * 2 + position) * WIDTH, position, request);
    int use = 0;
#pragma unroll 1
    for (int position = 0; position <= NUM_CODES; ++position) {
        bf16* before = half(embedded, WIDTH, position);
        Norm norm;  // its weights are read long before they are used
        norm.load(norms);
#pragma unroll 1
        for (int layer = 0; layer < LAYERS; ++layer, ++use) {
            Attention attention;
            attention.load(head_norms + 2 * layer * SIZE, cosines + position * SIZE, sines + position * SIZE);
            norm.apply(before, batch, normalized);
            norm.load(norms + (2 * layer + 1) * WIDTH);
            ring.multiply_by<Qkv, false>(normalized, STRIDE, batch, partial, [=](int row, int request, float sum) {
                write(qkv, QKV, use, request, program * share(QKV) + row, narrow(sum));
            });
            ring.refill(Qkv::COUNT_SLOTS);
            attention.apply(half(qkv, QKV, use), cache + layer * max_batch * 2 * SHARED * LENGTH * SIZE,
                            half(attended, HEADS * SIZE, use), half(attended, HEADS * SIZE, use + 1), batch, position, partial);
            __syncthreads();
            ring.multiply_by<Out, true>(half(attended, HEADS * SIZE, use), HEADS * SIZE, batch, partial,
                                        [=](int row, int request, float sum) {
                const int column = min(program * COUNT + row, WIDTH - 1);
                if (layer == 0) owned[request * COUNT + row] = wide(fresh_one(before + request * WIDTH + column));
                add(middle, use, row, request, sum);
            });
            ring.refill(Out::COUNT_SLOTS);
            norm.apply(half(middle, WIDTH, use), batch, normalized);
            norm.load(layer + 1 < LAYERS ? norms + 2 * (layer + 1) * WIDTH : last_norm);
            static_assert(2 * INNER_COUNT * sizeof(float) <= STRIDE * sizeof(bf16));
            float* sums = reinterpret_cast<float*>(normalized);
            ring.multiply_by<GateUp, false>(normalized, STRIDE, batch, partial, [=](int row, int request, float sum) {
                sums[request * 2 * INNER_COUNT + row] = rounded(sum);
            });
            __syncthreads();
#pragma unroll 1
            for (int index = threadIdx.x; index < INNER_COUNT * batch; index += THREADS) {
                const int row = index % INNER_COUNT, request = index / INNER_COUNT;
                const float* pair = sums + request * 2 * INNER_COUNT + row;
                const float gate = rounded(__fdividef(pair[0], 1 + __expf(-pair[0])));
                write(inner, INNER, use, request, program * INNER_COUNT + row, narrow(gate * pair[INNER_COUNT]));
            }
            ring.refill(GateUp::COUNT_SLOTS);
            ring.multiply_by<Down, true>(half(inner, INNER, use), INNER, batch, partial, [=](int row, int request, float sum) {
                add(ended, use, row, request, sum);
            });
            ring.refill(Down::COUNT_SLOTS);
            before = half(ended, WIDTH, use);
        }
        // Without a draw, too, all programs are waited for: those that still use what the next position replaces.
        norm.apply(before, batch, normalized);
        if (position > 0) {
            ring.multiply_by<Logits, false>(normalized, STRIDE, batch, partial, [=](int row, int request, float sum) {
                write(logits, CODES, position, request, program * share(CODES) + row, narrow(sum));
            });
            ring.refill(Logits::COUNT_SLOTS);
        }
        static_assert(sizeof(Draw) <= ROWS * STRIDE * sizeof(bf16));
        for (int request = program; request < batch; request += PROGRAMS) {
            copy_row(nullptr, position, request);
            if (position == 0) continue;
            const int index = request * NUM_CODES + position - 1;
            const bf16* row = half(logits, CODES, position) + request * CODES;
            const int code = reinterpret_cast<Draw*>(normalized)->apply(row, draws[index]);
            if (threadIdx.x == 0) codes[index] = code;
            copy_row(tables + ((position - 1) * CODES + code) * WIDTH, position + 1, request);
        }
    }
}
