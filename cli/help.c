/* help.c - the text of `ffpa help`, and the table of commands. */
#include "help.h"

static const char RUN_HELP[] =
    "ffpa run INPUT.safetensors [options]\n"
    "ffpa run q.npy k.npy v.npy [options]\n"
    "\n"
    "Attention on tensors from files. The tensors q [B,Hq,Nq,D], k [B,Hk,Nk,D], v "
    "[B,Hk,Nk,Dv]\n"
    "may have rank 3 [H,N,D] or 2 [N,D] instead; mask, alibi, sink, dout, dlse are used when "
    "the\n"
    "file has them. Outputs are o, lse and the gradients dq dk dv, of q's rank, dmask and "
    "dsink, of\n"
    "rank 4; lse is [B,H,N] (natural logarithm).\n"
    "\n"
    "  ffpa run layer.safetensors --causal --lse -o out.safetensors\n"
    "  ffpa run q.npy k.npy v.npy --dtype bf16 --grad -o gradients/\n"
    "  ffpa run layer.safetensors --name q=layers.4.q --name k=layers.4.k --name v=layers.4.v\n"
    "  ffpa run layer.safetensors --expect answers.safetensors --causal --expect-suffix "
    "_causal\n"
    "\n"
    "Files\n"
    "  -o, --output PATH    .safetensors, .npy (one tensor) or an existing folder (one .npy "
    "each).\n"
    "                       Appears complete or not at all. .npy has no bf16: written as f32\n"
    "  --name ROLE=NAME     what a tensor is called in the .safetensors; ROLE as above\n"
    "  --mask --alibi --sink --dout --dlse FILE    that tensor from a file of its own\n"
    "  --dtype f32|f16|bf16 convert q k v dout first\n"
    "  --layout bhnd|bnhd   order of the axes of q k v dout o dq dk dv in files; bhnd without "
    "it.\n"
    "                       lse and biases are always [B,H,...]\n"
    "Attention\n"
    "  --causal[=br|tl]     query i sees keys up to i + Nk - Nq (br) or up to i (tl)\n"
    "  --window L:R         keys from i + Nk - Nq - L to i + Nk - Nq + R; -1 = unlimited\n"
    "  --scale S            factor on Q K^T; 1/sqrt(D) without it\n"
    "  --softcap C          scores become C tanh(score / C)\n"
    "  --dropout P          probability of dropping a weight; --seed N chooses which\n"
    "  --lse                also write lse\n"
    "  --grad               also run backward, on dout (all ones without it) and dlse\n"
    "Comparison\n"
    "  --expect FILE        compare each output with the tensor of its name in a "
    ".safetensors;\n"
    "                       exit 1 beyond tolerance, or when NaN or infinity is out of place\n"
    "  --expect-suffix S    append S to those names, such as _causal\n"
    "  --tolerance T        largest absolute error, 0 included. Default: 2 roundings of the "
    "output's\n"
    "                       dtype at the largest expected magnitude (5e-6 of it for f32), 4 "
    "for\n"
    "                       gradients\n";

static const char CHECK_HELP[] =
    "ffpa check PROBLEM... [options]\n"
    "\n"
    "Runs generated inputs three ways: the path that is in question, a naive path (the same "
    "dtype,\n"
    "f32 accumulation) and the float64 oracle. An output passes when its error against the "
    "oracle\n"
    "is at most 2 times the naive one's + 1e-5 (3 times for gradients) and every NaN and "
    "infinity\n"
    "is where the oracle has it. Inputs depend on the problem and its seed alone.\n"
    "\n"
    "  ffpa check fwd,bf16,b1h8,q1024k1024,d512v512,causal\n"
    "  ffpa check bwd,f32,b2h8k2,q300k300,d320,mask=bf16:hqk,sink --dlse\n"
    "  ffpa check -f problems.txt --isa portable\n"
    "\n"
    "A problem too large for the oracle is checked on sampled rows of every head; for backward "
    "dO\n"
    "is set to zero in all other rows, so the oracle's gradients are those of the whole "
    "problem.\n"
    "The output says so, and its repro line names the number of rows.\n"
    "\n"
    "  --rows N|all         rows to check; without it, as many as take a few seconds\n"
    "  --dlse               a gradient comes in through lse too\n"
    "  -f, --file FILE      problems from a file, one a line, # comments\n";

