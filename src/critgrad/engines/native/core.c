/* The native core for a CPU: norms and inner products, the decision, and the pass that combines and inserts; for the bases of
   bases/families.py that pass makes the base's update, too.

   Plain C; compiled at first use (build.py). A step is measure(), decide(), apply(); what a policy of Python functions has
   decided is in the rows before decide(). Work is handed out in chunks by a shared counter, so a core that is busy elsewhere
   holds nobody up, and what is computed does not depend on who computes it. Letters as in the paper: g, theta (here p); G are
   the slots, K = G G', a = G g, w what the damping takes of each slot. */

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { NONE, SGD, MOMENTUM, NESTEROV, RMSPROP, RMSPROP_MOMENTUM, ADAM, NADAM }; /* NONE: the direction is written, the base steps by itself */
enum { MOST_THREADS = 64, BLOCK = 4096 }; /* values whose products are summed in single precision; 16 kB stay in cache */

/* One parameter. m and v are the base's buffers in the order of families.py; sum is NULL where the memory damps, out (where the
   direction goes) where the base's update is made here. */
typedef struct {
    float *p, *m, *v, *slots, *sum, *step, *product, *out; /* product: of NAdam's momenta so far */
    int64_t length, row, group, number, refresh_length, refresh_steps;
} Part;

/* One parameter group. */
typedef struct {
    int64_t family, maximize, decoupled;
    double lr, weight_decay, beta1, beta2, eps, momentum, momentum_decay;
} Group;

/* What the decision says of a row of the memory's tables. */
typedef struct {
    int64_t accept, slot, clock, finite, live; /* clock after the step, live entries before it */
} Row;

typedef struct {
    double scale, share;
} Adding;

typedef struct {
    double rho, kappa;
} Damping;

typedef struct {
    int64_t part, start, stop;
} Chunk;

/* A memory: its tables, those of its parameters, and room for what a step computes. */
typedef struct {
    const Part *parts;
    const Group *groups;
    const float *const *grads; /* NULL: no gradient */
    const Chunk *chunks;
    float *priority, *norm; /* [row][slot], as born and used */
    int64_t *born, *clock, *inserted;
    const int64_t *stream;
    const double *offered; /* [row]: the caller's priorities; NULL: the norm */
    double *gram; /* [row][slot][slot]; NULL where nothing damps */
    Row *rows;
    const Adding *adding; /* [part.group][live entries] */
    const Damping *damping; /* [part.group] */
    float *weights; /* w: [part.group][row][slot] */
    int64_t *used; /* the slots that were live before the step, row.live of them */
    double *squares, *dots; /* |g|^2 and a of each chunk */
    double *sums; /* [row][1]: |g|^2; where the memory damps [row][2 + topC]: |g|^2, the same over what damps, a */
    double *room; /* topC * (topC + 1) numbers to solve in */
    void *parallel; /* GOMP_parallel of the pool that torch computes with; NULL: threads of our own */
    int64_t part_count, chunk_count, row_count, topC, damping_count, threads, empty, policy, seed, every, max_age;
    double decay;
} Memory;

/* -- measuring ------------------------------------------------------------------------------------------------------- */

typedef float Vec __attribute__((vector_size(64), aligned(4), may_alias));
enum { LANES = 16 };

static inline double lanes(Vec x) {
    double total = 0;
    for (int j = 0; j < LANES; j++) total += x[j];
    return total;
}

static double dot(const float *a, const float *b, int64_t n) {
    Vec x = {0}, y = {0};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        x += *(const Vec *)(a + i) * *(const Vec *)(b + i);
        y += *(const Vec *)(a + i + LANES) * *(const Vec *)(b + i + LANES);
    }
    double total = lanes(x) + lanes(y);
    for (; i < n; i++) total += (double)a[i] * b[i];
    return total;
}

/* Values of the four slots used[0] to used[3]; of fewer the first once more, for nothing. */
static void four_slots(const Part *part, const int64_t *used, int64_t count, int64_t at, const float **s) {
    for (int j = 0; j < 4; j++) s[j] = part->slots + used[j < count ? j : 0] * part->length + at;
}

