/* test_bwd_sm90.c - the backward pass of Hopper as the driver sees it: which problems it takes, its launches,
 * its chunks under every limit, its maps. */
#include "fake/fake_checks.h"
#include "support/unit.h"

#include "common/shapes.h"

#include <stdio.h>

static products_args products_of(const fake_launch *l)
{
    products_args args;
    assert_true(is(l, "products"));
    memcpy(&args, l->args, sizeof args);
    return args;
}

static void three_kernels_when_d_is_dv(void **state)
{
    device_call c;
    pds90_args pds;
    device_call_make(&c, "bwd,bf16,b2h8k2,q300k500,d512,causal", 0);
    assert_ok(backward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90/backward");
    assert_int_equal(FAKE.launch_count, 3);
    assert_true(is(&FAKE.launches[0], "delta_bf16"));
    assert_true(is(&FAKE.launches[1], "pds_sm90_bf16_d512v512_range"));
    assert_true(is(&FAKE.launches[2], "products_sm90_bf16_n512_range"));
    assert_false(FAKE.launches[0].overlaps);
    assert_true(FAKE.launches[1].overlaps && FAKE.launches[2].overlaps);
    memcpy(&pds, FAKE.launches[1].args, sizeof pds);
    const products_args g = products_of(&FAKE.launches[2]);
    assert_ptr_equal(mapped(&pds.q), c.f.q.data);
    assert_ptr_equal(mapped(&pds.dout), c.g.dout.data);
    assert_ptr_equal(mapped(&g.b[0]), c.g.dout.data);
    assert_ptr_equal(mapped(&g.b[1]), c.f.q.data);
    assert_ptr_equal(mapped(&g.b[2]), c.f.k.data);
    assert_ptr_equal(mapped(&g.out[0]), c.g.dv.data);
    assert_ptr_equal(mapped(&g.out[1]), c.g.dk.data);
    assert_ptr_equal(mapped(&g.out[2]), c.g.dq.data);
    assert_true(g.order[0] == 0 && g.order[1] == 1 && g.order[2] == 2);
    assert_ptr_equal(pds.p, g.p);
    assert_ptr_equal(pds.ds, g.ds);
    assert_ptr_equal(pds.tickets + 1, g.ticket);
    assert_int_equal(g.columns, 512);
    assert_int_equal(g.key_units, 2 * 3);
    assert_int_equal(g.query_units, 2 * 2);
    assert_true(g.last && !g.partial[0] && !g.partial[1]);
}

static void maps_are_made_once(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,f16,b1h2,q300k500,d320", 0);
    assert_ok(backward(*state, &c));
    const int made = FAKE.maps;
    assert_int_equal(made, 10);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.maps, made);
}

static void products_of_other_width_are_another_launch(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b1h4k4,q400k400,d192v128", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launch_count, 4);
    const products_args dv = products_of(&FAKE.launches[2]),
                        rest = products_of(&FAKE.launches[3]);
    assert_true(dv.order[0] == 0 && dv.order[1] == -1 && dv.columns == 128);
    assert_true(rest.order[0] == 1 && rest.order[1] == 2 && rest.order[2] == -1);
    assert_int_equal(rest.columns, 192);
    assert_ptr_not_equal(dv.ticket, rest.ticket);
}

