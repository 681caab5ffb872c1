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

constexpr int PADDED = padded(CODES), KEYS = (CODES + THREADS - 1) / THREADS;
constexpr float WHOLE = 1 << 20;  // the share of the most probable code
constexpr u32 FIRST = 1u << (15 + bits(PADDED)) / 2 * 2;  // of a key's bits, the first pair

// Return the key of which `count` codes have that or a greater one.
__device__ u32 find_cut(const u32* keys, int count, u32* partial) {
    u32 found = 0;
    int turn = 0;
#pragma unroll 1
    for (u32 unit = FIRST; unit; unit /= 4, turn ^= 2 * WARPS) {
        u32 sums[2] = {0, 0};
#pragma unroll
        for (int item = 0; item < KEYS; ++item) {
            sums[0] += (keys[item] >= found + unit) + ((keys[item] >= found + 2 * unit) << 16);
            sums[1] += keys[item] >= found + 3 * unit;
        }
        for (int part = 0; part < 2; ++part) {
            sums[part] = __reduce_add_sync(ALL, sums[part]);
            if (lane() == 0) partial[turn + part * WARPS + warp()] = sums[part];
        }
        __syncthreads();
        sums[0] = sums[1] = 0;
        for (int part = 0; part < WARPS; ++part) {
            sums[0] += partial[turn + part];
            sums[1] += partial[turn + WARPS + part];
        }
        found += unit * (((sums[0] & 0xffff) >= count) + ((sums[0] >> 16) >= count) + (sums[1] >= count));
    }
    return found;
}

// Codes with their keys and shares in shared memory; the first 64 are also in the registers of the warp that calls this.
struct Listed {
    const u32 *keys, *shares;
    int count;
    u32 own_keys[2], own_shares[2];

    __device__ Listed(const u32* keys, const u32* shares, int count) : keys(keys), shares(shares), count(count) {
        for (int half = 0; half < 2; ++half) {
            const int item = half * 32 + lane();
            own_keys[half] = item < count ? keys[item] : 0;
            own_shares[half] = item < count ? shares[item] : 0;
        }
    }

    __device__ u32 sum_from(u32 least) const {
        u32 sum = (own_keys[0] >= least ? own_shares[0] : 0) + (own_keys[1] >= least ? own_shares[1] : 0);
#pragma unroll 1
        for (int item = 64 + lane(); item < count; item += 32) sum += keys[item] >= least ? shares[item] : 0;
        return __reduce_add_sync(ALL, sum);
    }

    // Return the greatest key from which on the shares are at least `least`.
    __device__ u32 find(u32 least) const {
        u32 found = 0;
#pragma unroll 1
        for (u32 unit = FIRST; unit; unit /= 4) {
            const u32 sums[3] = {sum_from(found + unit), sum_from(found + 2 * unit), sum_from(found + 3 * unit)};
            found += unit * ((sums[0] >= least) + (sums[1] >= least) + (sums[2] >= least));
        }
        return found;
    }
};

// Draw a code by inverting the distribution function of the most probable ones; of those alike, the lower comes first.
// A key orders codes: 16 bits of the logit, then those of the code.
__device__ int draw(const bf16* logits, float drawn, u32* room) {
    u32 keys[KEYS], *partial = room, *listed = room + 4 * WARPS + 2, *shares = listed + CODES;
    float numbers[KEYS], most = -INFINITY;
#pragma unroll
    for (int item = 0; item < KEYS; ++item) {
        const int code = item * THREADS + threadIdx.x;
        keys[item] = 0;
        if (code >= CODES) continue;
        u32 bits;
        while ((bits = fresh_one(logits + code)) == NOTHING) yield_program();
        numbers[item] = wide(bits);
        keys[item] = (bits & 0x8000 ? 0xffff - bits : 0x8000 + bits) * PADDED + PADDED - 1 - code;
        most = fmaxf(most, numbers[item]);
    }
    most = most_of_warp(most);
    u32* count = room + 4 * WARPS;
    if (threadIdx.x == 0) *count = 0;
    if (lane() == 0) shares[warp()] = __float_as_uint(most);
    __syncthreads();
    for (int part = 0; part < WARPS; ++part) most = fmaxf(most, __uint_as_float(shares[part]));
    u32 cut = find_cut(keys, min(TOP_K, CODES), partial);
#pragma unroll
    for (int item = 0; item < KEYS; ++item)
        if (keys[item] && keys[item] >= cut) {
            const u32 place = atomicAdd(count, 1u);
            listed[place] = keys[item];
            shares[place] = __expf((numbers[item] - most) * (1 / TEMPERATURE)) * WHOLE + 0.5f;
        }
    __syncthreads();
    if (warp() == 0) {
        const Listed codes(listed, shares, *count);
        u32 total = max(codes.sum_from(0), 1u);
        if (TOP_P < 1) {
            cut = codes.find(min(max(u32(ceilf(TOP_P * total)), 1u), total));
            total = max(codes.sum_from(cut), 1u);
        }
        cut = codes.find(min(u32(drawn * total), total - 1) + 1);
        if (lane() == 0) count[1] = cut;
    }
    __syncthreads();
    cut = count[1];
    __syncthreads();
    // A row that is not numbers has no such code.
    return min(PADDED - 1 - int(cut % PADDED), CODES - 1);
}

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
        static_assert((2 * CODES + 4 * WARPS + 2) * sizeof(u32) <= ROWS * STRIDE * sizeof(bf16));
        for (int request = program; request < batch; request += PROGRAMS) {
            copy_row(nullptr, position, request);
            if (position == 0) continue;
            const int index = request * NUM_CODES + position - 1;
            const bf16* row = half(logits, CODES, position) + request * CODES;
            const int code = draw(row, draws[index], reinterpret_cast<u32*>(normalized));
            if (threadIdx.x == 0) codes[index] = code;
            copy_row(tables + ((position - 1) * CODES + code) * WIDTH, position + 1, request);
        }
    }
}