/* Of g with four others at once: more loads in flight, and g is read once for all of them. */
static void four_dots(const float *g, const float *const *s, int64_t n, double *out) {
    Vec a = {0}, b = {0}, c = {0}, d = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const Vec x = *(const Vec *)(g + i);
        a += x * *(const Vec *)(s[0] + i);
        b += x * *(const Vec *)(s[1] + i);
        c += x * *(const Vec *)(s[2] + i);
        d += x * *(const Vec *)(s[3] + i);
    }
    out[0] = lanes(a);
    out[1] = lanes(b);
    out[2] = lanes(c);
    out[3] = lanes(d);
    for (; i < n; i++)
        for (int k = 0; k < 4; k++) out[k] += (double)g[i] * s[k][i];
}

static void measure_chunk(const Memory *w, int64_t c) {
    const Chunk k = w->chunks[c];
    const Part *part = w->parts + k.part;
    const float *g = w->grads[k.part];
    double *dots = part->sum ? 0 : w->dots + c * w->topC;
    w->squares[c] = 0;
    if (dots) memset(dots, 0, sizeof(double) * w->topC);
    if (!g) return;
    const int64_t *used = w->used + part->row * w->topC, live = w->rows[part->row].live;
    for (int64_t at = k.start; at < k.stop; at += BLOCK) {
        const int64_t n = k.stop - at < BLOCK ? k.stop - at : BLOCK;
        w->squares[c] += dot(g + at, g + at, n);
        for (int64_t i = 0; dots && i < live; i += 4) {
            const float *s[4];
            double products[4];
            four_slots(part, used + i, live - i, at, s);
            four_dots(g + at, s, n, products);
            for (int64_t j = i; j < live && j < i + 4; j++) dots[used[j]] += products[j - i];
        }
    }
}

static void find_live(Memory *w) {
    w->empty = 1;
    for (int64_t r = 0; r < w->row_count; r++) {
        int64_t live = 0;
        for (int64_t k = 0; k < w->topC; k++)
            if (w->born[r * w->topC + k] > 0) w->used[r * w->topC + live++] = k;
        w->rows[r].live = live;
        w->empty &= live == 0;
    }
}

static inline double *sums_of(const Memory *w, int64_t row) { return w->sums + row * (w->gram ? 2 + w->topC : 1); }

/* The chunks' sums, added up in the chunks' order. */
static void add_up(Memory *w) {
    const int64_t C = w->topC;
    memset(w->sums, 0, sizeof(double) * w->row_count * (w->gram ? 2 + C : 1));
    for (int64_t c = 0; c < w->chunk_count; c++) {
        const Part *part = w->parts + w->chunks[c].part;
        double *sums = sums_of(w, part->row);
        sums[0] += w->squares[c];
        if (part->sum) continue;
        sums[1] += w->squares[c];
        for (int64_t k = 0; k < C; k++) sums[2 + k] += w->dots[c * C + k];
    }
}

/* -- the decision: the twin of policies.decide and policies.advance -------------------------------------------------- */

enum { ASKED = -1, KOTH, BOTTOMC, FIFO, RANDOM, MNDS, RR, NCPR, SPARSE };
enum { ADMISSION, EVICTION };

static uint32_t mix32(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7FEB352Du;
    x = (x ^ (x >> 15)) * 0x846CA68Bu;
    return x ^ (x >> 16);
}

static double uniform(int64_t seed, int64_t t, int64_t stream, int64_t purpose) {
    uint32_t h = mix32((uint32_t)t ^ (uint32_t)seed);
    h = mix32(h ^ (uint32_t)(t >> 32) ^ (uint32_t)(seed >> 32));
    h = mix32(h + (uint32_t)(stream * 2 + purpose));
    return h * 0x1p-32;
}

typedef struct {
    float *priority, *norm;
    int64_t *born;
    int64_t topC, live, t, stream;
    float g, entry; /* the norm, and the priority that asks for a place */
} Table;

/* By priority, of equal ones the oldest; or by age alone. Free slots are passed over. */
static int64_t first_to_go(const Table *m, int by_age) {
    int64_t best = -1;
    for (int64_t k = 0; k < m->topC; k++) {
        if (m->born[k] == 0) continue;
        if (best < 0 || (!by_age && m->priority[k] < m->priority[best]) ||
            ((by_age || m->priority[k] == m->priority[best]) && m->born[k] < m->born[best]))
            best = k;
    }
    return best;
}

