"""CMC and TAP-Vid written down as the definitions read: one loop per track, frame and threshold, nothing clever."""

import math
import statistics

THRESHOLDS = (1, 2, 4, 8, 16)
NAN = float("nan")


def distance(a, b):
    return math.hypot(a[0] - b[0], a[1] - b[1])


def share(part, whole):
    return part / whole if whole else NAN


def mean(values):
    return sum(values) / len(values) if values else NAN


def missing(point):
    return not (math.isfinite(point[0]) and math.isfinite(point[1]))


def path_length(truth, seen, query):
    length = 0.0
    for t in range(query, len(truth) - 1):
        if seen[t] and seen[t + 1]:
            length += distance(truth[t + 1], truth[t])
    return length


def segments(seen, query):
    """Unbroken stretches of visible frames after the query."""
    found, current = [], []
    for t in range(query + 1, len(seen)):
        if seen[t]:
            current.append(t)
        elif current:
            found.append(current)
            current = []
    return [*found, current] if current else found


def longest_shown(segment, shown):
    best = run = 0
    for t in segment:
        run = run + 1 if shown[t] else 0
        best = max(best, run)
    return best


def recoveries(segment, shown):
    was_shown = lost = False
    found = 0
    for t in segment:
        if shown[t]:
            found += lost
            was_shown, lost = True, False
        elif was_shown:
            lost = True
    return found


def plain_cmc(xy, visible, truth_xy, truth_visible, query_frame, motion=4.0, coverage=0.8):
    """CMC of one video."""
    normalize_weights, complete, success, longest, ceiling, gaps = [], [], {4: [], 8: []}, [], [], []
    hits = dict.fromkeys(THRESHOLDS, 0)
    total = covered = hidden = rightly = 0
    for i in range(len(xy)):
        query = query_frame[i]
        if path_length(truth_xy[i], truth_visible[i], query) < motion or not any(truth_visible[i][query + 1 :]):
            continue
        shown = [bool(visible[i][t]) and not missing(xy[i][t]) for t in range(len(xy[i]))]
        errors, seen = [], 0
        for t in range(query + 1, len(xy[i])):
            if not truth_visible[i][t]:
                hidden += 1
                rightly += not shown[t]
                continue
            seen += 1
            if shown[t]:
                errors.append(distance(xy[i][t], truth_xy[i][t]))
        for k in THRESHOLDS:
            for error in errors:
                hits[k] += error < k
        total, covered = total + seen, covered + len(errors)
        normalize_weights.append(len(errors) / seen)
        complete.append(normalize_weights[-1] >= coverage)
        for k in success:
            success[k].append(complete[-1] and bool(errors) and mean(errors) <= k)
        parts = segments(truth_visible[i], query)
        longest.append(max(longest_shown(part, shown) for part in parts) / seen)
        ceiling.append(max(map(len, parts)) / seen)
        gaps.append(sum(recoveries(part, shown) for part in parts))
    wrongly, claimed_visible = total - covered, hidden - rightly
    return {
        "coverage": mean(normalize_weights),
        "complete": mean(complete),
        "cts_4": mean(success[4]),
        "cts_8": mean(success[8]),
        **{f"dca_{k}": share(hits[k], total) for k in THRESHOLDS},
        "dca_avg": mean([share(hits[k], total) for k in THRESHOLDS]),
        "shown_avg": mean([share(hits[k], covered) for k in THRESHOLDS]),
        "vis_ba": (share(covered, total) + share(rightly, hidden)) / 2,
        "of1": 2 * rightly / (2 * rightly + wrongly + claimed_visible) if hidden else NAN,
        "lcc": mean(longest),
        "lcc_ceiling": mean(ceiling),
        "fragmentation": mean(gaps),
    }


def plain_tapvid(xy, visible, truth_xy, truth_visible, query_frame, mode="first"):
    """TAP-Vid of one video."""
    within, true, false = (dict.fromkeys(THRESHOLDS, 0) for _ in range(3))
    frames = agreeing = seen = 0
    far, far_query = [], []
    for i in range(len(xy)):
        for t in range(len(xy[i])):
            query = query_frame[i]
            error = math.inf if missing(xy[i][t]) else distance(xy[i][t], truth_xy[i][t])
            asked = t > query if mode == "first" else t != query
            if truth_visible[i][t] and (asked or t == query):
                far_query.append(256 * math.sqrt(2) if missing(xy[i][t]) else error)
            if not asked:
                continue
            frames += 1
            agreeing += bool(visible[i][t]) == bool(truth_visible[i][t])
            if truth_visible[i][t]:
                seen += 1
                far.append(far_query[-1])
            for k in THRESHOLDS:
                found = bool(truth_visible[i][t]) and error < k
                within[k] += found
                true[k] += found and bool(visible[i][t])
                false[k] += bool(visible[i][t]) and not found
    delta = {f"delta_{k}": share(within[k], seen) for k in THRESHOLDS}
    jaccard = {f"jaccard_{k}": share(true[k], seen + false[k]) for k in THRESHOLDS}
    return {
        **jaccard,
        "aj": mean(list(jaccard.values())),
        **delta,
        "delta_avg": mean(list(delta.values())),
        "oa": share(agreeing, frames),
        "ad": mean(far),
        "md": statistics.median(far) if far else NAN,
        "ad_query": mean(far_query),
        "md_query": statistics.median(far_query) if far_query else NAN,
    }
