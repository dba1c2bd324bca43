"""The compact world model: a layered-motion predictor (Wang & Adelson 1994) with 0.57 M learned parameters.

It predicts the hidden patches of a target frame from the source frame and the visible target patches:

1. *Block matching* (`matching`): every 8x8 target patch is compared with all source positions by 33 DCT
   coefficients under 7 rotations and scales. The best positions are refined to sub-pixel accuracy by two
   Lucas-Kanade steps (1981); 5 hypotheses are kept per patch. Nothing is learned here, and a patch is matched by
   its own pixels only, so matching runs once per frame pair, whatever the mask.
2. *Dominant motions* (`ransac`): RANSAC (Fischler & Bolles 1981) on the visible patches finds up to 4 affine
   motions; every visible patch gets one more hypothesis along each of them.
3. *Reliability* (`networks`): a 32-unit MLP on the matching cost, then two rounds of message passing between
   hypotheses that agree on the motion.
4. *Densification* (`densify`): as in EpicFlow (Revaud et al. 2015, arXiv:1501.02565) sparse matches become a dense
   field. Each 8x8 cell attends to its 40 most relevant matches (top-k sparse attention), groups them into 4 motions by
   greedy mode seeking, and fits each motion as an affine map by weighted least squares.
5. *Rendering* (`render`): a small U-Net blends, per pixel, the 4 backward warps of the source and an inpainted color,
   as Finn et al. (2016, arXiv:1605.07157) composite predicted motions. `networks` holds the U-Net and the features of
   the source.
6. *Intervention* (`render.warp_bump`): with warps and blending weights held fixed the renderer is linear in the source,
   so the response to a Gaussian bump at the query is the bump's image under the blended backward warps.

The training signal is color reconstruction of hidden patches; no motion labels are used.

What the default response is: `compact` holds the inferred motion fixed, so its "counterfactual response" is a Gaussian
carried by a multi-hypothesis flow field, a direct effect. Adjudication then chooses between the flow hypotheses of
different masks. `compact-total` (`PerturbedPredictor`) is Eq. 1 literally: the perturbed source is encoded, matched and
rendered again, and the factual prediction is subtracted. It costs about 40 times as much.
"""