static int admits(const Table *m, int64_t policy, int64_t seed, int64_t every) {
    if (policy == RANDOM) return uniform(seed, m->t, m->stream, ADMISSION) < 0.5;
    if (policy == SPARSE) return (m->t - 1) % every == 0;
    if (m->live < m->topC || policy == FIFO) return 1;
    if (policy == MNDS) {
        float mean = 0;
        for (int64_t k = 0; k < m->topC; k++) mean += m->norm[k];
        mean /= (float)m->live;
        return uniform(seed, m->t, m->stream, ADMISSION) * mean < fabsf(m->g - mean);
    }
    return m->entry > m->priority[first_to_go(m, 0)];
}

static int64_t victim(const Table *m, int64_t policy, int64_t seed) {
    if (policy == FIFO || policy == SPARSE) return first_to_go(m, 1);
    if (policy != RR && policy != NCPR) return first_to_go(m, 0);
    double draw = uniform(seed, m->t, m->stream, EVICTION), total = 0, running = 0;
    int64_t k = 0;
    if (policy == RR) {
        k = (int64_t)(draw * (double)m->topC);
    } else {
        for (int64_t i = 0; i < m->topC; i++) total += m->norm[i];
        while (k < m->topC && (running += m->norm[k]) <= draw * total) k++;
    }
    return k < m->topC ? k : m->topC - 1;
}

static void choose(Memory *w) {
    const int64_t topC = w->topC, policy = w->policy;
    for (int64_t r = 0; r < w->row_count; r++) {
        Row row = {.clock = w->clock[r], .live = w->rows[r].live};
        Table m = {w->priority + r * topC, w->norm + r * topC, w->born + r * topC, topC, row.live, row.clock + 1,
                   w->stream[r], sqrtf((float)*sums_of(w, r)), 0};
        const float offered = w->offered ? (float)w->offered[r] : m.g;
        m.entry = policy == BOTTOMC ? fminf(1 / offered, FLT_MAX) : offered;
        int64_t free_slot = 0;
        while (free_slot < topC && m.born[free_slot] > 0) free_slot++;
        row.finite = isfinite(m.g);
        if (row.finite) {
            int64_t oldest = first_to_go(&m, 1);
            int expired = w->max_age > 0 && oldest >= 0 && m.t - m.born[oldest] >= w->max_age;
            if (m.g > 0 && isfinite(offered) && offered >= 0) row.accept = expired || admits(&m, policy, w->seed, w->every);
            if (row.accept) {
                row.slot = expired ? oldest : free_slot < topC ? free_slot : victim(&m, policy, w->seed);
                m.priority[row.slot] = m.entry;
                m.norm[row.slot] = m.g;
                m.born[row.slot] = m.t;
                w->inserted[r]++;
            }
            for (int64_t k = 0; k < topC; k++) m.priority[k] *= (float)w->decay;
            row.clock = w->clock[r] = m.t;
        }
        w->rows[r] = row;
    }
}

/* -- damping: the twin of damping_weights and insert_in_gram ------------------------------------- */

#define ROUNDING_OF_PRODUCTS 1e-7
#define RHO_ABOVE_ROUNDING 1e-6

/* x with (K / trace + rho) x = a / trace over the used slots, by Cholesky; K is divided by its trace first, so that the
   condition number is at most (1 + rho) / rho whatever the gradients' size. Exactly, no pivot is smaller than rho: one that
   is, is rounding (NOTE [lost in rounding] of memory/damping.py). Whether there was one; an infinite pivot makes its x zero. */
static int solve(const double *K, const double *a, const int64_t *used, int64_t n, int64_t topC, double trace, double rho,
                 double *L, double *x) {
    int lost = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            const double entry = K[used[i] * topC + used[j]] / trace + (i == j ? rho : 0);
            double rest = entry;
            for (int64_t k = 0; k < j; k++) rest -= L[i * n + k] * L[j * n + k];
            if (i != j) {
                L[i * n + j] = rest / L[j * n + j];
                continue;
            }
            const int noise = rest < fmax(rho / 2, ROUNDING_OF_PRODUCTS * entry);
            lost |= noise;
            L[i * n + i] = noise ? INFINITY : sqrt(rest);
        }
        double rest = a[used[i]] / trace;
        for (int64_t k = 0; k < i; k++) rest -= L[i * n + k] * x[k];
        x[i] = rest / L[i * n + i];
    }
    for (int64_t i = n - 1; i >= 0; i--) {
        for (int64_t k = i + 1; k < n; k++) x[i] -= L[k * n + i] * x[k];
        x[i] /= L[i * n + i];
    }
    return lost;
}