static const char BENCH_HELP[] =
    "ffpa bench PROBLEM... [options]\n"
    "\n"
    "Median time of at least 5 calls with a plan made before, after warm-up. FLOP counts "
    "valid\n"
    "query-key pairs only; GB/s counts each input read once and each output written once. "
    "Where\n"
    "memory is the limit (decode), the share of the machine's copy bandwidth, measured in the "
    "same\n"
    "run, stands beside it.\n"
    "\n"
    "  ffpa bench fwd,bf16,b1h8,q4096k4096,d512v512,causal\n"
    "  ffpa bench fwd,bf16,b1h8k1,q1k32768,d512v512 bwd,f32,b1h4,q1024k1024,d256v256\n"
    "\n"
    "  --seconds S          time to spend on timed calls of each problem (2)\n"
    "  -f, --file FILE      problems from a file, one a line, # comments\n";

static const char EXPLAIN_HELP[] =
    "ffpa explain PROBLEM... [options]\n"
    "\n"
    "How a problem would run, without running it: path, tiles, splits, threads, workspace, "
    "work,\n"
    "and every backend that was passed over with its reason. Exit 4 when nothing takes it.\n"
    "\n"
    "  ffpa explain bwd,bf16,b1h32k4,q4096k4096,d512v512,causal\n"
    "\n"
    "  -f, --file FILE      problems from a file, one a line, # comments\n";

static const char INFO_HELP[] =
    "ffpa info [options]\n"
    "\n"
    "Version, backends, instruction sets, threads and processor. Paste it into a bug report.\n";

static const char PREBUILD_HELP[] =
    "ffpa prebuild --arch ARCH[,ARCH...] --out DIR PROBLEM... [options]\n"
    "\n"
    "Compile the GPU kernels of problems into a folder, without a GPU. The folder may be "
    "copied to\n"
    "another machine and named there by FFPA_CACHE_DIR; no compiler is needed there.\n"
    "\n"
    "  ffpa prebuild --arch sm_90a --out pack fwd,bf16,b1h32,q8192k8192,d512v512,causal\n"
    "\n"
    "  --arch ARCHES        sm_80, sm_86, sm_89, sm_90a, sm_100a, sm_120a, ...\n"
    "  -o, --out DIR        the folder\n"
    "  -f, --file FILE      problems from a file, one a line, # comments\n";

static const char DOCTOR_HELP[] =
    "ffpa doctor [options]\n"
    "\n"
    "What will work on this machine, and why the rest will not: CPU, driver and GPU, run-time\n"
    "compiler, kernel cache. Each is tried. Exit 0 in any case.\n"
    "\n";

const command COMMANDS[] = {
    {"run", cmd_run, "attention on tensors from files, .safetensors and .npy", RUN_HELP},
    {"check", cmd_check, "a path against the float64 oracle", CHECK_HELP},
    {"bench", cmd_bench, "how fast a problem runs", BENCH_HELP},
    {"explain", cmd_explain, "how a problem would run, and why not otherwise", EXPLAIN_HELP},
    {"prebuild", cmd_prebuild, "compile GPU kernels into a folder, without a GPU",
     PREBUILD_HELP},
    {"doctor", cmd_doctor, "what will work on this machine, and why the rest will not",
     DOCTOR_HELP},
    {"info", cmd_info, "this library on this machine", INFO_HELP},
    {NULL, NULL, NULL, NULL}};

