"""Stand-in for GMRW's tracking utility: same arguments, same order of coordinates, same visibility rule."""

import torch


def read(flow, points):
    x = points[..., 0].round().long().clamp(0, flow.shape[-1] - 1)
    y = points[..., 1].round().long().clamp(0, flow.shape[-2] - 1)
    return flow[0, :, y[0], x[0]].T[None]


def get_tracks_from_flows_query_points(query_points, forward_flows, backward_flows, device):
    """query_points (B, N, 3) are (t, y, x) and are overwritten; gives (B, T, N, 2) in x, y and (B, T, N)."""
    _, steps, _, height, width = forward_flows.shape
    query_points[..., 1:] = query_points[..., [2, 1]].clone()
    born = query_points[:, :, 0]
    points = [torch.where((born == 0)[..., None], query_points[..., 1:], 0.0)]
    misses = []
    for step in range(steps):
        ahead = read(forward_flows[:, step], points[-1])
        after = points[-1] + ahead
        misses.append((ahead + read(backward_flows[:, step], after)).norm(dim=2))
        points.append(torch.where((born == step + 1)[..., None], query_points[..., 1:], after))
    tracks = torch.stack(points, dim=1)
    close = torch.stack(misses, dim=1) < 3
    always = torch.ones_like(close[:, :1])
    inside = (tracks >= 0).all(-1) & (tracks[..., 0] < width) & (tracks[..., 1] < height)
    visible = inside & torch.cat((close, always), dim=1) & torch.cat((always, close), dim=1)
    visible |= born[:, None] == torch.arange(steps + 1)[None, :, None]
    return tracks, visible