/* What is taken of each slot, then the new entry's row and column. Free slots keep zeros in all of it. */
static void damp(Memory *w) {
    const int64_t C = w->topC;
    for (int64_t r = 0; w->gram && r < w->row_count; r++) {
        const Row *row = w->rows + r;
        const int64_t *used = w->used + r * C;
        double *K = w->gram + r * C * C, *a = sums_of(w, r) + 2, *x = w->room + C * C, trace = 0;
        for (int64_t k = 0; k < C; k++) trace += K[k * C + k];
        for (int64_t d = 0; d < w->damping_count; d++) {
            float *weights = w->weights + (d * w->row_count + r) * C;
            memset(weights, 0, sizeof(float) * C);
            if (!row->finite || !(trace > 0)) continue;
            const double rho = w->damping[d].rho;
            if (solve(K, a, used, row->live, C, trace, rho, w->room, x))
                solve(K, a, used, row->live, C, trace, rho + RHO_ABOVE_ROUNDING, w->room, x);
            for (int64_t i = 0; i < row->live; i++) weights[used[i]] = (float)fmax(fmin(w->damping[d].kappa * x[i], FLT_MAX), -FLT_MAX);
        }
        if (!row->accept) continue;
        for (int64_t k = 0; k < C; k++) K[row->slot * C + k] = K[k * C + row->slot] = a[k];
        K[row->slot * C + row->slot] = sums_of(w, r)[1];
    }
}

void decide(Memory *w) {
    if (w->policy != ASKED) choose(w);
    damp(w);
}

/* -- the update ------------------------------------------------------------------------------------------------------ */

typedef struct {
    float scale, share, weight_decay, shrink, lr, lr_direction, momentum, one_minus_beta1, beta2, one_minus_beta2,
        correction2, eps;
} Scalars;

/* How a direction comes about: from the running sum (and g enters the slot), or it is given. */
enum { ADDED, ADDED_AND_STORED, GIVEN };

/* Six streams at once are more than the hardware's own prefetching follows, and it stops at every page. Beyond the end of an
   array this asks for addresses that may not exist, which does nothing. */
enum { PIECE = 128, AHEAD = 256, LINE = 16 }; /* values */

static inline __attribute__((always_inline)) void fetch(const float *at) {
    for (int64_t i = AHEAD; i < AHEAD + PIECE; i += LINE) __builtin_prefetch(at + i);
}

/* d = scale * (g + share * sum) or scale * g, the base's update on d, and g into the slot, in one pass. family and kind are
   constants where this is inlined, so every variant is a loop without branches. */
static inline __attribute__((always_inline)) void span(
    const int family, const int kind, const Scalars c, int64_t n, const float *restrict g, float *restrict p, float *restrict m, float *restrict v, float *restrict slot,
    float *restrict sum) { /* NONE: p is where the direction goes */
    for (int64_t at = 0; at < n; at += PIECE) {
        const int64_t end = at + PIECE < n ? at + PIECE : n;
        fetch(g + at);
        fetch(p + at);
        if (m) fetch(m + at);
        if (v) fetch(v + at);
        if (kind != GIVEN) fetch(sum + at);
        if (kind == ADDED_AND_STORED) fetch(slot + at);
        for (int64_t i = at; i < end; i++) {
            const float x = g[i], s = kind == GIVEN ? 0 : sum[i];
            float d = (kind == GIVEN ? x : x + c.share * s) * c.scale, theta = family == NONE ? d : p[i];
            if (family != NONE) d = c.weight_decay != 0 ? d + c.weight_decay * theta : d;
            if (family == SGD) {
                theta -= c.lr * d;
            } else if (family == MOMENTUM || family == NESTEROV) {
                const float b = c.momentum * m[i] + d;
                m[i] = b;
                theta -= c.lr * (family == NESTEROV ? d + c.momentum * b : b);
            } else if (family == RMSPROP || family == RMSPROP_MOMENTUM) {
                const float q = c.beta2 * m[i] + c.one_minus_beta2 * (d * d);
                m[i] = q;
                float u = d / (sqrtf(q) + c.eps);
                if (family == RMSPROP_MOMENTUM) v[i] = u = c.momentum * v[i] + u;
                theta -= c.lr * u;
            } else if (family == ADAM || family == NADAM) {
                const float a = m[i] + c.one_minus_beta1 * (d - m[i]);
                const float q = c.beta2 * v[i] + c.one_minus_beta2 * (d * d);
                m[i] = a;
                v[i] = q;
                const float size = sqrtf(q) * c.correction2 + c.eps;
                if (family == NADAM) theta = theta * c.shrink - (c.lr_direction * d + c.lr * a) / size;
                else theta = theta * c.shrink - c.lr * (a / size);
            }
            p[i] = theta;
            if (kind == ADDED_AND_STORED) {
                sum[i] = (s - slot[i]) + x;
                slot[i] = x;
            }
        }
    }
}