/* Widths that are cut into the same tiles are two launches, too: what the kernel stores ends at one number of columns. */
static void each_product_ends_at_its_own_columns(void **state)
{
    static const char *const widths[] = {"d320v264", "d264v320", "d512v504", "d192v136"};
    device_call c;
    for (size_t i = 0; i < COUNT(widths); i++) {
        char text[80];
        int products = 0;
        snprintf(text, sizeof text, "bwd,bf16,b1h2,q400k400,%s,varlen=400", widths[i]);
        device_call_make(&c, text, 0);
        FAKE.launch_count = 0;
        assert_ok(backward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm90/backward");
        for (int n = 2; n < FAKE.launch_count; n++) {
            const products_args g = products_of(&FAKE.launches[n]);
            const int64_t columns[] = {c.g.dv.shape[3], c.g.dk.shape[3], c.g.dq.shape[3]};
            for (int k = 0; k < 3 && g.order[k] >= 0; k++, products++)
                assert_int_equal(g.columns, columns[g.order[k]]);
        }
        assert_int_equal(products, 3);
    }
}

static void only_what_is_asked_for_is_computed(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b1h2,q300k300,d64,alibi", 0);
    c.g.dk = c.g.dq = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    products_args g = products_of(&FAKE.launches[2]);
    assert_true(g.order[0] == 0 && g.order[1] == -1);
    FAKE.launch_count = 0;
    device_call_make(&c, "bwd,bf16,b1h2,q300k3000,d64,alibi", 0);
    c.g.dv = (ffpa_tensor){.data = NULL};
    assert_ok(backward(*state, &c));
    g = products_of(&FAKE.launches[2]);
    assert_true(g.order[0] == 2 && g.order[1] == 1 &&
                g.order[2] == -1); /* more keys than queries */
}

/* An added mask has a second look at its weights, and a gradient; one option has tiles of 192 keys, more have 128. */
static void options_come_together(void **state)
{
    static const char *const kinds[] = {"delta_bf16", "pds_sm90_bf16", "renorm_bf16",
                                        "products_sm90_bf16", "dmask_bf16"};
    device_call c;
    pds90_args pds;
    dmask_args dmask;
    device_call_make(&c, "bwd,bf16,b1h2,q300k300,d64,mask=f32:qk,softcap5,alibi,causal", 0);
    assert_ok(backward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm90/backward");
    assert_int_equal(FAKE.launch_count, 5);
    for (int i = 0; i < 5; i++)
        assert_true(is(&FAKE.launches[i], kinds[i]));
    memcpy(&pds, FAKE.launches[1].args, sizeof pds);
    memcpy(&dmask, FAKE.launches[4].args, sizeof dmask);
    assert_non_null(pds.dbias);
    assert_ptr_equal(pds.dbias, dmask.dbias);
    assert_int_equal(pds.stairs.growth, 0);
    assert_int_equal(FAKE.launches[1].grid, 2 * 3 * 3);
    FAKE.launch_count = 0;
    device_call_make(&c, "bwd,bf16,b1h2,q300k300,d64,softcap5", 0);
    assert_ok(backward(*state, &c));
    assert_int_equal(FAKE.launches[1].grid, 2 * 3 * 2);
}

static void what_it_does_not_take_goes_on(void **state)
{
    static const char *const others[] = {
        "bwd,f32,b1h2,q300k300,d64", "bwd,bf16,b1h2,q300k300,d65", "bwd,bf16,b1h2,q0k300,d64"};
    device_call c;
    for (size_t i = 0; i < COUNT(others); i++) {
        device_call_make(&c, others[i], 0);
        assert_ok(backward(*state, &c));
        assert_string_equal(ffpa_last_path(), "cuda/sm80/backward");
    }
    device_call_make(&c, "bwd,bf16,b1h2,q300k300,d512", 0);
    c.g.dq.data = (char *)c.g.dq.data + 2; /* not at 16 bytes */
    assert_ok(backward(*state, &c));
    assert_string_equal(ffpa_last_path(), "cuda/sm80/backward");
}

/* Keys that the last row of line l sees. */
static int64_t keys_of_line(const device_call *c, const products_args *g, int64_t l)
{
    const int64_t nq = c->f.q.shape[2], nk = c->f.k.shape[2];
    const int64_t row = (l + 1) * 128 < nq ? l * 128 + 127 : nq - 1;
    const int64_t hi = row + 1 + g->right + (g->top_left ? 0 : nk - nq);
    return g->right < 0 || hi > nk ? nk : hi;
}

/* Bytes of P of a chunk. Its lines must not share a block, and have one for each key that they see. */
static size_t place_lines(const device_call *c, const products_args *g)
{
    enum { MOST = 1 << 18 };
    static bool taken[MOST];
    const k_stairs *x = &g->stairs;
    const int64_t each = (c->f.q.shape[2] + 127) / 128;
    int64_t end = 0;
    bool shared = false, narrow = false;
    memset(taken, 0, sizeof taken);
    for (int64_t h = 0; h < g->chunk.nh; h++)
        for (int64_t t = g->chunk.t0; t < g->chunk.t0 + g->chunk.nt; t++) {
            const int64_t line = x->growth ? t % each : t, width = x->first + x->growth * line;
            const int64_t at = h * x->head + t / each * x->sequence +
                               stairs_before(x->first, x->growth, line) - x->start;
            assert_true(at >= 0 && at + 2 * width <= MOST);
            narrow |= width * 64 < keys_of_line(c, g, t % each);
            for (int64_t b = at; b < at + 2 * width; b++) {
                shared |= taken[b];
                taken[b] = true;
            }
            end = at + 2 * width > end ? at + 2 * width : end;
        }
    assert_false(shared || narrow);
    return (size_t)end * 8192;
}

/* Keeps the book on which lines of which heads a run covers, and on keys' sums. */
static void check_chunks(const device_call *c, int lines)
{
    static chunk_book book;
    const int each = lines / (int)c->f.q.shape[0]; /* lines of a sequence */
    book = (chunk_book){.lines = lines};
    const char *begin = c->g.workspace, *end = begin + c->g.workspace_bytes;
    assert_true(FAKE.launch_count <= FAKE_LAUNCHES);
    for (int i = 0; i < FAKE.launch_count; i++) {
        if (!is(&FAKE.launches[i], "products")) continue;
        const products_args g = products_of(&FAKE.launches[i]);
        const k_chunk k = g.chunk;
        const size_t bytes = place_lines(c, &g);
        const size_t heads = (size_t)((k.nh + g.group - 1) / g.group);
        const size_t sums = heads * (size_t)g.key_units * (size_t)unit_tiles(g.columns) *
                            (size_t)part_elements(g.columns) * 4;
        assert_true((const char *)g.p >= begin && (const char *)g.ds + bytes <= end);
        assert_true((const char *)g.p + bytes <= (const char *)g.ds);
        assert_true((g.partial[0] && g.partial[1]) ||
                    (k.t0 % each == 0 && (k.nt % each == 0 || k.t0 + k.nt == lines) &&
                     k.h0 % g.group == 0 && k.nh % g.group == 0));
        for (int w = 0; w < 2 && g.partial[w]; w++)
            assert_true((const char *)g.partial[w] >= (const char *)g.ds + bytes &&
                        (const char *)g.partial[w] + sums <= end);
        book_lines(&book, &k);
        book_sums(&book, &k, g.group, k.t0 == 0 && k.h0 % g.group == 0, g.last);
    }
    book_check(&book, c);
}

static void chunks_cover_everything_once_within_the_limit(void **state)
{
    static const struct {
        const char *problem;
        int lines;
    } cases[] = {{"bwd,bf16,b1h8k2,q4096k4096,d64,alibi", 32},
                 {"bwd,bf16,b1h6k2,q4096k4096,d448,causal", 32},
                 {"bwd,bf16,b2h6k2,q3000k3500,d448,causal", 48},
                 {"bwd,bf16,b2h6k2,q3000k3500,d448,causal_tl", 48},
                 {"bwd,bf16,b2h2,q3000k2000,d448,causal", 48},
                 {"bwd,bf16,b1h6k1,q4096k2000,d448,win500:100", 32},
                 {"bwd,bf16,b1h2k1,q5000k16384,d320", 40},
                 {"bwd,bf16,b2h3k3,q2048k4000,d128,alibi", 32},
                 {"bwd,bf16,b16h4k2,q1024k1024,d512,causal", 128}};
    device_call c;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t limit = (size_t)64 << 20; limit <= (size_t)1 << 30; limit *= 2) {
            device_call_make(&c, cases[i].problem, 0);
            c.g.workspace_limit_bytes = limit;
            FAKE.launch_count = 0;
            assert_ok(backward(*state, &c));
            assert_string_equal(ffpa_last_path(), "cuda/sm90/backward");
            assert_true(c.g.workspace_bytes <= limit);
            check_chunks(&c, cases[i].lines);
        }
}

/* Where the sums of all sequences have no room, or little is left beside them, chunks are of whole sequences. */
static void chunks_of_many_sequences_keep_no_sums(void **state)
{
    static const char *const problems[] = {"bwd,bf16,b64h2k1,q1000k1000,d512",
                                           "bwd,bf16,b64h2k1,q1000k1000,d512,causal",
                                           "bwd,bf16,b33h2k2,q1000k1100,d320,win100:0"};
    device_call c;
    for (size_t i = 0; i < COUNT(problems); i++) {
        device_call_make(&c, problems[i], 0);
        c.g.workspace_limit_bytes = (size_t)64 << 20;
        FAKE.launch_count = 0;
        assert_ok(backward(*state, &c));
        assert_true(c.g.workspace_bytes <= c.g.workspace_limit_bytes);
        assert_true(FAKE.launch_count < 40);
        check_chunks(&c, (int)c.f.q.shape[0] * 8);
        assert_null(products_of(&FAKE.launches[2]).partial[0]);
    }
}

/* Early rows of a causal call see few keys: more of them make a chunk, and its rows of P and dS are shorter. */
static void chunks_of_causal_rows_are_of_equal_size(void **state)
{
    device_call c;
    int chunks = 0;
    size_t least = (size_t)-1, most = 0;
    device_call_make(&c, "bwd,bf16,b1h2,q16384k16384,d512,causal", 0);
    c.g.workspace_limit_bytes = (size_t)256 << 20;
    assert_ok(backward(*state, &c));
    assert_true(c.g.workspace_bytes <= c.g.workspace_limit_bytes);
    for (int i = 0; i < FAKE.launch_count; i++) {
        if (!is(&FAKE.launches[i], "products")) continue;
        const products_args g = products_of(&FAKE.launches[i]);
        const k_chunk k = g.chunk;
        const size_t size = place_lines(&c, &g);
        assert_int_equal(k.ld, (k.t0 + k.nt) * 128);
        if (k.t0 + k.nt == 128) continue; /* what is left over */
        least = size < least ? size : least;
        most = size > most ? size : most;
        chunks++;
    }
    assert_true(chunks >= 3 && least * 4 >= most * 3);
    check_chunks(&c, 128);
}

/* And each row of P and dS is as wide as it sees: whole heads of twice as many bytes fit. */
static void causal_rows_take_what_they_fill(void **state)
{
    device_call c;
    size_t bytes[2];
    for (int causal = 0; causal < 2; causal++) {
        device_call_make(&c,
                         causal ? "bwd,bf16,b2h2,q4096k4096,d512,causal"
                                : "bwd,bf16,b2h2,q4096k4096,d512",
                         0);
        FAKE.launch_count = 0;
        assert_ok(backward(*state, &c));
        assert_int_equal(FAKE.launch_count, 3);
        bytes[causal] = c.g.workspace_bytes;
        check_chunks(&c, 64);
    }
    assert_true(bytes[1] * 100 < bytes[0] * 54);
}

static void packed_sequences_need_no_lengths_on_the_host(void **state)
{
    device_call c;
    device_call_make(&c, "bwd,bf16,b3h4k2,q700k700,d192,causal,varlen=700+5+300", 0);
    assert_ok(backward(*state, &c));
    const products_args g = products_of(&FAKE.launches[2]);
    assert_ptr_equal(g.seq.cu_q, c.varlen.cu_q);
    assert_int_equal(g.key_units, 1005 / 256 + 3);
    assert_true(g.chunk.ld == 1024);
}

static void every_call_may_fail(void **state)
{
    check_every_call_may_fail(*state, "bwd,bf16,b1h8k2,q4096k4096,d64,alibi", (size_t)64 << 20);
}

static void the_host_needs_microseconds(void **state)
{
    check_host_time(*state, "bwd,bf16,b1h8,q1024k1024,d512,causal");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_set_up, fake_tear_down)
    const struct CMUnitTest tests[] = {
        TEST(three_kernels_when_d_is_dv),
        TEST(maps_are_made_once),
        TEST(products_of_other_width_are_another_launch),
        TEST(each_product_ends_at_its_own_columns),
        TEST(only_what_is_asked_for_is_computed),
        TEST(options_come_together),
        TEST(what_it_does_not_take_goes_on),
        TEST(chunks_cover_everything_once_within_the_limit),
        TEST(chunks_of_many_sequences_keep_no_sums),
        TEST(chunks_of_causal_rows_are_of_equal_size),
        TEST(causal_rows_take_what_they_fill),
        TEST(packed_sequences_need_no_lengths_on_the_host),
        TEST(every_call_may_fail),
        TEST(the_host_needs_microseconds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
