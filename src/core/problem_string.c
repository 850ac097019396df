/* problem_string.c - the one text form of a problem; its grammar is at ffpa_problem in ffpa.h. */
#include "base/number.h"
#include "core/checks.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const FN_PARSE = "ffpa_problem_parse", *const FN_FORMAT =
                                                              "ffpa_problem_format";

/* ---- parse ------------------------------------------------------------------------------------ */

/* One comma-separated field, and where it stands in the text. */
typedef struct field {
    const char *text; /* rest of the field, not yet read */
    const char *begin;
    size_t length;
    size_t position;
} field;

static ffpa_status bad_field(const field *f, const char *want)
{
    return fail(FFPA_E_INVALID, "%s: '%.*s' at position %zu: expected %s", FN_PARSE,
                (int)(f->length > 80 ? 80 : f->length), f->begin, f->position, want);
}

static bool field_done(const field *f) { return f->text == f->begin + f->length; }

/* Read a literal word; false leaves the field as it was. */
static bool take_word(field *f, const char *word)
{
    const size_t n = strlen(word), left = (size_t)(f->begin + f->length - f->text);
    if (left < n || strncmp(f->text, word, n) != 0) return false;
    f->text += n;
    return true;
}

/* Read a decimal integer, at most 2^63-1; -1 is allowed where `negative` is. */
static bool take_integer(field *f, bool negative, int64_t *out)
{
    const char *end = f->begin + f->length, *p = f->text;
    const bool minus = negative && p < end && *p == '-';
    int64_t value = 0;
    if (minus) p++;
    const char *digits = p;
    for (; p < end && isdigit((unsigned char)*p); p++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *p - '0', &value))
            return false;
    if (p == digits) return false;
    f->text = p;
    *out = minus ? -value : value;
    return true;
}

/* All that is left of the field. */
static bool take_float(field *f, float *out)
{
    const size_t left = (size_t)(f->begin + f->length - f->text);
    if (!number_read(f->text, left, out)) return false;
    f->text += left;
    return true;
}

static const struct {
    const char *word;
    int32_t dtype;
} DTYPES[] = {{"bool", FFPA_BOOL},
              {"f32", FFPA_F32},
              {"f16", FFPA_F16},
              {"bf16", FFPA_BF16},
              {"f64", FFPA_F64}};

static bool take_dtype(field *f, int32_t *dtype)
{
    for (size_t i = 0; i < sizeof DTYPES / sizeof DTYPES[0]; i++)
        if (take_word(f, DTYPES[i].word)) {
            *dtype = DTYPES[i].dtype;
            return true;
        }
    return false;
}

static bool parse_heads(field *f, ffpa_problem *p)
{
    if (!take_word(f, "b") || !take_integer(f, false, &p->b)) return false;
    if (!take_word(f, "h") || !take_integer(f, false, &p->hq)) return false;
    p->hk = p->hq;
    return !take_word(f, "k") || take_integer(f, false, &p->hk);
}

static bool parse_rows(field *f, ffpa_problem *p)
{
    return take_word(f, "q") && take_integer(f, false, &p->nq) && take_word(f, "k") &&
           take_integer(f, false, &p->nk);
}

static bool parse_dims(field *f, ffpa_problem *p)
{
    if (!take_word(f, "d") || !take_integer(f, false, &p->d)) return false;
    p->dv = p->d;
    return !take_word(f, "v") || take_integer(f, false, &p->dv);
}

static bool parse_mask(field *f, ffpa_problem *p)
{
    static const char AXES[] = "bhqk";
    if (!take_dtype(f, &p->mask_dtype) || p->mask_dtype == FFPA_F64) return false;
    p->mask_axes = 4u | 8u;
    if (!take_word(f, ":")) return true;
    p->mask_axes = 0;
    for (; !field_done(f); f->text++) {
        const char *axis = strchr(AXES, *f->text);
        if (!axis || (p->mask_axes & 1u << (axis - AXES))) return false;
        p->mask_axes |= 1u << (axis - AXES);
    }
    return true;
}

static bool parse_window(field *f, ffpa_problem *p)
{
    p->has_window = 1;
    return take_integer(f, true, &p->window_left) && take_word(f, ":") &&
           take_integer(f, true, &p->window_right);
}

static bool parse_lengths(field *f, ffpa_problem *p)
{
    do {
        if (p->n_lengths == FFPA_MAX_LENGTHS) return false;
        if (!take_integer(f, false, &p->lengths[p->n_lengths++])) return false;
    } while (take_word(f, "+"));
    return true;
}