#define SPAN_OF(FAMILY)                                                                              \
    case FAMILY:                                                                                     \
        if (kind == ADDED_AND_STORED) span(FAMILY, ADDED_AND_STORED, c, n, g, p, m, v, slot, sum);   \
        else if (kind == ADDED) span(FAMILY, ADDED, c, n, g, p, m, v, slot, sum);                    \
        else span(FAMILY, GIVEN, c, n, g, p, m, v, slot, sum);                                       \
        break;

static void update_span(int64_t family, int kind, Scalars c, int64_t n, const float *g, float *p, float *m, float *v,
                        float *slot, float *sum) {
    switch (family) {
        SPAN_OF(NONE)
        SPAN_OF(SGD)
        SPAN_OF(MOMENTUM)
        SPAN_OF(NESTEROV)
        SPAN_OF(RMSPROP)
        SPAN_OF(RMSPROP_MOMENTUM)
        SPAN_OF(ADAM)
        SPAN_OF(NADAM)
    }
}

/* Insertion alone. A missing gradient counts as zero: it takes its place in the slot and moves nothing. */
static void insert(int64_t n, const float *restrict g, float *restrict slot, float *restrict sum) {
    for (int64_t i = 0; sum && i < n; i++) sum[i] = (sum[i] - slot[i]) + (g ? g[i] : 0);
    if (g) memcpy(slot, g, sizeof(float) * n);
    else memset(slot, 0, sizeof(float) * n);
}

/* NAdam's momentum in step t. */
static double momentum_at(const Group *group, double t) {
    return group->beta1 * (1 - 0.5 * pow(0.96, t * group->momentum_decay));
}

static Scalars scalars_of(const Part *part, const Group *group, Adding adding) {
    Scalars c;
    double lr = group->lr, lr_direction = 0, correction2 = 1;
    if (group->family == ADAM || group->family == NADAM) {
        double t = (double)*part->step; /* raised before the update, as the product */
        correction2 = sqrt(1 - pow(group->beta2, t));
        if (group->family == ADAM) {
            lr /= 1 - pow(group->beta1, t);
        } else {
            const double next = momentum_at(group, t + 1), product = (double)*part->product;
            lr_direction = lr * (1 - momentum_at(group, t)) / (1 - product);
            lr *= next / (1 - product * next);
        }
    }
    c.scale = (float)(group->maximize ? -adding.scale : adding.scale);
    c.share = (float)adding.share;
    c.weight_decay = (float)(group->decoupled ? 0 : group->weight_decay);
    c.shrink = (float)(group->decoupled ? 1 - group->lr * group->weight_decay : 1);
    c.lr = (float)lr;
    c.lr_direction = (float)lr_direction;
    c.momentum = (float)group->momentum;
    c.one_minus_beta1 = (float)(1 - group->beta1);
    c.beta2 = (float)group->beta2;
    c.one_minus_beta2 = (float)(1 - group->beta2);
    c.correction2 = (float)(1 / correction2);
    c.eps = (float)group->eps;
    return c;
}

/* NOTE [refresh] of torch_ops.py: the slice of the running sum whose turn it is, as far as it lies in this chunk. */
static void refresh(const Part *part, Chunk k, int64_t clock, int64_t topC) {
    int64_t start = (clock + part->number) % part->refresh_steps * part->refresh_length;
    int64_t stop = start + part->refresh_length;
    if (start < k.start) start = k.start;
    if (stop > k.stop) stop = k.stop;
    if (start >= stop) return;
    float *restrict sum = part->sum;
    for (int64_t i = start; i < stop; i++) sum[i] = part->slots[i];
    for (int64_t s = 1; s < topC; s++) {
        const float *restrict slot = part->slots + s * part->length;
        for (int64_t i = start; i < stop; i++) sum[i] += slot[i];
    }
}

