"""Score fields: the gradient of the log-density of images, which the analytic adjudicator compares with motion."""