/* All 64 bits, unlike every other number here. */
static bool parse_seed(field *f, ffpa_problem *p)
{
    const char *end = f->begin + f->length, *digits = f->text;
    for (; f->text < end && isdigit((unsigned char)*f->text); f->text++)
        if (__builtin_mul_overflow(p->seed, 10, &p->seed) ||
            __builtin_add_overflow(p->seed, (uint64_t)(*f->text - '0'), &p->seed))
            return false;
    return f->text > digits;
}

static ffpa_status parse_option(field *f, ffpa_problem *p)
{
    bool ok = true;
    if (take_word(f, "causal_tl"))
        p->causal = FFPA_TOP_LEFT;
    else if (take_word(f, "causal"))
        p->causal = FFPA_BOTTOM_RIGHT;
    else if (take_word(f, "win"))
        ok = parse_window(f, p);
    else if (take_word(f, "mask="))
        ok = parse_mask(f, p);
    else if (take_word(f, "softcap"))
        ok = take_float(f, &p->softcap);
    else if (take_word(f, "alibi"))
        p->alibi = 1;
    else if (take_word(f, "sink"))
        p->sink = 1;
    else if (take_word(f, "dropout"))
        ok = take_float(f, &p->dropout);
    else if (take_word(f, "scale"))
        ok = take_float(f, &p->scale), p->has_scale = 1;
    else if (take_word(f, "bnhd"))
        p->bnhd = 1;
    else if (take_word(f, "seed"))
        ok = parse_seed(f, p);
    else if (take_word(f, "varlen="))
        ok = parse_lengths(f, p);
    else if (take_word(f, "page"))
        ok = take_integer(f, false, &p->page) && p->page > 0;
    else
        ok = false;
    if (ok && field_done(f)) return FFPA_OK;
    return bad_field(f,
                     "causal, causal_tl, win<L>:<R>, mask=bool|f32|f16|bf16[:<axes of bhqk>], "
                     "softcap<c>, alibi, sink, dropout<p>, scale<s>, bnhd, seed<n>, "
                     "varlen=<len>+<len>... (at most 32) or page<n>");
}

/* Number of an option's kind, to refuse it twice; the first letters tell them apart. */
static int option_kind(const field *f)
{
    static const char *const KINDS[] = {"causal", "win",  "mask",    "softcap",
                                        "alibi",  "sink", "dropout", "scale",
                                        "bnhd",   "seed", "varlen",  "page"};
    for (int i = 0; i < (int)(sizeof KINDS / sizeof KINDS[0]); i++) {
        const size_t n = strlen(KINDS[i]);
        if (f->length >= n && strncmp(f->begin, KINDS[i], n) == 0) return i;
    }
    return -1;
}

enum { FIXED_FIELDS = 5 };

static bool next_field(const char **text, const char *start, field *f)
{
    if (!*text) return false;
    const char *comma = strchr(*text, ',');
    f->text = f->begin = *text;
    f->length = comma ? (size_t)(comma - *text) : strlen(*text);
    f->position = (size_t)(*text - start);
    *text = comma ? comma + 1 : NULL;
    return true;
}

static ffpa_status parse_fixed(int index, field *f, ffpa_problem *p)
{
    switch (index) {
    case 0:
        if (take_word(f, "fwd"))
            p->op = FFPA_FORWARD;
        else if (take_word(f, "bwd"))
            p->op = FFPA_BACKWARD;
        return p->op && field_done(f) ? FFPA_OK : bad_field(f, "fwd or bwd");
    case 1:
        return take_dtype(f, &p->dtype) && p->dtype != FFPA_BOOL && field_done(f)
                   ? FFPA_OK
                   : bad_field(f, "f32, f16, bf16 or f64");
    case 2:
        return parse_heads(f, p) && field_done(f)
                   ? FFPA_OK
                   : bad_field(f, "b<B>h<Hq>[k<Hk>], such as b2h8k2");
    case 3:
        return parse_rows(f, p) && field_done(f) ? FFPA_OK
                                                 : bad_field(f, "q<Nq>k<Nk>, such as q300k300");
    default:
        return parse_dims(f, p) && field_done(f) ? FFPA_OK
                                                 : bad_field(f, "d<D>[v<Dv>], such as d512");
    }
}

