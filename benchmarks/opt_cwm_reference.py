"""The official arithmetic of Opt-CWM, written plainly: all tokens everywhere, every query and mask by itself.

Slow on purpose. It reads the weights of our modules and shares none of their computation.
"""

import torch
import torch.nn.functional as F


def attention(layer, x):
    b, length, dim = x.shape
    split = (b, length, layer.heads, dim // layer.heads)
    query = F.linear(x, layer.query.weight, layer.query.bias).view(split).transpose(1, 2)
    key, value = F.linear(x, layer.key_value.weight, layer.key_value.bias).chunk(2, dim=-1)
    key, value = key.reshape(split).transpose(1, 2), value.reshape(split).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(b, length, dim)
    return F.linear(mixed, layer.output.weight, layer.output.bias)


def transformer(module, x):
    for block in module.blocks:
        x = x + attention(block.attention, block.norm1(x))
        hidden = F.gelu(F.linear(block.norm2(x), block.mlp[0].weight, block.mlp[0].bias))
        x = x + F.linear(hidden, block.mlp[2].weight, block.mlp[2].bias)
    return module.norm(x)


def predict(predictor, source, target, hidden):
    """One forward pass: normalized frames [b 3 s s] and hidden [b p] to encoder states and predicted frame."""
    dim, patch, side = predictor.architecture.dim, predictor.architecture.patch, predictor.architecture.side
    kernel = predictor.embedding.weight.view(dim, 3, patch, patch)
    frames = [F.conv2d(x, kernel, predictor.embedding.bias, stride=patch) for x in (source, target)]
    tokens = torch.cat([x.flatten(2).transpose(1, 2) for x in frames], dim=1) + predictor.encoder_positions
    unseen = torch.cat((torch.zeros_like(hidden), hidden), dim=1)[..., None]
    states = transformer(predictor.encoder, torch.where(unseen, predictor.mask_token, tokens))
    bridged = F.linear(states, predictor.enc_to_dec.weight, predictor.enc_to_dec.bias)
    decoded = transformer(predictor.decoder, bridged + predictor.decoder_positions)
    pixels = F.linear(decoded, predictor.head.weight, predictor.head.bias)[:, side**2 :]
    pixels = torch.where(hidden[..., None], pixels, 0).view(-1, side, side, patch, patch, 3)
    return states, pixels.permute(0, 5, 1, 3, 2, 4).reshape(-1, 3, side * patch, side * patch)


def density(six):
    """Six numbers in (-1, 1) to 20 x 20 samples of a Gaussian scaled to its amplitude."""
    mean = 10 * six[:2]
    spread = 1 + 4.5 * (six[2:4] + 1)
    covariance = 0.98 * six[4] * spread[0] * spread[1]
    matrix = torch.stack((torch.stack((spread[0] ** 2, covariance)), torch.stack((covariance, spread[1] ** 2))))
    axis = torch.linspace(-10, 10, 20)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1)
    values = torch.distributions.MultivariateNormal(mean, matrix).log_prob(grid).exp()
    return six[5] * values / values.max()


def perturbed(world, source, states, row, column):
    """The normalized source [3 s s] with the intervention at one pixel added."""
    architecture = world.predictor.architecture
    state = states[row // architecture.patch * architecture.side + column // architecture.patch]
    blot = torch.stack([density(six) for six in world.generator.mlp(state).view(3, 6)])
    blot = blot.repeat_interleave(architecture.scale, 1).repeat_interleave(architecture.scale, 2)
    changed, half = source.clone(), blot.shape[-1] // 2
    for i in range(2 * half):
        for j in range(2 * half):
            y, x = row - half + i, column - half + j
            if 0 <= y < world.size and 0 <= x < world.size:
                changed[:, y, x] += blot[:, i, j]
    return changed


def respond(world, source, target, hidden, xy):
    """Response [3 s s] of one query through one mask [p]: two whole forward passes."""
    before, after = (source - world.mean) / world.std, (target - world.mean) / world.std
    states, factual = predict(world.predictor, before[None], after[None], hidden[None])
    column, row = (int(value) for value in xy)
    changed = perturbed(world, before, states[0], row, column)
    _, counterfactual = predict(world.predictor, changed[None], after[None], hidden[None])
    return (counterfactual - factual)[0]