/* Not inlined: there gcc 12 forgot that d overlaps nothing, and from the third four on each took five times as long. */
__attribute__((noinline)) static void subtract_four(float *restrict d, const float *u, const float *const *s, int64_t n) {
    for (int64_t j = 0; j < n; j++) d[j] -= (u[0] * s[0][j] + u[1] * s[1][j]) + (u[2] * s[2][j] + u[3] * s[3][j]);
}

/* d = g - sum of w_i G_i of one block. */
static void damped(const Memory *w, const Part *part, const float *g, int64_t at, int64_t n, float *restrict d) {
    const int64_t *used = w->used + part->row * w->topC, live = w->rows[part->row].live;
    const float *weights = w->weights + (part->group * w->row_count + part->row) * w->topC;
    memcpy(d, g + at, sizeof(float) * n);
    for (int64_t i = 0; i < live; i += 4) {
        const float *s[4];
        float u[4];
        four_slots(part, used + i, live - i, at, s);
        for (int j = 0; j < 4; j++) u[j] = i + j < live ? weights[used[i + j]] : 0;
        subtract_four(d, u, s, n);
    }
}

static void update_chunk(const Memory *w, int64_t c) {
    const Chunk k = w->chunks[w->chunk_count - 1 - c]; /* backwards: the last that were measured are still in cache */
    const Part *part = w->parts + k.part;
    const Row *row = w->rows + part->row;
    const Group *group = w->groups + part->group;
    const float *g = w->grads[k.part];
    float *slot = part->slots + row->slot * part->length, *target = group->family == NONE ? part->out : part->p;
    if (!g || w->empty) {
        if (row->accept) insert(k.stop - k.start, g ? g + k.start : 0, slot + k.start, part->sum ? part->sum + k.start : 0);
    } else {
        const int64_t live = row->finite ? row->live : 0; /* what is not finite is used as it is */
        const int kind = !part->sum ? GIVEN : row->accept ? ADDED_AND_STORED : ADDED;
        const Adding adding = part->sum ? w->adding[part->group * (w->topC + 1) + live] : (Adding){1, 0};
        const Scalars scalars = scalars_of(part, group, adding);
        float room[BLOCK];
        for (int64_t at = k.start; at < k.stop; at += BLOCK) {
            const int64_t n = k.stop - at < BLOCK ? k.stop - at : BLOCK;
            const float *d = g + at;
            if (kind == GIVEN && live) {
                damped(w, part, g, at, n, room);
                d = room;
            }
            update_span(group->family, kind, scalars, n, d, target + at, part->m ? part->m + at : 0,
                        part->v ? part->v + at : 0, slot + at, part->sum ? part->sum + at : 0);
            if (kind == GIVEN && row->accept) memcpy(slot + at, g + at, sizeof(float) * n);
        }
    }
    if (part->sum && row->finite) refresh(part, k, row->clock, w->topC);
}

static void count_steps(const Memory *w) {
    for (int64_t i = 0; i < w->part_count; i++) {
        const Part *part = w->parts + i;
        if (!w->grads[i] || !part->step) continue;
        *part->step += 1;
        if (part->product) *part->product *= (float)momentum_at(w->groups + part->group, (double)*part->step);
    }
}

/* -- threads ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    const Memory *w;
    void (*work)(const Memory *, int64_t);
    int64_t next;
} Team;

static void take_chunks(void *argument) {
    Team *team = argument;
    int64_t c;
    while ((c = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->w->chunk_count) team->work(team->w, c);
}

static void *helper(void *argument) {
    take_chunks(argument);
    return 0;
}

/* Threads of our own live for one call: nothing of them is left for a fork to lose. */
static void together(const Memory *w, void (*work)(const Memory *, int64_t)) {
    Team team = {w, work, 0};
    pthread_t others[MOST_THREADS];
    int64_t started = 0, threads = w->threads > MOST_THREADS ? MOST_THREADS : w->threads;
    if (threads > 1 && w->parallel) {
        ((void (*)(void (*)(void *), void *, unsigned, unsigned))w->parallel)(take_chunks, &team, (unsigned)threads, 0);
        return;
    }
    while (started < threads - 1 && pthread_create(&others[started], 0, helper, &team) == 0) started++;
    take_chunks(&team);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], 0);
}

void measure(Memory *w) {
    find_live(w);
    together(w, measure_chunk);
    add_up(w);
}

void apply(Memory *w) {
    if (!w->empty) count_steps(w);
    together(w, update_chunk);
}
