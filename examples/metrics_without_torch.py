"""CMC of one video from plain arrays; needs numpy alone."""

import numpy as np

from lpa_cwm import metrics


def main():
    # Two points over five frames, in pixels of the 256 x 256 raster; each was queried in frame 0.
    truth_xy = np.array([[[100 + 3 * t, 80] for t in range(5)], [[40, 60 + 2 * t] for t in range(5)]], float)
    truth_visible = np.ones((2, 5), bool)
    query_frame = np.zeros(2, int)

    xy = truth_xy + 0.5
    visible = np.ones((2, 5), bool)
    visible[1, 2] = False  # one point is lost for a frame: DCA, coverage and LCC fall

    found = metrics.cmc(xy, visible, truth_xy, truth_visible, query_frame)
    print(found)
    return found


if __name__ == "__main__":
    main()
