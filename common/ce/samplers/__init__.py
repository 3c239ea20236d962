"""Collapsed Gibbs samplers on one machine: `chains` draw, `diagnostics` say whether they agree, `point_estimate` puts
the draws together. A sampler needs all labels of an object in one place, so that none runs in a distributed job."""
