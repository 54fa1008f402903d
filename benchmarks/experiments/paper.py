"""The paper's numbers, to put beside ours: mean and standard deviation of five runs."""

LINK_PREDICTION = {
    ("disease", "HNN"): {"none": (79.21, 2.14), "lrbn": (76.58, 2.15), "gyro": (81.18, 0.93)},
    ("disease", "KNN"): {"none": (81.31, 1.37), "lrbn": (78.98, 1.51), "gyro": (81.56, 0.70)},
    ("disease", "LNN"): {"none": (87.71, 1.42), "lrbn": (85.31, 0.95), "gyro": (88.87, 0.33)},
    ("disease", "SNN"): {"none": (54.19, 2.21), "lrbn": (53.38, 4.07), "gyro": (71.84, 0.89)},
    ("disease", "PHNN"): {"none": (69.70, 2.01), "lrbn": (60.25, 1.25), "gyro": (72.26, 0.61)},
    ("airport", "HNN"): {"none": (94.63, 0.19), "lrbn": (94.17, 0.40), "gyro": (95.40, 0.17)},
    ("airport", "KNN"): {"none": (95.00, 0.05), "lrbn": (94.47, 0.33), "gyro": (96.14, 0.05)},
    ("airport", "LNN"): {"none": (93.86, 0.21), "lrbn": (93.05, 1.00), "gyro": (95.06, 0.12)},
    ("airport", "SNN"): {"none": (83.63, 0.77), "lrbn": (86.14, 0.79), "gyro": (91.12, 1.57)},
    ("airport", "PHNN"): {"none": (89.60, 0.99), "lrbn": (87.06, 0.46), "gyro": (90.44, 0.93)},
    ("cora", "HNN"): {"none": (89.96, 0.44), "lrbn": (93.47, 0.49), "gyro": (94.32, 0.22)},
    ("cora", "KNN"): {"none": (90.03, 0.32), "lrbn": (93.38, 0.12), "gyro": (93.48, 0.25)},
    ("cora", "LNN"): {"none": (91.84, 1.01), "lrbn": (92.62, 0.17), "gyro": (93.66, 0.30)},
    ("cora", "SNN"): {"none": (92.10, 0.40), "lrbn": (82.01, 0.71), "gyro": (93.16, 0.32)},
    ("cora", "PHNN"): {"none": (92.88, 0.26), "lrbn": (92.03, 0.42), "gyro": (93.26, 0.42)},
    ("pubmed", "HNN"): {"none": (95.02, 0.42), "lrbn": (93.40, 0.20), "gyro": (95.83, 0.11)},
    ("disease", "HNN++"): {"none": (80.19, 0.51), "lrbn": (61.18, 1.00), "gyro": (81.06, 0.95)},
    ("airport", "HNN++"): {"none": (94.74, 0.24), "lrbn": (95.21, 0.65), "gyro": (95.77, 0.18)},
    ("cora", "HNN++"): {"none": (91.06, 0.47), "lrbn": (88.22, 0.67), "gyro": (92.83, 0.32)},
}

RRESNET = {
    ("disease", 8): {"none": (68.32, 11.31), "lrbn": (62.96, 7.27), "gyro": (76.18, 2.98)},
    ("disease", 32): {"none": (71.48, 8.63), "lrbn": (65.72, 0.91), "gyro": (69.87, 2.97)},
    ("disease", 128): {"none": (54.19, 3.43), "lrbn": (63.06, 3.88), "gyro": (66.04, 4.04)},
    ("cora", 8): {"none": (71.77, 6.67), "lrbn": (61.94, 2.28), "gyro": (84.58, 5.44)},
    ("cora", 32): {"none": (77.14, 7.48), "lrbn": (62.26, 3.48), "gyro": (88.08, 2.90)},
    ("cora", 128): {"none": (80.75, 4.12), "lrbn": (87.92, 2.67), "gyro": (89.52, 3.42)},
}

STEPS = {
    ("disease", "HNN"): {1: (67.47, 2.76), 2: (74.76, 3.65), 5: (80.92, 1.19), 10: (81.44, 1.96)},
    ("cora", "HNN"): {1: (92.39, 0.27), 2: (94.01, 0.23), 5: (94.03, 0.21), 10: (94.03, 0.21)},
    ("disease", "LNN"): {1: (89.29, 0.52), 2: (88.96, 0.58), 5: (87.62, 1.49), 10: (89.35, 0.57)},
    ("cora", "LNN"): {1: (93.72, 0.08), 2: (93.78, 0.25), 5: (93.80, 0.23), 10: (93.80, 0.23)},
    ("disease", "SNN"): {1: (70.49, 3.18), 2: (72.96, 2.00), 5: (72.82, 1.74), 10: (71.73, 0.91)},
    ("cora", "SNN"): {1: (92.43, 0.90), 2: (93.09, 0.53), 5: (92.85, 0.41), 10: (92.64, 0.35)},
}
"""The paper's second block of the sphere is labelled "Projected Hypersphere" twice; by its last row
(71.84, 93.16) the second is the sphere."""

GRASSMANN = {
    "none": (48.97, 0.24),
    "manifold_norm": (49.67, 0.76),
    "lrbn": (48.64, 0.77),
    "gyro": (51.89, 0.37),
}
"""HDM05 with 117 classes, one block."""
GRASSMANN_BLOCKS = {"none": (49.23, 49.09, 47.02, 27.36), "gyro": (52.43, 50.62, 51.56, 30.29)}
"""One run each, one to four blocks."""
CONDITIONS = {
    "none": ("3.81 ± 0.23", "61.1 ± 4.2"),
    "manifold_norm": ("1.97 ± 0.15", "67.4 ± 6.8"),
    "lrbn": ("3.49 ± 0.46", "64.2 ± 6.4"),
    "gyro": ("2.37 ± 0.18", "59.9 ± 4.3"),
}
"""HDM05: condition numbers of the weights, and of the Jacobian."""
COVARIATE_SHIFT = {"pooling": "2.90 ± 0.11, 58.5 %", "transformation": "4.18 ± 0.04, 84.2 %"}