ffpa_status ffpa_problem_parse(const char *text, ffpa_problem *result)
{
    ffpa_problem p = {.struct_size = sizeof p};
    CHECK(text && result, FFPA_E_INVALID, "%s: %s is NULL", FN_PARSE,
          text ? "problem" : "text");
    CHECK(strlen(text) < 1024, FFPA_E_INVALID, "%s: text of %zu bytes is longer than 1023",
          FN_PARSE, strlen(text));
    const char *rest = text;
    unsigned seen = 0;
    field f;
    int index = 0;
    for (; next_field(&rest, text, &f); index++) {
        if (index < FIXED_FIELDS) {
            TRY(parse_fixed(index, &f, &p));
            continue;
        }
        const int kind = option_kind(&f);
        if (kind >= 0 && seen & 1u << kind) return bad_field(&f, "each option at most once");
        if (kind >= 0) seen |= 1u << kind;
        TRY(parse_option(&f, &p));
    }
    CHECK(index >= FIXED_FIELDS, FFPA_E_INVALID,
          "%s: '%.80s' is too short; expected OP,DTYPE,bBhHq[kHk],qNqkNk,dD[vDv][,option...]",
          FN_PARSE, text);
    TRY(ask_check(&p, FN_PARSE));
    return params_give(result, PROBLEM_V01, &p, sizeof p, FN_PARSE, "problem");
}

/* ---- format ----------------------------------------------------------------------------------- */

typedef struct writer {
    char *text;
    size_t capacity, used;
} writer;

static void FFPA_PRINTF(2, 3) put(writer *w, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const size_t left = w->used < w->capacity ? w->capacity - w->used : 0;
    const int n = vsnprintf(left ? w->text + w->used : NULL, left, fmt, ap);
    va_end(ap);
    w->used += n > 0 ? (size_t)n : 0;
}

/* The shortest decimal form that reads back as the same float; without an exponent if nine digits
 * suffice for that (softcap30, not softcap3e+01). */
static void put_float(writer *w, const char *name, float x)
{
    char text[NUMBER_BYTES], shortest[NUMBER_BYTES] = "";
    for (int digits = 1; digits <= 9; digits++) {
        float back;
        number_print(text, digits, x);
        if (!number_read(text, strlen(text), &back) || back != x) continue;
        if (!*shortest) memcpy(shortest, text, sizeof text);
        if (!strchr(text, 'e')) {
            memcpy(shortest, text, sizeof text);
            break;
        }
    }
    put(w, ",%s%s", name, shortest);
}

static void put_mask(writer *w, const ffpa_problem *p)
{
    put(w, ",mask=%s", dtype_name(p->mask_dtype));
    if (p->mask_axes == (4u | 8u)) return;
    put(w, ":");
    for (int i = 0; i < 4; i++)
        if (p->mask_axes & 1u << i) put(w, "%c", "bhqk"[i]);
}

static void put_options(writer *w, const ffpa_problem *p)
{
    if (p->causal) put(w, p->causal == FFPA_TOP_LEFT ? ",causal_tl" : ",causal");
    if (p->has_window)
        put(w, ",win%" PRId64 ":%" PRId64, p->window_left < 0 ? -1 : p->window_left,
            p->window_right < 0 ? -1 : p->window_right);
    if (p->mask_dtype) put_mask(w, p);
    if (p->softcap != 0.0f) put_float(w, "softcap", p->softcap);
    if (p->alibi) put(w, ",alibi");
    if (p->sink) put(w, ",sink");
    if (p->dropout != 0.0f) put_float(w, "dropout", p->dropout);
    if (p->has_scale) put_float(w, "scale", p->scale);
    if (p->bnhd) put(w, ",bnhd");
    if (p->seed) put(w, ",seed%" PRIu64, p->seed);
    for (int i = 0; i < p->n_lengths; i++)
        put(w, "%s%" PRId64, i ? "+" : ",varlen=", p->lengths[i]);
    if (p->page) put(w, ",page%" PRId64, p->page);
}

ffpa_status ffpa_problem_format(const ffpa_problem *given, char *text, size_t capacity)
{
    ffpa_problem p;
    CHECK(text && capacity > 0, FFPA_E_INVALID, "%s: %s", FN_FORMAT,
          text ? "capacity is 0" : "text is NULL");
    text[0] = 0;
    TRY(params_read(&p, sizeof p, PROBLEM_V01, given, FN_FORMAT, "problem"));
    TRY(ask_check(&p, FN_FORMAT));
    writer w = {text, capacity, 0};
    put(&w, "%s,%s,b%" PRId64 "h%" PRId64, p.op == FFPA_BACKWARD ? "bwd" : "fwd",
        dtype_name(p.dtype), p.b, p.hq);
    if (p.hk != p.hq) put(&w, "k%" PRId64, p.hk);
    put(&w, ",q%" PRId64 "k%" PRId64 ",d%" PRId64, p.nq, p.nk, p.d);
    if (p.dv != p.d) put(&w, "v%" PRId64, p.dv);
    put_options(&w, &p);
    if (w.used < capacity) return FFPA_OK;
    text[0] = 0;
    return fail(FFPA_E_INVALID, "%s: capacity=%zu, the text takes %zu bytes", FN_FORMAT,
                capacity, w.used + 1);
}