static const char CONTEXT_HELP[] =
    "  --backend NAME       auto (default), cuda, cpu, reference, naive\n"
    "  --isa NAME           auto (default), amx_bf16, avx512_bf16, avx512, avx2, portable\n"
    "  --threads N          CPU threads; one per processor without it\n"
    "  --allow-slow         let the reference take what no fast path supports\n";

static const char LAST_HELP[] =
    "  --json               one JSON document on the standard output\n"
    "Exit codes\n"
    "  0 done, every check passed     1 a check or comparison failed    2 wrong usage\n"
    "  3 a file could not be read, understood or written    4 the library refused or failed\n";

void help_program(FILE *out)
{
    fputs("ffpa - exact attention for large head dimensions\n\n", out);
    for (const command *c = COMMANDS; c->name; c++)
        fprintf(out, "  ffpa %-8s %s\n", c->name, c->summary);
    fputs("\n"
          "  ffpa help COMMAND    options and examples of a command\n"
          "  ffpa help problem    how to write a problem\n"
          "  ffpa --version\n"
          "\n"
          "Start with\n"
          "  ffpa check fwd,bf16,b1h8,q1024k1024,d512v512,causal\n"
          "  ffpa bench fwd,bf16,b1h8,q1024k1024,d512v512,causal\n\n",
          out);
    fputs("Common options; of prebuild and doctor --json alone\n", out);
    fputs(CONTEXT_HELP, out);
    fputs(LAST_HELP, out);
}

void help_problem(FILE *out)
{
    fputs(
        "A problem is one word: OP,DTYPE,bBhHQ[kHK],qNQkNK,dD[vDV][,option...]\n"
        "\n"
        "  OP                   fwd or bwd\n"
        "  DTYPE                f32, f16, bf16; f64 with --backend reference, but not for "
        "check\n"
        "  bBhHQ[kHK]           batch, query heads, key heads (as many as query heads without "
        "k)\n"
        "  qNQkNK               query rows, keys\n"
        "  dD[vDV]              head dimension of q and k, of v (the same without v)\n"
        "Options\n"
        "  causal               query i sees keys up to i + Nk - Nq (bottom-right)\n"
        "  causal_tl            query i sees keys up to i (top-left)\n"
        "  win<L>:<R>           a window around that key; -1 = unlimited\n"
        "  mask=TYPE[:AXES]     bool, f32, f16 or bf16; AXES are its full axes among bhqk,\n"
        "                       the others have size 1; qk without them\n"
        "  softcap<c>           scores become c tanh(score / c)\n"
        "  alibi, sink          linear biases by distance; one more logit per row\n"
        "  dropout<p>           probability of dropping a weight\n"
        "  scale<s>             factor on Q K^T; 1/sqrt(D) without it\n"
        "  bnhd                 memory order [B, N, H, D]\n"
        "  seed<n>              of dropout and of generated data\n"
        "  varlen=A+B+...       packed sequences of these lengths, one per batch entry\n"
        "  page<n>              keys in pages of n rows; varlen then gives each one's keys\n"
        "\n"
        "  fwd,bf16,b1h32k4,q4096k4096,d512v512,causal    prefill, eight query heads a key "
        "head\n"
        "  fwd,bf16,b4h16k1,q1k32768,d576v512,page64      decode from a paged cache\n"
        "  bwd,f32,b1h1,q4096k4096,d512                   one wide head, as in image decoders\n"
        "  bwd,bf16,b3h8k2,q300k300,d320,varlen=300+0+17  packed training\n",
        out);
}

void help_command(FILE *out, const command *c)
{
    fputs(c->help, out);
    const bool in_context = c->run != cmd_prebuild && c->run != cmd_doctor;
    fputs(in_context ? "\nCommon options\n" : "", out);
    fputs(in_context ? CONTEXT_HELP : "", out);
    fputs(LAST_HELP, out);
    if (c->run == cmd_check || c->run == cmd_bench || c->run == cmd_explain)
        fputs("How to write a problem: ffpa help problem\n", out);
}
