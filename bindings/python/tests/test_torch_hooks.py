"""transformers and diffusers with attention by libffpa: tiny random models whose heads are 512 wide, against the
packages' own attention."""
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

import ffpa  # noqa: E402


@pytest.fixture
def ran(monkeypatch):
    """Paths that ffpa_attn_func took while a model ran."""
    from ffpa import integrations
    taken = []

    def watched(*args, **call):
        out = ffpa.ffpa_attn_func(*args, **call)
        taken.append(ffpa.last_path())
        return out

    monkeypatch.setattr(integrations, "ffpa_attn_func", watched)
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    return taken


# ---- transformers --------------------------------------------------------------------------------------------

def decoder(kind, device, **more):
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, head_dim=512, max_position_embeddings=64, pad_token_id=0)
    config = getattr(transformers, kind + "Config")(**dict(sizes, **more))
    torch.manual_seed(0)
    return getattr(transformers, kind + "ForCausalLM")(config).to(device).eval()


DECODERS = [("Llama", {}), ("Gemma2", dict(sliding_window=8, attn_logit_softcapping=5.0)),
            ("Gemma3", dict(sliding_window=8)), ("GptOss", dict(sliding_window=8, num_local_experts=2, num_experts_per_tok=1))]


def model_of(kind, device, more):
    if kind == "Gemma3":
        transformers = pytest.importorskip("transformers")
        transformers.Gemma3Config, kind = transformers.Gemma3TextConfig, "Gemma3"
    return decoder(kind, device, **more)


@pytest.mark.parametrize("kind, more", DECODERS, ids=[d[0] for d in DECODERS])
def test_decoders(device, ran, kind, more):
    ffpa.register_transformers()
    model = model_of(kind, device, more)
    tokens = torch.randint(1, 61, (2, 20), device=device)
    padded = torch.ones_like(tokens)
    padded[1, :7] = 0  # padding on the left
    for attention_mask in (None, padded):
        results = []
        for name in ("eager", "ffpa"):
            model.set_attn_implementation(name)
            model.zero_grad()
            out = model(tokens, attention_mask=attention_mask, labels=tokens)
            out.loss.backward()
            results.append((out.logits.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
        (expected, grads), (found, ours) = results
        seen = slice(None) if attention_mask is None else attention_mask.bool()
        torch.testing.assert_close(found[seen], expected[seen], rtol=1e-3, atol=1e-4)
        if attention_mask is None:
            for a, b in zip(ours, grads):
                torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-4)
    assert ran and all(path.split("/")[0] == device for path in ran)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation(device, ran, cache):
    ffpa.register_transformers()
    model = decoder("Llama", device)
    tokens = torch.randint(1, 61, (2, 9), device=device)
    texts = []
    for name in ("eager", "ffpa"):
        model.set_attn_implementation(name)
        texts.append(model.generate(tokens, max_new_tokens=8, do_sample=False, cache_implementation=cache,
                                    disable_compile=True))
    assert texts[0].equal(texts[1]) and len(ran) >= 2 * 8


def test_output_attentions_is_refused():
    from ffpa.integrations import transformers_attention
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ffpa.FfpaError, match="output_attentions"):
        transformers_attention(torch.nn.Module(), q, q, q, None, output_attentions=True)


# ---- diffusers ------------------------------------------------------------------------------------------------

def test_diffusion_transformer(device, ran):
    diffusers = pytest.importorskip("diffusers")
    ffpa.register_diffusers()
    ffpa.register_diffusers()  # twice is fine
    torch.manual_seed(0)
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=512, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(128, 192, 192)).to(device)
    inputs = dict(
        hidden_states=torch.randn(1, 16, 4), encoder_hidden_states=torch.randn(1, 6, 32),
        pooled_projections=torch.randn(1, 32), timestep=torch.tensor([1.0]), img_ids=torch.zeros(16, 3),
        txt_ids=torch.zeros(6, 3))
    inputs = {name: t.to(device) for name, t in inputs.items()}
    model.set_attention_backend("native")
    with torch.no_grad():
        ran.clear()
        expected = model(**inputs).sample
        ran.clear()
        model.set_attention_backend("ffpa")
        found = model(**inputs).sample
    assert len(ran) == 2 and all(path.split("/")[0] == device for path in ran)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_image_autoencoder(device, ran):
    """One head, 512 wide, in the middle block: through F.scaled_dot_product_attention."""
    diffusers = pytest.importorskip("diffusers")
    from ffpa._torch_autograd import SDPA
    torch.manual_seed(0)
    model = diffusers.AutoencoderKL(block_out_channels=(512,), layers_per_block=1, norm_num_groups=32,
                                    down_block_types=("DownEncoderBlock2D",), up_block_types=("UpDecoderBlock2D",)).to(device)
    image = torch.randn(1, 3, 8, 8, device=device)
    with torch.no_grad():
        found = model(image).sample
        assert len(ran) == 2
        F.scaled_dot_product_attention = SDPA
        torch.testing.assert_close(found, model(image).sample, rtol=1e-3, atol=1e-4)
