"""The sixteen statistics one candidate at a time, as the paper's table words them; slow and plain on purpose."""

import math
import statistics as plain

import torch


def window(field, column, row, side):
    half = side // 2
    return [
        float(field[r, c])
        for r in range(row - half, row + half + 1)
        for c in range(column - half, column + half + 1)
        if 0 <= r < field.shape[0] and 0 <= c < field.shape[1]
    ]


def edge(gray, r, c):
    height, width = gray.shape
    down = (gray[min(r + 1, height - 1), c] - gray[max(r - 1, 0), c]) / (min(r + 1, height - 1) - max(r - 1, 0))
    across = (gray[r, min(c + 1, width - 1)] - gray[r, max(c - 1, 0)]) / (min(c + 1, width - 1) - max(c - 1, 0))
    return math.hypot(float(down), float(across))


def reference(pair, xy, peak, field):
    """One candidate's statistics as the table words them."""
    height, width = field.shape
    column = min(max(math.floor(float(peak[0])), 0), width - 1)
    row = min(max(math.floor(float(peak[1])), 0), height - 1)
    values = [float(v) for v in field.flatten()]
    end, total, median = float(field[row, column]), sum(values), plain.median_low(values)
    outside = [
        float(field[r, c]) for r in range(height) for c in range(width) if max(abs(r - row), abs(c - column)) > 5
    ]
    small = 1e-8
    change = (pair.target - pair.source).abs().mean(0)
    gray = 0.299 * pair.source[0] + 0.587 * pair.source[1] + 0.114 * pair.source[2]
    edges = torch.tensor([[edge(gray, r, c) for c in range(width)] for r in range(height)])
    shares = [v / (total + small) for v in values]
    return [
        float(peak[1] - xy[1]) / height,
        float(peak[0] - xy[0]) / width,
        end,
        plain.fmean(values),
        plain.pstdev(values),
        median,
        end / (plain.fmean(window(field, column, row, 7)) + small),
        end / (plain.fmean(window(field, column, row, 15)) + small),
        end / (median + small),
        end / (max(outside) + small),
        sum(window(field, column, row, 7)) / (total + small),
        sum(window(field, column, row, 15)) / (total + small),
        sum(window(field, column, row, 31)) / (total + small),
        -sum(s * math.log(s) for s in shares if s > 0) / math.log(height * width),
        plain.fmean(window(change, column, row, 7)),
        plain.fmean(window(edges, column, row, 7)),
    ]
