// outside_cxx.cc - the same from C++17: the header compiles, links and runs there too.
#include <ffpa/ffpa.h>

#include <array>
#include <cstdio>

int plan_get(int key) { return key + 1; }

int main()
{
    std::array<float, 4> k{1, 2, 1, 2}, v{1, 2, 3, 4};
    std::array<float, 2> q{1, 0}, o{};
    ffpa_context *context = nullptr;
    if (ffpa_context_create(nullptr, &context) != FFPA_OK)
        return std::puts(ffpa_last_error()), 1;

    ffpa_forward_params p = ffpa_forward_params_init();
    p.q = ffpa_tensor_4d(q.data(), FFPA_F32, 1, 1, 1, 2);
    p.k = ffpa_tensor_4d(k.data(), FFPA_F32, 1, 1, 2, 2);
    p.v = ffpa_tensor_4d(v.data(), FFPA_F32, 1, 1, 2, 2);
    p.o = ffpa_tensor_4d(o.data(), FFPA_F32, 1, 1, 1, 2);
    const ffpa_status status = ffpa_forward(context, &p);
    ffpa_context_destroy(context);
    if (status != FFPA_OK) return std::puts(ffpa_last_error()), 1;
    return o[0] != 2.0f || o[1] != 3.0f || plan_get(1) != 2;
}
