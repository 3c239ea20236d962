"""One consensus out of many clusterings, on one machine: `python examples/fit_on_one_machine.py`.

Iris, clustered ten times by k-means, each time on two of its four measurements and with some number of clusters. Some
of the clusterings are poor, and nothing says which; the consensus need not know. Needs scikit-learn, only to have
something to combine.
"""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris

import ce


def base_clusterings() -> tuple[np.ndarray, np.ndarray]:
    """(150, 10) labels, and the species that nobody is told."""
    iris = load_iris()
    rng = np.random.default_rng(0)
    labels = []
    for seed in range(10):
        some = rng.choice(4, size=2, replace=False)
        k_means = KMeans(n_clusters=int(rng.integers(3, 6)), n_init=1, random_state=seed)
        labels.append(k_means.fit_predict(iris.data[:, some]))
    return np.column_stack(labels), iris.target


def main() -> dict[str, float]:
    labels, species = base_clusterings()
    labels[::7, 0] = -1  # a label may be missing: negative, or NaN
    alone = [ce.metrics.ari(species, column) for column in labels.T]

    model = ce.models.BCE(n_clusters=3, random_state=0).fit(labels)

    agreement = ce.metrics.ari(species, model.labels_)
    sure = model.memberships_.max(axis=1)
    print(f"one clustering agrees with the species by {np.mean(alone):.2f} on average, the best by {max(alone):.2f}")
    print(f"the consensus agrees by {agreement:.2f} (adjusted Rand index; 1 is the same, 0 is chance)")
    print(f"memberships say how sure it is: of {np.mean(sure > 0.9):.0%} of the flowers more than 90 %")
    print(f"the bound rose in {model.n_iter_} iterations to {model.lower_bound_:.1f}")
    return {"mean": float(np.mean(alone)), "consensus": agreement, "sure": float(np.mean(sure > 0.9))}


if __name__ == "__main__":
    main()
