"""A world model that matches, propagates and warps; every part is learned or a textbook method.

It predicts a target frame from a source frame and a fifth of the target's 8 x 8 patches.

1. **Describe** (once per frame). A small convolutional network gives every 8 x 8 patch at every fourth pixel a unit
   descriptor; its receptive field is the patch, so a hidden patch cannot leak. A U-Net gives the frame, in its role as
   source, context features: they say what belongs together.
2. **Observe** (once per pair). Every target patch is correlated with all source positions; a heavy-tailed prior favors
   short displacements. The four best local maxima are refined to sub-pixel precision by a soft-argmax and by
   Lucas-Kanade steps. They are the patch's motion hypotheses.
3. **Imagine** (once per pair and mask, all masks in one batch). A transformer reads all hypotheses of all visible
   patches; its attention adds Gaussian kernels of relative position and relative motion, so that neighbors that move
   alike support each other. It gives every hypothesis a probability, or none of them. Every hypothesis becomes an
   affine motion by a weighted least-squares fit to its neighborhood. Each cell attends to its ten nearest visible
   patches: a perceptron predicts whether cell and patch belong to the same object, from relative position,
   probability, agreement, and the source's context at both places. Mean shift groups the answers into four
   affine motions with weights; what the weights lack of one is the probability that the source does not show the cell.
4. **Intervene** (per query). The prediction is a mixture of backward warps and so linear in the source: the response
   to a Gaussian bump is the bump carried by the mixture, computed only in the cells that it reaches.
   `LearnedWorld.total_effect` is Eq. 1 literally: perturb, predict again, subtract.

Trained on exact correspondences of layered and simulated pairs (contrastive loss on the matching, negative
log-likelihood of the motion mixture) and on the colors of hidden patches of natural video.
"""
